"""How elementwise functions and gated units are launched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import Rows, rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, RowsOf, refuse_wider, rows_of

_SPAN = 2**16
"""The elements of a piece on a processor, at most: `geometry.refuse_row` leaves room for one beyond the end."""
_LEAST_SPAN = 2**12
_CPU_PIECES = 8  # for each core, so that none waits long for the last
_UNROLLED = 4  # vectors that a thread of a GPU loads before it needs the first


def planner(function: str) -> Callable[..., Plan | str]:
    """Return the planner of a function of one array."""

    def plan(device: Device, x: Operand, **options: float) -> Plan | str:
        return _plan(device, function, options, x=x)

    return plan


def gated(function: str) -> Callable[..., Plan | str]:
    """Return the planner of a gated unit with this function."""

    def plan(device: Device, gate: Operand, up: Operand) -> Plan | str:
        return _plan(device, function, {}, gate=gate, up=up)

    return plan


def gelu(device: Device, x: Operand, *, approximate: str) -> Plan | str:
    """Plan `tensorops.gelu`."""
    return _plan(device, "gelu" if approximate == "none" else "gelu_tanh", {}, x=x)


def leaky_relu(device: Device, x: Operand, *, negative_slope: float) -> Plan | str:
    """Plan `tensorops.leaky_relu`."""
    return _plan(device, "leaky_relu", {"alpha": negative_slope}, x=x)


def hard_sigmoid(device: Device, x: Operand, *, alpha: float, beta: float) -> Plan | str:
    """Plan `tensorops.hard_sigmoid`."""
    # alpha (x + beta / alpha) does not cancel near its zero, where alpha x + beta does.
    far = alpha == 0.0 or abs(beta) > 1024.0 * abs(alpha)
    options = {"alpha": alpha, "beta": beta} if far else {"alpha": alpha, "shift": beta / alpha}
    return _plan(device, "hard_sigmoid", options, x=x)


def _plan(device: Device, function: str, options: dict[str, float], **arrays: Operand) -> Plan | str:
    if reason := refuse_wider(device, **arrays):
        return reason
    x = next(iter(arrays.values()))
    y = Result(x.dtype, x.shape)
    rows = _longest_rows(**arrays, y=y.operand)
    if isinstance(rows, str):
        return rows
    geometry, span = elements_geometry(device, rows.count, rows.length, ITEM_SIZES[x.dtype])
    # The last vector of a row may be in part beyond it; those before it are aligned nevertheless.
    aligned = int(rows.aligned)
    defines: dict[str, Any] = {"X": SHORT[x.dtype], "FUNCTION": function, "GATED": len(arrays) - 1, "ALIGNED": aligned}
    real = np.float64 if x.dtype == "float64" else np.float32
    numbers = (np.int32(span), *(real(options.get(name, 0.0)) for name in ("alpha", "beta", "shift")))
    launch = rows.launch(
        device, "activation", "activation", x.dtype, defines, tuple(rows.arguments.values()), numbers, geometry=geometry
    )
    return Plan({"y": y}, (launch,))


def _longest_rows(**arrays: Operand) -> RowsOf | str:
    """Return arrays as rows of as many of the last axes as possible: of all where one step leads through them."""
    ndim = next(iter(arrays.values())).ndim
    found: RowsOf | str = ""
    for first in range(max(1, ndim)):
        found = rows_of(tuple(range(first, ndim)), **arrays)
        if not isinstance(found, str):
            break
    return found


def elements_geometry(device: Device, rows: int, length: int, itemsize: int) -> tuple[Rows, int]:
    """Return the geometry for pieces of rows whose elements are independent, and the elements of a piece."""
    if device.kind == "cpu":
        vec = 8 if itemsize == 8 else 16
        share = max(_LEAST_SPAN, -(-length // (device.units * _CPU_PIECES)))
        span = min(_SPAN, -(-(length if rows > 1 else share) // 64) * 64) or 64
        pieces = rows * -(-length // span)
        each = max(1, pieces // (device.units * _CPU_PIECES))
        return Rows(1, 1, vec, 0, each, -(-pieces // each)), span
    vec = max(2, 16 // itemsize)
    whole = rows_geometry(device, rows, length, itemsize, passes=1)
    threads, per_block = (min(256, device.max_block), 1) if rows == 1 else (whole.threads, whole.rows)
    vectors = -(-length // (threads * vec))
    many = rows * vectors >= device.units * _UNROLLED * 8
    kept = min(_UNROLLED, 1 << (max(1, vectors) - 1).bit_length()) if many else 1
    span = kept * threads * vec
    pieces = rows * -(-length // span)
    return Rows(threads, per_block, vec, kept, 1, -(-pieces // per_block)), span
