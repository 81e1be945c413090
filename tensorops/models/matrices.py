"""The matrices of a network, and the operations on them.

A matrix is a float32 array (out, in), `Blocks` of a format, whose type names it, or a tuple ``(weight, scales,
biases)`` in the affine layout of `tensorops.quantized_linear`, from whose shapes bits and group size follow. So a
structure of weights consists only of arrays, as compilers such as ``jax.jit`` and ``mx.compile`` require. A list of
matrices multiplies the same input; its outputs are joined. Matrices of experts have one axis more, in front.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import tensorops as tp

from .cache import concat
from .files.blocks import BlockWeight, QuantizedWeight

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PRECISIONS", "Blocks", "Matrix", "blocks_of", "by_head", "embed", "linear", "matrix_of", "routed"]

Array = Any
Matrix = Any  # array, Blocks, (weight, scales, biases), or a list of these
PRECISIONS = ("highest", "high", "low")  # of `tensorops.quantized_linear`


class _Blocks(NamedTuple):
    blocks: Array


class Blocks(_Blocks):
    """A matrix in blocks; the type of an instance, of `blocks_of`, tells its format and how it is multiplied."""

    format: ClassVar[str]
    precision: ClassVar[str]


@functools.cache
def blocks_of(format: str, precision: str = "highest") -> type[Blocks]:
    """Return the type of matrices in blocks of a format that are to be multiplied with some precision."""

    def reduce(self: Blocks) -> tuple[Any, ...]:  # pickle finds no class that was made by a function
        return _blocks, (format, precision, self.blocks)

    return type(f"Blocks_{format}", (Blocks,), {"format": format, "precision": precision, "__reduce__": reduce})


def _blocks(format: str, precision: str, blocks: Array) -> Blocks:
    return blocks_of(format, precision)(blocks)


def linear(x: Array, matrix: Matrix, bias: Array | None = None) -> Array:
    """Return ``x @ matrix.T + bias``; of several matrices, the products side by side."""
    if not isinstance(matrix, tuple | list):
        return tp.linear(x, matrix if matrix.ndim == 2 else matrix[None, :], bias)
    if isinstance(matrix, list):
        y = concat([linear(x, each) for each in matrix], axis=1)
    elif isinstance(matrix, Blocks):
        y = tp.quantized_linear(x, matrix.blocks, format=matrix.format, precision=matrix.precision)
    else:
        bits, group_size = _format(matrix, x.shape[-1])
        y = tp.quantized_linear(x, *matrix, bits=bits, group_size=group_size)
    return y if bias is None else y + bias


def by_head(x: Array, matrix: Matrix) -> Array:
    """Return what each head's own matrix (out, in) makes of its features, (tokens, heads, in)."""
    xp = tp.get_namespace(x)
    return _grouped(xp, x, xp.arange(x.shape[1], dtype=xp.int32), matrix, None)


def routed(
    x: Array,
    logits: Array,
    gate_up: Matrix,
    down: Matrix,
    activated: Callable[[Array], Array],
    *,
    gate_up_bias: Array | None,
    down_bias: Array | None,
    scales: Array | None,
    top_k: int,
    renormalize: bool,
    is_swiglu: bool,
    scoring: str,
    correction: Array | None,
    scale: float,
    groups: tuple[int, int],
) -> Array:
    """Return the weighted sum of what the experts of a token make of it: by `tensorops.moe`, if that can.

    Parameters
    ----------
    x : array, shape (tokens, dim)
        Features.
    logits : array, shape (tokens, experts)
        From which experts are chosen, and their weights are computed.
    gate_up, down : matrix
        Of the experts.
    activated : callable
        The gated unit of what the first matrix gives.
    gate_up_bias, down_bias : array or None
        Added to what the matrices give, (experts, out).
    scales : array or None
        Factors of what experts give, (experts,).
    top_k : int
        How many experts each token passes.
    renormalize : bool
        Whether their weights are divided by the sum.
    is_swiglu : bool
        Whether the gated unit is `tensorops.swiglu`.
    scoring, correction, scale
        ``scoring_func``, ``e_score_correction_bias`` and ``routed_scaling_factor`` of `tensorops.moe`.
    groups : tuple of int
        How many groups of experts there are, and in how many of them a token's are.
    """
    options = _expert_options(x.shape[-1], gate_up, down) if groups[1] == groups[0] else None
    if options is not None and is_swiglu and gate_up_bias is None and down_bias is None and scales is None:
        options |= {"scoring_func": scoring, "e_score_correction_bias": correction, "routed_scaling_factor": scale}
        return tp.moe(x, logits, **options, top_k=top_k, renormalize=renormalize)
    xp = tp.get_namespace(x, logits)
    weights, experts = _routes(xp, logits, correction, top_k, scoring, renormalize, groups)
    if scale != 1.0:
        weights = weights * scale
    if scales is not None:
        weights = weights * xp.reshape(xp.take(scales, xp.reshape(experts, (-1,))), experts.shape)
    both = _grouped(xp, xp.expand_dims(x, axis=1), experts, gate_up, gate_up_bias)
    y = _grouped(xp, activated(both), experts, down, down_bias)
    total = y[:, 0, :] * weights[:, :1]
    for i in range(1, top_k):  # in an order that does not depend on the library
        total = total + y[:, i, :] * weights[:, i : i + 1]
    return total


def _routes(
    xp: Any,
    logits: Array,
    correction: Array | None,
    top_k: int,
    scoring: str,
    renormalize: bool,
    groups: tuple[int, int],
) -> tuple[Array, Array]:
    """Return the weights and the numbers of each token's experts, (tokens, top_k)."""
    is_softmax, is_limited = scoring == "softmax", groups[1] < groups[0]
    if is_softmax and correction is None and not is_limited:
        scores, experts = tp.top_k(logits if renormalize else tp.softmax(logits), top_k)
        return tp.softmax(scores) if renormalize else scores, experts
    scores = tp.softmax(logits) if is_softmax else tp.sigmoid(logits)
    choice = scores if correction is None else scores + correction
    if is_limited:
        choice, numbers = _in_best_groups(xp, choice, *groups, 1 if correction is None else 2)
        experts = _at(xp, numbers, tp.top_k(choice, top_k)[1])
    else:
        _, experts = tp.top_k(choice, top_k)
    if not renormalize:
        return _at(xp, scores, experts), experts
    picked = _at(xp, logits, experts)  # scores over their sum, also where that underflows
    return tp.softmax(picked if is_softmax else tp.softplus(picked * -1.0) * -1.0), experts


def _in_best_groups(xp: Any, choice: Array, groups: int, used: int, counted: int) -> tuple[Array, Array]:
    """Return the scores of experts in each token's best groups, by the sum of some scores, and their numbers."""
    tokens, experts = choice.shape
    best, _ = tp.top_k(xp.reshape(choice, (tokens, groups, experts // groups)), counted)
    _, chosen = tp.top_k(best[:, :, 0] if counted == 1 else best[:, :, 0] + best[:, :, 1], used)
    first = xp.reshape(xp.arange(tokens, dtype=chosen.dtype), (tokens, 1)) * groups

    def rows(of_groups: Array, places: Array) -> Array:
        table = xp.reshape(of_groups, (-1, experts // groups))
        return xp.reshape(xp.take(table, xp.reshape(places, (-1,)), axis=0), (tokens, -1))

    return rows(choice, chosen + first), rows(xp.arange(experts, dtype=chosen.dtype), chosen)


def _at(xp: Any, x: Array, index: Array) -> Array:
    """Return the elements of each row at the given places."""
    rows, columns = x.shape
    places = index + xp.reshape(xp.arange(rows, dtype=index.dtype), (rows, 1)) * columns
    return xp.reshape(xp.take(xp.reshape(x, (-1,)), xp.reshape(places, (-1,))), index.shape)


def _expert_options(columns: int, gate_up: Matrix, down: Matrix) -> dict[str, Any] | None:
    """Return arguments of `tensorops.moe`, or None if it does not take such matrices together."""
    options: dict[str, Any] = {}
    for name, matrix in (("gate_up", gate_up), ("down", down)):
        if isinstance(matrix, list | Blocks):
            return None  # of blocks, the kernels are those of the products
        if isinstance(matrix, tuple):
            bits, group_size = _format(matrix, columns)
            if options.get("bits", bits) != bits or options.get("group_size", group_size) != group_size:
                return None
            weight, scales, biases = matrix
            options |= {f"{name}_proj": weight, f"{name}_scales": scales, f"{name}_biases": biases}
            options |= {"bits": bits, "group_size": group_size}
        else:
            options[f"{name}_proj"] = matrix
        columns = _rows_of(gate_up) // 2
    return options


def _rows_of(matrix: Matrix) -> int:
    return int((matrix[0] if isinstance(matrix, tuple) else matrix).shape[-2])


def _grouped(xp: Any, x: Array, experts: Array, matrix: Matrix, bias: Array | None) -> Array:
    """Return what the matrices of each row's experts give, (tokens, experts, out)."""
    if isinstance(matrix, list):
        y = concat([_grouped(xp, x, experts, each, None) for each in matrix], axis=2)
    elif isinstance(matrix, Blocks):
        of, precision = matrix.format, matrix.precision
        y = tp.grouped_quantized_linear(x, experts, matrix.blocks, format=of, precision=precision)
    elif isinstance(matrix, tuple):
        bits, group_size = _format(matrix, x.shape[-1])
        y = tp.grouped_quantized_linear(x, experts, *matrix, bits=bits, group_size=group_size)
    else:
        y = tp.grouped_linear(x, experts, matrix)
    if bias is None:
        return y
    own = xp.take(bias, xp.reshape(experts, (-1,)), axis=0)
    return y + xp.reshape(own, (*experts.shape, own.shape[-1]))


def embed(ids: Array, matrix: Matrix, dim: int, token: int | None = None) -> Array:
    """Return the rows `ids` of a matrix with `dim` columns, in float32; `token` is the only one, if it is known."""
    if not isinstance(matrix, tuple):
        return tp.embedding(ids, matrix)
    if isinstance(matrix, Blocks):
        return tp.embedding(ids, matrix.blocks, format=matrix.format)
    # Only the required rows become float32; the matrix stays small.
    xp = tp.get_namespace(ids)

    def rows(part: Array) -> Array:
        if token is None:
            return xp.take(part, ids, axis=0)
        return xp.asarray(part)[token : token + 1, :]  # where it is: some libraries check indices on the host

    weight, *parameters = matrix
    parameters = [None if part is None else rows(part) for part in parameters]
    wide: list[Array] = [None if part is None else xp.astype(part, xp.float32, copy=False) for part in parameters]
    bits, group_size = _format(matrix, dim)
    return tp.dequantize(rows(weight), *wide, bits=bits, group_size=group_size)


def matrix_of(weight: Array | QuantizedWeight | BlockWeight, precision: str) -> Matrix:
    """Return a weight as a matrix that is to be multiplied with some precision."""
    if isinstance(weight, BlockWeight):
        return blocks_of(weight.format, precision)(weight.blocks)
    if not isinstance(weight, QuantizedWeight):
        return weight
    return weight.weight, weight.scales, weight.biases


def _format(matrix: tuple[Array, Array, Array | None], columns: int) -> tuple[int, int]:
    """Return bits and group size."""
    weight, scales, _ = matrix
    return 8 * weight.shape[-1] // columns, columns // scales.shape[-1]
