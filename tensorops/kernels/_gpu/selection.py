"""How `tensorops.top_k` is launched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorops.kernels._gpu.geometry import rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, Arguments, RowsOf, refuse_dtypes, rows_of

_LONGEST = 2**24  # indices are compared in float32
_MOST = 64  # a result is found after the one before
_MOST_VECTORS = 8  # that a processor keeps in registers
_SHARE = {"cpu": 2**16, "gpu": 2**14}  # elements of a row, for which another launch pays
_NO_AXES = (np.int64(0), np.int64(0))


def top_k(device: Device, x: Operand, k: int, *, axis: int, largest: bool) -> Plan | str:
    """Plan `tensorops.top_k`."""
    if reason := refuse_dtypes(device, x=x):
        return reason
    if k > _MOST:
        return f"k is {k}, more than {_MOST}"
    if x.shape[axis] > _LONGEST:
        return f"x has {x.shape[axis]} elements along its axis, more than 2**24"
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    results = {"values": Result(x.dtype, shape), "indices": Result("int64", shape)}
    if k == 0:
        return Plan(dict(results), ())
    across = {name: _one_for_each_row(y.operand, axis) for name, y in results.items()}
    rows = rows_of((axis,), None, across, x=x)
    if isinstance(rows, str):
        return rows
    found = {name: _along(rows.arguments[name], y.operand, axis) for name, y in results.items()}
    options: Arguments = (np.int32(k), np.int32(largest))
    shares = shares_of_rows(device, rows.count, rows.length) if len(rows.lengths) == 1 else 1
    if shares == 1:
        return Plan(dict(results), (_launch(device, rows, rows.arguments["x"], found, options, x.dtype),))
    each = replace(
        rows,
        count=rows.count * shares,
        length=longest_share(rows.length, shares),
        aligned=rows.aligned and rows.length % 16 == 0,
    )
    temporaries = {
        "shares_values": Result(x.dtype, (rows.count, shares * k)),
        "shares_indices": Result("int64", (rows.count, shares * k)),
    }
    of_shares: dict[str, Arguments] = {
        name: (f"shares_{name}", np.int64(0), np.int64(1), np.int64(k), *_NO_AXES) for name in results
    }
    divided = (np.int32(rows.length), np.int32(shares))
    first = _launch(device, each, rows.arguments["x"], of_shares, options + divided, x.dtype, SHARED=1)
    of_row = replace(rows, length=shares * k, dense=True, aligned=shares * k * ITEM_SIZES[x.dtype] % 16 == 0)
    candidates: Arguments = ("shares_values", np.int64(0), np.int64(1), np.int64(shares * k), *_NO_AXES)
    last = _launch(device, of_row, candidates, found, (*options, "shares_indices"), x.dtype, OF_SHARES=1)
    return Plan(dict(results), (first, last), temporaries)


def shares_of_rows(device: Device, rows: int, length: int) -> int:
    """Return into how many shares each row is divided, so that few long ones keep the whole device busy."""
    return max(1, min(device.units // max(rows, 1), length // _SHARE[device.kind]))


def longest_share(length: int, shares: int) -> int:
    """Return how many elements the longest share of a row may have; shares begin at multiples of 16."""
    return -(-(length // 16) // shares) * 16 + length % 16


def _launch(
    device: Device,
    rows: RowsOf,
    x: Arguments,
    found: dict[str, Arguments],
    options: Arguments,
    dtype: str,
    **divided: int,
) -> Launch:
    geometry = rows_geometry(device, rows.count, rows.length, ITEM_SIZES[dtype], passes=1, dense=rows.dense)
    vectors = -(-rows.length // geometry.vec)
    short = vectors if device.kind == "cpu" and vectors <= _MOST_VECTORS and not divided else 0
    defines = {"X": SHORT[dtype], "SHORT": short} | divided
    arrays = (x, found["values"], found["indices"])
    return rows.launch(device, "top_k", "top_k", dtype, defines, arrays, options, geometry=geometry)


def _one_for_each_row(a: Operand, axis: int) -> Operand:
    strides = tuple(s for i, s in enumerate(a.strides) if i != axis)
    return Operand(a.dtype, tuple(n for i, n in enumerate(a.shape) if i != axis), strides)


def _along(arguments: Arguments, a: Operand, axis: int) -> Arguments:
    """Return the arguments of an array that has several elements for each row."""
    return (*arguments[:2], np.int64(a.strides[axis]), *arguments[3:])
