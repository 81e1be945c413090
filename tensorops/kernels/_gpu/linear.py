"""How linear is launched."""

from __future__ import annotations

from typing import Any

from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.products import adjacent, aligned_to, computed_in, matrix, processor_vector, products
from tensorops.kernels._gpu.rows import SHORT, refuse_dtypes, rows_of, vector


def linear(device: Device, x: Operand, weight: Operand, bias: Operand | None) -> Plan | str:
    """Plan `tensorops.linear`."""
    if reason := refuse_dtypes(device, x=x, weight=weight, bias=bias):
        return reason
    if not adjacent(weight):
        return "the rows of weight are not contiguous"
    rows = rows_of((x.ndim - 1,), x=x)
    if isinstance(rows, str):
        return rows
    outputs, computes = weight.shape[0], computed_in(x, weight, bias)
    aligned = rows.aligned and aligned_to(16, weight)
    chunk = processor_vector(computes) if device.kind == "cpu" else max(2, 16 // ITEM_SIZES[weight.dtype])
    defines: dict[str, Any] = {
        "X": SHORT[x.dtype],
        "WEIGHT": SHORT[weight.dtype],
        "HAS_BIAS": int(bias is not None),
        "VEC": chunk,
        "WHOLE": int(rows.dense and (aligned or device.kind == "cpu")),
        "ALIGNED": int(aligned),
    }
    arguments = matrix("weight", weight)
    if bias is not None:
        defines["BIAS"] = SHORT[bias.dtype]
        arguments += vector("bias", bias)
    launch = products(device, "linear", rows, arguments, outputs, chunk, defines, computes)
    return Plan({"y": Result(x.dtype, (*x.shape[:-1], outputs))}, (launch,))
