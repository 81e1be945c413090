"""Weights read from their file into memory of the host, in the form in which a backend multiplies them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import tensorops as tp
from tensorops import formats

from .blocks import BlockWeight, ComputedTensor, QuantizedWeight, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Memory", "load", "load_joined", "stays_packed"]

Array = Any
Loaded = Any  # array, QuantizedWeight or BlockWeight

AT_ONCE = 1 << 19  # bytes that are read before they are interleaved, when caches still have them

# Formats whose affine form is as small, or nearly so, and where none are interleaved is multiplied faster than blocks
# when weights are in caches and in steps without Python. With inputs in 8 bits, blocks are faster.
AS_GROUPS = ("q4_0", "q4_1", "q8_0")


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

    def copy(self, weight: Loaded) -> Loaded:
        """Return a weight with its arrays in this memory, except those that are already large."""
        return weight.mapped(self._place) if isinstance(weight, QuantizedWeight | BlockWeight) else self._place(weight)

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


def stays_packed(format: str, columns: int, backend: str) -> bool:
    """Return whether a backend has a kernel for blocks of a format, or for groups of 8 bits."""
    scales = np.zeros((1, columns // 32), dtype=np.float32)
    groups = QuantizedWeight(np.zeros((1, columns), dtype=np.uint8), scales, scales, bits=8, group_size=32)
    return _reads_blocks(format, (1, columns), backend) or _kernel_for(groups, backend) != "generic"


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


def load_joined(
    memory: Memory, tensors: Sequence[Tensor | ComputedTensor], backend: str, precision: str, is_table: bool = False
) -> list[Loaded]:
    """Return tensors in host memory, as `load` does: as one matrix with the rows of all if they have one format."""
    format = None
    if len({getattr(tensor, "type", None) for tensor in tensors}) == 1:
        format = _blocks_for(tensors[0], backend, precision, is_table, sum(tensor.shape[-2:][0] for tensor in tensors))
    if format is not None:
        return [_read_blocks(memory, tensors, format)]
    loaded = [load(tensor, backend, precision, is_table) for tensor in tensors]
    return [memory.copy(weight) for weight in (loaded if len(loaded) == 1 else _join(loaded))]


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
    if isinstance(weights[0], QuantizedWeight | BlockWeight):
        return [weights[0].mapped(_rows, *weights[1:])]
    return [_rows(*weights)]


def _rows(*arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return arrays one after the other along the axis of a matrix's rows."""
    return np.concatenate(arrays, axis=max(arrays[0].ndim - 2, 0))


def _form(weight: Any) -> tuple[object, ...]:
    """Return what the weights of one matrix have in common."""
    if isinstance(weight, BlockWeight):
        return (weight.format,)
    if not isinstance(weight, QuantizedWeight):
        return (weight.dtype,)
    return weight.bits, weight.group_size, weight.scales.dtype, weight.biases is None
