"""A reader for GGUF files that does not trust the file.

The file is never read as a whole. Every count, length and offset is compared with the rest of the file before anything
is sliced or allocated, so memory stays in proportion to the file's real size.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorops.models._errors import GGUFError

from ._open_file import OpenFile
from .blocks import ComputedTensor, Tensor, block_of, supported_types
from .gguf_types import TensorType, ValueType

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["GGUFFile", "open_gguf"]

MAGIC = int.from_bytes(b"GGUF", "little")
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_KEY_BYTES = 65535  # the format's own limit
MAX_DIMENSIONS = 4
AT_A_TIME = 1 << 20  # bytes
SPLIT_AT_A_TIME = 1 << 16
SEVEN_ZEROS = bytes(7)
MOST_ALONE = 1 << 12  # strings that are read one by one before splitting is tried again
# The minimum size of an entry, which limits a count by the number of remaining bytes.
MIN_METADATA_BYTES = 8 + 4 + 1
MIN_TENSOR_INFO_BYTES = 8 + 4 + 8 + 4 + 8

SCALARS = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.BOOL: "<u1",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}


@dataclass(frozen=True)
class GGUFFile:
    """The contents of a GGUF file.

    Parameters
    ----------
    path : str
        The file, for messages.
    metadata : dict
        Values by key; arrays of strings are lists, arrays of numbers are NumPy arrays.
    tensors : mapping
        `Tensor` by name, or in a folder `ComputedTensor`.
    is_folder : bool
        Whether it is a folder of Hugging Face, read with the names of a GGUF file.
    """

    path: str
    metadata: dict[str, Any]
    tensors: Mapping[str, Tensor | ComputedTensor]
    is_folder: bool = False


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file and read its metadata and the list of its tensors.

    Tensors may be stored as F32, F16 or BF16, or in a format of `tensorops.formats`. The weights stay in the file,
    which stays open, until `Tensor.dequantize` or `Tensor.quantized` is called. Those raise `GGUFError` if the file has
    been truncated meanwhile, and return other values if it has been modified.

    Parameters
    ----------
    path : str or path-like
        A GGUF file, version 2 or 3, little-endian.

    Returns
    -------
    GGUFFile
        Metadata and tensors.

    Raises
    ------
    GGUFError
        The file is truncated, corrupt, or uses an unsupported feature; the message names file and field.
    OSError
        The file cannot be opened.
    """
    return _Reader(OpenFile(path)).read()


class _Reader:
    """A cursor over the file; `field` is the name of the current part in messages."""

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.position = 0
        self.field = "header"
        self._buffer, self._start = b"", 0  # bytes of the file, and the position of the first one

    def read(self) -> GGUFFile:
        tensor_count, metadata_count = self.header()
        metadata: dict[str, Any] = {}
        for index in range(metadata_count):
            self.field = f"metadata entry {index}"
            key = self.string(MAX_KEY_BYTES)
            self.field = key
            if key in metadata:
                raise self.error("this key occurs twice")
            metadata[key] = self.value()
        alignment = self.alignment(metadata)
        infos = [self.tensor_info(index) for index in range(tensor_count)]
        start = -(-self.position // alignment) * alignment
        return GGUFFile(self.file.path, metadata, self.tensors(infos, start, alignment))

    def error(self, problem: str) -> GGUFError:
        return GGUFError(self.file.path, self.field, problem)

    def left(self) -> int:
        return self.file.size - self.position

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size > self.left():
            raise self.error(f"needs {size} bytes at offset {self.position}, but {self.left()} are left")
        at = self.position - self._start
        if at + size > len(self._buffer):
            wanted = max(size, min(self.left(), AT_A_TIME))
            self._buffer, self._start, at = (
                self.file.read(self.position, wanted, self.field).tobytes(),
                self.position,
                0,
            )
        self.position += size
        return self._buffer[at : at + size]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def string(self, limit: int | None = None) -> str:
        size = self.u64()
        if limit is not None and size > limit:
            raise self.error(f"a name of {size} bytes is longer than {limit}")
        raw = self.take(size)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"string at offset {self.position - size} is not UTF-8") from None

    def strings(self, number: int) -> list[str]:
        """Return strings; a vocabulary has some hundred thousand of them."""
        found: list[str] = []
        alone = 1
        while len(found) < number:
            # Where splitting finds nothing, as in empty or long strings, it is tried less and less often.
            found += [self.string() for _ in range(min(alone, number - len(found)))]  # which fills the buffer
            before = len(found)
            # Nearly all lengths fit one byte, which seven zeros follow: split there, and each string has the length of
            # the next one behind it. `string` reads the others, and says what is wrong.
            at = self.position - self._start
            length, *pieces = self._buffer[at : at + SPLIT_AT_A_TIME].split(SEVEN_ZEROS, number - len(found))
            with contextlib.suppress(UnicodeDecodeError):
                for piece in pieces[:-1]:  # where the last one ends is not known
                    if len(length) != 1 or len(piece) - 1 != length[0]:
                        break
                    found.append(piece[:-1].decode())
                    at, length = at + 7 + len(piece), piece[-1:]
            self.position = self._start + at
            alone = 1 if len(found) > before else min(2 * alone, MOST_ALONE)
        return found

    def count(self, what: str, smallest: int) -> int:
        """Read the number of items that follow; each takes at least `smallest` bytes."""
        number = self.u64()
        if number * smallest > self.left():
            raise self.error(f"says {number} {what}, but only {self.left()} bytes are left")
        return number

    def header(self) -> tuple[int, int]:
        """Check magic and version; return the numbers of tensors and metadata entries that follow."""
        self.field = "magic"
        if self.u32() != MAGIC:
            raise self.error("not a GGUF file")
        self.field = "version"
        version = self.u32()
        if version not in VERSIONS:
            raise self.error(f"{version} is not supported (versions: 2, 3; little-endian)")
        self.field = "tensor count"
        tensors = self.count("tensors", MIN_TENSOR_INFO_BYTES)
        self.field = "metadata count"
        return tensors, self.count("metadata entries", MIN_METADATA_BYTES)

    def value_type(self) -> ValueType:
        number = self.u32()
        try:
            return ValueType(number)
        except ValueError:
            raise self.error(f"unknown value type {number}") from None

    def value(self) -> Any:
        kind = self.value_type()
        if kind == ValueType.STRING:
            return self.string()
        if kind != ValueType.ARRAY:
            return self.numbers(kind, 1)[0].item()
        kind = self.value_type()
        if kind == ValueType.ARRAY:
            raise self.error("nested arrays are not supported")
        if kind == ValueType.STRING:
            return self.strings(self.count("strings", 8))
        return self.numbers(kind, self.count("numbers", np.dtype(SCALARS[kind]).itemsize))

    def numbers(self, kind: ValueType, count: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(SCALARS[kind])
        values = np.frombuffer(self.take(count * dtype.itemsize), dtype)
        if kind != ValueType.BOOL:
            return values
        if (values > 1).any():
            raise self.error("a boolean is neither 0 nor 1")
        return values.astype(np.bool_)

    def alignment(self, metadata: dict[str, Any]) -> int:
        self.field = "general.alignment"
        value = metadata.get(self.field, DEFAULT_ALIGNMENT)
        if type(value) is not int or value <= 0 or value & (value - 1):
            raise self.error(f"{value!r:.40} is not a power of two")
        return value

    def tensor_info(self, index: int) -> tuple[str, tuple[int, ...], TensorType, int]:
        """Read one entry of the tensor list: name, row-major shape, type and offset."""
        self.field = f"tensor {index}"
        name = self.string(MAX_KEY_BYTES)
        self.field = f"tensor {name}"
        dimensions = self.u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.error(f"{dimensions} dimensions; a tensor has 1 to {MAX_DIMENSIONS}")
        # The file lists the fastest-varying dimension first.
        shape = struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions))[::-1]
        number = self.u32()
        try:
            kind = TensorType(number)
        except ValueError:
            raise self.error(f"unknown tensor type {number}") from None
        try:
            block_of(kind)
        except ValueError:
            names = ", ".join(t.name for t in supported_types())
            raise self.error(
                f"type {kind.name} is not supported, only {names}; llama.cpp converts the file: "
                "llama-quantize --allow-requantize IN.gguf OUT.gguf Q8_0"
            ) from None
        return name, shape, kind, self.u64()

    def tensors(
        self, infos: list[tuple[str, tuple[int, ...], TensorType, int]], start: int, alignment: int
    ) -> dict[str, Tensor]:
        """Find the tensors in the data section that begins at byte `start`, in the order of offsets."""
        found: dict[str, Tensor] = {}
        end = start
        for name, shape, kind, offset in sorted(infos, key=lambda info: info[3]):
            self.field = f"tensor {name}"
            if name in found:
                raise self.error("this name occurs twice")
            size = self.byte_size(shape, kind)
            if offset % alignment:
                raise self.error(f"offset {offset} is not a multiple of the alignment {alignment}")
            if start + offset < end:
                raise self.error(f"offset {offset} lies inside the tensor before it")
            end = start + offset + size
            if end > self.file.size:
                raise self.error(f"ends at byte {end}, but the file has {self.file.size}")
            found[name] = Tensor(name, kind, shape, self.file, end - size, size)
        return {name: found[name] for name, *_ in infos}

    def byte_size(self, shape: tuple[int, ...], kind: TensorType) -> int:
        block, size = block_of(kind)
        if 0 in shape:
            raise self.error(f"shape {shape} has a dimension of length zero")
        if shape[-1] % block:
            raise self.error(f"rows of {shape[-1]} elements are not whole {kind.name} blocks of {block}")
        return int(prod(shape) // block * size)
