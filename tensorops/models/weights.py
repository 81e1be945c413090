"""The weights of a network: loading them, and the two operations on a matrix.

A matrix is a float32 array (out, in), `Blocks` of a format, whose type names it, or a tuple ``(weight, scales,
biases)`` in the affine layout of `tensorops.quantized_linear`, from whose shapes bits and group size follow. So a
structure of weights consists only of arrays, as compilers such as ``jax.jit`` and ``mx.compile`` require. A list of
matrices multiplies the same input; its outputs are joined.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

import tensorops as tp
from tensorops import formats

from .blocks import BlockWeight, QuantizedWeight, Tensor
from .cache import concat
from .ranks import SHARED, WHOLE, divide, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensorops.persistent.ranks import Ranks

    from .config import LlamaConfig

__all__ = ["Memory", "arrange", "embed", "linear", "load"]

Array = Any
Matrix = Any  # array, Blocks, (weight, scales, biases), or a list of these
Weight = Any  # array, QuantizedWeight, BlockWeight or Tensor


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


# Matrices that multiply the same input. As one product they need one call, and the input is prepared once.
TOGETHER = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up": ("ffn_gate", "ffn_up")}


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

    def copy(self, weight: Weight) -> Weight:
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
        taken = -(-array.nbytes // self.LINE) * self.LINE
        if taken > self._left.size:
            piece = np.empty(max(self._piece, taken) + self.LINE, dtype=np.uint8)
            self._left = piece[-piece.ctypes.data % self.LINE :]
        place, self._left = self._left[: array.nbytes], self._left[taken:]
        placed: np.ndarray[Any, Any] = place.view(array.dtype).reshape(array.shape)
        placed[...] = array
        return placed


PRECISIONS = ("highest", "high", "low")  # of `tensorops.quantized_linear`

# Formats whose affine form is as small, or nearly so, and is multiplied faster where weights are in caches: scales need
# not be gathered from blocks. With inputs in 8 bits, blocks are faster.
AS_GROUPS = ("q4_0", "q4_1", "q8_0")


def load(
    tensor: Tensor, backend: str, precision: str = "highest"
) -> np.ndarray[Any, Any] | QuantizedWeight | BlockWeight:
    """Return a tensor in host memory: quantised if a backend has a kernel for it, else in float32.

    Blocks stay as they are where a kernel reads them and that is faster, and else become affine groups.

    Parameters
    ----------
    tensor : Tensor
        From a GGUF file.
    backend : str
        The backend in force.
    precision : str, optional
        Of products with it.

    Returns
    -------
    numpy.ndarray, QuantizedWeight or BlockWeight
        The weight.
    """
    if len(tensor.shape) == 2 and tensor.is_quantized:
        are_groups = precision == "highest" and tensor.type.name.lower() in AS_GROUPS
        if not are_groups and _reads_blocks(tensor, backend):
            return tensor.blocks()
        quantized = tensor.quantized()
        if (kernel := _kernel_for(quantized, backend)) != "generic":
            half = quantized if _depends_on_values(tensor) else _with_half_scales(quantized)
            return half if _kernel_for(half, backend) == kernel else quantized
    return tensor.dequantize()


def _reads_blocks(tensor: Tensor, backend: str) -> bool:
    """Return whether a backend has a kernel for the blocks of a tensor; asks with one row of zeros."""
    of = formats.get(tensor.type.name.lower())
    blocks = tp.to_backend(np.zeros((1, tensor.shape[1] // of.elements * of.nbytes), dtype=np.uint8), backend)
    x = tp.to_backend(np.zeros((1, tensor.shape[1]), dtype=np.float32), backend)
    return tp.quantized_linear.explain(x, blocks, format=of.name).kernel != "generic"


def _kernel_for(w: QuantizedWeight, backend: str) -> str:
    try:
        w = tp.to_backend(w, backend)
    except TypeError:  # there are no such numbers, as float16 on some OpenCL devices
        return "generic"
    x = tp.to_backend(np.zeros((1, w.shape[1]), dtype=np.float32), backend)
    return tp.quantized_linear.explain(x, w.weight, w.scales, w.biases, bits=w.bits, group_size=w.group_size).kernel


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
    config: LlamaConfig, weights: Mapping[str, Weight], backend: str, ranks: Ranks, precision: str = "highest"
) -> tuple[dict[str, Any], Matrix]:
    """Arrange weights with the names of a GGUF file in the structure of the network.

    Parameters
    ----------
    config : LlamaConfig
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
        ``embedding``, ``norm``, ``frequencies`` (or None) and ``blocks``, a list of dict by short name, or by the name
        in `TOGETHER` for several matrices.
    output : array or tuple
        The output matrix; if the network has none, the embedding. Each of several ranks has an equal part of its rows
        or, if there are none, all.

    Raises
    ------
    ValueError
        A weight is missing, unknown, or has the wrong shape.
    """
    if misfit := config.find_misfit({name: weight.shape for name, weight in weights.items()}):
        raise ValueError(f"weight {misfit[0]}: {misfit[1]}")
    memory = Memory(sum(weight.nbytes for weight in weights.values() if isinstance(weight, Tensor)))

    lengths = divide(config, ranks.size).block_shapes()

    def take(*names: str, axis: int = WHOLE, lengths: Sequence[int] = (0,)) -> Any:
        def of_rank(rank: int) -> Any:
            parts = zip(names, lengths, strict=True)
            own = [part_of(weights[name], name, axis, length, rank, ranks.size) for name, length in parts]
            found = _take(memory, own, backend, precision)
            return found[0] if len(found) == 1 else found

        return ranks.place(of_rank, axis)

    def of_block(block: int, name: str) -> Any:
        parts = TOGETHER.get(name, (name,))
        axis = SHARED.get(parts[0], WHOLE)
        names = [f"blk.{block}.{part}.weight" for part in parts]
        return take(*names, axis=axis, lengths=[lengths[part][axis] for part in parts])

    embedding = take("token_embd.weight")
    factors = weights.get("rope_freqs.weight")
    arranged = {
        "embedding": embedding,
        "norm": take("output_norm.weight"),
        "frequencies": ranks.place(lambda rank: _frequencies(config, factors, backend), WHOLE),
        "blocks": [{name: of_block(block, name) for name in _short_names(config)} for block in range(config.blocks)],
    }
    rows, left = divmod(config.vocab_size, ranks.size)
    output = "output.weight" if "output.weight" in weights else "token_embd.weight"
    if ranks.size > 1 and not left:
        return arranged, take(output, axis=0, lengths=[rows])
    return arranged, embedding if output == "token_embd.weight" else take(output)


def _short_names(config: LlamaConfig) -> dict[str, None]:
    """Return the names of one block's weights, those of `TOGETHER` in place of their parts."""
    whole = {part: name for name, parts in TOGETHER.items() for part in parts}
    return dict.fromkeys(whole.get(name, name) for name in config.block_shapes())


def _take(memory: Memory, weights: Sequence[Weight], backend: str, precision: str) -> list[Matrix]:
    """Return weights on a backend; those of a file as one matrix if they have one format."""
    if not all(isinstance(weight, Tensor) for weight in weights):
        return [tp.to_backend(_plain(weight, precision), backend) for weight in weights]  # they stay the caller's
    loaded: list[Any] = [load(tensor, backend, precision) for tensor in weights]
    joined = loaded if len(loaded) == 1 else _join(loaded)
    return [tp.to_backend(_plain(memory.copy(weight), precision), backend) for weight in joined]


def _join(weights: list[Any]) -> list[Any]:
    """Return one matrix with the rows of all in a list, or the list itself if their formats differ."""
    if len({_form(weight) for weight in weights}) > 1:
        return weights
    if isinstance(weights[0], BlockWeight):
        return [replace(weights[0], blocks=np.concatenate([w.blocks for w in weights]))]
    if not isinstance(weights[0], QuantizedWeight):
        return [np.concatenate(weights)]
    packed, scales = (np.concatenate([getattr(w, part) for w in weights]) for part in ("weight", "scales"))
    biases = None if weights[0].biases is None else np.concatenate([w.biases for w in weights])
    return [replace(weights[0], weight=packed, scales=scales, biases=biases)]


def _form(weight: Any) -> tuple[object, ...]:
    """Return what the weights of one matrix have in common."""
    if isinstance(weight, BlockWeight):
        return (weight.format,)
    if not isinstance(weight, QuantizedWeight):
        return (weight.dtype,)
    return weight.bits, weight.group_size, weight.scales.dtype, weight.biases is None


def linear(x: Array, matrix: Matrix) -> Array:
    """Return ``x @ matrix.T``; of several matrices, the products side by side."""
    if isinstance(matrix, list):
        return concat([linear(x, each) for each in matrix], axis=1)
    if not isinstance(matrix, tuple):
        return tp.linear(x, matrix)
    if isinstance(matrix, Blocks):
        return tp.quantized_linear(x, matrix.blocks, format=matrix.format, precision=matrix.precision)
    bits, group_size = _format(matrix, x.shape[-1])
    return tp.quantized_linear(x, *matrix, bits=bits, group_size=group_size)


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
    return 8 * weight.shape[1] // columns, columns // scales.shape[1]


def _frequencies(config: LlamaConfig, factors: Array | Tensor | None, backend: str) -> Array | None:
    """Return the scaled rotary frequencies, each divided by its factor in the file; None if those of the base apply."""
    if factors is None and not config.is_scaled:
        return None
    frequencies = config.rotation.freqs
    if factors is not None:
        own = load(factors, backend) if isinstance(factors, Tensor) else tp.to_backend(factors, "numpy")
        frequencies = frequencies / own
    return tp.to_backend(frequencies.astype(np.float32), backend)
