"""q5_0: 32 integers of 5 bits with an offset of 16; a scale in float16, the fifth bits, then the others as in q4_0."""

from __future__ import annotations

from tensorops.formats._bits import half, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import divided, extreme, levels, number_bytes, octets, paired
from tensorops.typing import Array, Namespace


def five_bits(xp: Namespace, fifth: Array, others: Array) -> Array:
    """Return 32 integers, of which the fifth bits are in four bytes, in their order."""
    bits = xp.concat([(fifth[..., i // 8 : i // 8 + 1] >> (i % 8)) & 1 for i in range(32)], axis=-1)
    return nibbles(xp, others) | (bits << 4)


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    codes = xp.astype(five_bits(xp, blocks[..., 2:6], blocks[..., 6:]), xp.int8) - 16
    return Groups(codes, half(xp, blocks[..., :2]), None)


def in_five_bits(xp: Namespace, codes: Array) -> Array:
    """Return the bytes of 32 integers of 5 bits."""
    return xp.concat((octets(xp, codes >> 4), paired(xp, codes & 15)), axis=-1)


def _pack(xp: Namespace, w: Array) -> Array:
    scale = extreme(xp, w) / -16.0
    codes = levels(xp, divided(xp, w, scale), 16.5, 31)
    return xp.concat((number_bytes(xp, scale, 2), in_five_bits(xp, codes)), axis=-1)


FORMAT = Format("q5_0", elements=32, nbytes=22, group_size=32, bits=8, unpack=_unpack, halves=(0,), pack=_pack)
