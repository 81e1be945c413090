"""How `tensorops.sample` is launched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import Rows, power_of_two_below, rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Operand, Plan, Result
from tensorops.kernels._gpu.rows import SHORT, refuse_dtypes, rows_of

_LONGEST = 2**24  # indices are compared in float32
_EXTREME = 2.0**100  # of temperatures
_BLOCKS_PER_UNIT = 4
_THREADS = ((6144, 32), (16384, 256))  # for each length; more than 512 would not have the registers


def sample(
    device: Device,
    logits: Operand,
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    rng: Any,
) -> Plan | str:
    """Plan `tensorops.sample`."""
    array = rng if isinstance(rng, Operand) and temperature else None
    if reason := refuse_dtypes(device, logits=logits):
        return reason
    length = logits.shape[-1]
    if length > _LONGEST:
        return f"logits has {length} candidates, more than 2**24"
    if temperature and not 1 / _EXTREME <= temperature <= _EXTREME:
        return f"temperature is {temperature}, outside 2**-100 … 2**100"
    kept = top_k if top_k is not None and top_k < length else 0
    if logits.dtype == "float64" and temperature and (kept or (top_p is not None and top_p < 1)):
        return "logits has dtype float64, for which there is no kernel with top_k or top_p"
    shape = logits.shape[:-1]
    drawn = Result("float32", shape)
    uniform = array or drawn.operand
    rows = rows_of((logits.ndim - 1,), None, {"rng": uniform}, logits=logits)
    if isinstance(rows, str):
        return rows
    geometry = _geometry(device, rows.count, length, ITEM_SIZES[logits.dtype])
    real: Any = np.float64 if logits.dtype == "float64" else np.float32
    # Weights are read again at once: they must stay in the caches.
    defines: dict[str, Any] = {"X": SHORT[logits.dtype], "GREEDY": int(temperature == 0), "STREAM": 0}
    chosen = Result("int64", shape)
    arrays = [rows.arguments["logits"], ("chosen",)]
    if temperature == 0:
        launch = rows.launch(device, "sample", "sample", logits.dtype, defines, tuple(arrays), geometry=geometry)
        return Plan({"chosen": chosen}, (launch,))
    bits = uniform.dtype == "float64" != logits.dtype
    defines |= {
        "UNIFORM": "u64" if bits else SHORT[uniform.dtype],
        "UNIFORM_BITS": 64 if bits else 0,
        "REAL": SHORT[np.dtype(real).name],
    }
    arrays = [arrays[0], rows.arguments["rng"], *arrays[1:], ("weights",)]
    whole = geometry.threads * geometry.vec
    padded = -(-length // whole) * whole
    options = (
        np.int64(padded),
        real(temperature),
        np.int32(kept),
        real(1.0 if top_p is None else top_p),
        real(min_p or 0.0),
    )
    launch = rows.launch(device, "sample", "sample", logits.dtype, defines, tuple(arrays), options, geometry=geometry)
    lists = 3 if kept else 2 if top_p is not None and top_p < 1 else 1
    weights = Result(np.dtype(real).name, (geometry.groups, lists * padded))
    return Plan({"chosen": chosen}, (launch,), {"weights": weights}, drawn=None if array else {"rng": drawn})


def _geometry(device: Device, rows: int, length: int, itemsize: int) -> Rows:
    """Return a geometry of one row for each block."""
    geometry = rows_geometry(device, rows, length, itemsize, passes=1)
    if device.kind == "cpu":
        return geometry
    threads = next((t for longest, t in _THREADS if length <= longest), 512)
    threads = min(max(geometry.threads, threads), power_of_two_below(device.max_block))
    each = max(1, -(-rows // (device.units * _BLOCKS_PER_UNIT)))  # blocks have memory for one row at a time
    return replace(geometry, threads=threads, rows=1, each=each, groups=-(-rows // each))
