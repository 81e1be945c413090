"""Searching functions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from array_api_pyopencl import _calls, _codegen, _dtypes, _indexing, _launch, _layout
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._launch import Plan, Value
from array_api_pyopencl._reductions import arg_reduce, reduce
from array_api_pyopencl._sorting_functions import less


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the first position of the greatest element or NaN along an axis, or among all elements by default."""
    x = as_array("argmax", x)
    return arg_reduce(">", x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the first position of the least element or NaN along an axis, or among all elements by default."""
    x = as_array("argmin", x)
    return arg_reduce("<", x, axis, keepdims)


def count_nonzero(x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Return the number of nonzero elements along axes."""
    x = as_array("count_nonzero", x)
    axes = _layout.normalize_axes(axis, x.ndim)
    return reduce("sum", x, axes, keepdims, _dtypes.int64, load="nonzero")


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Return the indices of the nonzero elements, one array per axis; waits for their number."""
    x = as_array("nonzero", x)
    if x.ndim == 0:
        raise ValueError("nonzero needs arrays of one dimension or more")
    positions = _indexing.true_positions(_calls.compute("nonzero", (x,)))
    return tuple(_indexing.unravel(positions, x.shape))


def searchsorted(
    x1: Array, x2: Any, /, *, side: Literal["left", "right"] = "left", sorter: Array | None = None
) -> Array:
    """Return the positions at which the elements of `x2` would be inserted into the sorted array `x1`.

    Parameters
    ----------
    x1
        One dimension, sorted, or sorted by `sorter`.
    x2
        An array, or a number.
    side
        Whether to insert before (``"left"``) or after (``"right"``) equal elements.
    sorter
        The indices that sort `x1`.
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is {side!r}, expected 'left' or 'right'")
    device, (x1, x2) = _calls.meet("searchsorted", x1, x2)
    if x1.ndim != 1:
        raise ValueError(f"searchsorted: x1 has {x1.ndim} dimensions, expected one")
    dtype = _calls.common_dtype((x1, x2))
    if sorter is not None:
        x1 = x1[sorter]
    x1 = _calls.convert(x1, dtype)
    if isinstance(x2, Array):
        x2 = _calls.convert(x2, dtype)
    else:
        scalar, x2 = x2, _calls.empty(device, dtype, ())
        _calls.fill(x2, scalar)
    out: Array = _calls.empty(device, _dtypes.int64, x2.shape)
    arguments = [None, None, None, np.int64(x1.size), np.int64(x2.size)]
    launch = _launch.launch(device, _search_source(dtype, side), "search", arguments, (x2.size,))
    launch.run(device, out._buffer, x1._buffer, x2._buffer)
    return out


def _search_source(dtype: DType, side: str) -> str:
    further = "less(x1[middle], value)" if side == "left" else "!less(value, x1[middle])"
    return f"""{_codegen.header((dtype,), True)}
{less(dtype)}
__kernel void search(__global long* out, __global const {C_TYPES[dtype]}* x1, __global const {C_TYPES[dtype]}* x2,
                     long n, long items) {{
  long i = get_global_id(0);
  if (i >= items) return;
  {C_TYPES[dtype]} value = x2[i];
  long low = 0, high = n;
  while (low < high) {{
    long middle = (low + high) / 2;
    if ({further}) low = middle + 1;
    else high = middle;
  }}
  out[i] = low;
}}
"""


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """Return the elements of `x1` where the condition is true, and those of `x2` elsewhere.

    Raises
    ------
    TypeError
        If `condition` is not bool, or `x1` and `x2` have no common type.
    """
    device, (condition, x1, x2) = _calls.meet("where", condition, x1, x2)
    if not isinstance(condition, Array) or condition.dtype != _dtypes.bool:
        raise TypeError("where: condition must be an array of bool")
    sides = [x._layout if isinstance(x, Array) else type(x) for x in (x1, x2)]
    key = ("where", condition._layout, *sides)
    plan = device.plans.get(key)
    if plan is None:
        plan = _launch.remember(device, key, _where_plan(condition, x1, x2))
    buffer = device.allocate(plan.layout.nbytes)
    values = [x._buffer if isinstance(x, Array) else plan.pack(x) for x in (x1, x2)]
    plan.launch.run(device, buffer, condition._buffer, *values)
    return Array(buffer, plan.layout, device)


def _where_plan(condition: Array, x1: Any, x2: Any) -> Plan:
    device = condition.device
    if isinstance(x1, Array) or isinstance(x2, Array):
        dtype = _calls.common_dtype((x1, x2))
    else:
        kind = type(x1 + x2) if not (isinstance(x1, bool) and isinstance(x2, bool)) else bool
        dtype = {bool: _dtypes.bool, int: _dtypes.int64, float: device.default_float}.get(kind, device.default_complex)
    shapes = [x.shape for x in (condition, x1, x2) if isinstance(x, Array)]
    out = _layout.contiguous(dtype, _layout.broadcast_shapes(*shapes))
    sides = [x._layout if isinstance(x, Array) else Value(dtype) for x in (condition, x1, x2)]
    launch = _launch.elementwise(device, "a ? b : c", dtype, out, sides, [_dtypes.bool, dtype, dtype])
    return Plan(launch, out, _launch.packer(dtype))
