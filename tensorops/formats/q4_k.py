"""q4_k: 256 integers of 4 bits in groups of 32, each with a scale and a minimum of 6 bits.

The factors of all scales and of all minima in float16, twelve bytes of scales and minima, then 128 bytes of integers:
the low halves of 32 bytes are a group, their high halves the next one.
"""

from __future__ import annotations

from tensorops.formats._bits import fields, half, joined, six_bit_scales
from tensorops.formats._format import Format, Groups
from tensorops.typing import Array, Namespace


def four_bits(xp: Namespace, stored: Array) -> Array:
    """Return 256 integers of 4 bits that 128 bytes hold."""
    return joined(xp, fields(xp, xp.reshape(stored, (*stored.shape[:-1], 4, 32)), 4), 3)


def factors(xp: Namespace, blocks: Array) -> tuple[Array, Array]:
    """Return the scales and the minima that the first 16 bytes of blocks hold."""
    scales, minima = (xp.astype(x, xp.float32) for x in six_bit_scales(xp, blocks[..., 4:16]))
    return half(xp, blocks[..., :2]) * scales, -(half(xp, blocks[..., 2:4]) * minima)


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    return Groups(four_bits(xp, blocks[..., 16:]), *factors(xp, blocks))


FORMAT = Format("q4_k", elements=256, nbytes=144, group_size=32, bits=4, unpack=_unpack, halves=(0, 2))
