"""mxfp4: 32 numbers of 4 bits (E2M1), twice their value as integers, after a power of two in a byte (E8M0).

Source: OCP Microscaling Formats (MX) Specification 1.0, 2023.
"""

from __future__ import annotations

from tensorops._typing import Array, Namespace
from tensorops.formats._bits import looked_up, nibbles
from tensorops.formats._format import Format, Groups

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_POWERS = [2.0 ** (e - 128) for e in range(256)]


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    codes = looked_up(xp, E2M1, nibbles(xp, blocks[..., 1:]), xp.int8)
    return Groups(codes, looked_up(xp, _POWERS, blocks[..., :1], xp.float32), None)


FORMAT = Format("mxfp4", elements=32, nbytes=17, group_size=32, bits=8, unpack=_unpack)
