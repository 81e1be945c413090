"""The weights of a network: loading them, and the operations on a matrix.

A matrix is a float32 array (out, in), `Blocks` of a format, whose type names it, or a tuple ``(weight, scales,
biases)`` in the affine layout of `tensorops.quantized_linear`, from whose shapes bits and group size follow. So a
structure of weights consists only of arrays, as compilers such as ``jax.jit`` and ``mx.compile`` require. A list of
matrices multiplies the same input; its outputs are joined. Matrices of experts have one axis more, in front.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

import tensorops as tp
from tensorops import formats

from .architectures import WHOLE, block_weights, find_misfit, get
from .blocks import BlockWeight, ComputedTensor, QuantizedWeight, Tensor
from .cache import concat
from .ranks import divide, part_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tensorops.persistent.ranks import Ranks

    from .config import ModelConfig

__all__ = ["Memory", "arrange", "embed", "linear", "load", "routed", "separated"]

Array = Any
Float32 = npt.NDArray[np.float32]
Matrix = Any  # array, Blocks, (weight, scales, biases), or a list of these
Stored = Any  # array, QuantizedWeight, BlockWeight or Tensor


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


class Memory:
    """Memory for many small arrays, in pieces for which NumPy requests huge pages from the system.

    A network reads all of its weights for every token. In pages of 4 KiB that took 1.7 times as long as in huge pages,
    which NumPy requests only for large arrays.

    Parameters
    ----------
    expected : int
        The approximate total number of bytes; no piece is larger.
    """

    PIECE = 1 << 25
    LARGE = 1 << 22  # bytes from which NumPy itself requests huge pages
    LINE = 64  # bytes of a cache line

    def __init__(self, expected: int) -> None:
        self._piece = min(expected, self.PIECE)
        self._left = np.empty(0, dtype=np.uint8)

    def copy(self, weight: Stored) -> Stored:
        """Return a weight with its arrays in this memory, except those that are already large."""
        if isinstance(weight, BlockWeight):
            return replace(weight, blocks=self._place(weight.blocks))
        if isinstance(weight, QuantizedWeight):
            packed, scales = self._place(weight.weight), self._place(weight.scales)
            biases = None if weight.biases is None else self._place(weight.biases)
            return replace(weight, weight=packed, scales=scales, biases=biases)
        return self._place(weight)

    def _place(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if array.nbytes >= self.LARGE:
            return array
        placed: np.ndarray[Any, Any] = self.empty(array.nbytes).view(array.dtype).reshape(array.shape)
        placed[...] = array
        return placed

    def empty(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return an array of bytes in this memory."""
        if nbytes >= self.LARGE:
            return np.empty(nbytes, dtype=np.uint8)
        taken = -(-nbytes // self.LINE) * self.LINE
        if taken > self._left.size:
            piece = np.empty(max(self._piece, taken) + self.LINE, dtype=np.uint8)
            self._left = piece[-piece.ctypes.data % self.LINE :]
        place, self._left = self._left[:nbytes], self._left[taken:]
        return place


AT_ONCE = 1 << 19  # bytes that are read before they are interleaved, when caches still have them
PRECISIONS = ("highest", "high", "low")  # of `tensorops.quantized_linear`

# Formats whose affine form is as small, or nearly so, and where none are interleaved is multiplied faster than blocks
# when weights are in caches and in steps without Python. With inputs in 8 bits, blocks are faster.
AS_GROUPS = ("q4_0", "q4_1", "q8_0")


def load(
    tensor: Tensor | ComputedTensor, backend: str, precision: str = "highest", is_table: bool = False
) -> np.ndarray[Any, Any] | QuantizedWeight | BlockWeight:
    """Return a tensor in host memory: quantised if a backend has a kernel for it, else in float32.

    Blocks are interleaved where a kernel reads them so; else they stay as they are where a kernel reads them and that
    is faster than affine groups.

    Parameters
    ----------
    tensor : Tensor or ComputedTensor
        From a file.
    backend : str
        The backend in force.
    precision : str, optional
        Of products with it.
    is_table : bool, optional
        Whether it is multiplied by nothing: rows are then found faster in the order of the file.

    Returns
    -------
    numpy.ndarray, QuantizedWeight or BlockWeight
        The weight.
    """
    if isinstance(tensor, ComputedTensor):
        made = tensor.make()
        if isinstance(made, BlockWeight):
            return made if _reads_blocks(made.format, tensor.shape, backend) else tensor.dequantize()
        if isinstance(made, QuantizedWeight):
            return made if _kernel_for(made, backend) != "generic" else tensor.dequantize()
        return made
    if (format := _blocks_for(tensor, backend, precision, is_table)) is not None:
        return _read_blocks(Memory(tensor.nbytes), [tensor], format)
    if len(tensor.shape) > 1 and tensor.is_quantized:
        quantized = tensor.quantized()
        if (kernel := _kernel_for(quantized, backend)) != "generic":
            half = quantized if _depends_on_values(tensor) else _with_half_scales(quantized)
            return half if _kernel_for(half, backend) == kernel else quantized
    return tensor.dequantize()


def _blocks_for(
    tensor: Tensor | ComputedTensor, backend: str, precision: str, is_table: bool, rows: int | None = None
) -> str | None:
    """Return the format of the blocks that a backend multiplies a tensor in, if it does; `rows`, with others joined."""
    if not isinstance(tensor, Tensor) or len(tensor.shape) == 1 or not tensor.is_quantized:
        return None
    name, rows = tensor.type.name.lower(), rows or tensor.shape[-2]
    are_groups = precision == "highest" and name in AS_GROUPS and not is_table
    is_for_moe = are_groups and len(tensor.shape) == 3  # which takes groups
    if not (is_table or is_for_moe) and rows % formats.Interleaved.ROWS == 0:
        interleaved = name + formats.Interleaved.ENDING
        if _reads_blocks(interleaved, tensor.shape, backend):
            return interleaved
    return name if not are_groups and _reads_blocks(name, tensor.shape, backend) else None


def _reads_blocks(format: str, shape: tuple[int, ...], backend: str) -> bool:
    """Return whether a backend has a kernel for the blocks of a matrix; asks with one row of zeros."""
    of = formats.get(format)
    width = shape[-1] // of.elements * of.nbytes
    rows = of.ROWS if isinstance(of, formats.Interleaved) else 1
    stored = np.zeros((*(1,) * (len(shape) - 2), rows, width), dtype=np.uint8)
    blocks = tp.to_backend(stored, backend)
    return _product(backend, shape[-1], blocks, format=of.name) != "generic"


def _kernel_for(w: QuantizedWeight, backend: str) -> str:
    try:
        w = tp.to_backend(w, backend)
    except TypeError:  # there are no such numbers, as float16 on some OpenCL devices
        return "generic"
    return _product(backend, w.shape[-1], w.weight, w.scales, w.biases, bits=w.bits, group_size=w.group_size)


def _product(backend: str, columns: int, weight: Array, *parameters: Array | None, **options: Any) -> str:
    """Return the kernel that multiplies one row by a matrix, or by that of an expert."""
    x = tp.to_backend(np.zeros((1, columns), dtype=np.float32), backend)
    if weight.ndim == 2:
        return tp.quantized_linear.explain(x, weight, *parameters, **options).kernel
    expert = tp.to_backend(np.zeros(1, dtype=np.int32), backend)
    return tp.grouped_quantized_linear.explain(x, expert, weight, *parameters, **options).kernel


def _depends_on_values(tensor: Tensor) -> bool:
    """Return whether ranks that see only their parts could come to different formats.

    Products of factors need not be halves; nor need 8 times a half be one, which is the bias of Q4_0.
    """
    return tensor.is_part and tensor.type.name not in ("Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")


def _with_half_scales(w: QuantizedWeight) -> QuantizedWeight:
    """Return the weight with scales and biases in float16, as files store them, unless that changes a value."""
    with np.errstate(over="ignore"):
        scales = w.scales.astype(np.float16)
        biases = None if w.biases is None else w.biases.astype(np.float16)
    exact = np.array_equal(scales, w.scales) and (biases is None or np.array_equal(biases, w.biases))
    return replace(w, scales=scales, biases=biases) if exact else w


def arrange(
    config: ModelConfig, weights: Mapping[str, Stored], backend: str, ranks: Ranks, precision: str = "highest"
) -> tuple[dict[str, Any], Matrix]:
    """Arrange weights with the names of a GGUF file in the structure of the network.

    Parameters
    ----------
    config : ModelConfig
        The sizes.
    weights : mapping of str to array, QuantizedWeight or Tensor
        The weights by name; they are moved to the backend if necessary, and tensors are read from their file.
    backend : str
        The backend that computes.
    ranks : Ranks
        Which have parts of the weights; only the parts of this process are read.
    precision : str, optional
        With which products with blocks are computed.

    Returns
    -------
    weights : dict
        ``embedding``, ``norm``, ``frequencies`` (or None) of blocks without a window and with one, ``growth`` of
        queries by position (or None), ``others`` that only some architectures have, and ``blocks``, a list of dict by
        the names in the table of weights, or of what they are joined to, without ``.weight``.
    output : array or tuple
        The output matrix; if the network has none, the embedding. Each of several ranks has an equal part of its rows
        or, if there are none, all.

    Raises
    ------
    ValueError
        A weight is missing, unknown, or has the wrong shape.
    """
    weights = separated(config, weights)
    if misfit := find_misfit(config, {name: weight.shape for name, weight in weights.items()}):
        raise ValueError(f"weight {misfit[0]}: {misfit[1]}")
    memory = Memory(sum(weight.nbytes for weight in weights.values() if isinstance(weight, Tensor | ComputedTensor)))

    tables = {"per_layer_token_embd.weight"} | ({"token_embd.weight"} if "output.weight" in weights else set())

    def take(*names: str, axis: int = WHOLE, lengths: Sequence[int] = (0,)) -> Any:
        def part(rank: int) -> Any:
            parts = zip(names, lengths, strict=True)
            own = [part_of(weights[name], name, axis, length, rank, ranks.size) for name, length in parts]
            if names[0].endswith(".bias"):
                bias = np.concatenate([_on_host(part) for part in own], axis=-1)
                if names[0].endswith("ffn_down_exps.bias"):
                    bias = bias / np.float32(ranks.size)  # which all ranks add
                return tp.to_backend(bias, backend)
            found = _take(memory, own, backend, precision, names[0] in tables)
            return found[0] if len(found) == 1 else found

        return ranks.place(part, axis)

    of_rank = divide(config, ranks.size)

    def of_block(block: int) -> dict[str, Any]:
        groups: dict[str, list[tuple[str, int, int]]] = {}
        for weight, part in zip(block_weights(config, block), block_weights(of_rank, block), strict=True):
            name = f"blk.{block}.{weight.name}"
            if name in weights:
                length = part.shape[weight.axis] if weight.axis != WHOLE else 0
                groups.setdefault(weight.joined or weight.name, []).append((name, weight.axis, length))
        made = {}
        for name, parts in groups.items():
            names, (axis, *_), lengths = zip(*parts, strict=True)
            made[name.removesuffix(".weight")] = take(*names, axis=axis, lengths=lengths)
        return made

    def host(function: Callable[..., Array | None], *arguments: Any) -> Array | None:
        made = function(config, *arguments)
        return ranks.place(lambda rank: None if made is None else tp.to_backend(made, backend), WHOLE)

    embedding = take("token_embd.weight")
    arranged = {
        "embedding": embedding,
        "norm": take("output_norm.weight"),
        "frequencies": [host(_frequencies, weights), host(_local_frequencies, weights)],
        "growth": host(_growth),
        "others": {
            weight.name.removesuffix(".weight"): take(weight.name)
            for weight in get(config.architecture).model_weights(config)
        },
        "blocks": [of_block(block) for block in range(config.blocks)],
    }
    rows, left = divmod(config.vocab_size, ranks.size)
    output = "output.weight" if "output.weight" in weights else "token_embd.weight"
    if ranks.size > 1 and not left:
        return arranged, take(output, axis=0, lengths=[rows])
    return arranged, embedding if output == "token_embd.weight" else take(output)


def separated(config: ModelConfig, weights: Mapping[str, Stored]) -> Mapping[str, Stored]:
    """Return weights with the parts of matrices that a file has joined; without blocks that predict further tokens."""
    left_out = range(config.blocks, config.blocks + config.prediction_blocks)
    extra = tuple(f"blk.{block}." for block in left_out)
    made = {name: weight for name, weight in weights.items() if not name.startswith(extra)}
    for block in range(config.blocks):
        shapes = {weight.name: weight.shape for weight in block_weights(config, block)}
        for whole, parts in get(config.architecture).fused.items():
            for kind in ("weight", "bias"):
                name, names = f"blk.{block}.{whole}.{kind}", [f"{part}.{kind}" for part in parts]
                if name not in weights or f"blk.{block}.{names[0]}" in weights or not shapes.keys() >= set(names):
                    continue
                axis = max(len(shapes[names[0]]) - 2, 0) if kind == "weight" else len(shapes[names[0]]) - 1
                ends = list(itertools.accumulate((shapes[part][axis] for part in names), initial=0))
                joined = made[name]
                if joined.shape[axis : axis + 1] != (ends[-1],):
                    continue  # which is a misfit
                del made[name]
                for part, start, stop in zip(names, ends[:-1], ends[1:], strict=True):
                    made[f"blk.{block}.{part}"] = part_of(joined, name, axis, stop - start, 0, 1, start)
    return made


def _take(memory: Memory, weights: Sequence[Stored], backend: str, precision: str, is_table: bool) -> list[Matrix]:
    """Return weights on a backend; those of a file as one matrix if they have one format."""
    if not all(isinstance(weight, Tensor | ComputedTensor) for weight in weights):
        return [tp.to_backend(_plain(weight, precision), backend) for weight in weights]  # they stay the caller's
    format = None
    if len({getattr(weight, "type", None) for weight in weights}) == 1:
        format = _blocks_for(weights[0], backend, precision, is_table, sum(weight.shape[-2:][0] for weight in weights))
    if format is not None:
        joined = [_read_blocks(memory, weights, format)]
    else:
        loaded: list[Any] = [load(tensor, backend, precision, is_table) for tensor in weights]
        joined = [memory.copy(weight) for weight in (loaded if len(loaded) == 1 else _join(loaded))]
    return [tp.to_backend(_plain(weight, precision), backend) for weight in joined]


def _read_blocks(memory: Memory, tensors: Sequence[Any], format: str) -> BlockWeight:
    """Return one matrix with the rows of all tensors, in blocks of a format that is theirs or interleaves theirs."""
    rows = list(itertools.accumulate((tensor.shape[-2] for tensor in tensors), initial=0))
    blocks = memory.empty(sum(tensor.nbytes for tensor in tensors)).reshape(*tensors[0].shape[:-2], rows[-1], -1)
    of = formats.get(format)
    if not isinstance(of, formats.Interleaved):
        for tensor, start, stop in zip(tensors, rows[:-1], rows[1:], strict=True):
            tensor.blocks(blocks[..., start:stop, :])
    elif any(tensor.stride is not None for tensor in tensors):  # parts of which no parts can be read
        of.store(np.concatenate([tensor.blocks().blocks for tensor in tensors], axis=-2), blocks)
    elif blocks.ndim == 2:
        _interleave(tensors, rows, of, blocks)
    else:
        for expert, matrix in enumerate(blocks):
            _interleave([tensor.part(0, expert, expert + 1) for tensor in tensors], rows, of, matrix)
    return BlockWeight(blocks, format)


def _interleave(tensors: Sequence[Any], rows: Sequence[int], of: formats.Interleaved, place: Array) -> None:
    """Read tensors as one matrix of interleaved blocks, in pieces: little memory is needed besides."""
    at_once = of.ROWS * max(AT_ONCE // (of.ROWS * place.shape[1]), 1)
    read = np.empty((at_once, place.shape[1]), np.uint8)
    for start in range(0, rows[-1], at_once):
        end = min(start + at_once, rows[-1])
        for tensor, first, stop in zip(tensors, rows[:-1], rows[1:], strict=True):
            begin, last = max(start, first), min(end, stop)
            if begin < last:
                part = tensor.part(len(tensor.shape) - 2, begin - first, last - first)
                part.blocks(read[begin - start : last - start])
        of.store(read[: end - start], place[start:end])


def _join(weights: list[Any]) -> list[Any]:
    """Return one matrix with the rows of all in a list, or the list itself if their formats differ."""
    if len({_form(weight) for weight in weights}) > 1:
        return weights
    if isinstance(weights[0], BlockWeight):
        return [replace(weights[0], blocks=_rows([w.blocks for w in weights]))]
    if not isinstance(weights[0], QuantizedWeight):
        return [_rows(weights)]
    packed, scales = (_rows([getattr(w, part) for w in weights]) for part in ("weight", "scales"))
    biases = None if weights[0].biases is None else _rows([w.biases for w in weights])
    return [replace(weights[0], weight=packed, scales=scales, biases=biases)]


def _rows(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return arrays one after the other along the axis of a matrix's rows."""
    return np.concatenate(arrays, axis=max(arrays[0].ndim - 2, 0))


def _form(weight: Any) -> tuple[object, ...]:
    """Return what the weights of one matrix have in common."""
    if isinstance(weight, BlockWeight):
        return (weight.format,)
    if not isinstance(weight, QuantizedWeight):
        return (weight.dtype,)
    return weight.bits, weight.group_size, weight.scales.dtype, weight.biases is None


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
    """
    options = _expert_options(x.shape[-1], gate_up, down)
    if options is not None and is_swiglu and gate_up_bias is None and down_bias is None and scales is None:
        return tp.moe(x, logits, **options, top_k=top_k, renormalize=renormalize)
    xp = tp.get_namespace(x, logits)
    scores, experts = tp.top_k(logits if renormalize else tp.softmax(logits), top_k)
    weights = tp.softmax(scores) if renormalize else scores
    if scales is not None:
        weights = weights * xp.reshape(xp.take(scales, xp.reshape(experts, (-1,))), experts.shape)
    both = _grouped(xp, xp.expand_dims(x, axis=1), experts, gate_up, gate_up_bias)
    y = _grouped(xp, activated(both), experts, down, down_bias)
    total = y[:, 0, :] * weights[:, :1]
    for i in range(1, top_k):  # in an order that does not depend on the library
        total = total + y[:, i, :] * weights[:, i : i + 1]
    return total


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


def _plain(weight: Array | QuantizedWeight | BlockWeight, precision: str) -> Matrix:
    if isinstance(weight, BlockWeight):
        return blocks_of(weight.format, precision)(weight.blocks)
    if not isinstance(weight, QuantizedWeight):
        return weight
    return weight.weight, weight.scales, weight.biases


def _format(matrix: tuple[Array, Array, Array | None], columns: int) -> tuple[int, int]:
    """Return bits and group size."""
    weight, scales, _ = matrix
    return 8 * weight.shape[-1] // columns, columns // scales.shape[-1]


def _on_host(weight: Stored) -> Float32:
    host = weight.dequantize() if isinstance(weight, Tensor | ComputedTensor) else tp.to_backend(weight, "numpy")
    return np.asarray(host, dtype=np.float32)


def _frequencies(config: ModelConfig, weights: Mapping[str, Stored]) -> Float32 | None:
    """Return the scaled rotary frequencies, each divided by its factor in the file; None if those of the base apply."""
    length = "long" if config.context_length > (config.original_context_length or config.context_length) else "short"
    names = ("rope_freqs.weight", f"rope_factors_{length}.weight")
    factors = next((weights[name] for name in names if name in weights), None)
    if factors is None:
        return config.rotation.freqs.astype(np.float32) if config.is_scaled else None
    return np.asarray(config.rotation.freqs / _on_host(factors), dtype=np.float32)


def _local_frequencies(config: ModelConfig, weights: Mapping[str, Stored]) -> Float32 | None:
    """Return those of blocks with a window."""
    return _frequencies(config, weights) if config.local_rope_base is None else None


def _growth(config: ModelConfig) -> Float32 | None:
    """Return the factor of queries for each position, if there is one."""
    if not config.query_growth:
        return None
    positions = np.arange(config.context_length)
    logarithms = np.log1p(positions // (config.original_context_length or config.context_length))
    return (1.0 + config.query_growth * logarithms).astype(np.float32)
