"""Sorting functions: a stable merge sort, in which each work-item merges a piece of the result that it finds itself."""

from __future__ import annotations

import numpy as np

from array_api_pyopencl import _calls, _codegen, _dtypes, _launch, _layout
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._devices import Device
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._reductions import heavy_group

_RUN = 16  # elements that one work-item sorts by insertion


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the elements sorted along an axis, with NaN as the greatest; always stable."""
    x = as_array("sort", x)
    _require(x)
    return sort_pairs(x, _layout.normalize_axis(axis, x.ndim), descending, False)[0]


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the positions along an axis that sort the elements, with NaN as the greatest; always stable."""
    x = as_array("argsort", x)
    _require(x)
    positions = sort_pairs(x, _layout.normalize_axis(axis, x.ndim), descending, True)[1]
    assert positions is not None
    return positions


def _require(x: Array) -> None:
    if x.dtype.kind not in "iuf":
        raise TypeError(f"sorting is not defined for {x.dtype.name}")
    if x.ndim == 0:
        raise ValueError("sorting needs arrays of one dimension or more")


def sort_pairs(x: Array, axis: int, descending: bool, with_positions: bool) -> tuple[Array, Array | None]:
    """Return the sorted elements and, optionally, the original position of each."""
    order = [a for a in range(x.ndim) if a != axis] + [axis]
    rows = x._view(tuple(x.shape[a] for a in order), tuple(x._layout.strides[a] for a in order))
    keys: Array = _calls.compute("copy", (rows,))
    positions = _calls.empty(x.device, _dtypes.int64, keys.shape) if with_positions else None
    if keys.size:
        keys, positions = _sort_rows(keys, positions, descending)
    back = [order.index(a) for a in range(x.ndim)]

    def home(y: Array) -> Array:
        return y._view(tuple(y.shape[a] for a in back), tuple(y._layout.strides[a] for a in back))

    return home(keys), None if positions is None else home(positions)


def _sort_rows(keys: Array, positions: Array | None, descending: bool) -> tuple[Array, Array | None]:
    device = keys.device
    n = keys.shape[-1]
    source = _source(keys.dtype, descending, positions is not None)
    runs = keys.size // n * -(-n // _RUN)
    buffers = [keys._buffer] if positions is None else [keys._buffer, positions._buffer]
    arguments = [*(None for _ in buffers), np.int64(keys.size // n), np.int64(n)]
    _launch.launch(device, source, "runs", arguments, (runs,)).run(device, *buffers)
    width = _RUN
    if width < n:
        other = [_calls.empty(device, keys.dtype, keys.shape)]
        if positions is not None:
            other.append(_calls.empty(device, _dtypes.int64, keys.shape))
        now = [keys] if positions is None else [keys, positions]
        slots = [None] * (2 * len(now))
        piece = _piece(device, keys.size)
        items = keys.size // n * -(-n // piece)
        group = heavy_group(device, items)
        while width < n:
            numbers = [np.int64(v) for v in (items, n, width, piece)]
            launch = _launch.launch(device, source, "merge", [*slots, *numbers], (items,), group)
            launch.run(device, *(y._buffer for y in now), *(y._buffer for y in other))
            now, other = other, now
            width *= 2
        keys = now[0]
        positions = now[1] if positions is not None else None
    return keys, positions


def _piece(device: Device, size: int) -> int:
    """Return the number of elements of the result that a work-item merges."""
    return max(_RUN, min(4096, size // device.parallelism))


def less(dtype: DType) -> str:
    """Return the definition of ``less``: a total order with NaN as the greatest; complex numbers compare by parts."""
    t = C_TYPES[dtype]
    if dtype.kind == "c":
        text = "isnan(b.x + b.y) ? !isnan(a.x + a.y) : a.x < b.x || (a.x == b.x && a.y < b.y)"
    elif dtype.kind == "f":
        text = "a < b || (isnan(b) && !isnan(a))"
    else:
        text = "a < b"
    return f"inline int less({t} a, {t} b) {{ return {text}; }}"


def _source(dtype: DType, descending: bool, pairs: bool) -> str:
    t = C_TYPES[dtype]
    before = "less(b, a)" if descending else "less(a, b)"

    def only(text: str) -> str:
        return text if pairs else ""

    return f"""{_codegen.header((dtype,), True)}
{less(dtype)}
inline int before({t} a, {t} b) {{ return {before}; }}

__kernel void runs(__global {t}* keys, {only("__global long* positions,")} long rows, long n) {{
  long item = get_global_id(0), per_row = (n + {_RUN - 1}) / {_RUN};
  if (item >= rows * per_row) return;
  long row = item / per_row, first = item % per_row * {_RUN}, end = min(first + {_RUN}, n);
  keys += row * n;
  {only("positions += row * n;")}
  for (long i = first; i < end; i++) {{
    {t} key = keys[i];
    long j = i;
    for (; j > first && before(key, keys[j - 1]); j--) {{
      keys[j] = keys[j - 1];
      {only("positions[j] = positions[j - 1];")}
    }}
    keys[j] = key;
    {only("positions[j] = i;")}
  }}
}}

__kernel void merge(__global const {t}* keys, {only("__global const long* positions,")}
                    __global {t}* keys_out, {only("__global long* positions_out,")}
                    long items, long n, long width, long piece) {{
  long item = get_global_id(0), per_row = (n + piece - 1) / piece;
  if (item >= items) return;
  long at = item % per_row * piece, end = min(at + piece, n), row = item / per_row * n;
  keys += row;
  keys_out += row;
  {only("positions += row; positions_out += row;")}
  while (at < end) {{
    long first = at / (2 * width) * 2 * width, middle = min(first + width, n), last = min(first + 2 * width, n);
    // Of the outputs before this one, `low` come from the left run: equal elements are taken from there first.
    long before_at = at - first, low = max((long)0, before_at - (last - middle)), high = min(before_at, middle - first);
    while (low < high) {{
      long half_way = (low + high) / 2;
      if (before(keys[middle + before_at - half_way - 1], keys[first + half_way])) high = half_way;
      else low = half_way + 1;
    }}
    long i = first + low, j = middle + before_at - low, stop = min(end, last);
    for (; at < stop; at++) {{
      int right = i >= middle || (j < last && before(keys[j], keys[i]));
      long from = right ? j++ : i++;
      keys_out[at] = keys[from];
      {only("positions_out[at] = positions[from];")}
    }}
  }}
}}
"""
