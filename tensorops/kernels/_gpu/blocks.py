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
from tensorops.kernels._gpu.products import adjacent, bytes_at_once, computed_in, matrix, products
from tensorops.kernels._gpu.rows import INTEGERS, SHORT, refuse_dtypes, rows_of

_EIGHT = 8  # neighbouring columns, whose low bits are in two words


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
    itemsize, outputs = ITEM_SIZES[x.dtype], weight.shape[0]
    words = 4 if 2 * _EIGHT * itemsize <= bytes_at_once(rows) or device.kind == "cpu" else 2
    chunk, defines = _described(device, weight, format, words)
    defines |= {"X": SHORT[x.dtype], "VEC": _vector(device, itemsize), "WHOLE": int(rows.dense)}
    launch = products(
        device, "quantized_linear_blocks", rows, matrix("weight", weight), outputs, chunk, defines, computed_in(x)
    )
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
    defines |= {"X": "f32", "HAS_IDS": len(chosen), **{"IDS": INTEGERS[a.dtype] for a in chosen.values()}}
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
    """Return how many numbers a thread computes with at once; on a processor those of one row of bytes."""
    return _EIGHT if device.kind == "cpu" else max(2, 16 // itemsize)


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
