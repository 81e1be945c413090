"""q2_k: 256 integers of 2 bits in groups of 16, each with a scale and a minimum of 4 bits.

Sixteen bytes hold scales (low halves) and minima, 64 the integers: bits 2 j and 2 j + 1 of 32 bytes are 32 neighbours.
Last are the factors of all scales and of all minima, in float16.
"""

from __future__ import annotations

from tensorops.formats._bits import fields, half, joined
from tensorops.formats._format import Format, Groups
from tensorops.typing import Array, Namespace


def two_bits(xp: Namespace, stored: Array) -> Array:
    """Return 256 integers of 2 bits that 64 bytes hold."""
    halves = xp.reshape(stored, (*stored.shape[:-1], 2, 32))
    return joined(xp, fields(xp, halves, 2), 3)


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    scales, minima = (xp.astype(x, xp.float32) for x in (blocks[..., :16] & 15, blocks[..., :16] >> 4))
    codes = two_bits(xp, blocks[..., 16:80])
    return Groups(codes, half(xp, blocks[..., 80:82]) * scales, -(half(xp, blocks[..., 82:]) * minima))


FORMAT = Format("q2_k", elements=256, nbytes=84, group_size=16, bits=8, unpack=_unpack, halves=(80, 82))
