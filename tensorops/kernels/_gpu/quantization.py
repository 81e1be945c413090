"""How quantize, dequantize and quantized_linear are launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensorops.kernels._gpu import blocks
from tensorops.kernels._gpu.geometry import refuse_row, rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.products import (
    adjacent,
    aligned_to,
    bytes_at_once,
    computed_in,
    matrix,
    processor_vector,
    products,
)
from tensorops.kernels._gpu.rows import SHORT, Arguments, RowsOf, refuse_dtypes, rows_of
from tensorops.ops.quantization import AFFINE


def quantized_linear(
    device: Device,
    x: Operand,
    weight: Operand,
    scales: Operand | None,
    biases: Operand | None,
    *,
    bits: int,
    group_size: int,
    format: str = AFFINE,
    precision: str = "highest",
) -> Plan | str:
    """Plan `tensorops.quantized_linear`, for every precision as accurately as for the highest."""
    if scales is None:
        return blocks.quantized_linear(device, x, weight, format)
    if reason := refuse_dtypes(device, x=x, scales=scales, biases=biases):
        return reason
    rows = rows_of((x.ndim - 1,), x=x)
    if isinstance(rows, str):
        return rows
    outputs, computes = weight.shape[0], computed_in(x, scales, biases)
    if device.kind == "cpu":
        chunk, shape = _processor_chunk(processor_vector(computes), bits, group_size)
    else:
        chunk, shape = _gpu_chunk(rows, x, weight, bits, group_size)
    arguments, defines = _codes(weight, scales, biases, bits, group_size, chunk)
    whole = rows.dense and _is_whole(device, weight, scales, biases, group_size, chunk)
    defines |= {"X": SHORT[x.dtype], **shape, "WHOLE": int(whole)}
    launch = products(device, "quantized_linear", rows, arguments, outputs, chunk, defines, computes)
    return Plan({"y": Result(x.dtype, (*x.shape[:-1], outputs))}, (launch,))


def _codes(
    weight: Operand, scales: Operand, biases: Operand | None, bits: int, group_size: int, chunk: int
) -> tuple[Arguments, dict[str, Any]]:
    """Return the arguments and macros of quantized weights, which ``native/gpu/codes.h`` declares."""
    arguments = matrix("weight", weight) + matrix("scales", scales)
    defines = {"BITS": bits, "SCALE": SHORT[scales.dtype], "HAS_BIASES": int(biases is not None)}
    if biases is not None:
        arguments += matrix("biases", biases)
        defines["BIAS"] = SHORT[biases.dtype]
    return (*arguments, np.int32(group_size), np.int64(chunk * 2**32 // group_size + 1)), defines


def _processor_chunk(vec: int, bits: int, group_size: int) -> tuple[int, dict[str, int]]:
    """Return how many columns a thread takes at once: with a vector of bytes as wide as groups permit."""
    most = vec
    while vec > 2 and group_size * bits // 8 % vec:
        vec //= 2
    if group_size * bits // 8 % vec:
        vec = most  # no chunk fits
    return vec * 8 // bits, {"VEC": vec, "WORDS": 0}


def _gpu_chunk(rows: RowsOf, x: Operand, weight: Operand, bits: int, group_size: int) -> tuple[int, dict[str, int]]:
    """Return how many columns a thread takes at once: with up to 16 bytes of integers, at a multiple of their size."""
    size, words = ITEM_SIZES[x.dtype], 4
    while words > 1:
        chunk = words * 32 // bits
        if chunk * size <= bytes_at_once(rows) and group_size % chunk == 0 and aligned_to(4 * words, weight):
            break
        words //= 2
    chunk = words * 32 // bits
    return chunk, {"VEC": min(max(2, 16 // size), chunk), "WORDS": words}


def dequantize(
    device: Device,
    weight: Operand,
    scales: Operand | None,
    biases: Operand | None,
    *,
    bits: int,
    group_size: int,
    mode: str,
    format: str = AFFINE,
) -> Plan | str:
    """Plan `tensorops.dequantize`."""
    if scales is None:
        return blocks.dequantize(device, weight, format)
    if reason := refuse_dtypes(device, scales=scales, biases=biases):
        return reason
    columns = weight.shape[1] * 8 // bits
    if reason := refuse_row(columns):
        return reason
    w, computes = Result(scales.dtype, (weight.shape[0], columns)), computed_in(scales, biases)
    if device.kind == "cpu":
        chunk, shape = _processor_chunk(processor_vector(computes), bits, group_size)
    else:  # one word: threads then write next to each other
        chunk = 32 // bits
        shape = {"VEC": min(max(2, 16 // ITEM_SIZES[scales.dtype]), chunk), "WORDS": 1}
    arguments, defines = _codes(weight, scales, biases, bits, group_size, chunk)
    defines |= {**shape, "WHOLE": int(_is_whole(device, weight, scales, biases, group_size, chunk))}
    rows = rows_of((1,), w=w.operand)
    if isinstance(rows, str):
        return rows
    g = rows_geometry(device, rows.count, -(-columns // chunk) * shape["VEC"], ITEM_SIZES[scales.dtype], passes=1)
    g = replace(g, vec=shape["VEC"])
    launch = rows.launch(device, "dequantize", "dequantize", computes, defines, (arguments, ("w",)), geometry=g)
    return Plan({"w": w}, (launch,))


def quantize(
    device: Device, w: Operand, *, bits: int, group_size: int, mode: str, format: str = "affine"
) -> Plan | str:
    """Plan `tensorops.quantize`."""
    if format != "affine":
        return f"the kernel writes no blocks of format {format!r}, only affine groups"
    if reason := refuse_dtypes(device, w=w):
        return reason
    (outputs, columns), (along, step) = w.shape, w.strides
    parameters = Result(w.dtype, (outputs, columns // group_size))
    biases = parameters if mode == "affine" else None
    groups = Operand(w.dtype, (*parameters.shape, group_size), (along, group_size * step, step), w.offset, w.aligned)
    rows = rows_of((2,), w=groups)
    if isinstance(rows, str):
        return rows
    defines = {"X": SHORT[w.dtype], "BITS": bits, "HAS_BIASES": int(biases is not None)}
    results = ("weight", "scales") + (("biases",) if biases is not None else ())
    g = rows_geometry(device, rows.count, rows.length, ITEM_SIZES[w.dtype])
    defines["EVEN"] = int(rows.dense and group_size % g.vec == 0)
    launch = rows.launch(device, "quantize", "quantize", w.dtype, defines, (rows.arguments["w"], results), geometry=g)
    packed = Result("uint8", (outputs, columns * bits // 8))
    return Plan({"weight": packed, "scales": parameters, "biases": biases}, (launch,))


def _is_whole(
    device: Device, weight: Operand, scales: Operand, biases: Operand | None, group_size: int, chunk: int
) -> bool:
    """Return whether chunks can be read: each is in one group, and rows are adjacent, on a GPU in whole words."""
    aligned = device.kind == "cpu" or aligned_to(4, weight)
    return adjacent(weight, scales, biases) and group_size % chunk == 0 and aligned
