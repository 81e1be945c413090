"""q4_1: 32 integers of 4 bits; a scale and a minimum in float16, then the low and the high halves of 16 bytes."""

from __future__ import annotations

from tensorops.formats._bits import half, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import levels, number_bytes, paired, steps
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    return Groups(nibbles(xp, blocks[..., 4:]), half(xp, blocks[..., :2]), half(xp, blocks[..., 2:4]))


def _pack(xp: Namespace, w: Array) -> Array:
    scale, low, distance = steps(xp, w, 15)
    codes = levels(xp, distance, 0.5, 15)
    return xp.concat((number_bytes(xp, scale, 2), number_bytes(xp, low, 2), paired(xp, codes)), axis=-1)


FORMAT = Format("q4_1", elements=32, nbytes=20, group_size=32, bits=4, unpack=_unpack, halves=(0, 2), pack=_pack)
