"""Linear maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorops import formats
from tensorops._dtypes import compute_dtype, narrow, widen, widen_integers
from tensorops._operator import operator
from tensorops._row_axes import RowAxes, every_axis, given
from tensorops._validation import as_choice, checked_indices, require_floating, require_integer, require_ndim
from tensorops.backends import get_namespace
from tensorops.libraries import creation_device, rows_of
from tensorops.ops.activation import geglu, gelu, reglu, relu, sigmoid, silu, swiglu
from tensorops.ops.quantization import as_format, check_blocks
from tensorops.typing import Array, ArrayInput, ArrayInputT, ArrayOfKind, KindT

__all__ = ["embedding", "gated_linear_unit", "linear", "linear_activation"]


def _check_matrix(name: str, label: str, weight: Array, x: Array) -> None:
    """Check that a matrix multiplies the last axis of `x`."""
    require_ndim(name, label, weight, 2, 2)
    if weight.shape[1] != x.shape[-1]:
        raise ValueError(f"{name}: {label} has {weight.shape[1]} columns, but the last axis of x has {x.shape[-1]}")


def _check_linear(name: str, x: Array, weight: Array, bias: Array | None) -> None:
    require_floating(name, x=x, weight=weight, bias=bias)
    require_ndim(name, "x", x, 1)
    _check_matrix(name, "weight", weight, x)
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise ValueError(f"{name}: bias has shape {tuple(bias.shape)}, but weight has {weight.shape[0]} rows")


def _check_linear_activation(name: str, x: Array, weight: Array, bias: Array | None, activation: str) -> dict[str, Any]:
    _check_linear(name, x, weight, bias)
    return {"activation": as_choice(name, "activation", activation, tuple(_ACTIVATIONS))}


def _check_gated_linear_unit(
    name: str, x: Array, gate_weight: Array, up_weight: Array, activation: str
) -> dict[str, Any]:
    require_floating(name, x=x, gate_weight=gate_weight, up_weight=up_weight)
    require_ndim(name, "x", x, 1)
    _check_matrix(name, "gate_weight", gate_weight, x)
    _check_matrix(name, "up_weight", up_weight, x)
    if up_weight.shape[0] != gate_weight.shape[0]:
        raise ValueError(
            f"{name}: up_weight has {up_weight.shape[0]} rows, but gate_weight has {gate_weight.shape[0]} rows"
        )
    return {"activation": as_choice(name, "activation", activation, tuple(_GATED_UNITS))}


def _check_embedding(name: str, ids: Array, weight: Array, format: str | None) -> None:
    require_integer(name, ids=ids)
    if format is None:
        require_floating(name, weight=weight)
        require_ndim(name, "weight", weight, 2, 2)
    else:
        check_blocks(name, "weight", weight, {}, as_format(name, format))
    if weight.shape[0] == 0 and 0 not in ids.shape:
        raise ValueError(f"{name}: weight has no rows, so no index is in range")


def _linear_rows(x: Array, weight: Array, bias: Array | None) -> RowAxes:
    *rows, columns = every_axis(x)
    out = x.ndim
    arrays = given(x=(x, every_axis(x)), weight=(weight, (out, columns)), bias=(bias, (out,)))
    return RowAxes(arrays, (*rows, out), whole=(columns,))


def _activated_rows(x: Array, weight: Array, bias: Array | None, activation: str) -> RowAxes:
    return _linear_rows(x, weight, bias)


def _gated_rows(x: Array, gate_weight: Array, up_weight: Array, activation: str) -> RowAxes:
    *rows, columns = every_axis(x)
    out = x.ndim
    matrices = dict.fromkeys(("gate_weight", "up_weight"), (out, columns))
    return RowAxes({"x": every_axis(x), **matrices}, (*rows, out), whole=(columns,))


def _embedding_rows(ids: Array, weight: Array, format: str | None) -> RowAxes:
    vocabulary, dim = ids.ndim, ids.ndim + 1
    arrays, result = {"ids": every_axis(ids), "weight": (vocabulary, dim)}, (*every_axis(ids), dim)
    if format is None:
        return RowAxes(arrays, result, whole=(vocabulary,), like="weight")
    blocks, dtype = formats.get(format), get_namespace(weight).float32
    length = weight.shape[1] // blocks.nbytes * blocks.elements
    whole = (vocabulary, dim)
    return RowAxes(arrays, result, whole=whole, shortened=(dim,), length=length, like="weight", dtype=dtype)


@operator(check=_check_linear, rows=_linear_rows)
def linear(x: ArrayInputT, weight: ArrayInput, bias: ArrayInput | None = None) -> ArrayInputT:
    r"""Affine map of the last axis.

    .. math:: y = x W^\mathsf{T} + b

    Parameters
    ----------
    x : array, floating point, shape (..., in)
        Input.
    weight : array, shape (out, in)
        Matrix :math:`W`.
    bias : array, shape (out,), optional
        Vector :math:`b`.

    Returns
    -------
    array, shape (..., out)
        Dtype, library and device of `x`; half types are multiplied and summed in float32.

    Raises
    ------
    TypeError
        If an input is not floating point.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.linear(np.asarray([1.0, 2.0]), np.asarray([[1.0, 0.0], [1.0, 1.0]]), np.asarray([0.5, 0.5]))
    array([1.5, 3.5])
    """
    xp = get_namespace(x, weight, bias)
    wide, w, b = widen(xp, x, weight, bias)
    y = xp.matmul(wide, xp.matrix_transpose(w))
    return narrow(xp, y if b is None else y + b, x)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "sigmoid": sigmoid,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}


@operator(check=_check_linear_activation, rows=_activated_rows, calls=(linear, relu, sigmoid, silu, gelu))
def linear_activation(
    x: ArrayInputT, weight: ArrayInput, bias: ArrayInput | None = None, *, activation: str
) -> ArrayInputT:
    r"""Affine map of the last axis, and a function of the result: a dense layer.

    .. math:: y = f(x W^\mathsf{T} + b)

    It is computed by `linear` and an activation, whose kernels it uses, or by a kernel of its own, which writes the
    result once.

    Parameters
    ----------
    x : array, floating point, shape (..., in)
        Input.
    weight : array, shape (out, in)
        Matrix :math:`W`.
    bias : array, shape (out,), optional
        Vector :math:`b`.
    activation : {"relu", "sigmoid", "silu", "gelu", "gelu_tanh"}
        The operator :math:`f`; the last one is `gelu` with its approximation by a hyperbolic tangent.

    Returns
    -------
    array, shape (..., out)
        Dtype, library and device of `x`. Half types are multiplied and summed in float32, in which :math:`f` is
        computed: only the result is rounded.

    Raises
    ------
    TypeError
        If an input is not floating point.
    ValueError
        If shapes do not match, or `activation` is not one of these names.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x, weight = np.asarray([1.0, 2.0]), np.asarray([[1.0, 0.0], [-1.0, 0.0]])
    >>> tensorops.linear_activation(x, weight, activation="relu")
    array([1., 0.])
    """
    xp = get_namespace(x, weight, bias)
    wide = xp.astype(x, compute_dtype(xp, x, weight, bias), copy=False)
    return narrow(xp, _ACTIVATIONS[activation](linear(wide, weight, bias)), x)


_GATED_UNITS: dict[str, Callable[[Array, Array], Array]] = {
    "swiglu": swiglu,
    "geglu": geglu,
    "geglu_tanh": lambda gate, up: gelu(gate, approximate="tanh") * up,
    "reglu": reglu,
    "glu": lambda gate, up: sigmoid(gate) * up,
}


@operator(check=_check_gated_linear_unit, rows=_gated_rows, calls=(linear, swiglu, geglu, gelu, reglu, sigmoid))
def gated_linear_unit(
    x: ArrayInputT, gate_weight: ArrayInput, up_weight: ArrayInput, *, activation: str = "swiglu"
) -> ArrayInputT:
    r"""Gated unit of two linear maps: the first half of the feed-forward block of Llama and Gemma.

    .. math:: y = f(x W_g^\mathsf{T}) \cdot x W_u^\mathsf{T}

    It is computed by `linear` and a gated unit, whose kernels it uses, or by a kernel of its own.

    Parameters
    ----------
    x : array, floating point, shape (..., in)
        Input.
    gate_weight : array, shape (out, in)
        Matrix :math:`W_g`.
    up_weight : array, shape (out, in)
        Matrix :math:`W_u`.
    activation : {"swiglu", "geglu", "geglu_tanh", "reglu", "glu"}, optional
        The gated unit. Its :math:`f` is `silu`, `gelu`, the approximation of `gelu` by a hyperbolic tangent, `relu` or
        `sigmoid`.

    Returns
    -------
    array, shape (..., out)
        Dtype, library and device of `x`. Half types are multiplied and summed in float32, in which both products
        remain: only the result is rounded.

    Raises
    ------
    TypeError
        If an input is not floating point.
    ValueError
        If shapes do not match, or `activation` is not the name of a gated unit.

    Notes
    -----
    Tokamax has the same function with ``weights = stack([gate_weight.T, up_weight.T], axis=1)``, and for `activation`
    the function :math:`f`. A joint matrix, as vLLM and `moe` have, is split into views:
    ``gated_linear_unit(x, gate_up[:n], gate_up[n:])``.

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x, gate_weight, up_weight = np.asarray([1.0, 2.0]), np.asarray([[1.0, 0.0]]), np.asarray([[1.0, 1.0]])
    >>> tensorops.gated_linear_unit(x, gate_weight, up_weight)  # 3 · silu(1)
    array([2.19317574])
    """
    xp = get_namespace(x, gate_weight, up_weight)
    wide = xp.astype(x, compute_dtype(xp, x, gate_weight, up_weight), copy=False)
    return narrow(xp, _GATED_UNITS[activation](linear(wide, gate_weight), linear(wide, up_weight)), x)


@operator(check=_check_embedding, rows=_embedding_rows)
def embedding(ids: ArrayInput, weight: ArrayOfKind[KindT], *, format: str | None = None) -> KindT:
    r"""Look up rows of a table.

    .. math:: y_i = W_{\mathit{ids}_i}

    Parameters
    ----------
    ids : array of integers
        Row numbers, of any shape.
    weight : array, floating point, shape (vocabulary, dim)
        Table :math:`W`. With a `format`, rows of its blocks in uint8, as files store them.
    format : str, optional
        A name for `tensorops.formats.get`.

    Returns
    -------
    array, shape ``(*ids.shape, dim)``
        Dtype, library and device of `weight`; of blocks, float32.

    Raises
    ------
    TypeError
        If `ids` are not integers, or `weight` is not floating point.
    ValueError
        If `weight` does not have two dimensions, or an id is out of range. Ids of Dask are checked when they
        are computed. Ids that are traced or on an accelerator are not: kernels on OpenCL and CUDA devices give a row of
        NaN for one that is out of range, compiled torch raises its own error, and elsewhere the library's own rule
        applies.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.embedding(np.asarray([2, 0]), np.asarray([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    array([[4., 5.],
           [0., 1.]])
    """
    xp = get_namespace(ids, weight)
    ids = checked_indices("embedding", "ids", ids, weight.shape[0], xp)
    flat = xp.reshape(widen_integers(xp, ids, creation_device(ids)), (-1,))
    of = None if format is None else formats.get(format)
    if isinstance(of, formats.Interleaved):
        rows = of.of.values(xp, of.rows(xp, weight, flat))
    else:
        rows = rows_of(xp, weight, flat)
        rows = rows if of is None else of.values(xp, rows)
    return xp.reshape(rows, (*ids.shape, rows.shape[1]))
