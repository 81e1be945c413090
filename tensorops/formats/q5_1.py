"""q5_1: 32 integers of 5 bits; a scale and a minimum in float16, the fifth bits, then the others as in q4_1."""

from __future__ import annotations

from tensorops.formats._bits import half
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import levels, number_bytes, steps
from tensorops.formats.q5_0 import five_bits, in_five_bits
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    codes = five_bits(xp, blocks[..., 4:8], blocks[..., 8:])
    return Groups(codes, half(xp, blocks[..., :2]), half(xp, blocks[..., 2:4]))


def _pack(xp: Namespace, w: Array) -> Array:
    scale, low, distance = steps(xp, w, 31)
    codes = in_five_bits(xp, levels(xp, distance, 0.5, 31))
    return xp.concat((number_bytes(xp, scale, 2), number_bytes(xp, low, 2), codes), axis=-1)


FORMAT = Format("q5_1", elements=32, nbytes=24, group_size=32, bits=8, unpack=_unpack, halves=(0, 2), pack=_pack)
