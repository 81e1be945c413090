"""One block of memory for the arrays between calls: those whose lives do not overlap share a part of it."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Protocol


class Block(Protocol):
    """An array between calls: how large it is, and the calls that write it first and read it last."""

    first: int
    last: int
    offset: int

    @property
    def nbytes(self) -> int:
        """The number of bytes."""


def arrange(blocks: Iterable[Block], line: int) -> int:
    """Give blocks whose lives overlap different places, at multiples of `line` bytes; return the size of all."""
    placed: list[Block] = []
    size = 0
    for block in sorted(blocks, key=lambda b: -b.nbytes):
        offset = 0
        for other in placed:  # by offset
            if other.last < block.first or block.last < other.first:
                continue
            if offset + padded(block, line) <= other.offset:
                break
            offset = max(offset, other.offset + padded(other, line))
        block.offset = offset
        bisect.insort(placed, block, key=lambda b: b.offset)
        size = max(size, offset + padded(block, line))
    return max(size, line)


def padded(block: Block, line: int) -> int:
    """Return the bytes that a block takes in whole lines."""
    return -(-block.nbytes // line) * line
