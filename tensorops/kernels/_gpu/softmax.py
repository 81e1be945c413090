"""How softmax and its relatives are launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensorops._dtypes import name_of
from tensorops._typing import Dtype
from tensorops.kernels._gpu.plans import Device, Operand, Plan, Result, contiguous_strides
from tensorops.kernels._gpu.rows import SHORT, refuse_dtypes, rows_of

_KINDS = {"softmax": 0, "log_softmax": 1, "logsumexp": 2}


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
    device: Device, x: Operand, *, axis: int | tuple[int, ...], keepdims: bool, dtype: Dtype | None
) -> Plan | str:
    """Plan `tensorops.logsumexp`."""
    axes = _axes(axis)
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    shape = kept if keepdims else tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return _plan(device, "logsumexp", x, axis, None, Result(_result_dtype(x, dtype), shape))


def _axes(axis: int | tuple[int, ...]) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, int) else tuple(sorted(axis))


def _result_dtype(x: Operand, dtype: Dtype | None) -> str:
    return x.dtype if dtype is None else name_of(dtype)


def _plan(
    device: Device, kind: str, x: Operand, axis: int | tuple[int, ...], where: Operand | None, result: Result
) -> Plan | str:
    y = result.operand
    if reason := refuse_dtypes(device, x=x, y=y):
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
    defines: dict[str, Any] = {
        "X": SHORT[x.dtype], "Y": SHORT[y.dtype], "KIND": _KINDS[kind], "WHERE": int(where is not None)
    }  # fmt: skip
    order = [rows.arguments[name] for name in ("x", "where", "y") if name in arrays]
    return Plan({"y": result}, (rows.launch(device, "softmax", "softmax", computed, defines, tuple(order)),))


def _broadcast(a: Operand, shape: tuple[int, ...]) -> Operand:
    """Return an array with the shape to which its own broadcasts."""
    lead = len(shape) - a.ndim
    strides = (0 if n == 1 else s for n, s in zip(a.shape, a.strides, strict=True))
    return replace(a, shape=shape, strides=(0,) * lead + tuple(strides))
