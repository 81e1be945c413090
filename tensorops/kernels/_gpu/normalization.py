"""How the norms are launched."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from tensorops.kernels._gpu.plans import Device, Number, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, RowsOf, refuse_dtypes, rows_of


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
    return _plan(device, "rms_norm", (axis,), inputs, results, options, HAS_RESIDUAL=int(residual is not None))


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
        return "the channels of a group are not beside each other: channel_axis is neither 1 nor are groups channels"
    if reason := refuse_dtypes(device, x=x, weight=weight, bias=bias):
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
    if reason := rows.refuse_columns(device):
        return reason
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
    if reason := refuse_dtypes(device, **inputs):
        return reason
    rows = rows_of(axes, **inputs, **{name: y.operand for name, y in results.items()})
    if isinstance(rows, str):
        return rows
    if reason := rows.refuse_columns(device):
        return reason
    return _launched(device, kernel, rows, inputs, results, options, defines)


def _launched(
    device: Device,
    kernel: str,
    rows: RowsOf,
    inputs: dict[str, Operand],
    results: dict[str, Result],
    options: tuple[Number, ...],
    defines: dict[str, int],
) -> Plan:
    x = inputs["x"]
    of_parameters: dict[str, Any] = {}
    for name in ("weight", "bias"):
        of_parameters[f"HAS_{name.upper()}"] = int(name in inputs)
        if name in inputs:
            of_parameters[name.upper()] = SHORT[inputs[name].dtype]
    arrays = tuple(rows.arguments[name] for name in (*inputs, *results))
    macros = {"X": SHORT[x.dtype], **of_parameters, **defines}
    return Plan(dict(results), (rows.launch(device, kernel, kernel, x.dtype, macros, arrays, options),))


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
