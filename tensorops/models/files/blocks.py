"""Tensors in a GGUF file: their values, and their integers in the layout of kernels; see `tensorops.formats`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import tensorops as tp
from tensorops import formats
from tensorops.models._errors import GGUFError

from .gguf_types import TensorType

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._open_file import OpenFile

__all__ = ["BlockWeight", "ComputedTensor", "QuantizedWeight", "Tensor", "block_of", "supported_types"]

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

PLAIN_TYPES = {TensorType.F32: 4, TensorType.F16: 2, TensorType.BF16: 2}  # bytes of an element
_AT_A_TIME = 1 << 19  # elements whose intermediate results stay in caches


def block_of(kind: TensorType) -> tuple[int, int]:
    """Return how many elements are stored together, and in how many bytes; ValueError if a type is not supported."""
    if kind in PLAIN_TYPES:
        return 1, PLAIN_TYPES[kind]
    of = formats.get(kind.name.lower())
    return of.elements, of.nbytes


def supported_types() -> list[TensorType]:
    """Return how the elements of a tensor may be stored, for messages: asks what is installed."""
    names = formats.names()
    return [kind for kind in TensorType if kind in PLAIN_TYPES or kind.name.lower() in names]


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight matrix in the layout of `tensorops.quantized_linear`.

    Parameters
    ----------
    weight : array of uint8, shape (out, in * bits / 8)
        For 4 bits, elements ``2 i`` (low nibble) and ``2 i + 1`` (high nibble) share a byte;
        for 8 bits, the bytes of signed integers.
    scales : array of float32, shape (out, in / group_size)
        One factor per group.
    biases : array of float32 or None, shape (out, in / group_size)
        One offset per group: ``w = scales * q + biases``.
    bits : int
        4 or 8.
    group_size : int
        The number of consecutive elements that share a scale.
    """

    weight: Any
    scales: Any
    biases: Any
    bits: int
    group_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of the represented matrix, after the number of experts if there is one for each."""
        *rows, width = self.weight.shape
        return (*rows, width * 8 // self.bits)

    def part(self, axis: int, start: int, stop: int) -> QuantizedWeight:
        """Return a part along an axis, of the last one in whole groups, in host memory."""
        length = self.shape[axis]

        def some(array: Any) -> npt.NDArray[Any]:
            wanted = slice(start * array.shape[axis] // length, stop * array.shape[axis] // length)
            host = tp.to_backend(array, "numpy")
            return np.ascontiguousarray(host[(slice(None),) * axis + (wanted,)])

        return self.mapped(some)

    def mapped(self, function: Callable[..., Any], *others: QuantizedWeight) -> QuantizedWeight:
        """Return the weight with what a function makes of each of its arrays, and of the same one of others."""
        names = [name for name in ("weight", "scales", "biases") if getattr(self, name) is not None]
        return replace(self, **{name: function(*(getattr(w, name) for w in (self, *others))) for name in names})


@dataclass(frozen=True)
class BlockWeight:
    """A weight matrix in blocks of a format of `tensorops.formats`, as files store them.

    Parameters
    ----------
    blocks : array of uint8, shape (out, bytes)
        Rows of whole blocks.
    format : str
        The name of the format.
    """

    blocks: Any
    format: str

    def mapped(self, function: Callable[..., Any], *others: BlockWeight) -> BlockWeight:
        """Return the weight with what a function makes of its blocks, and of those of others."""
        return replace(self, blocks=function(self.blocks, *(weight.blocks for weight in others)))


@dataclass(frozen=True)
class Tensor:
    """One tensor of a GGUF file; its bytes stay in the file until they are needed.

    Parameters
    ----------
    name : str
        The name in the file, such as ``blk.0.attn_q.weight``.
    type : TensorType
        How the elements are stored.
    shape : tuple of int
        Row-major, so that a linear layer's weight is ``(out, in)``.
    file : OpenFile
        Where it is.
    start, nbytes : int
        Its first byte in the file, and its number of bytes.
    stride : int, optional
        The number of bytes from a piece in the file to the next, of a part that consists of several.
    pieces : int, optional
        How many there are.
    is_part : bool, optional
        Whether it is a part of a tensor in the file.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    file: OpenFile
    start: int
    nbytes: int
    stride: int | None = None
    pieces: int = 1
    is_part: bool = False

    @property
    def data(self) -> Bytes:
        """The stored bytes, read from the file again."""
        place = np.empty(self.nbytes, np.uint8)
        self.read_into(place.reshape(1, self.pieces, -1))
        return place

    def read_into(self, place: Bytes) -> None:
        """Fill an array, whose matrices are contiguous, with the stored bytes, read from the file again."""
        matrices = place.reshape(-1, *place.shape[-2:])
        reads = max(self.pieces, len(matrices))  # one number divides the other
        size = self.nbytes // reads
        for i in range(reads):
            piece, read = divmod(i, reads // self.pieces)
            start = self.start + piece * (self.stride or 0) + read * size
            matrix, read = divmod(i, reads // len(matrices))
            part = matrices[matrix].reshape(-1)[read * size : (read + 1) * size]
            self.file.read_into(part, start, f"tensor {self.name}")

    def part(self, axis: int, start: int, stop: int) -> Tensor:
        """Return a part along an axis, of the last one in whole groups; no other bytes are read."""
        pieces = prod(self.shape[:axis])
        if self.stride is not None and axis == 0:  # some of the pieces
            first, nbytes = start * self.pieces // self.shape[0], (stop - start) * self.nbytes // self.shape[0]
            shape, own = (stop - start, *self.shape[1:]), (stop - start) * self.pieces // self.shape[0]
            return replace(self, shape=shape, start=self.start + first * self.stride, nbytes=nbytes, pieces=own)
        if self.stride is not None and pieces != self.pieces:
            raise ValueError(f"tensor {self.name}: a part of a part along another axis")
        whole = self.nbytes // pieces
        first, end = (place * whole // self.shape[axis] for place in (start, stop))
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        made = replace(self, is_part=True, shape=shape, start=self.start + first, nbytes=pieces * (end - first))
        return made if pieces == 1 else replace(made, stride=self.stride or whole, pieces=pieces)

    def computed(self, function: Callable[[Float32], Float32], shape: tuple[int, ...] | None = None) -> ComputedTensor:
        """Return the tensor of a function of the values; of the same shape, unless another one is given."""
        return ComputedTensor(self.name, shape or self.shape, lambda: function(self.dequantize()))

    def indexed(self, axis: int, wanted: slice | npt.NDArray[np.intp], shape: tuple[int, ...]) -> ComputedTensor:
        """Return the tensor of this shape with a slice or places of an axis of the values."""
        return self.computed(lambda values: values).indexed(axis, wanted, shape)

    def scaled(self, scale: Tensor) -> ComputedTensor:
        """Return the tensor times a number, or one for each of several matrices; of blocks, groups of integers."""

        def make() -> Float32 | QuantizedWeight:
            factor = scale.dequantize().reshape(-1, *[1] * min(len(self.shape) - 1, 2))
            if not self.is_quantized:
                return self.dequantize() * factor
            groups = self.quantized()
            biases = None if groups.biases is None else groups.biases * factor
            return replace(groups, scales=groups.scales * factor, biases=biases)

        return ComputedTensor(self.name, self.shape, make, self.group_size)

    @property
    def group_size(self) -> int:
        """The number of consecutive elements that are stored together."""
        return formats.get(self.type.name.lower()).elements if self.is_quantized else 1

    @property
    def is_quantized(self) -> bool:
        """Whether the elements are integers in blocks."""
        return self.type not in PLAIN_TYPES

    def dequantize(self) -> Float32:
        """Return the values as a new float32 array of this tensor's shape.

        Raises
        ------
        GGUFError
            A stored number is infinite or NaN, or the file was truncated after it was opened.
        """
        if self.type == TensorType.F32:
            values = self._finite(self.data.view("<f4"))
        elif self.type == TensorType.F16:
            values = self._finite(self.data.view("<f2"))
        elif self.type == TensorType.BF16:
            # A bfloat16 is the upper half of a float32.
            values = self._finite((self.data.view("<u2").astype(np.uint32) << 16).view(np.float32))
        else:
            values = self._finite(self._format.values(np, self._rows()))
        return values.reshape(self.shape)

    def blocks(self, place: Bytes | None = None) -> BlockWeight:
        """Return the stored blocks.

        Parameters
        ----------
        place : array of uint8, optional
            Where to, of the blocks' shape; its matrices are contiguous. Otherwise to a new array.

        Returns
        -------
        BlockWeight
            The same values as `dequantize`.

        Raises
        ------
        GGUFError
            The tensor is stored as floating-point numbers, a scale is not finite, or the file was truncated after it
            was opened.
        """
        self._require_blocks()
        of = self._format
        if place is None:
            place = np.empty((*self.shape[:-1], self.shape[-1] // of.elements * of.nbytes), np.uint8)
        self.read_into(place)
        upper = place.reshape(*place.shape[:-1], -1, of.nbytes)[..., [start + 1 for start in of.halves]]
        if (upper & 0x7C == 0x7C).any():  # the exponent of infinity and NaN
            raise self._error("holds a number that is not finite")
        return BlockWeight(place, of.name)

    def quantized(self) -> QuantizedWeight:
        """Return the stored integers, repacked for `tensorops.quantized_linear`.

        Returns
        -------
        QuantizedWeight
            The same values as `dequantize`, in 4 or 8 bits.

        Raises
        ------
        GGUFError
            The tensor is stored as floating-point numbers, a scale is not finite, or the file was truncated after it
            was opened.
        """
        self._require_blocks()
        length = self.shape[0]
        rows = max(_AT_A_TIME * length // prod(self.shape), 1)
        whole: list[Any] = [None] * 3  # weight, scales and biases
        for start in range(0, length, rows):  # the file is read in pieces, too, so that little memory is needed besides
            piece = self if rows >= length else self.part(0, start, min(start + rows, length))
            made = self._format.affine(np, piece._rows())
            for i, part in enumerate(made[:3]):
                if part is not None:
                    if whole[i] is None:
                        whole[i] = np.empty((length, *part.shape[1:]), part.dtype)
                    whole[i][start : start + rows] = part
        for parameter in whole[1:]:
            if parameter is not None:
                self._finite(parameter)
        weight, scales, biases = whole
        return QuantizedWeight(weight, scales, biases, made.bits, made.group_size)

    def _require_blocks(self) -> None:
        if not self.is_quantized:
            raise self._error(f"type {self.type.name} has no quantised form")

    @property
    def _format(self) -> formats.Format:
        return formats.get(self.type.name.lower())

    def _rows(self) -> Bytes:
        return self.data.reshape(*self.shape[:-1], -1)

    def _finite(self, stored: npt.NDArray[Any]) -> Float32:
        """Return stored floating-point numbers as a new float32 array."""
        if not np.isfinite(stored).all():
            raise self._error("holds a number that is not finite")
        return stored.astype(np.float32, copy=False)

    def _error(self, problem: str) -> GGUFError:
        return GGUFError(self.file.path, f"tensor {self.name}", problem)


@dataclass(frozen=True)
class ComputedTensor:
    """A tensor that is computed when it is needed, from what a folder holds in another form.

    Parameters
    ----------
    name : str
        The name that it has in a GGUF file.
    shape : tuple of int
        As for `Tensor`.
    make : callable
        Returns the values, a float32 array, a `QuantizedWeight` or a `BlockWeight` of this shape.
    group_size : int, optional
        As for `Tensor`.
    """

    name: str
    shape: tuple[int, ...]
    make: Callable[[], Float32 | QuantizedWeight | BlockWeight]
    group_size: int = 1

    def computed(self, function: Callable[[Float32], Float32], shape: tuple[int, ...] | None = None) -> ComputedTensor:
        """Return the tensor of a function of the values; of the same shape, unless another one is given."""
        return ComputedTensor(self.name, shape or self.shape, lambda: function(self.dequantize()))

    @property
    def nbytes(self) -> int:
        """The approximate number of bytes."""
        return 4 * prod(self.shape)

    def part(self, axis: int, start: int, stop: int) -> ComputedTensor:
        """Return a part along an axis, of the last one in whole groups."""
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return self.indexed(axis, slice(start, stop), shape)

    def indexed(self, axis: int, wanted: slice | npt.NDArray[np.intp], shape: tuple[int, ...]) -> ComputedTensor:
        """Return the tensor of this shape with a slice or places of an axis, of the last one in whole groups."""
        length = self.shape[axis]

        def some(array: Any) -> npt.NDArray[Any]:
            own = wanted
            if isinstance(wanted, slice) and array.shape[axis] != length:  # the last axis
                own = slice(wanted.start * array.shape[axis] // length, wanted.stop * array.shape[axis] // length)
            return np.ascontiguousarray(array[(slice(None),) * axis + (own,)])

        def make() -> Float32 | QuantizedWeight | BlockWeight:
            whole = self.make()
            return whole.mapped(some) if isinstance(whole, QuantizedWeight | BlockWeight) else some(whole)

        return replace(self, shape=shape, make=make)

    def dequantize(self) -> Float32:
        """Return the values in float32."""
        made = self.make()
        if isinstance(made, BlockWeight):
            return np.asarray(formats.get(made.format).values(np, made.blocks))
        if not isinstance(made, QuantizedWeight):
            return made
        rows = made.mapped(lambda array: array.reshape(-1, array.shape[-1]))  # of several matrices
        values = tp.dequantize(rows.weight, rows.scales, rows.biases, bits=made.bits, group_size=made.group_size)
        return np.asarray(values).reshape(self.shape)
