"""mxfp4: 32 numbers of 4 bits (E2M1), twice their value as integers, after a power of two in a byte (E8M0).

Source: OCP Microscaling Formats (MX) Specification 1.0, 2023.
"""

from __future__ import annotations

from math import floor, log, ulp

from tensorops.formats._bits import looked_up, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import exponents, paired
from tensorops.typing import Array, Namespace

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_POWERS = [2.0 ** (e - 128) for e in range(256)]


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    codes = looked_up(xp, E2M1, nibbles(xp, blocks[..., 1:]), xp.int8)
    return Groups(codes, looked_up(xp, _POWERS, blocks[..., :1], xp.float32), None)


def _start(e: int) -> float:
    """Return the first number whose logarithm, rounded to float32, is not less than `e`."""
    below = 0.0 if e == 0 else ulp(float(abs(e))) * 2.0 ** (29 - (e > 0 and e & (e - 1) == 0))  # in float32
    return 2.0**e * (1.0 - floor(0.5 * below * log(2.0) * 2**24) * 2.0**-24)


_LOWEST, _HIGHEST = -125, 128  # the logarithms of the smallest and the largest number, rounded to integers
_STARTS = [_start(e) for e in range(_LOWEST, _HIGHEST + 1)]


def _pack(xp: Namespace, w: Array) -> Array:
    largest = xp.max(xp.abs(w), axis=-1, keepdims=True)
    power = exponents(xp, largest, _STARTS, _LOWEST) - _LOWEST
    scale = looked_up(xp, _POWERS, power, xp.float32)
    least, codes = xp.abs(w), xp.zeros_like(w, dtype=xp.uint8)
    for code in (*range(1, 8), *range(9, 16)):  # of two values that are as near, the first
        off = xp.abs(scale * float(E2M1[code]) - w)
        codes = xp.where(off < least, xp.full_like(codes, code), codes)
        least = xp.minimum(off, least)
    return xp.concat((xp.astype(power, xp.uint8), paired(xp, codes)), axis=-1)


FORMAT = Format("mxfp4", elements=32, nbytes=17, group_size=32, bits=8, unpack=_unpack, pack=_pack)
