"""q4_0: 32 integers of 4 bits with an offset of 8; a scale in float16, then the low and the high halves of 16 bytes."""

from __future__ import annotations

from tensorops.formats._bits import half, nibbles
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import divided, extreme, levels, number_bytes, paired
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    codes = xp.astype(nibbles(xp, blocks[..., 2:]), xp.int8) - 8
    return Groups(codes, half(xp, blocks[..., :2]), None)


def _pack(xp: Namespace, w: Array) -> Array:
    scale = extreme(xp, w) / -8.0
    codes = levels(xp, divided(xp, w, scale), 8.5, 15)
    return xp.concat((number_bytes(xp, scale, 2), paired(xp, codes)), axis=-1)


FORMAT = Format("q4_0", elements=32, nbytes=18, group_size=32, bits=4, unpack=_unpack, halves=(0,), pack=_pack)
