"""q8_0: 32 signed bytes after a scale in float16."""

from __future__ import annotations

from tensorops.formats._bits import half, in_bytes, signed
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import divided, number_bytes, quotient
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    return Groups(signed(xp, blocks[..., 2:]), half(xp, blocks[..., :2]), None)


def _pack(xp: Namespace, w: Array) -> Array:
    scale = quotient(xp, xp.max(xp.abs(w), axis=-1, keepdims=True), 127.0)
    scaled = divided(xp, w, scale)
    magnitude = xp.abs(scaled)
    whole = xp.floor(magnitude)
    whole = whole + xp.floor(2.0 * (magnitude - whole))  # halves are rounded away from zero
    codes = xp.astype(xp.where(scaled < 0.0, -whole, whole), xp.int8)
    return xp.concat((number_bytes(xp, scale, 2), in_bytes(xp, codes)), axis=-1)


FORMAT = Format("q8_0", elements=32, nbytes=34, group_size=32, bits=8, unpack=_unpack, halves=(0,), pack=_pack)
