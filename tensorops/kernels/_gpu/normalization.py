"""How the norms are launched."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import Rows
from tensorops.kernels._gpu.plans import Device, Launch, Number, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, RowsOf, refuse_wider, rows_of

_PARAMETERS = ("weight", "bias")
_DIVISORS = {"layer_norm": 0, "rms_norm": 1, "l2_norm": 2}
_FIRST_STRIDE = 3  # after an array's name, start and step
_VEC = {"cpu": 16, "gpu": 4}  # rows in a thread, if they are computed across memory
_WIDTH = {"cpu": 4, "gpu": 1}  # vectors of such rows: a processor is slow to step over many pages


def rms_norm(
    device: Device, x: Operand, weight: Operand | None, eps: float, *, axis: int, weight_offset: float
) -> Plan | str:
    """Plan `tensorops.rms_norm`."""
    return _rms_norm(device, x, None, weight, eps, axis, weight_offset)


def add_rms_norm(
    device: Device, x: Operand, residual: Operand, weight: Operand | None, eps: float, *, axis: int
) -> Plan | str:
    """Plan `tensorops.add_rms_norm`."""
    return _rms_norm(device, x, residual, weight, eps, axis, 0.0)


def _rms_norm(
    device: Device,
    x: Operand,
    residual: Operand | None,
    weight: Operand | None,
    eps: float,
    axis: int,
    weight_offset: float,
) -> Plan | str:
    y = Result(x.dtype, x.shape)
    results = {"y": y} if residual is None else {"y": y, "sum": y}
    inputs = _present(x=x, residual=residual, weight=weight and _along(x, weight, (axis,)))
    options = (*_eps(x, eps), _real(x, weight_offset))
    return _plan(device, "rms_norm", (axis,), inputs, results, options)


def l2_norm(device: Device, x: Operand, eps: float, *, axis: tuple[int, ...]) -> Plan | str:
    """Plan `tensorops.l2_norm`."""
    return _plan(device, "l2_norm", axis, {"x": x}, {"y": Result(x.dtype, x.shape)}, (_real(x, eps),))


def layer_norm(
    device: Device, x: Operand, weight: Operand | None, bias: Operand | None, eps: float, *, axis: tuple[int, ...]
) -> Plan | str:
    """Plan `tensorops.layer_norm`."""
    inputs = _present(x=x, weight=weight and _along(x, weight, axis), bias=bias and _along(x, bias, axis))
    options = (*_eps(x, eps), np.int32(1))
    return _plan(device, "layer_norm", axis, inputs, {"y": Result(x.dtype, x.shape)}, options, SPANS=0)


def instance_norm(
    device: Device, x: Operand, weight: Operand | None, bias: Operand | None, eps: float, *, channel_axis: int
) -> Plan | str:
    """Plan `tensorops.instance_norm`."""
    return group_norm(device, x, x.shape[channel_axis], weight, bias, eps, channel_axis=channel_axis)


def group_norm(
    device: Device,
    x: Operand,
    num_groups: int,
    weight: Operand | None,
    bias: Operand | None,
    eps: float,
    *,
    channel_axis: int,
) -> Plan | str:
    """Plan `tensorops.group_norm`."""
    y = Result(x.dtype, x.shape)
    if 0 in x.shape:
        return Plan({"y": y}, ())
    members, before = x.shape[channel_axis] // num_groups, math.prod(x.shape[1:channel_axis])
    if members > 1 and before > 1:
        return "the channels of a group are not next to each other: channel_axis is neither 1 nor are groups channels"
    if reason := refuse_wider(device, x=x, weight=weight, bias=bias):
        return reason
    grouped = {"x": _in_groups(x, channel_axis, num_groups), "y": _in_groups(y.operand, channel_axis, num_groups)}
    axes = tuple(a for a in range(1, x.ndim + 1) if a != channel_axis)
    inputs = _present(x=x, weight=weight, bias=bias)
    parameters = {
        name: _along(grouped["x"], _in_groups(a, 0, num_groups), (channel_axis, channel_axis + 1))
        for name, a in _present(weight=weight, bias=bias).items()
    }
    span = math.prod(x.shape[1:]) // x.shape[channel_axis]
    if span == 1:
        rows = rows_of(axes, **grouped, **parameters)
    else:
        rows = rows_of(axes, {name: (a, a.strides[channel_axis + 1]) for name, a in parameters.items()}, **grouped)
    if isinstance(rows, str):
        return rows
    options = (*_eps(x, eps), np.int32(span))
    return _launched(device, "layer_norm", rows, inputs, {"y": y}, options, {"SPANS": int(span > 1)})


def _in_groups(a: Operand, axis: int, groups: int) -> Operand:
    """Return an array whose channels have two axes: groups, and members of a group."""
    members, step = a.shape[axis] // groups, a.strides[axis]
    shape = (*a.shape[:axis], groups, members, *a.shape[axis + 1 :])
    return replace(a, shape=shape, strides=(*a.strides[:axis], members * step, step, *a.strides[axis + 1 :]))


def _along(x: Operand, parameter: Operand, axes: tuple[int, ...]) -> Operand:
    """Return an array along some axes of x as one of the shape of x."""
    strides = dict(zip(axes, parameter.strides, strict=True))
    return replace(parameter, shape=x.shape, strides=tuple(strides.get(a, 0) for a in range(x.ndim)))


def _plan(
    device: Device,
    kernel: str,
    axes: tuple[int, ...],
    inputs: dict[str, Operand],
    results: dict[str, Result],
    options: tuple[Number, ...],
    **defines: int,
) -> Plan | str:
    """Return the plan of a norm along axes of arrays that have one shape."""
    if 0 in inputs["x"].shape:
        return Plan(dict(results), ())
    if reason := refuse_wider(device, **inputs):
        return reason
    rows = rows_of(axes, **inputs, **{name: y.operand for name, y in results.items()})
    if isinstance(rows, str):
        return rows
    return _launched(device, kernel, rows, inputs, results, options, defines)


def _launched(
    device: Device,
    kernel: str,
    rows: RowsOf,
    inputs: dict[str, Operand],
    results: dict[str, Result],
    options: tuple[Number, ...],
    defines: dict[str, int],
) -> Plan | str:
    x = inputs["x"]
    macros: dict[str, Any] = {"X": SHORT[x.dtype], "HAS_RESIDUAL": int("residual" in inputs)}
    for name in _PARAMETERS:
        macros[f"HAS_{name.upper()}"] = int(name in inputs)
        if name in inputs:
            macros[name.upper()] = SHORT[inputs[name].dtype]
    names = (*inputs, *results)
    spans = defines.get("SPANS", 0)
    across = not rows.dense and (not spans or int(options[2]) == rows.length)
    if across and (beside := _beside(device, rows, names)):
        macros["DIVISOR"] = _DIVISORS[kernel]
        return Plan(dict(results), (_across(device, rows, x.dtype, names, macros, beside, spans, options),))
    if reason := rows.refuse_apart(device):
        return reason
    arrays = tuple(rows.arguments[name] for name in names)
    return Plan(dict(results), (rows.launch(device, kernel, kernel, x.dtype, macros | defines, arrays, options),))


def _beside(device: Device, rows: RowsOf, names: tuple[str, ...]) -> int:
    """Return how many rows begin one after another in memory, if these fill a vector, else 0."""
    last = _FIRST_STRIDE + len(rows.lengths) - 1
    adjacent = all(rows.arguments[name][last] == 1 for name in names if name not in _PARAMETERS)
    return rows.lengths[-1] if adjacent and rows.lengths[-1] >= _VEC[device.kind] else 0


def _across(
    device: Device,
    rows: RowsOf,
    dtype: str,
    names: tuple[str, ...],
    defines: dict[str, Any],
    beside: int,
    spans: int,
    options: tuple[Number, ...],
) -> Launch:
    """Return the launch for rows that step over each other: each lane of a thread has one."""
    vec = _VEC[device.kind] // (2 if dtype == "float64" else 1)
    threads = 1 if device.kind == "cpu" else min(128, device.max_block)
    width = _WIDTH[device.kind] if beside >= vec * _WIDTH[device.kind] else 1
    filled = beside % (vec * width) == 0
    blocks = -(-(rows.count // beside * -(-beside // (vec * width))) // threads)
    each = max(1, -(-blocks // (device.units * 8))) if device.kind == "cpu" else 1
    last = _FIRST_STRIDE + len(rows.lengths) - 1
    arrays = []
    for name in names:
        argument = rows.arguments[name]
        if name in _PARAMETERS:  # with the step from each row to the next; one for each row does not change along it
            step = np.int64(0) if spans else argument[2]
            argument = (*argument[:2], step, *argument[3:], argument[last])
        arrays.append(argument)
    zero = type(options[0])(0)
    eps, least = options[:2] if len(options) > 1 else (zero, options[0])
    numbers = (eps, least, options[2] if defines["DIVISOR"] == _DIVISORS["rms_norm"] else zero, np.int64(beside))
    defines = {**defines, "WIDTH": width, "FILLED": int(filled)}
    geometry = Rows(threads, 1, vec, 0, each, -(-blocks // each))
    return rows.launch(
        device, "norm_columns", "norm_columns", dtype, defines, tuple(arrays), numbers, geometry=geometry
    )


def _present(**operands: Operand | None) -> dict[str, Operand]:
    return {name: a for name, a in operands.items() if a is not None}


def _eps(x: Operand, eps: float) -> tuple[Number, Number]:
    """Return eps and its root, which may be representable even if eps is not; it is 0 only if eps is."""
    root = _real(x, math.sqrt(eps))
    if eps > 0 and root == 0:
        root = np.nextafter(root, type(root)(1))
    return _real(x, eps), root


def _real(x: Operand, value: float) -> Number:
    """Return a number in the type of computation; infinity if it is too large."""
    with np.errstate(over="ignore"):
        return np.float64(value) if x.dtype == "float64" else np.float32(value)
