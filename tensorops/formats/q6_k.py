"""q6_k: 256 integers of 6 bits with an offset of 32, in groups of 16 with scales in signed bytes.

For each half of the block, 64 bytes hold the lower four bits, first of all low halves, and 32 bytes the upper two, in
fields as in q2_k. Sixteen scales follow, and the factor of all in float16.
"""

from __future__ import annotations

from tensorops.formats._bits import fields, half, joined, signed
from tensorops.formats._format import Format, Groups
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    before = blocks.shape[:-1]
    lower = joined(xp, fields(xp, xp.reshape(blocks[..., :128], (*before, 2, 64)), 4), 3)
    upper = joined(xp, fields(xp, xp.reshape(blocks[..., 128:192], (*before, 2, 32)), 2), 3)
    codes = xp.astype(lower | (upper << 4), xp.int8) - 32
    scales = xp.astype(signed(xp, blocks[..., 192:208]), xp.float32)
    return Groups(codes, half(xp, blocks[..., 208:]) * scales, None)


FORMAT = Format("q6_k", elements=256, nbytes=210, group_size=16, bits=8, unpack=_unpack, halves=(208,))
