"""How quantize, dequantize and quantized_linear are launched."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.products import few_rows, matrix, rows_aligned
from tensorops.kernels._gpu.rows import SHORT, Arguments, refuse_dtypes, rows_of

_X_BYTES = 64  # of a row of x for each thread: its neighbours' loads should meet in few cache lines


def quantized_linear(
    device: Device, x: Operand, weight: Operand, scales: Operand, biases: Operand | None, *, bits: int, group_size: int
) -> Plan | str:
    """Plan `tensorops.quantized_linear`."""
    if reason := refuse_dtypes(device, x=x, scales=scales, biases=biases):
        return reason
    rows = rows_of((x.ndim - 1,), x=x)
    if isinstance(rows, str):
        return rows
    outputs = weight.shape[0]
    chunk, defines = _chunk(device, x, weight, bits, group_size)
    codes, more = _codes(weight, scales, biases, bits, group_size, chunk)
    launch = few_rows(device, "quantized_linear", rows, x.dtype, codes, outputs, chunk, {**defines, **more})
    return Plan({"y": Result(x.dtype, (*x.shape[:-1], outputs))}, (launch,))


def _codes(
    weight: Operand, scales: Operand, biases: Operand | None, bits: int, group_size: int, chunk: int
) -> tuple[Arguments, dict[str, Any]]:
    """Return the arguments and the macros of quantized weights."""
    arguments = matrix("weight", weight) + matrix("scales", scales)
    defines = {"BITS": bits, "SCALE": SHORT[scales.dtype], "HAS_BIASES": int(biases is not None)}
    if biases is not None:
        arguments += matrix("biases", biases)
        defines["BIAS"] = SHORT[biases.dtype]
    return (*arguments, np.int32(group_size), np.int64(chunk * 2**32 // group_size + 1)), defines


def _chunk(device: Device, x: Operand, weight: Operand, bits: int, group_size: int) -> tuple[int, dict[str, Any]]:
    """Return how many columns a thread takes at once, and the macros for it.

    A chunk is in one group, and begins at a multiple of its size in memory, except on processors.
    """
    size = 8 if x.dtype == "float64" else 4
    dense = weight.strides[1] == 1
    if device.kind == "cpu":
        vec = 64 // size
        while vec >= 2 and dense:
            if group_size % (vec * 8 // bits) == 0:
                return vec * 8 // bits, {"VEC": vec, "WHOLE": 1, "WORDS": 0}
            vec //= 2
        return 64 // size, {"VEC": 64 // size, "WHOLE": 0, "WORDS": 0}
    vec = max(2, 16 // ITEM_SIZES[x.dtype])
    for words in (4, 2, 1):
        chunk = words * 32 // bits
        fits = words == 1 or chunk * ITEM_SIZES[x.dtype] <= _X_BYTES
        if fits and rows_aligned(weight) and group_size % chunk == 0:
            return chunk, {"VEC": min(vec, chunk), "WHOLE": 1, "WORDS": words}
    return vec, {"VEC": vec, "WHOLE": 0, "WORDS": 0}
