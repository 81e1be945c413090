"""What a format of quantized numbers is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorops.formats._bits import in_bytes, pairs
from tensorops.typing import Array, Namespace


class Groups(NamedTuple):
    """Numbers ``scales · codes + minima``, in groups of neighbours that share a scale.

    Attributes
    ----------
    codes : array of int8, uint8 or float32, shape (..., elements)
        Integers, signed without minima; or numbers of a format that has no integers.
    scales : array of float32, shape (..., groups)
        One factor per group.
    minima : array of float32, shape (..., groups), or None
        One offset per group.
    """

    codes: Array
    scales: Array
    minima: Array | None


class Affine(NamedTuple):
    """The arguments of `tensorops.quantized_linear` and `tensorops.dequantize` that describe a matrix.

    Attributes
    ----------
    weight : array of uint8, shape (..., elements · bits / 8)
        Integers, with 4 bits two in a byte, low half first.
    scales : array of float32, shape (..., elements / group_size)
        One factor per group.
    biases : array of float32, shape (..., elements / group_size), or None
        One offset per group; without, 8-bit integers are signed.
    bits : int
        4 or 8.
    group_size : int
        How many neighbours share a scale.
    """

    weight: Array
    scales: Array
    biases: Array | None
    bits: int
    group_size: int


@dataclass(frozen=True)
class Format:
    """A way to store numbers in blocks of bytes.

    Parameters
    ----------
    name : str
        Its name, such as ``"q4_k"``.
    elements, nbytes : int
        The numbers in a block, and its bytes.
    group_size : int
        How many neighbours share a scale.
    bits : int
        How many bits codes need once they are in the layout of `tensorops.quantized_linear`, 4 or 8; 0 if that
        cannot represent them.
    unpack : callable
        Takes a namespace of the Array API and blocks, an array of uint8 of shape (..., nbytes); returns their `Groups`.
    halves : tuple of int, optional
        Where a block has numbers in float16.
    pack : callable, optional
        The inverse: takes a namespace and numbers in float32, shape (..., elements), and returns the blocks that
        represent them best. Without it, numbers cannot be written in this format.
    """

    name: str
    elements: int
    nbytes: int
    group_size: int
    bits: int
    unpack: Callable[[Namespace, Array], Groups]
    halves: tuple[int, ...] = ()
    pack: Callable[[Namespace, Array], Array] | None = None

    def values(self, xp: Namespace, stored: Array) -> Array:
        """Return the stored numbers.

        Parameters
        ----------
        xp : namespace
            Of the array.
        stored : array of uint8, shape (..., blocks · nbytes)
            Whole blocks.

        Returns
        -------
        array of float32, shape (..., blocks · elements)
            The numbers. A scale that is infinite or NaN makes those of its block so.
        """
        codes, scales, minima = self._groups(xp, stored)
        wide = xp.reshape(xp.astype(codes, xp.float32), (*scales.shape, self.group_size))
        wide = wide * xp.expand_dims(scales, axis=-1)
        if minima is not None:
            wide = wide + xp.expand_dims(minima, axis=-1)
        return xp.reshape(wide, codes.shape)

    def packed(self, xp: Namespace, w: Array) -> Array:
        """Return numbers in blocks, rounded as the format's own writer does.

        Parameters
        ----------
        xp : namespace
            Of the array.
        w : array of float32, shape (..., blocks · elements)
            Numbers.

        Returns
        -------
        array of uint8, shape (..., blocks · nbytes)
            Whole blocks.

        Raises
        ------
        ValueError
            If there is no writer of this format.
        """
        if self.pack is None:
            raise ValueError(f"numbers cannot be written in the format {self.name!r}, which can only be read")
        *before, width = w.shape
        blocks = self.pack(xp, xp.reshape(w, (*before, width // self.elements, self.elements)))
        return xp.reshape(blocks, (*before, width // self.elements * self.nbytes))

    def affine(self, xp: Namespace, stored: Array) -> Affine:
        """Return the same numbers in the layout of `tensorops.quantized_linear`, which represents them exactly.

        Parameters
        ----------
        xp : namespace
            Of the array.
        stored : array of uint8, shape (..., blocks · nbytes)
            Whole blocks.

        Returns
        -------
        Affine
            Arguments of `tensorops.quantized_linear`.

        Raises
        ------
        ValueError
            If the numbers are not integers times a scale.
        """
        if not self.bits:
            raise ValueError(f"the numbers of format {self.name!r} are not integers times a scale")
        codes, scales, minima = self._groups(xp, stored)
        if self.bits == 8:
            weight = codes if minima is not None else in_bytes(xp, codes)
            return Affine(weight, scales, minima, 8, self.group_size)
        if minima is None:  # unsigned, with an offset of their own
            codes, minima = xp.astype(codes + 8, xp.uint8), scales * -8.0
        return Affine(pairs(xp, codes), scales, minima, 4, self.group_size)

    def _groups(self, xp: Namespace, stored: Array) -> Groups:
        *before, width = stored.shape
        found = self.unpack(xp, xp.reshape(stored, (*before, width // self.nbytes, self.nbytes)))

        def joined(x: Any) -> Any:
            return xp.reshape(x, (*before, x.shape[-2] * x.shape[-1]))

        return Groups(*(None if x is None else joined(x) for x in found))
