"""How `tensorops.embedding` is launched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorops.kernels._gpu import blocks
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.rows import INTEGERS, SHORT, Arguments, refuse_dtypes, rows_of

_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0}


def embedding(device: Device, ids: Operand, weight: Operand, *, format: str | None = None) -> Plan | str:
    """Plan `tensorops.embedding`."""
    if format is not None:
        return blocks.embedding(device, ids, weight, format)
    if reason := refuse_dtypes(device, weight=weight):
        return reason
    y = Result(weight.dtype, (*ids.shape, weight.shape[1]))
    missing, written = np.float32(np.nan), y.operand
    if (pairs := _pairs(weight)) is not None and (written_pairs := _pairs(written)) is not None:
        missing = np.asarray([_NAN[weight.dtype]] * 2, np.uint16).view(np.float32)[0]
        weight, written = pairs, written_pairs
    vocabulary, features = weight.shape
    rows = rows_of((ids.ndim,), None, {"ids": ids}, y=written)
    if isinstance(rows, str):
        return rows
    dense = rows.dense and (weight.strides[1] == 1 or features == 1)
    in_line = weight.aligned >= 16 and weight.strides[0] * ITEM_SIZES[weight.dtype] % 16 == 0
    rows = replace(rows, dense=dense, aligned=rows.aligned and dense and in_line)
    table: Arguments = ("weight", *map(np.int64, (weight.offset, weight.strides[1], weight.strides[0], 0, 0)))
    defines = {"X": SHORT[weight.dtype], "IDS": INTEGERS[ids.dtype]}
    arrays = (rows.arguments["ids"], table, rows.arguments["y"])
    options = (np.int64(vocabulary), np.float64(missing) if weight.dtype == "float64" else missing)
    launch = rows.launch(device, "embedding", "embedding", weight.dtype, defines, arrays, options, passes=1)
    return Plan({"y": y}, (launch,))


def _pairs(a: Operand) -> Operand | None:
    """Return the metadata of rows of a half type as float32, which a copy leaves as they are, if that can be."""
    if a.dtype not in _NAN or a.aligned < 4 or a.strides[-1] != 1:
        return None
    if any(n % 2 for n in (a.offset, a.shape[-1], *a.strides[:-1])):
        return None
    strides = (*(s // 2 for s in a.strides[:-1]), 1)
    return Operand("float32", (*a.shape[:-1], a.shape[-1] // 2), strides, a.offset // 2, a.aligned)
