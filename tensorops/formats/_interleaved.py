"""Blocks in another order: those of 32 rows side by side, so that the lanes of a vector are rows.

A block is cut into words of 4 bytes, which have neighbouring integers of a row. The first word of each of the 32 rows
comes first, then the second one of each, and so on; then the next block. A byte or two that are no whole word come
first in blocks of 32 numbers, where they are the scale, else last. Nothing else changes: interleaved blocks have the
shape and the size of those that they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tensorops._typing import Array, Namespace
from tensorops.formats._format import Format, Groups

ENDING = "_x32"


@dataclass(frozen=True)
class Interleaved(Format):
    """A format whose blocks are interleaved; made by `interleaved`.

    Parameters
    ----------
    of : Format
        The format of the blocks.

    Attributes
    ----------
    ROWS : int
        How many rows are side by side.
    """

    ROWS: ClassVar[int] = 32
    LINE: ClassVar[int] = 64  # bytes of a cache line, at which words of all rows begin
    of: Format = field(kw_only=True)

    def rows(self, xp: Namespace, stored: Array, ids: Array) -> Array:
        """Return some rows, in blocks of the format that is interleaved."""
        *_, out, width = stored.shape
        bands = xp.take(xp.reshape(stored, (out // self.ROWS, self.ROWS * width)), ids // self.ROWS, axis=0)
        separate = self._separate(xp, xp.reshape(bands, (ids.shape[0] * self.ROWS, width)))
        first = xp.arange(ids.shape[0], dtype=ids.dtype) * self.ROWS
        return xp.take(separate, first + ids % self.ROWS, axis=0)

    def store(self, blocks: npt.NDArray[np.uint8], place: npt.NDArray[np.uint8] | None = None) -> Any:
        """Return blocks of the format that is interleaved in this one.

        Parameters
        ----------
        blocks : numpy.ndarray of uint8, shape (..., rows, bytes)
            Rows of whole blocks; a multiple of 32 rows.
        place : numpy.ndarray of uint8, optional
            Contiguous memory of the same shape that the result is written to.

        Returns
        -------
        numpy.ndarray of uint8, shape (..., rows, bytes)
            The same blocks, interleaved.

        Raises
        ------
        ValueError
            If the rows are not a multiple of 32.
        """
        *before, out, width = blocks.shape
        if out % self.ROWS:
            raise ValueError(f"there are {out} rows, expected a multiple of {self.ROWS}")
        if place is None:
            memory = np.empty(blocks.size + self.LINE, np.uint8)
            start = -memory.ctypes.data % self.LINE
            place = memory[start : start + blocks.size].reshape(blocks.shape)
        shape = (*before, out // self.ROWS, width // self.nbytes, self.ROWS * self.nbytes)
        given = blocks.reshape(*before, out // self.ROWS, self.ROWS, width // self.nbytes, self.nbytes)
        made = place.reshape(shape)
        for start, count, size in self._pieces():
            word = np.dtype(f"V{size}") if size == 1 else np.dtype(f"u{size}")
            end = start + count * size
            to = made[..., self.ROWS * start : self.ROWS * end].view(word).reshape(*shape[:-1], count, self.ROWS, copy=False)
            to[...] = np.moveaxis(given[..., start:end].view(word), -3, -1)
        return place

    def values(self, xp: Namespace, stored: Array) -> Array:
        """Return the stored numbers; see `Format.values`."""
        return self.of.values(xp, self._separate(xp, stored))

    def _groups(self, xp: Namespace, stored: Array) -> Groups:
        return self.of._groups(xp, self._separate(xp, stored))

    def _pieces(self) -> list[tuple[int, int, int]]:
        """Return the beginnings of runs of words in a block, with the number of words and the bytes of each."""
        odd, words = self.nbytes % 4, self.nbytes // 4
        leads = odd if self.elements == self.ROWS else 0
        pieces = [(0, 1, leads), (leads, words, 4), (4 * words, 1, odd - leads)]
        return [piece for piece in pieces if piece[2]]

    def _separate(self, xp: Namespace, stored: Array) -> Array:
        """Return blocks of the format that is interleaved."""
        *before, out, width = stored.shape
        if out % self.ROWS:
            raise ValueError(f"interleaved blocks have a multiple of {self.ROWS} rows, but there are {out}")
        blocks = xp.reshape(stored, (*before, out // self.ROWS, width // self.nbytes, self.ROWS * self.nbytes))
        parts = []
        for start, count, size in self._pieces():
            part = blocks[..., self.ROWS * start : self.ROWS * (start + count * size)]
            part = xp.reshape(part, (*part.shape[:-1], count, self.ROWS, size))
            axes = tuple(range(part.ndim))
            *others, blocks_axis, count_axis, row_axis, byte_axis = axes
            part = xp.permute_dims(part, (*others, row_axis, blocks_axis, count_axis, byte_axis))
            parts.append(xp.reshape(part, (*part.shape[:-2], count * size)))
        joined = xp.concat(parts, axis=-1) if len(parts) > 1 else parts[0]
        return xp.reshape(joined, stored.shape)


def interleaved(of: Format) -> Interleaved:
    """Return the format of another one's blocks when they are interleaved, whose name is that with ``_x32``."""

    def unpack(xp: Namespace, blocks: Array) -> Groups:
        raise NotImplementedError(f"single blocks of {of.name}{ENDING} are no numbers: 32 rows belong together")

    return Interleaved(
        of.name + ENDING, of.elements, of.nbytes, of.group_size, of.bits, unpack, halves=(), pack=None, of=of
    )
