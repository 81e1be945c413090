"""How the losses are launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Operand, Plan, Result
from tensorops.kernels._gpu.rows import INTEGERS, SHORT, Arguments, refuse_wider, rows_of, vector

_MOST_ROWS = 2**31 - 2**16  # the second launch counts them in 32 bits


def cross_entropy(
    device: Device,
    logits: Operand,
    targets: Operand,
    weight: Operand | None,
    *,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Plan | str:
    """Plan `tensorops.cross_entropy`."""
    probable = targets.dtype not in INTEGERS
    probabilities = {"targets": targets} if probable else {}
    if reason := refuse_wider(device, logits=logits, weight=weight, **probabilities):
        return reason
    for name, a in {"weight": weight, **probabilities}.items():
        if a is not None and a.dtype == "float64" != logits.dtype:
            return f"{name} has dtype float64, but logits {logits.dtype}"
    y = Result(logits.dtype, logits.shape[:-1] if reduction == "none" else ())
    each = {} if probable else {"targets": targets}
    if reduction == "none":
        each["y"] = y.operand
    rows = rows_of((logits.ndim - 1,), None, each, logits=logits, **probabilities)
    if isinstance(rows, str):
        return rows
    if rows.count > _MOST_ROWS and reduction != "none":
        return f"logits has {rows.count} rows, more than 2**31"
    defines: dict[str, Any] = {
        "X": SHORT[logits.dtype],
        "TARGETS": (SHORT if probable else INTEGERS)[targets.dtype],
        "PROBABLE": int(probable),
        "SPREAD": int(probable or label_smoothing > 0),
        "REDUCED": int(reduction != "none"),
        "REAL": "f64" if logits.dtype == "float64" else "f32",
    }
    arrays = [rows.arguments["logits"], rows.arguments["targets"]]
    if weight is not None:
        defines["WEIGHT"] = SHORT[weight.dtype]
        rows = rows.beside(weight)
        arrays.append(vector("weight", weight))
    arrays.append(rows.arguments["y"] if reduction == "none" else ("parts",))
    real = np.float64 if logits.dtype == "float64" else np.float32
    limits = np.iinfo("int64" if probable else targets.dtype)
    ignores = limits.min <= ignore_index <= limits.max
    if ignores and ignore_index >= 2**63:
        return "ignore_index does not fit int64"
    options = (np.int32(ignores), np.int64(ignore_index if ignores else 0), real(label_smoothing), real(z_loss))
    name = "cross_entropy"
    launch = rows.launch(device, name, name, logits.dtype, defines, tuple(arrays), options, passes=1)
    if reduction == "none":
        return Plan({"y": y}, (launch,))
    parts = Result("float64" if logits.dtype == "float64" else "float32", (4, rows.count))
    last = _reduced(device, launch, logits.dtype, rows.count, reduction == "mean", real(z_loss))
    return Plan({"y": y}, (launch, last), {"parts": parts})


def _reduced(device: Device, launch: Launch, dtype: str, rows: int, mean: bool, z_loss: Any) -> Launch:
    """Return the launch of one block that adds the losses of rows."""
    geometry = rows_geometry(device, 1, rows, ITEM_SIZES["float64" if dtype == "float64" else "float32"], passes=1)
    if device.kind == "gpu":  # a block is at least as many threads as exchange values
        geometry = replace(geometry, rows=1, threads=max(geometry.threads, 32))
    defines = {**launch.defines, **geometry.defines, "DENSE": 1, "ROW_DIMS": 1}
    defines["ALIGNED"] = int(rows % geometry.vec == 0)
    arguments: Arguments = ("parts", "y", np.int32(rows), np.int32(mean), z_loss)
    return Launch("cross_entropy", "reduced_losses", defines, 1, geometry.threads, arguments)
