"""q8_0: 32 signed bytes after a scale in float16."""

from __future__ import annotations

from tensorops._typing import Array, Namespace
from tensorops.formats._bits import half, signed
from tensorops.formats._format import Format, Groups


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    return Groups(signed(xp, blocks[..., 2:]), half(xp, blocks[..., :2]), None)


FORMAT = Format("q8_0", elements=32, nbytes=34, group_size=32, bits=8, unpack=_unpack, halves=(0,))
