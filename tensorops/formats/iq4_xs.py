"""iq4_xs: 256 numbers of the table of iq4_nl in groups of 32, with scales of 6 bits and an offset of 32.

The factor of all scales in float16, two bytes of the upper two bits of scales, four of their lower four bits, and 16
bytes for each group, first their low halves.
"""

from __future__ import annotations

from tensorops.formats._bits import fields, half, joined, looked_up, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.formats.iq4_nl import TABLE
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    before = blocks.shape[:-1]

    def in_order(stored: Array, bits: int) -> Array:  # the fields of a byte are neighbours here
        return joined(xp, fields(xp, xp.expand_dims(stored, axis=-1), bits), 3)

    scales = in_order(blocks[..., 4:8], 4) | (in_order(blocks[..., 2:4], 2) << 4)
    codes = joined(xp, nibbles(xp, xp.reshape(blocks[..., 8:], (*before, 8, 16))), 2)
    factors = half(xp, blocks[..., :2]) * (xp.astype(scales, xp.float32) - 32.0)
    return Groups(looked_up(xp, TABLE, codes, xp.int8), factors, None)


FORMAT = Format("iq4_xs", elements=256, nbytes=136, group_size=32, bits=8, unpack=_unpack, halves=(0,))
