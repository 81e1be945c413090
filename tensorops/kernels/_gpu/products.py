"""The geometry of products with a matrix: streamed for a few rows, see ``native/gpu/products.h``, else ``tiles.h``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import Rows
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Operand
from tensorops.kernels._gpu.rows import Arguments, RowsOf

_CPU_GROUPS = 8  # for each core, so that none waits long for the last
_BUSY_THREADS = 1024  # of a multiprocessor: with fewer, too little memory is on its way
_MIN_TEAM, _MAX_TEAM = 8, 256
_MAX_X_ROWS = 8
# With more rows on a GPU, tiles in local memory beat reading weights again from its cache for every eight.
_FEW_ROWS = 32
_TILE, _TILE_THREADS = 64, 256


def computed_in(*operands: Operand | None) -> str:
    """Return the dtype that products of such operands are computed in."""
    return "float64" if any(a is not None and a.dtype == "float64" for a in operands) else "float32"


def processor_vector(computes: str) -> int:
    """Return how many such numbers fill a processor's widest register."""
    return 64 // ITEM_SIZES[computes]


def adjacent(*matrices: Operand | None) -> bool:
    """Return whether the elements of each row are adjacent, in all matrices."""
    return all(a is None or a.strides[1] == 1 or a.shape[1] == 1 for a in matrices)


def aligned_to(size: int, a: Operand) -> bool:
    """Return whether all rows of a matrix begin at multiples of `size` bytes."""
    return a.aligned >= size and all(n * ITEM_SIZES[a.dtype] % size == 0 for n in (a.offset, a.strides[0]))


def matrix(name: str, a: Operand) -> Arguments:
    """Return the arguments of a matrix."""
    along, step = a.strides
    return (name, np.int64(a.offset), np.int64(step), np.int64(along), np.int64(0), np.int64(0))


def rows_at_once(x: RowsOf) -> int:
    """Return how many rows of `x` are multiplied by each weight that is read."""
    return min(1 << max(x.count - 1, 0).bit_length(), _MAX_X_ROWS)


def bytes_at_once(x: RowsOf) -> int:
    """Return how much of each row of `x` a thread on a GPU should read at once.

    Its neighbours' loads should meet in few cache lines, and those of all rows have to fit its registers.
    """
    return 64 if rows_at_once(x) <= 2 else 32


def products(
    device: Device,
    source: str,
    x: RowsOf,
    weights: Arguments,
    outputs: int,
    chunk: int,
    defines: dict[str, Any],
    computes: str,
    most_outputs: int = 4,
) -> Launch:
    """Return the launch of products of rows of `x` with a matrix of that many rows.

    Products and sums are in the dtype `computes`; the kernel reads `chunk` columns at once. A team of threads computes
    a few outputs for a few rows. It is large enough to keep the device busy, but no thread is without a chunk.
    """
    if device.kind == "gpu" and x.count > _FEW_ROWS and device.max_block >= _TILE_THREADS:
        return _tiles(device, source, x, weights, outputs, defines, computes)
    x_rows = rows_at_once(x)
    per_team = min(2 if x_rows == _MAX_X_ROWS else 4, most_outputs, 1 << max(outputs.bit_length() - 1, 0))
    tiles_of_rows = -(-x.count // x_rows)
    tiles = -(-outputs // per_team) * tiles_of_rows
    if device.kind == "cpu":
        groups = max(1, min(tiles, device.units * _CPU_GROUPS))
        each = -(-tiles // groups) if tiles else 1
        g = Rows(1, 1, defines["VEC"], 0, each, -(-tiles // each))
    else:
        threads = _team(device, tiles, -(-x.length // chunk))
        per_block = max(1, min(128, device.max_block) // threads)
        g = Rows(threads, per_block, defines["VEC"], 0, 1, -(-tiles // per_block))
    defines = {"TILED": 0, "X_ROWS": x_rows, "OUTPUTS": per_team, **defines}
    arrays = (x.arguments["x"], weights, ("y",))
    more = tuple(map(np.int64, (outputs, tiles, tiles_of_rows)))
    return x.launch(device, source, source, computes, defines, arrays, more, geometry=g)


def _team(device: Device, tiles: int, chunks: int) -> int:
    most = max(_MIN_TEAM, min(_MAX_TEAM, device.max_block, 1 << max(chunks - 1, 0).bit_length()))
    threads = min(32, most)
    while threads < most and tiles * threads < device.units * _BUSY_THREADS:
        threads *= 2
    return threads


def _tiles(
    device: Device,
    source: str,
    x: RowsOf,
    weights: Arguments,
    outputs: int,
    defines: dict[str, Any],
    computes: str,
) -> Launch:
    tiles_of_rows = -(-x.count // _TILE)
    tiles = -(-outputs // _TILE) * tiles_of_rows
    g = Rows(_TILE_THREADS, 1, 4, 0, 1, tiles)
    defines = {**defines, "TILED": 1, "VEC": 4, "WORDS": 1, "ALIGNED": 0}
    more = tuple(map(np.int64, (outputs, tiles, tiles_of_rows)))
    return x.launch(device, source, source, computes, defines, (x.arguments["x"], weights, ("y",)), more, geometry=g)
