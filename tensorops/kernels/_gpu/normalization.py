"""How the norms are launched."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorops.kernels._gpu.plans import Device, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, refuse_dtypes, rows_of, vector


def rms_norm(
    device: Device, x: Operand, weight: Operand | None, eps: float, *, axis: int, weight_offset: float
) -> Plan | str:
    """Plan `tensorops.rms_norm`."""
    if reason := refuse_dtypes(device, x=x, weight=weight):
        return reason
    y = Result(x.dtype, x.shape)
    rows = rows_of((axis,), x=x, y=y.operand)
    if isinstance(rows, str):
        return rows
    real = np.float64 if x.dtype == "float64" else np.float32
    defines: dict[str, Any] = {"X": SHORT[x.dtype], "HAS_WEIGHT": int(weight is not None)}
    arrays = [rows.arguments["x"]]
    if weight is not None:
        defines["WEIGHT"] = SHORT[weight.dtype]
        rows = rows.beside(weight)
        arrays.append(vector("weight", weight))
    arrays.append(rows.arguments["y"])
    options = (real(eps), real(weight_offset))
    launch = rows.launch(device, "rms_norm", "rms_norm", x.dtype, defines, tuple(arrays), options)
    return Plan({"y": y}, (launch,))
