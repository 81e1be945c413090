"""q3_k: 256 integers of 3 bits with an offset of 4, in groups of 16 with scales of 6 bits and an offset of 32.

First come 32 bytes of third bits: bit j of them belongs to the j-th run of 32 neighbours. The lower two bits are in 64
bytes as in q2_k. Then twelve bytes of scales: the lower four bits in the low halves of eight bytes and then in the high
halves, the upper two bits in fields of the last four bytes. Last is the factor of all scales, in float16.
"""

from __future__ import annotations

from tensorops.formats._bits import fields, half, joined, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.formats.q2_k import two_bits
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    third = joined(xp, fields(xp, blocks[..., :32], 1), 2)
    codes = xp.astype(two_bits(xp, blocks[..., 32:96]) | (third << 2), xp.int8) - 4
    upper = joined(xp, fields(xp, blocks[..., 104:108], 2), 2)
    scales = xp.astype(nibbles(xp, blocks[..., 96:104]) | (upper << 4), xp.float32) - 32.0
    return Groups(codes, half(xp, blocks[..., 108:]) * scales, None)


FORMAT = Format("q3_k", elements=256, nbytes=110, group_size=16, bits=8, unpack=_unpack, halves=(108,))
