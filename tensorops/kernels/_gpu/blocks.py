"""How products with blocks of a format are launched, and their numbers; see ``native/gpu/blocks.h``."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import numpy as np

from tensorops import formats
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.geometry import refuse_row, rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.products import adjacent, bytes_at_once, computed_in, matrix, products, rows_at_once
from tensorops.kernels._gpu.rows import INTEGERS, SHORT, RowsOf, refuse_dtypes, rows_of


@functools.cache
def _low_bits() -> dict[str, int]:
    """Return the formats that the sources describe, and how many bits of a code each has in its bytes of low bits."""
    text = (sources.FOLDER / "formats.h").read_text(encoding="utf-8")
    _, *found = re.split(r"defined\(FORMAT_(\w+)\)", text)
    bits = (re.search(r"LOW_BITS (\d)", described) for described in found[1::2])
    return {name.lower(): int(own[1]) if own else 4 for name, own in zip(found[::2], bits, strict=True)}


def quantized_linear(device: Device, x: Operand, weight: Operand, format: str) -> Plan | str:
    """Plan `tensorops.quantized_linear` of blocks."""
    if reason := refuse_dtypes(device, x=x) or _refuse(weight, format):
        return reason
    rows = rows_of((x.ndim - 1,), x=x)
    if isinstance(rows, str):
        return rows
    vec, outputs = _vector(device, ITEM_SIZES[x.dtype]), weight.shape[0]
    chunk, defines = _described(device, weight, format, _words(device, rows, x, format, vec))
    defines |= {"X": SHORT[x.dtype], "VEC": vec, "WHOLE": int(rows.dense)}
    computes = computed_in(x)
    source, arguments = "quantized_linear_blocks", matrix("weight", weight)
    most = 4 if device.kind == "cpu" else 2  # that registers hold without a spill, as NVRTC divides them
    if rows_at_once(rows) > 4 and (computes == "float64" or _low_bits()[format] == 2):
        most = 1
    launch = products(device, source, rows, arguments, outputs, chunk, defines, computes, most)
    return Plan({"y": Result(x.dtype, (*x.shape[:-1], outputs))}, (launch,))


def dequantize(device: Device, weight: Operand, format: str) -> Plan | str:
    """Plan `tensorops.dequantize` of blocks."""
    return _numbers(device, weight, format, None)


def embedding(device: Device, ids: Operand, weight: Operand, format: str) -> Plan | str:
    """Plan `tensorops.embedding` of blocks."""
    return _numbers(device, weight, format, ids)


def _numbers(device: Device, weight: Operand, format: str, ids: Operand | None) -> Plan | str:
    if reason := _refuse(weight, format):
        return reason
    of = formats.get(format)
    columns = weight.shape[1] // of.nbytes * of.elements
    if reason := refuse_row(columns):
        return reason
    y = Result("float32", (*(weight.shape[:1] if ids is None else ids.shape), columns))
    chosen = {} if ids is None else {"ids": ids}
    rows = rows_of((len(y.shape) - 1,), None, chosen, y=y.operand)
    if isinstance(rows, str):
        return rows
    arrays = (matrix("weight", weight), *(rows.arguments[name] for name in (*chosen, "y")))
    vec = _vector(device, 4)
    chunk, defines = _described(device, weight, format, 2)  # few numbers: threads then write close to each other
    defines |= {"X": "f32", "HAS_IDS": int(ids is not None)}
    if ids is not None:
        defines["IDS"] = INTEGERS[ids.dtype]
    g = rows_geometry(device, rows.count, columns // chunk * vec, 4, passes=1)
    launch = rows.launch(
        device, "dequantize_blocks", "dequantize_blocks", "float32", defines, arrays, (np.int64(weight.shape[0]),),
        geometry=replace(g, vec=vec),
    )  # fmt: skip
    return Plan({"y": y}, (launch,))


def _refuse(weight: Operand, format: str) -> str | None:
    if format not in _low_bits():
        return f"the kernel reads no blocks of format {format!r}"
    return None if adjacent(weight) else "the bytes of rows of blocks are not contiguous"


def _vector(device: Device, itemsize: int) -> int:
    """Return how many numbers a thread computes with at once."""
    return 8 if device.kind == "cpu" else max(2, 16 // itemsize)


def _words(device: Device, rows: RowsOf, x: Operand, format: str, vec: int) -> int:
    """Return how many words of codes a thread reads at once: as many as its registers hold what they become."""
    columns, words = 64 // max(2, rows_at_once(rows)), 4
    while (
        device.kind == "gpu"
        and words > max(1, vec // 4)
        and (4 * words * ITEM_SIZES[x.dtype] > bytes_at_once(rows) or 32 // _low_bits()[format] * words > columns)
    ):
        words //= 2
    return words


def _described(device: Device, weight: Operand, format: str, words: int) -> tuple[int, dict[str, Any]]:
    """Return how many columns a chunk has, and macros: see ``native/gpu/blocks.h``."""
    of = formats.get(format)
    places = (of.nbytes, weight.offset, weight.strides[0])
    align = 1  # which a processor reads as fast
    while device.kind == "gpu" and align < weight.aligned and not any(n % (2 * align) for n in places):
        align *= 2
    defines = {
        f"FORMAT_{format.upper()}": 1,
        "ELEMENTS": of.elements,
        "BYTES": of.nbytes,
        "GROUP": of.group_size,
        "CODE_WORDS": words,
        "ALIGN": align,
    }
    return words * 32 // _low_bits()[format], defines
