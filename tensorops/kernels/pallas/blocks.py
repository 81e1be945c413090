"""How rows are divided into blocks: pure functions of shapes, dtypes and the TPU's generation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

MIB = 2**20

VMEM = {"v4": 16 * MIB, "v5e": 128 * MIB, "v5p": 64 * MIB, "v6e": 128 * MIB, "v7": 64 * MIB}
"""The vector memory of a core by generation, in bytes."""

CORES = {"v4": 2, "v5p": 2}
"""The cores of a chip that is one device, where these are several."""

UNKNOWN = "v4"
"""Whose blocks fit every generation: for programs that are exported, or compiled on another machine."""

LANES = 128
TOGETHER = 2 * LANES  # rows or columns that are multiplied at a time
_ENOUGH = 10 * MIB  # blocks beyond this hide no more of the latency of memory, and every generation allows it
_MOST = 0.9  # of the memory: the rest is for what the compiler spills
_STEPS = 4  # that overlap reading, computing and writing
_TILE = 32  # rows of a tile of bytes, the narrowest elements
_ROWS = 512  # of queries that attention multiplies at a time
_KEYS = 512  # by which it multiplies them
_STREAMED = 2048  # keys in a block, if blocks move while the queries stay
_WIDE = 16  # bytes of vector memory for each score
_MOST_OF_ATTENTION = 0.7  # of the memory: values that do not stay in registers also take some


class Blocks(NamedTuple):
    """How a grid divides rows.

    Parameters
    ----------
    rows
        In a block; a multiple of the tile, or all of them.
    columns
        In a block; a multiple of the lanes, or all of them.
    vmem
        The bytes of vector memory that a step needs.
    """

    rows: int
    columns: int
    vmem: int


@dataclass
class Choice:
    """What is wanted of the next blocks, by parameter, and the blocks that were found."""

    wanted: dict[str, int]
    found: Blocks | None = None


PARAMETERS = {
    "block_rows": "rows of a block, rounded up to whole tiles, as many as fit vector memory; of rope, positions",
    "block_columns": "columns of a block where rows are divided, rounded up to 128; of rope, heads",
}
_choice: ContextVar[Choice | None] = ContextVar("tensorops_pallas_blocks", default=None)


@contextlib.contextmanager
def choosing(wanted: dict[str, int]) -> Iterator[Choice]:
    """Override the blocks that are chosen here, and tell which ones were."""
    choice = Choice(wanted)
    token = _choice.set(choice)
    try:
        yield choice
    finally:
        _choice.reset(token)


def _wanted(parameter: str, chosen: int, multiple: int, most: int) -> int:
    """Return how many rows or columns a block has: what is wanted in its place, up to the most that fit."""
    choice = _choice.get()
    if choice is None or parameter not in choice.wanted:
        return chosen
    return min(padded(choice.wanted[parameter], multiple), max(most // multiple, 1) * multiple)


def _found(blocks: Blocks) -> Blocks:
    if choice := _choice.get():
        choice.found = blocks
    return blocks


def tile_rows(itemsizes: Sequence[int]) -> int:
    """Return how many rows a tile of the narrowest of these elements has."""
    return 32 // min(itemsizes)


def padded(count: int, multiple: int) -> int:
    """Return the next multiple."""
    return -(-count // multiple) * multiple


def whole_rows(
    rows: int, length: int, itemsizes: Sequence[int], wide: int, generation: str, *, numbered: bool = False
) -> Blocks | None:
    """Divide arrays into blocks of whole rows; ``None`` if not even one tile of rows fits.

    Parameters
    ----------
    rows, length
        The shape of the arrays.
    itemsizes
        The bytes of an element of each array that is read or written; two blocks of each are in memory.
    wide
        How many float32 values of each element the kernel holds at a time.
    generation
        A name in `VMEM`.
    numbered
        Whether each row comes with numbers: they are along the lanes if a block may have as many rows as there are.
    """
    tile = tile_rows(itemsizes)
    one = padded(length, LANES) * (2 * sum(itemsizes) + 4 * wide)
    if numbered and one * LANES <= _ENOUGH:
        tile = LANES
    if tile * one > _MOST * VMEM[generation]:
        return None
    several = max(_ENOUGH // one // tile * tile, tile)
    even = padded(-(-rows // _STEPS), tile)
    count = _wanted("block_rows", min(several, even), tile, int(_MOST * VMEM[generation]) // one)
    return _found(Blocks(rows if count >= rows else count, length, padded(min(count, padded(rows, tile)), tile) * one))


def parts_of_rows(rows: int, length: int, itemsizes: Sequence[int], wide: int, generation: str) -> Blocks:
    """Divide arrays whose rows are reduced to one number into blocks of parts of rows.

    The numbers of a block are neighbours in memory, so it has a multiple of as many rows as there are lanes, or all.
    """
    one = 2 * sum(itemsizes) + 4 * wide
    limit = int(_MOST * VMEM[generation]) // one
    chosen = min(padded(rows, tile_rows(itemsizes)), 2 * LANES)
    count = min(_wanted("block_rows", chosen, LANES, limit // LANES), padded(rows, LANES))
    most = max(_ENOUGH // (count * one) // LANES * LANES, LANES)
    parts = -(-length // most)
    even = length if parts == 1 else padded(-(-length // parts), LANES)
    columns = min(_wanted("block_columns", even, LANES, limit // count), length)
    return _found(Blocks(rows if count >= rows else count, columns, count * padded(columns, LANES) * one))


def heads_and_positions(heads: int, positions: int, features: int, itemsize: int, generation: str) -> Blocks | None:
    """Divide ``(heads, positions, features)`` into blocks; their rows are positions, their columns heads."""
    tile = tile_rows([itemsize])
    one = padded(features, LANES) * (4 * itemsize + 12)
    if tile * one > _MOST * VMEM[generation]:
        return None
    limit = int(_MOST * VMEM[generation]) // one
    chosen = max(min(padded(positions, tile), _ENOUGH // one // tile * tile, 4 * LANES), tile)
    count = min(_wanted("block_rows", chosen, tile, limit), padded(positions, tile))
    several = min(_wanted("block_columns", max(min(heads, _ENOUGH // (count * one)), 1), 1, limit // count), heads)
    return _found(Blocks(positions if count >= positions else count, several, count * several * one))


class AttentionBlocks(NamedTuple):
    """How a grid divides attention.

    Parameters
    ----------
    heads
        Of those that share a key head, how many a step has; a divisor of their number.
    queries
        Of each of these heads in a step; a multiple of the tile, with those beyond the last.
    keys
        In a block, a multiple of `part`; all of them, if one block is enough.
    part
        How many keys are multiplied at a time; a multiple of the lanes.
    vmem
        The bytes of vector memory that a step needs.
    """

    heads: int
    queries: int
    keys: int
    part: int
    vmem: int


def attention(
    group: int,
    queries: int,
    keys: int,
    reached: int,
    widths: tuple[int, int],
    itemsize: int,
    mask: tuple[int, bool, bool],
    generation: str,
    *,
    gradients: bool = False,
) -> AttentionBlocks | None:
    """Divide attention, or its derivative in reverse mode, into blocks; ``None`` if not even the smallest fit.

    Parameters
    ----------
    group
        How many heads share a key head.
    queries, keys
        How many there are.
    reached
        How many of the keys any query attends to, from the last on.
    widths
        The features of a key and of a value.
    itemsize
        The bytes of an element.
    mask
        The bytes of an element of the mask, 0 without one; whether it differs by head, and by query.
    generation
        A name in `VMEM`.
    gradients
        Whether the kernel is that of the derivative, which never has a smaller block of keys than fits.
    """
    part = _even(keys, _KEYS, LANES)
    dim, value_dim = (padded(width, LANES) for width in widths)
    mask_size, by_head, by_query = mask
    rows = _ROWS // 2 if gradients else _ROWS
    while rows >= _TILE:
        most = max(rows // min(padded(queries, _TILE), LANES), 1)
        heads = max(n for n in range(1, group + 1) if group % n == 0 and n <= most)
        of_head = _even(queries, max(rows // heads // _TILE * _TILE, _TILE), _TILE)
        rows_of_mask = (heads if by_head else 1) * (of_head if by_query else _TILE)
        of_key = 2 * itemsize * (dim + value_dim) + 2 * mask_size * rows_of_mask
        of_row = itemsize * (3 * dim + 2 * value_dim) + 4 * (2 * value_dim + 2 * LANES) + _WIDE * part
        if gradients:  # a result, a sum and a block for each operand, and twice as many values for each score
            of_key += (2 * itemsize + 4) * (dim + value_dim)
            of_row += 2 * itemsize * value_dim + 4 * (5 * dim + value_dim) + _WIDE * part
        rest = int(_MOST_OF_ATTENTION * VMEM[generation]) - heads * of_head * of_row
        fitting = rest // of_key // part * part
        if fitting > 0:
            if not gradients and (fitting < keys or 2 * reached <= keys):  # blocks that no query attends to do not move
                fitting = min(fitting, max(_STREAMED // part * part, part))
            count = _even(keys, fitting, part)
            return AttentionBlocks(heads, of_head, count, part, heads * of_head * of_row + count * of_key)
        rows //= 2
    return None


def _even(count: int, most: int, multiple: int) -> int:
    """Return the size of as few equal parts as possible, which are multiples and have at most that many elements."""
    return padded(-(-count // -(-count // most)), multiple)
