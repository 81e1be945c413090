"""q5_k: q4_k with a fifth bit: bit j of 32 bytes before the others belongs to the j-th group."""

from __future__ import annotations

from tensorops.formats._bits import fields, joined
from tensorops.formats._format import Format, Groups
from tensorops.formats.q4_k import factors, four_bits
from tensorops.typing import Array, Namespace


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    fifth = joined(xp, fields(xp, blocks[..., 16:48], 1), 2)
    return Groups(four_bits(xp, blocks[..., 48:]) | (fifth << 4), *factors(xp, blocks))


FORMAT = Format("q5_k", elements=256, nbytes=176, group_size=32, bits=8, unpack=_unpack, halves=(0, 2))
