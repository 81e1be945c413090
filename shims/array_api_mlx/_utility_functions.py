"""Utility functions."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from array_api_mlx._arguments import Axis, axes_of, axis_of, reduced, unwrap, unwrap_of
from array_api_mlx._array_object import Array
from array_api_mlx._dtypes import NUMERIC, common_dtype
from array_api_mlx._shapeless import needs_lengths


def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether all elements along some or all axes are true (nonzero)."""
    a = unwrap(x, "all")
    return Array(reduced(mx.all, a != 0, axes_of(axis, a.ndim, "all"), keepdims, True))


def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether any element along some or all axes is true (nonzero)."""
    a = unwrap(x, "any")
    return Array(reduced(mx.any, a != 0, axes_of(axis, a.ndim, "any"), keepdims, False))


@needs_lengths
def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """Return the `n`-th differences of neighbours along an axis, optionally with values before and after."""
    a = unwrap_of(NUMERIC, x, "diff")
    index = axis_of(axis, a.ndim, "diff")
    if n < 0:
        raise ValueError(f"diff: n is {n}, expected a non-negative number")
    ends = [None if end is None else unwrap_of(NUMERIC, end, "diff", "prepend or append") for end in (prepend, append)]
    parts = [part for part in (ends[0], a, ends[1]) if part is not None]
    if len(parts) > 1:
        dtype = common_dtype("diff", [part.dtype for part in parts])
        a = mx.concatenate([part.astype(dtype) for part in parts], axis=index)
    every = (slice(None),) * index
    for _ in range(n):
        a = a[(*every, slice(1, None))] - a[(*every, slice(None, -1))]
    return Array(a)
