"""Scans: one work-item scans each part of a row; then the parts' totals are scanned and added to the parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from array_api_pyopencl import _calls, _codegen, _launch, _registered as _objects
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._expressions import convert, library
from array_api_pyopencl._reductions import heavy_group

_COMBINE = {
    "sum": dict.fromkeys("iufc", "acc + v"),
    "prod": dict.fromkeys("iuf", "acc * v") | {"c": "c_mul(acc, v)"},
}
_IDENTITY = {"sum": "0", "prod": "1"}
_PART = 1024


def scan(name: str, x: Any, axis: int, dtype: DType, include_initial: bool = False) -> _objects.Array:
    """Return the inclusive scan of `x` along an axis, computed in `dtype`, optionally with the identity first."""
    device = x._device
    device.require(dtype)
    order = [a for a in range(x.ndim) if a != axis] + [axis]
    rows = x._view(tuple(x.shape[a] for a in order), tuple(x._layout.strides[a] for a in order))
    if not rows._layout.contiguous:
        rows = _calls.compute("copy", (rows,))
    n = rows.shape[-1]
    lead = int(include_initial)
    out = _calls.empty(device, dtype, (*rows.shape[:-1], n + lead))
    count = out.size // (n + lead) if n + lead else 0
    if count:
        _scan_rows(name, rows, out, count, n, lead)
    back = [order.index(a) for a in range(x.ndim)]
    return out._view(tuple(out.shape[a] for a in back), tuple(out._layout.strides[a] for a in back))


def _scan_rows(name: str, x: Any, out: Any, rows: int, n: int, lead: int) -> None:
    device = x._device
    wanted = max(1, device.parallelism // rows)
    part = max(_PART, -(-n // wanted))
    parts = max(1, -(-n // part))
    totals = _calls.empty(device, out.dtype, (rows, parts))
    items = rows * parts
    numbers = [np.int64(v) for v in (items, parts, part, n, lead)]
    group = heavy_group(device, items)
    source = _scan_source(name, x.dtype, out.dtype)
    _launch.launch(
        device, source, "scan", [None, None, None, np.int64(x._layout.offset), *numbers], (items,), group
    ).run(device, out._buffer, totals._buffer, x._buffer)
    if parts > 1:
        carried = scan(name, totals, 1, out.dtype)
        _launch.launch(device, source, "carry", [None, None, *numbers], (items,), group).run(
            device, out._buffer, carried._buffer
        )


def _scan_source(name: str, dtype: DType, out: DType) -> str:
    combine = _COMBINE[name][out.kind]
    t = C_TYPES[out]
    one = f"({t})({_IDENTITY[name]}, 0)" if out.kind == "c" else f"({t}){_IDENTITY[name]}"
    return f"""{_codegen.header((dtype, out), True)}
{library(combine, out)}
__kernel void scan(__global {t}* out, __global {t}* totals, __global const {C_TYPES[dtype]}* x, long start,
                   long items, long parts, long part, long n, long lead) {{
  long item = get_global_id(0);
  if (item >= items) return;
  long row = item / parts, first = item % parts * part, end = min(first + part, n);
  x += start + row * n;
  out += row * (n + lead);
  {t} acc = {one};
  if (lead && first == 0) out[0] = acc;
  out += lead;
  for (long i = first; i < end; i++) {{
    {t} v = {convert("x[i]", dtype, out)};
    acc = {combine};
    out[i] = acc;
  }}
  totals[item] = acc;
}}
__kernel void carry(__global {t}* out, __global const {t}* totals,
                    long items, long parts, long part, long n, long lead) {{
  long item = get_global_id(0);
  if (item >= items || item % parts == 0) return;
  long row = item / parts, first = item % parts * part, end = min(first + part, n);
  out += row * (n + lead) + lead;
  {t} acc = totals[item - 1];
  for (long i = first; i < end; i++) {{
    {t} v = out[i];
    out[i] = {combine};
  }}
}}
"""
