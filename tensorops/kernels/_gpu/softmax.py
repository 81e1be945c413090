"""How softmax and its relatives are launched."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tensorops._dtypes import name_of
from tensorops.kernels._gpu.geometry import Rows
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Operand, Plan, Result, contiguous_strides
from tensorops.kernels._gpu.rows import SHORT, RowsOf, refuse_dtypes, rows_of
from tensorops.typing import Dtype

# As native/gpu/softmax.cl has them; WHERE by the step along a row
_KINDS = {"softmax": 0, "log_softmax": 1, "logsumexp": 2}
_WHERE = {1: 1, 0: 3}
_APART = 2
# Larger arrays whose rows have such steps are not read row by row: most of each line of memory would be of no use.
_FEW, _FAR = 2**16, 8
_FIRST_STRIDE = 3  # after an array's name, start and step
_WIDTH = {"cpu": 4, "gpu": 1}  # vectors of such rows: a processor is slow to step over many pages
_VEC = {"cpu": 16, "gpu": 4}  # rows in a thread, if they are computed across memory


def softmax(
    device: Device, x: Operand, *, axis: int | tuple[int, ...], where: Operand | None, dtype: Dtype | None
) -> Plan | str:
    """Plan `tensorops.softmax`."""
    return _plan(device, "softmax", x, axis, where, Result(_result_dtype(x, dtype), x.shape))


def log_softmax(
    device: Device, x: Operand, *, axis: int | tuple[int, ...], where: Operand | None, dtype: Dtype | None
) -> Plan | str:
    """Plan `tensorops.log_softmax`."""
    return _plan(device, "log_softmax", x, axis, where, Result(_result_dtype(x, dtype), x.shape))


def logsumexp(
    device: Device,
    x: Operand,
    *,
    axis: int | tuple[int, ...],
    keepdims: bool,
    where: Operand | None,
    b: Operand | None,
    return_sign: bool,
    dtype: Dtype | None,
) -> Plan | str:
    """Plan `tensorops.logsumexp`."""
    if where is not None or b is not None or return_sign:
        return "where, b or return_sign is given"
    axes = _axes(axis)
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    shape = kept if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return _plan(device, "logsumexp", x, axis, None, Result(_result_dtype(x, dtype), shape))


def _axes(axis: int | tuple[int, ...]) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(sorted(axis))


def _result_dtype(x: Operand, dtype: Dtype | None) -> str:
    return x.dtype if dtype is None else name_of(dtype)


# How many vectors of exponentials a processor's block keeps in local memory, 64 bytes each, and what the long ones need
_SPANS = {False: 256, True: 1024}
_LOCAL_BYTES_OF_LONG_SPANS = 65 << 10


def _plan(
    device: Device, kind: str, x: Operand, axis: int | tuple[int, ...], where: Operand | None, result: Result
) -> Plan | str:
    y = result.operand
    if reason := refuse_dtypes(device, x=x) or refuse_dtypes(device, y=y):
        return reason
    axes = _axes(axis)
    arrays = {"x": x, "y": y}
    if kind == "logsumexp":  # a row has one result, at step 0
        kept = contiguous_strides(tuple(1 if i in axes else n for i, n in enumerate(x.shape)))
        arrays["y"] = replace(y, shape=x.shape, strides=tuple(0 if i in axes else s for i, s in enumerate(kept)))
    if where is not None:
        arrays["where"] = _broadcast(where, x.shape)
    rows = rows_of(axes, **arrays)
    # What is read and written in vectors: not the result of logsumexp, and not `where`
    vectors = rows_of(axes, x=x) if kind == "logsumexp" else rows_of(axes, x=x, y=y)
    if isinstance(rows, str):
        return rows
    if isinstance(vectors, str):
        return vectors
    rows = replace(rows, dense=vectors.dense, aligned=vectors.aligned)
    computed = "float64" if "float64" in (x.dtype, y.dtype) else x.dtype
    flags = 0 if where is None else _WHERE.get(int(rows.arguments["where"][2]), _APART)
    defines: dict[str, Any] = {"X": SHORT[x.dtype], "Y": SHORT[y.dtype], "KIND": _KINDS[kind], "WHERE": flags}
    if device.kind == "cpu":
        defines["SPAN_VECTORS"] = _SPANS[device.local_bytes >= _LOCAL_BYTES_OF_LONG_SPANS]
    if not rows.dense:
        if beside := _beside(device, rows):
            defines["ALIGNED"] = int(_aligned(x) and _aligned(arrays["y"]))
            return Plan({"y": result}, (_across(device, rows, computed, beside, defines),))
        if math.prod(x.shape) > _FEW and abs(int(rows.arguments["x"][2])) > _FAR:
            return "neither the elements of a row nor the first ones of rows are adjacent in x and the result"
    order = [rows.arguments[name] for name in ("x", "where", "y") if name in arrays]
    return Plan({"y": result}, (rows.launch(device, "softmax", "softmax", computed, defines, tuple(order)),))


def _broadcast(a: Operand, shape: tuple[int, ...]) -> Operand:
    """Return an array with the shape to which its own broadcasts."""
    return replace(a, shape=shape, strides=a.strides_among(len(shape)))


def _aligned(a: Operand) -> bool:
    """Return whether adjacent elements, taken by the vector from the first on, begin at multiples of 16 bytes."""
    steps = (s for s, n in zip(a.strides, a.shape, strict=True) if n > 1 and s != 1)
    return a.aligned >= 16 and all(s * ITEM_SIZES[a.dtype] % 16 == 0 for s in steps)


def _beside(device: Device, rows: RowsOf) -> int:
    """Return how many rows begin one after another in memory, if these fill a vector, else 0."""
    last = _FIRST_STRIDE + len(rows.lengths) - 1
    adjacent = all(rows.arguments[name][last] == 1 for name in ("x", "y"))
    return rows.lengths[-1] if adjacent and rows.lengths[-1] >= _VEC[device.kind] else 0


def _across(device: Device, rows: RowsOf, computed: str, beside: int, defines: dict[str, Any]) -> Launch:
    """Return the launch for rows that step over each other: each lane of a thread has one."""
    vec = _VEC[device.kind] if ITEM_SIZES[computed] < 8 else _VEC[device.kind] // 2
    threads = 1 if device.kind == "cpu" else min(128, device.max_block)
    width = _WIDTH[device.kind] if beside >= vec * _WIDTH[device.kind] else 1
    blocks = -(-(rows.count // beside * -(-beside // (vec * width))) // threads)
    defines = {**defines, "WIDTH": width, "FILLED": int(beside % (vec * width) == 0)}
    each = -(-blocks // (device.units * 8)) if device.kind == "cpu" else 1
    order = list(rows.arguments["x"])
    if "where" in rows.arguments:
        where = rows.arguments["where"]
        order += [*where, where[_FIRST_STRIDE + len(rows.lengths) - 1]]
    order += rows.arguments["y"]
    geometry = Rows(threads, 1, vec, 0, max(1, each), -(-blocks // max(1, each)))
    return rows.launch(
        device, "softmax_columns", "softmax_columns", computed, defines, (tuple(order),), (np.int64(beside),),
        geometry=geometry,
    )  # fmt: skip
