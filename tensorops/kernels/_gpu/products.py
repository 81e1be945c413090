"""The geometry of products of a few rows with a matrix that is streamed, see ``native/gpu/products.h``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import Rows
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Operand
from tensorops.kernels._gpu.rows import SHORT, Arguments, RowsOf

_CPU_GROUPS = 8  # for each core, so that none waits long for the last
_BUSY_THREADS = 1024  # of a multiprocessor: with fewer, too little memory is on its way
_MIN_TEAM, _MAX_TEAM = 8, 256
_MAX_X_ROWS = 8


def alignment(a: Operand) -> int:
    """Return the largest power of two up to 16 that divides the address of the first element, in bytes."""
    start = a.offset * ITEM_SIZES[a.dtype]
    return min(a.aligned, start & -start) if start else a.aligned


def rows_aligned(a: Operand) -> bool:
    """Return whether all rows of a matrix begin at multiples of 16 bytes, and their elements are adjacent."""
    *outer, step = a.strides
    size = ITEM_SIZES[a.dtype]
    return (step == 1 or a.shape[-1] == 1) and alignment(a) >= 16 and all(s * size % 16 == 0 for s in outer)


def matrix(name: str, a: Operand) -> Arguments:
    """Return the arguments of a matrix, or of None."""
    along, step = a.strides
    return (name, np.int64(a.offset), np.int64(step), np.int64(along), np.int64(0), np.int64(0))


def few_rows(
    device: Device,
    source: str,
    x: RowsOf,
    dtype: str,
    arguments: Arguments,
    outputs: int,
    chunk: int,
    defines: dict[str, Any],
) -> Launch:
    """Return the launch of products of rows of `x`, whose elements are of `dtype`, with a matrix.

    A team of threads computes a few outputs for a few rows. It is large enough to keep the device busy, but not so
    large that threads have no chunk of columns.
    """
    x_rows = min(1 << max(x.count - 1, 0).bit_length(), _MAX_X_ROWS)
    per_team = min(2 if x_rows == _MAX_X_ROWS and device.kind == "cpu" else 4, 1 << max(outputs.bit_length() - 1, 0))
    tiles_of_rows = -(-x.count // x_rows)
    tiles = -(-outputs // per_team) * tiles_of_rows
    vec = int(defines["VEC"])
    if device.kind == "cpu":
        groups = max(1, min(tiles, device.units * _CPU_GROUPS))
        each = -(-tiles // groups) if tiles else 1
        g = Rows(1, 1, vec, 0, each, -(-tiles // each))
    else:
        threads = _team(device, tiles, -(-x.length // chunk))
        per_block = max(1, min(128, device.max_block) // threads)
        g = Rows(threads, per_block, vec, 0, 1, -(-tiles // per_block))
    common = {"X": SHORT[dtype], "X_ROWS": x_rows, "OUTPUTS": per_team}
    more = tuple(map(np.int64, (outputs, tiles, tiles_of_rows)))
    return x.launch(
        device, source, source, dtype, {**common, **defines}, (x.arguments["x"], arguments, ("y",)), more, geometry=g
    )


def _team(device: Device, tiles: int, chunks: int) -> int:
    most = max(_MIN_TEAM, min(_MAX_TEAM, device.max_block, 1 << max(chunks - 1, 0).bit_length()))
    threads = min(32, most)
    while threads < most and tiles * threads < device.units * _BUSY_THREADS:
        threads *= 2
    return threads
