"""How `tensorops.top_k` is launched."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorops.kernels._gpu.plans import Device, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, Arguments, refuse_dtypes, rows_of

_LONGEST = 2**24  # indices are compared in float32
_MOST = 64  # a result is found after the one before


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
    arrays = [rows.arguments["x"], *(_along(rows.arguments[name], y.operand, axis) for name, y in results.items())]
    defines: dict[str, Any] = {"X": SHORT[x.dtype]}
    options = (np.int32(k), np.int32(largest))
    launch = rows.launch(device, "top_k", "top_k", x.dtype, defines, tuple(arrays), options, passes=1)
    return Plan(dict(results), (launch,))


def _one_for_each_row(a: Operand, axis: int) -> Operand:
    strides = tuple(s for i, s in enumerate(a.strides) if i != axis)
    return Operand(a.dtype, tuple(n for i, n in enumerate(a.shape) if i != axis), strides)


def _along(arguments: Arguments, a: Operand, axis: int) -> Arguments:
    """Return the arguments of an array that has several elements for each row."""
    return (*arguments[:2], np.int64(a.strides[axis]), *arguments[3:])
