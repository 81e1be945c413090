"""q5_0: 32 integers of 5 bits with an offset of 16; a scale in float16, the fifth bits, then the others as in q4_0."""

from __future__ import annotations

from tensorops._typing import Array, Namespace
from tensorops.formats._bits import half, nibbles
from tensorops.formats._format import Format, Groups


def five_bits(xp: Namespace, fifth: Array, others: Array) -> Array:
    """Return 32 integers, of which the fifth bits are in four bytes, in their order."""
    bits = xp.concat([(fifth[..., i // 8 : i // 8 + 1] >> (i % 8)) & 1 for i in range(32)], axis=-1)
    return nibbles(xp, others) | (bits << 4)


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    codes = xp.astype(five_bits(xp, blocks[..., 2:6], blocks[..., 6:]), xp.int8) - 16
    return Groups(codes, half(xp, blocks[..., :2]), None)


FORMAT = Format("q5_0", elements=32, nbytes=22, group_size=32, bits=8, unpack=_unpack, halves=(0,))
