"""Which calls of embedding the kernel computes, and with which blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorops._dtypes import INTEGER
from tensorops.kernels.pallas.blocks import CORES, LANES, MIB, VMEM, padded, tile_rows
from tensorops.kernels.pallas.refusals import refuse_arrays

if TYPE_CHECKING:
    from tensorops.kernels.pallas.planners import Program

_COPIED = 2 * MIB  # bytes under way at a time: more than what moves while the first of them is waited for
_MOST_ROWS = 256  # of a block
_STEPS = 4  # that overlap copying and writing
_MOST = 0.9  # of the vector memory


class Lookup(NamedTuple):
    """How the ids of a call are divided.

    Parameters
    ----------
    rows
        In a block; a multiple of the tile.
    steps
        How many blocks a core has.
    cores
        Over how many cores the blocks are divided.
    together
        Rows of the table that share the words of memory and are copied together.
    vmem
        The bytes of vector memory that a step needs.
    """

    rows: int
    steps: int
    cores: int
    together: int
    vmem: int


def embedding(generation: str, *, ids: Any, weight: Any, format: str | None = None) -> Program | str:
    """Plan `tensorops.embedding`."""
    if format is not None:
        return f"the kernel reads no blocks of format {format!r}"
    if reason := refuse_arrays({"weight": weight}) or refuse_arrays({"ids": ids}, INTEGER):
        return reason
    vocabulary, dim = weight.shape
    if dim % LANES:
        return f"rows of weight have {dim} elements, not a multiple of {LANES}: XLA would copy the table for the kernel"
    if vocabulary < 4 // weight.dtype.itemsize:
        return f"weight has one row, and rows of {weight.dtype} are copied in pairs"
    found = divided(math.prod(ids.shape), dim, weight.dtype.itemsize, generation)
    if found is None:
        return f"rows of {dim} elements do not fit the vector memory of a TPU {generation}"

    def program(ids: Any, weight: Any) -> list[Any]:
        from tensorops.kernels.pallas import lookup

        return [lookup.embedding(found, generation, ids, weight)]

    return program


def divided(count: int, dim: int, itemsize: int, generation: str) -> Lookup | None:
    """Divide the ids into blocks; ``None`` if not even one tile of rows fits.

    Of each block there are two in vector memory, as copied and as written; a tile at a time is in float32.
    """
    tile, together = tile_rows([itemsize]), 4 // itemsize
    one = 2 * dim * itemsize * (together + 1) + 4 * LANES
    numbers = 3 * 4 * dim * tile
    most = int(_MOST * VMEM[generation] - numbers) // one
    even = padded(-(-count // _STEPS), tile)
    largest = min(most, max(_COPIED // (dim * itemsize * together), tile), _MOST_ROWS, even) // tile * tile
    for cores in (CORES.get(generation, 1), 1):
        for rows in range(largest, 0, -tile):
            blocks = -(-count // rows)
            if blocks % cores == 0:
                return Lookup(rows, blocks // cores, cores, together, rows * one + numbers)
    return None
