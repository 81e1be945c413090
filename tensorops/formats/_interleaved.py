"""Blocks in another order: those of 32 rows side by side, so that the lanes of a vector are rows.

A block is cut into words of 4 bytes, which have neighbouring integers of a row. The first word of each of the 32 rows
comes first, then the second one of each, and so on; then the next block. A byte or two that are no whole word come
first in blocks of 32 numbers, where they are the scale, else last. Nothing else changes: interleaved blocks have the
shape and the size of those that they are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tensorops import _hooks
from tensorops.formats._format import Format, Groups
from tensorops.libraries import creation_device
from tensorops.typing import Array, Namespace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
    ENDING : str
        What its name has behind that of the format.
    """

    ROWS: ClassVar[int] = 32
    ENDING: ClassVar[str] = "_x32"
    LINE: ClassVar[int] = 64  # bytes of a cache line, at which words of all rows begin
    of: Format = field(kw_only=True)

    def rows(self, xp: Namespace, stored: Array, ids: Array) -> Array:
        """Return some rows, in blocks of the format that is interleaved."""
        within, device = ids % self.ROWS, creation_device(ids)
        together = xp.expand_dims(ids - within, axis=1) + xp.arange(self.ROWS, dtype=ids.dtype, device=device)
        some = xp.take(stored, xp.reshape(together, (-1,)), axis=0)  # not of a reshaped matrix, which may be a copy
        first = xp.arange(ids.shape[0], dtype=ids.dtype, device=device) * self.ROWS
        return xp.take(self.separate(xp, some), first + within, axis=0)

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
            If the rows are not a multiple of 32, or `place` is not contiguous.
        """
        import numpy as np

        *before, out, width = blocks.shape
        if out % self.ROWS:
            raise ValueError(f"there are {out} rows, expected a multiple of {self.ROWS}")
        if place is None:
            memory = np.empty(blocks.size + self.LINE, np.uint8)
            start = -memory.ctypes.data % self.LINE
            place = memory[start : start + blocks.size].reshape(blocks.shape)
        if not place.flags.c_contiguous:
            raise ValueError("place is not contiguous")
        given = np.ascontiguousarray(blocks)
        if any(interleave(given, place, self.of.name) for interleave in _hooks.interleave_blocks):
            return place
        bands, count = out // self.ROWS, width // self.nbytes
        given = given.reshape(*before, bands, self.ROWS, count, self.nbytes)
        made = place.reshape(*before, bands, count, self.ROWS * self.nbytes)
        for start, words, size in self._pieces():
            end, word = start + words * size, np.dtype(f"u{size}")
            to = made[..., self.ROWS * start : self.ROWS * end].view(word)
            to = to.reshape(*to.shape[:-1], words, self.ROWS)  # a view: one axis becomes two
            to[...] = np.moveaxis(given[..., start:end].view(word), -3, -1)
        return place

    def separate(self, xp: Namespace, stored: Array) -> Array:
        """Return the blocks that interleaved ones are made of.

        Parameters
        ----------
        xp : namespace
            Of the array.
        stored : array of uint8, shape (..., rows, bytes)
            Interleaved blocks.

        Returns
        -------
        array of uint8, shape (..., rows, bytes)
            Blocks of the format that is interleaved.

        Raises
        ------
        ValueError
            If the rows are not a multiple of 32.
        """
        *before, out, width = stored.shape
        if out % self.ROWS:
            raise ValueError(f"interleaved blocks have a multiple of {self.ROWS} rows, but there are {out}")
        blocks = xp.reshape(stored, (*before, out // self.ROWS, width // self.nbytes, self.ROWS * self.nbytes))
        parts = []
        for start, count, size in self._pieces():
            part = blocks[..., self.ROWS * start : self.ROWS * (start + count * size)]
            part = xp.reshape(part, (*part.shape[:-1], count, self.ROWS, size))
            *others, blocks_axis, count_axis, row_axis, byte_axis = range(part.ndim)
            part = xp.permute_dims(part, (*others, row_axis, blocks_axis, count_axis, byte_axis))
            parts.append(xp.reshape(part, (*part.shape[:-2], count * size)))
        joined = xp.concat(parts, axis=-1) if len(parts) > 1 else parts[0]
        return xp.reshape(joined, stored.shape)

    def values(self, xp: Namespace, stored: Array) -> Array:
        """Return the stored numbers; see `Format.values`."""
        return self.of.values(xp, self.separate(xp, stored))

    def _groups(self, xp: Namespace, stored: Array) -> Groups:
        return self.of._groups(xp, self.separate(xp, stored))

    def _pieces(self) -> list[tuple[int, int, int]]:
        """Return the beginnings of runs of words in a block, with the number of words and the bytes of each."""
        odd, words = self.nbytes % 4, self.nbytes // 4
        leads = odd if self.elements == self.ROWS else 0
        pieces = [(0, 1, leads), (leads, words, 4), (4 * words, 1, odd - leads)]
        return [piece for piece in pieces if piece[2]]


def interleaved(of: Format) -> Interleaved:
    """Return the format of another one's blocks when they are interleaved, whose name is that with ``_x32``."""

    def unpack(xp: Namespace, blocks: Array) -> Groups:
        raise ValueError(f"blocks of format {name!r} are numbers only where those of 32 rows are together")

    name = of.name + Interleaved.ENDING
    return Interleaved(name, of.elements, of.nbytes, of.group_size, of.bits, unpack, of=of)
