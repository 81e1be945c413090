"""iq4_nl: q4_0 with a table of values in place of equal steps."""

from __future__ import annotations

from tensorops.formats._bits import half, looked_up, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.typing import Array, Namespace

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    codes = looked_up(xp, TABLE, nibbles(xp, blocks[..., 2:]), xp.int8)
    return Groups(codes, half(xp, blocks[..., :2]), None)


FORMAT = Format("iq4_nl", elements=32, nbytes=18, group_size=32, bits=8, unpack=_unpack, halves=(0,))
