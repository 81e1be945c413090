"""q8_0: 32 signed bytes after a scale in float16."""

from __future__ import annotations

from tensorops._typing import Array, Namespace
from tensorops.formats._bits import half, half_bytes, in_bytes, signed
from tensorops.formats._format import Format, Groups


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    return Groups(signed(xp, blocks[..., 2:]), half(xp, blocks[..., :2]), None)


def pack(xp: Namespace, x: Array) -> Array:
    """Return float32 numbers along the last axis, a multiple of 32 of them, in blocks.

    None may be beyond ±8e6. An element is off by at most half of the scale, which is the largest one of its block by
    127, and 2⁻¹¹ of that, but at least 4e-6: the step of float16's smallest numbers.
    """
    groups = xp.reshape(x, (*x.shape[:-1], x.shape[-1] // 32, 32))
    stored = half_bytes(xp, xp.max(xp.abs(groups), axis=-1) / 127.0)
    scales = half(xp, stored)
    codes = xp.round(groups / xp.where(scales == 0, xp.ones_like(scales), scales))
    codes = xp.astype(xp.clip(codes, -127.0, 127.0), xp.int8)  # beyond, where the scale has few digits
    blocks = xp.concat((stored, in_bytes(xp, codes)), axis=-1)
    return xp.reshape(blocks, (*x.shape[:-1], x.shape[-1] // 32 * 34))


FORMAT = Format("q8_0", elements=32, nbytes=34, group_size=32, bits=8, unpack=_unpack, halves=(0,))
