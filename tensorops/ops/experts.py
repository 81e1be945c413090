"""Mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorops import formats
from tensorops._dtypes import narrow, widen, widen_integers
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._validation import (
    as_bool,
    as_choice,
    as_integer,
    as_number,
    checked_indices,
    require_floating,
    require_integer,
    require_ndim,
    shown,
)
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device, has_host_values, is_fixed
from tensorops.ops.activation import geglu, sigmoid, softmax, softplus, swiglu
from tensorops.ops.linear import linear
from tensorops.ops.quantization import (
    AFFINE,
    PRECISIONS,
    as_format,
    check_blocks,
    check_format,
    check_quantized,
    quantized_linear,
    unpacked,
)
from tensorops.ops.selection import top_k as select_top
from tensorops.typing import Array, ArrayInput, ArrayInputT, Namespace

__all__ = ["grouped_linear", "grouped_quantized_linear", "moe"]

# ------------------------------------------------------------------------------------------------ checks and row axes


def _check_rows(name: str, x: Array, experts: Array) -> None:
    """Check the rows and the experts to which they are assigned."""
    require_floating(name, x=x)
    require_integer(name, experts=experts)
    require_ndim(name, "x", x, 1)
    rows, own = tuple(x.shape[:-1]), tuple(experts.shape)
    pairs = zip(reversed(own), reversed(rows), strict=False)
    fits = all(n == m or n == 1 or m == 1 or n != n or m != m for n, m in pairs)  # a size unknown to Dask is NaN
    if len(own) > len(rows) or not fits:
        raise ValueError(f"{name}: experts has shape {own}, which does not broadcast with the rows {rows} of x")


def _check_stack(name: str, label: str, stack: Array, columns: int, wanted: int) -> None:
    """Check that matrices, one for each expert, multiply rows of the wanted length."""
    if stack.shape[0] == 0:
        raise ValueError(f"{name}: {label} has no experts along its first axis")
    if columns != wanted:
        raise ValueError(f"{name}: {label} has {columns} columns, but the last axis of x has {wanted}")


def _check_grouped_linear(name: str, x: Array, experts: Array, weight: Array, bias: Array | None) -> None:
    require_floating(name, x=x, weight=weight, bias=bias)
    _check_rows(name, x, experts)
    require_ndim(name, "weight", weight, 3, 3)
    _check_stack(name, "weight", weight, weight.shape[2], x.shape[-1])
    if bias is not None and tuple(bias.shape) != tuple(weight.shape[:2]):
        raise ValueError(
            f"{name}: bias has shape {tuple(bias.shape)}, but weight has (experts, out) {tuple(weight.shape[:2])}"
        )


def _check_grouped_quantized_linear(
    name: str,
    x: Array,
    experts: Array,
    weight: Array,
    scales: Array | None,
    biases: Array | None,
    bits: int,
    group_size: int,
    format: str,
    precision: str,
) -> dict[str, Any]:
    _check_rows(name, x, experts)
    precise = {"precision": as_choice(name, "precision", precision, PRECISIONS)}
    if (format := as_format(name, format)) != AFFINE:
        blocks = check_blocks(name, "weight", weight, {"scales": scales, "biases": biases}, format, 3)
        _check_stack(name, "weight", weight, weight.shape[2] // blocks.nbytes * blocks.elements, x.shape[-1])
        return precise | {"format": format}
    arrays = {"weight": weight, "scales": scales, "biases": biases}
    options = check_quantized(name, arrays, bits, group_size, ("experts", "rows"))
    _check_stack(name, "weight", weight, weight.shape[2] * 8 // options["bits"], x.shape[-1])
    return options | precise


def _grouped_rows(
    x: Array, experts: Array, inner: tuple[str, ...], **parameters: tuple[Array | None, str | None]
) -> RowAxes:
    """Return the axes of rows, their experts, and parameters (experts, out, one of the axes `inner`)."""
    *rows, columns = every_axis(x)
    which, out = x.ndim, x.ndim + 1
    number = {"columns": columns, **{name: x.ndim + 2 + i for i, name in enumerate(inner)}}
    axes = {
        name: (a, (which, out) if axis is None else (which, out, number[axis]))
        for name, (a, axis) in parameters.items()
    }
    arrays = given(x=(x, every_axis(x)), experts=(experts, tuple(rows[len(rows) - experts.ndim :])), **axes)
    return RowAxes(arrays, (*rows, out), whole=(which, *number.values()))


def _grouped_linear_rows(x: Array, experts: Array, weight: Array, bias: Array | None) -> RowAxes:
    return _grouped_rows(x, experts, (), weight=(weight, "columns"), bias=(bias, None))


def _grouped_quantized_linear_rows(
    x: Array, experts: Array, weight: Array, scales: Array | None, biases: Array | None, **_: Any
) -> RowAxes:
    if scales is None:
        return _grouped_rows(x, experts, ("packed",), weight=(weight, "packed"))
    inner = ("packed", "groups")
    return _grouped_rows(
        x, experts, inner, weight=(weight, "packed"), scales=(scales, "groups"), biases=(biases, "groups")
    )


# ------------------------------------------------------------------------------------------------ products by expert


@operator(check=_check_grouped_linear, rows=_grouped_linear_rows)
def grouped_linear(
    x: ArrayInputT, experts: ArrayInput, weight: ArrayInput, bias: ArrayInput | None = None
) -> ArrayInputT:
    r"""Affine map of each row by the matrix of the expert to which the row is assigned.

    .. math:: y_i = W_{e_i} x_i + b_{e_i}

    Other names are grouped GEMM, `torch._grouped_mm`, `jax.lax.ragged_dot` and `mx.gather_mm`. Rows need not be
    sorted by expert, and a call never holds a matrix for each row.

    Parameters
    ----------
    x : array, floating point, shape (..., in)
        Rows :math:`x_i`.
    experts : array of integers, shape (...)
        The expert :math:`e_i` of each row. Its axes and the axes of `x` but the last broadcast: rows of shape
        (tokens, 1, in) with experts of shape (tokens, k) multiply each token with k matrices. It has at most as many
        axes as `x` has besides the last.
    weight : array, floating point, shape (experts, out, in)
        The matrices :math:`W`.
    bias : array, floating point, shape (experts, out), optional
        The vectors :math:`b`.

    Returns
    -------
    array, shape (..., out)
        Dtype, library and device of `x`; half types are multiplied and summed in float32.

    Raises
    ------
    TypeError
        If `experts` are not integers, or another input is not floating point.
    ValueError
        If shapes do not match, or `experts` has an index out of range. Indices of Dask are checked when they are
        computed. Indices that are traced or on an accelerator are not: the results of rows whose index is out of range
        are NaN. The kernel for JAX raises its own error.

    References
    ----------
    Gale et al., "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", 2022,
    https://arxiv.org/abs/2211.15841

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> weight = np.asarray([[[1.0, 1.0]], [[1.0, -1.0]]])  # two experts with one output
    >>> tensorops.grouped_linear(np.asarray([[3.0, 1.0], [3.0, 1.0], [0.5, 0.0]]), np.asarray([1, 0, 1]), weight)
    array([[2. ],
           [4. ],
           [0.5]])
    """
    xp = get_namespace(x, experts, weight, bias)
    experts = checked_indices("grouped_linear", "experts", experts, weight.shape[0], xp)

    def multiply(rows: Array, expert: Array) -> Array:
        wide, w, b = widen(xp, rows, xp.take(weight, expert, axis=0), _taken(xp, bias, expert))
        y = xp.matmul(wide, xp.matrix_transpose(w))
        return y if b is None else y + xp.expand_dims(b, axis=-2)

    return narrow(xp, _by_expert(xp, x, experts, weight.shape[:2], multiply), x)


@operator(check=_check_grouped_quantized_linear, rows=_grouped_quantized_linear_rows)
def grouped_quantized_linear(
    x: ArrayInputT,
    experts: ArrayInput,
    weight: ArrayInput,
    scales: ArrayInput | None = None,
    biases: ArrayInput | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    format: str = "affine",
    precision: str = "highest",
) -> ArrayInputT:
    r"""Linear map of each row by the quantized matrix of the expert to which the row is assigned.

    .. math:: y_i = W_{e_i} x_i, \qquad W = s \, q + b

    It is to `grouped_linear` what `quantized_linear` is to `linear`; MLX calls it `mx.gather_qmm`.

    Parameters
    ----------
    x : array, floating point, shape (..., in)
        Rows :math:`x_i`.
    experts : array of integers, shape (...)
        The expert :math:`e_i` of each row; broadcasts with the rows of `x`, see `grouped_linear`.
    weight : array of uint8, shape (experts, out, in · bits / 8)
        The integers of each expert's matrix, see `quantize`. With a `format`, rows of its blocks.
    scales : array, floating point, shape (experts, out, in / group_size), optional
        Scales :math:`s`; blocks have their own.
    biases : array, optional
        Biases :math:`b`, like `scales`; without them `weight` holds int8 in two's complement.
    bits : {4, 8}, optional
        Size of an integer.
    group_size : int, optional
        How many neighbours in a row share a scale.
    format, precision : str, optional
        As for `quantized_linear`.

    Returns
    -------
    array, shape (..., out)
        Dtype, library and device of `x`.

    Raises
    ------
    TypeError
        If `experts` are not integers, `weight` is not uint8, or another input is not floating point.
    ValueError
        If shapes do not match, an option is invalid, or `experts` has an index out of range, as for
        `grouped_linear`.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> packed = np.asarray([[[16, 242]], [[17, 17]]], dtype=np.uint8)  # 0, 1, 2, 15 and 1, 1, 1, 1
    >>> scales, biases = np.asarray([[[2.0]], [[1.0]]]), np.asarray([[[1.0]], [[0.0]]])
    >>> tensorops.grouped_quantized_linear(np.ones((2, 4)), np.asarray([0, 1]), packed, scales, biases, group_size=4)
    array([[40.],
           [ 4.]])
    """
    xp = get_namespace(x, experts, weight, scales, biases)
    experts = checked_indices("grouped_quantized_linear", "experts", experts, weight.shape[0], xp)

    def multiply_blocks(rows: Array, expert: Array) -> Array:
        (wide,) = widen(xp, rows)
        w = formats.get(format).values(xp, xp.take(weight, expert, axis=0))
        return xp.matmul(wide, xp.matrix_transpose(xp.astype(w, wide.dtype)))

    def multiply(rows: Array, expert: Array) -> Array:
        w, s, b = (_joined(xp, _taken(xp, a, expert)) for a in (weight, scales, biases))
        wide, s, b = widen(xp, rows, s, b)
        w = xp.reshape(unpacked(xp, w, s, b, bits, group_size), (expert.shape[0], weight.shape[1], x.shape[-1]))
        return xp.matmul(wide, xp.matrix_transpose(w))

    chosen = multiply_blocks if scales is None else multiply
    return narrow(xp, _by_expert(xp, x, experts, weight.shape[:2], chosen), x)


def _taken(xp: Namespace, a: Array | None, index: Array) -> Array | None:
    return None if a is None else xp.take(a, index, axis=0)


def _joined(xp: Namespace, stack: Array | None) -> Array | None:
    """Return the matrices of a stack one below the other."""
    return None if stack is None else xp.reshape(stack, (stack.shape[0] * stack.shape[1], stack.shape[2]))


def _by_expert(
    xp: Namespace, x: Array, experts: Array, stack: tuple[int, int], multiply: Callable[[Array, Array], Array]
) -> Array:
    """Return the products of rows with their experts' matrices, in float32 or float64.

    Shapes must not depend on values. The rows of each expert therefore fill whole blocks of one height, the last of
    them up with zeros, and `multiply` multiplies (block, row, in) by the matrix of each block's expert. The height is
    that of rows in equal shares: however they are distributed, there are less than twice as many blocks as experts.

    Parameters
    ----------
    xp
        The namespace of the arrays.
    x, experts
        Rows, and their experts.
    stack
        How many experts there are, and outputs.
    multiply
        Takes rows (block, row, in) and the expert of each block, returns (block, row, out).
    """
    number, outputs = stack
    shape = _broadcast(tuple(x.shape[:-1]), tuple(experts.shape))
    rows = math.prod(shape)
    if rows == 0 or outputs == 0:
        return xp.zeros((*shape, outputs), dtype=widen(xp, x)[0].dtype, device=creation_device(x))
    index = widen_integers(xp, experts, creation_device(experts))
    index = xp.reshape(xp.broadcast_to(index, shape), (rows,))
    known = None
    if not has_host_values(experts):
        known = (index >= 0) & (index < number)
        index = xp.where(known, index, xp.zeros_like(index))
    flat, source = _flat_rows(xp, x, shape, rows)
    share = rows // number
    # In a trace for any number of rows, the height is surely not 1, which libraries take for a case of its own.
    height = -(-rows // number) if is_fixed(share, x) else share + 2
    if height == 1:
        y = multiply(xp.expand_dims(_taken_rows(xp, flat, source, None), axis=-2), index)[:, 0, :]
    else:
        y = _in_blocks(xp, flat, source, index, number, height, multiply)
    if known is not None:
        y = xp.where(xp.expand_dims(known, axis=-1), y, xp.full_like(y, float("nan")))
    return xp.reshape(y, (*shape, outputs))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape of `a` and `b`, of which `b` is not the longer."""
    b = (1,) * (len(a) - len(b)) + b
    return tuple(m if n == 1 else n for n, m in zip(a, b, strict=True))


def _flat_rows(xp: Namespace, x: Array, shape: tuple[int, ...], rows: int) -> tuple[Array, Array | None]:
    """Return the rows of `x` one after another, and which of them each of `rows` is, unless they are the same."""
    count = math.prod(x.shape[:-1])
    flat = xp.reshape(x, (count, x.shape[-1]))
    if tuple(x.shape[:-1]) == shape:
        return flat, None
    own = xp.reshape(xp.arange(count, device=creation_device(x)), tuple(x.shape[:-1]))
    return flat, xp.reshape(xp.broadcast_to(own, shape), (rows,))


def _taken_rows(xp: Namespace, flat: Array, source: Array | None, index: Array | None) -> Array:
    if source is not None:
        index = source if index is None else xp.take(source, index, axis=0)
    return flat if index is None else xp.take(flat, index, axis=0)


def _in_blocks(
    xp: Namespace,
    flat: Array,
    source: Array | None,
    index: Array,
    number: int,
    height: int,
    multiply: Callable[[Array, Array], Array],
) -> Array:
    """Return the product of each row, computed in blocks of rows of one expert."""
    rows, device = index.shape[0], creation_device(flat)
    most = rows // height + number  # blocks
    every = xp.arange(number, device=device)
    counts = xp.sum(xp.astype(xp.expand_dims(index, axis=1) == every, every.dtype), axis=0)
    first_row = xp.cumulative_sum(counts) - counts  # of an expert, among the sorted rows
    blocks = (counts + (height - 1)) // height
    last_block = xp.cumulative_sum(blocks)
    first_block = last_block - blocks
    # The expert of each block, and its rows
    block = xp.arange(most, device=device)
    expert = xp.sum(xp.astype(xp.expand_dims(block, axis=1) >= last_block, every.dtype), axis=1)
    is_used = expert < number
    expert = xp.where(is_used, expert, xp.zeros_like(expert))
    begin = (block - xp.take(first_block, expert, axis=0)) * height  # within the expert's rows
    within = xp.expand_dims(begin, axis=1) + xp.arange(height, device=device)
    is_row = xp.expand_dims(is_used, axis=1) & (within < xp.expand_dims(xp.take(counts, expert, axis=0), axis=1))
    place = xp.expand_dims(xp.take(first_row, expert, axis=0), axis=1) + within
    place = xp.reshape(xp.where(is_row, place, xp.zeros_like(place)), (most * height,))
    order = xp.argsort(index)
    taken = xp.reshape(_taken_rows(xp, flat, source, xp.take(order, place, axis=0)), (most, height, flat.shape[-1]))
    y = multiply(xp.where(xp.expand_dims(is_row, axis=2), taken, xp.zeros_like(taken)), expert)
    # Where each row is now
    rank = xp.argsort(order) - xp.take(first_row, index, axis=0)
    where = xp.take(first_block, index, axis=0) * height + rank
    return xp.take(xp.reshape(y, (most * height, y.shape[-1])), where, axis=0)


# ---------------------------------------------------------------------------------------------------- the whole layer


def _check_projection(
    name: str, part: str, arrays: dict[str, Any], options: dict[str, Any], experts: int
) -> tuple[int, int]:
    """Check a matrix for each expert, or a single one if there are 0; return its rows and columns."""
    proj, scales, biases = (arrays[f"{part}_{what}"] for what in ("proj", "scales", "biases"))
    axes = ("experts", "rows") if experts else ("rows",)
    format = options[f"{part}_format"]
    if format != AFFINE:
        others = {f"{part}_scales": scales, f"{part}_biases": biases}
        blocks = check_blocks(name, f"{part}_proj", proj, others, format, len(axes) + 1)
        columns = proj.shape[-1] // blocks.nbytes * blocks.elements
    elif scales is None:
        if biases is not None:
            raise ValueError(f"{name}: {part}_biases is given without {part}_scales")
        require_floating(name, **{f"{part}_proj": proj})
        require_ndim(name, f"{part}_proj", proj, len(axes) + 1, len(axes) + 1)
        columns = proj.shape[-1]
    else:
        named = {f"{part}_proj": proj, f"{part}_scales": scales, f"{part}_biases": biases}
        check_quantized(name, named, options["bits"], options["group_size"], axes)
        columns = proj.shape[-1] * 8 // options["bits"]
    if experts and proj.shape[0] != experts:
        raise ValueError(f"{name}: {part}_proj has {proj.shape[0]} experts, but router_logits has {experts}")
    return proj.shape[-2], columns


def _check_feed_forward(
    name: str, prefix: str, arrays: dict[str, Any], features: int, options: dict[str, Any], experts: int
) -> None:
    """Check both projections of the experts or, if there are 0, of a single block."""
    gate_up, down = f"{prefix}gate_up", f"{prefix}down"
    both, columns = _check_projection(name, gate_up, arrays, options, experts)
    outputs, hidden = _check_projection(name, down, arrays, options, experts)
    if columns != features:
        raise ValueError(f"{name}: {gate_up}_proj has {columns} columns, but the last axis of x has {features}")
    if both != 2 * hidden:
        raise ValueError(
            f"{name}: {gate_up}_proj has {both} rows, but {down}_proj has {hidden} columns: expected twice as many"
        )
    if outputs != features:
        raise ValueError(f"{name}: {down}_proj has {outputs} rows, but the last axis of x has {features}")


def _check_moe(
    name: str,
    x: Array,
    router_logits: Array,
    e_score_correction_bias: Array | None,
    top_k: int,
    scoring_func: str,
    renormalize: bool,
    routed_scaling_factor: float,
    activation: str,
    bits: int,
    group_size: int,
    precision: str,
    **weights: Any,
) -> dict[str, Any]:
    named = {label: weights.pop(label) for label in _FORMATS}
    gate = weights["shared_expert_gate"]
    require_floating(
        name,
        x=x,
        router_logits=router_logits,
        e_score_correction_bias=e_score_correction_bias,
        shared_expert_gate=gate,
    )
    require_ndim(name, "x", x, 1)
    sizes = zip(router_logits.shape[:-1], x.shape[:-1], strict=False)
    if router_logits.ndim != x.ndim or any(n != m and n == n and m == m for n, m in sizes):  # NaN: unknown to Dask
        raise ValueError(
            f"{name}: router_logits has shape {tuple(router_logits.shape)}, but x has {tuple(x.shape)}: all axes but "
            f"the last must be equal"
        )
    features, experts = x.shape[-1], router_logits.shape[-1]
    if experts == 0:
        raise ValueError(f"{name}: router_logits has no experts along its last axis")
    if e_score_correction_bias is not None and tuple(e_score_correction_bias.shape) != (experts,):
        raise ValueError(
            f"{name}: e_score_correction_bias has shape {tuple(e_score_correction_bias.shape)}, but router_logits has "
            f"{experts} experts"
        )
    top_k = as_integer(name, "top_k", top_k)
    if not 1 <= top_k <= experts:
        raise ValueError(f"{name}: top_k is {shown(top_k)}, expected 1 … {experts}, the number of experts")
    options = check_format(name, bits, group_size, "affine")
    options |= {label: as_format(name, value, label) for label, value in named.items()}
    _check_feed_forward(name, "", weights, features, options, experts)
    _check_shared(name, weights, features, options)
    options.pop("mode")
    return options | {
        "precision": as_choice(name, "precision", precision, PRECISIONS),
        "top_k": top_k,
        "scoring_func": as_choice(name, "scoring_func", scoring_func, ("softmax", "sigmoid")),
        "renormalize": as_bool(name, "renormalize", renormalize),
        "routed_scaling_factor": as_number(name, "routed_scaling_factor", routed_scaling_factor),
        "activation": as_choice(name, "activation", activation, ("swiglu", "geglu")),
    }


def _check_shared(name: str, weights: dict[str, Any], features: int, options: dict[str, Any]) -> None:
    """Check the arrays of the shared block, if there is one."""
    gate_up, down, gate = (weights[f"shared_{what}"] for what in ("gate_up_proj", "down_proj", "expert_gate"))
    if gate_up is not None and down is not None:
        if gate is not None and tuple(gate.shape) != (1, features):
            raise ValueError(
                f"{name}: shared_expert_gate has shape {tuple(gate.shape)}, expected {(1, features)}, as for linear"
            )
        return _check_feed_forward(name, "shared_", weights, features, options, 0)
    for label, array in weights.items():
        if label.startswith("shared") and array is not None:
            raise ValueError(f"{name}: {label} is given, but not both shared_gate_up_proj and shared_down_proj")
    return None


_FORMATS = ("gate_up_format", "down_format", "shared_gate_up_format", "shared_down_format")


def _moe_rows(x: Array, router_logits: Array, **arguments: Any) -> RowAxes:
    *rows, features = every_axis(x)
    experts, free = x.ndim, x.ndim + 1
    axes = {"x": (x, every_axis(x)), "router_logits": (router_logits, (*rows, experts))}
    for label, value in arguments.items():
        if hasattr(value, "shape"):  # every axis of its own, as all of them are whole
            axes[label] = (value, tuple(range(free, free + value.ndim)))
            free += value.ndim
    return RowAxes(given(**axes), (*rows, features), whole=(features, *range(experts, free)))


@operator(
    check=_check_moe,
    rows=_moe_rows,
    calls=(
        select_top,
        softmax,
        sigmoid,
        softplus,
        grouped_linear,
        grouped_quantized_linear,
        swiglu,
        geglu,
        linear,
        quantized_linear,
    ),
)
def moe(
    x: ArrayInputT,
    router_logits: ArrayInput,
    gate_up_proj: ArrayInput,
    down_proj: ArrayInput,
    *,
    gate_up_scales: ArrayInput | None = None,
    gate_up_biases: ArrayInput | None = None,
    down_scales: ArrayInput | None = None,
    down_biases: ArrayInput | None = None,
    e_score_correction_bias: ArrayInput | None = None,
    shared_gate_up_proj: ArrayInput | None = None,
    shared_down_proj: ArrayInput | None = None,
    shared_gate_up_scales: ArrayInput | None = None,
    shared_gate_up_biases: ArrayInput | None = None,
    shared_down_scales: ArrayInput | None = None,
    shared_down_biases: ArrayInput | None = None,
    shared_expert_gate: ArrayInput | None = None,
    top_k: int,
    scoring_func: str = "softmax",
    renormalize: bool = True,
    routed_scaling_factor: float = 1.0,
    activation: str = "swiglu",
    bits: int = 4,
    group_size: int = 32,
    gate_up_format: str = "affine",
    down_format: str = "affine",
    shared_gate_up_format: str = "affine",
    shared_down_format: str = "affine",
    precision: str = "highest",
) -> ArrayInputT:
    r"""Mixture of experts: each token is the weighted sum of what a few of many feed-forward blocks make of it.

    .. math::
        y = c \sum_{e \in T} w_e \, D_e \operatorname{glu}(G_e x, U_e x), \qquad
        w_e = \frac{s_e}{\sum_{j \in T} s_j}, \quad s = \operatorname{softmax}(r)
        \text{ or } \operatorname{sigmoid}(r)

    :math:`T` are the `top_k` experts of largest :math:`s_e`, or :math:`s_e + b_e` with correction biases; of equal
    ones, those with lower numbers, and those that are NaN last. With ``renormalize=False``, :math:`w_e = s_e`. No
    token is dropped: an expert takes all that are assigned to it.

    Parameters
    ----------
    x : array, floating point, shape (..., features)
        Tokens.
    router_logits : array, floating point, shape (..., experts)
        Logits :math:`r`, such as ``linear(x, router_weight)``.
    gate_up_proj : array, shape (experts, 2 · hidden, features)
        The rows of :math:`G_e`, then those of :math:`U_e`.
    down_proj : array, shape (experts, features, hidden)
        The matrices :math:`D_e`.
    gate_up_scales, gate_up_biases, down_scales, down_biases : array, optional
        Of quantized matrices, see `grouped_quantized_linear`.
    e_score_correction_bias : array, shape (experts,), optional
        Numbers :math:`b_e` that are added to the scores to choose experts, not to weight them.
    shared_gate_up_proj, shared_down_proj : array, shape (2 · shared, features) and (features, shared), optional
        A feed-forward block that every token passes, whose result is added. Several of them are one, stacked.
    shared_gate_up_scales, shared_gate_up_biases, shared_down_scales, shared_down_biases : array, optional
        Of quantized matrices, see `quantized_linear`.
    shared_expert_gate : array, shape (1, features), optional
        Multiplies the result of the shared block by the sigmoid of its product with `x`, as in Qwen2-MoE.
    top_k : int
        How many experts each token passes.
    scoring_func : {"softmax", "sigmoid"}, optional
        What makes scores of logits.
    renormalize : bool, optional
        Whether the weights of each token's experts are divided by their sum.
    routed_scaling_factor : float, optional
        Factor :math:`c`.
    activation : {"swiglu", "geglu"}, optional
        The gated unit.
    bits, group_size : int, optional
        Those of affine quantized matrices, which have scales.
    gate_up_format, down_format, shared_gate_up_format, shared_down_format : str, optional
        The format of matrices in blocks, see `quantized_linear`.
    precision : {"highest", "high", "low"}, optional
        As for `quantized_linear`.

    Returns
    -------
    array
        Shape, dtype, library and device of `x`; half types are computed in float32 and rounded once.

    Raises
    ------
    TypeError
        If an input has a wrong dtype, or an option a wrong type.
    ValueError
        If shapes do not match, or an option is invalid.

    Notes
    -----
    Mixtral is ``moe(x, linear(x, gate), gate_up_proj, down_proj, top_k=2)``; Qwen3-MoE the same with
    ``renormalize=norm_topk_prob``; DeepSeek-V3 has ``scoring_func="sigmoid"``, `e_score_correction_bias`,
    `routed_scaling_factor` and a shared expert. Names are those of vLLM's ``FusedMoE``, and of the weights in
    transformers. Routers that choose groups of experts first are not supported.

    References
    ----------
    Jiang et al., "Mixtral of Experts", 2024, https://arxiv.org/abs/2401.04088
    DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, https://arxiv.org/abs/2412.19437

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x, router_logits = np.asarray([[1.0, 2.0]]), np.asarray([[0.0, 9.0, 0.0]])
    >>> gate_up_proj = np.ones((3, 2, 2)) * np.asarray([1.0, 2.0, 3.0])[:, None, None]
    >>> tensorops.moe(x, router_logits, gate_up_proj, np.ones((3, 2, 1)), top_k=1)  # 6 · silu(6)
    array([[35.91098557, 35.91098557]])
    """
    xp = get_namespace(x, router_logits)
    gated = swiglu if activation == "swiglu" else geglu
    wide, logits = widen(xp, x, router_logits)
    weights, experts = _route(xp, logits, e_score_correction_bias, top_k, scoring_func, renormalize)

    options: dict[str, Any] = {"bits": bits, "group_size": group_size, "precision": precision}

    def routed(rows: Array, proj: Array, scales: Array | None, biases: Array | None, format: str) -> Array:
        if scales is None and format == AFFINE:
            return grouped_linear(rows, experts, proj)
        return grouped_quantized_linear(rows, experts, proj, scales, biases, format=format, **options)

    def shared(rows: Array, proj: Array, scales: Array | None, biases: Array | None, format: str) -> Array:
        if scales is None and format == AFFINE:
            return linear(rows, proj)
        return quantized_linear(rows, proj, scales, biases, format=format, **options)

    def halves(both: Array) -> tuple[Array, Array]:
        hidden = both.shape[-1] // 2
        return both[..., :hidden], both[..., hidden:]

    hidden = routed(wide[..., None, :], gate_up_proj, gate_up_scales, gate_up_biases, gate_up_format)
    each = routed(gated(*halves(hidden)), down_proj, down_scales, down_biases, down_format)  # (..., top_k, features)
    if routed_scaling_factor != 1.0:
        weights = weights * routed_scaling_factor
    y = xp.matmul(weights[..., None, :], each)[..., 0, :]
    if shared_gate_up_proj is not None:
        hidden = shared(wide, shared_gate_up_proj, shared_gate_up_scales, shared_gate_up_biases, shared_gate_up_format)
        gates = gated(*halves(hidden))
        always = shared(gates, shared_down_proj, shared_down_scales, shared_down_biases, shared_down_format)
        if shared_expert_gate is not None:
            always = always * sigmoid(linear(wide, shared_expert_gate))
        y = y + always
    return narrow(xp, y, x)


def _route(
    xp: Namespace, logits: Array, correction: Array | None, top_k: int, scoring_func: str, renormalize: bool
) -> tuple[Array, Array]:
    """Return the weights and the numbers of each token's experts.

    Scores are ascending in their logits: without a correction, logits decide, among which rounding makes no ties.
    Weights are renormalized by a softmax over the logarithms of the scores: the sum of small scores may underflow.
    """
    is_softmax = scoring_func == "softmax"
    if correction is None and renormalize:
        picked, chosen = select_top(logits, top_k)
    else:
        scores = softmax(logits) if is_softmax else sigmoid(logits)
        choice = logits if correction is None else scores + widen(xp, correction, logits)[0]
        chosen = select_top(choice, top_k)[1]
        if not renormalize:
            return _at(xp, scores, chosen), chosen
        picked = _at(xp, logits, chosen)
    return softmax(picked if is_softmax else -softplus(-picked)), chosen


def _at(xp: Namespace, x: Array, index: Array) -> Array:
    """Return the elements of each row at the given places; not every library has `take_along_axis`."""
    rows = 1
    for n in x.shape[:-1]:
        rows *= n
    begin = xp.reshape(xp.arange(rows, device=creation_device(x)) * x.shape[-1], (*x.shape[:-1], 1))
    flat = xp.reshape(index + begin, (rows * index.shape[-1],))
    return xp.reshape(xp.take(xp.reshape(x, (rows * x.shape[-1],)), flat, axis=0), index.shape)
