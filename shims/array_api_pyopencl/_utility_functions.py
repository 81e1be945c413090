"""Utility functions."""

from __future__ import annotations

from array_api_pyopencl import _calls, _dtypes, _layout
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._manipulation_functions import concat
from array_api_pyopencl._reductions import reduce

Axis = int | tuple[int, ...] | None


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether all elements along axes are true (nonzero)."""
    x = as_array("all", x)
    axes = _layout.normalize_axes(axis, x.ndim)
    return reduce("all", x, axes, keepdims, _dtypes.bool, load="nonzero")


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether any element along axes is true (nonzero)."""
    x = as_array("any", x)
    axes = _layout.normalize_axes(axis, x.ndim)
    return reduce("any", x, axes, keepdims, _dtypes.bool, load="nonzero")


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Return the `n`-th differences of neighbours along an axis."""
    x = as_array("diff", x)
    if n < 0:
        raise ValueError(f"diff: n is {n}, expected a non-negative number")
    axis = _layout.normalize_axis(axis, x.ndim)
    parts = [p for p in (prepend, x, append) if p is not None]
    x = concat(parts, axis=axis) if len(parts) > 1 else x
    lead = (slice(None),) * axis
    for _ in range(n):
        x = _calls.binary("subtract", x[(*lead, slice(1, None))], x[(*lead, slice(None, -1))])
    return x
