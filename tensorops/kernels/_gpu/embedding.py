"""How `tensorops.embedding` is launched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.rows import INTEGERS, SHORT, Arguments, refuse_dtypes, rows_of


def embedding(device: Device, ids: Operand, weight: Operand) -> Plan | str:
    """Plan `tensorops.embedding`."""
    if reason := refuse_dtypes(device, weight=weight):
        return reason
    vocabulary, features = weight.shape
    y = Result(weight.dtype, (*ids.shape, features))
    rows = rows_of((ids.ndim,), None, {"ids": ids}, y=y.operand)
    if isinstance(rows, str):
        return rows
    dense = rows.dense and (weight.strides[1] == 1 or features == 1)
    in_line = weight.aligned >= 16 and weight.strides[0] * ITEM_SIZES[weight.dtype] % 16 == 0
    rows = replace(rows, dense=dense, aligned=rows.aligned and dense and in_line)
    table: Arguments = ("weight", *map(np.int64, (weight.offset, weight.strides[1], weight.strides[0], 0, 0)))
    defines = {"X": SHORT[weight.dtype], "IDS": INTEGERS[ids.dtype]}
    arrays = (rows.arguments["ids"], table, rows.arguments["y"])
    options = (np.int64(vocabulary),)
    launch = rows.launch(device, "embedding", "embedding", weight.dtype, defines, arrays, options, passes=1)
    return Plan({"y": y}, (launch,))
