"""nvfp4: 64 numbers of 4 bits (E2M1) in groups of 16, after their four scales (E4M3 without a sign).

Integers are twice the numbers, and the scales half of those stored. Each group takes eight bytes, first their low
halves. As in llama.cpp, the scale that would be NaN is 0.
"""

from __future__ import annotations

from tensorops.formats._bits import joined, looked_up, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.formats.mxfp4 import E2M1
from tensorops.typing import Array, Namespace


def _half_of_e4m3(bits: int) -> float:
    exponent, mantissa = bits >> 3 & 15, bits & 7
    if bits == 0x7F:
        return 0.0
    return mantissa * 2.0**-10 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 11)


_SCALES = [_half_of_e4m3(bits) for bits in range(256)]


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    packed = xp.reshape(blocks[..., 4:], (*blocks.shape[:-1], 4, 8))
    codes = looked_up(xp, E2M1, joined(xp, nibbles(xp, packed), 2), xp.int8)
    return Groups(codes, looked_up(xp, _SCALES, blocks[..., :4], xp.float32), None)


FORMAT = Format("nvfp4", elements=64, nbytes=36, group_size=16, bits=8, unpack=_unpack)
