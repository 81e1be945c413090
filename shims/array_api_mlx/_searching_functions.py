"""Searching functions."""

from __future__ import annotations

from typing import Any, Literal

import mlx.core as mx
import numpy as np

from array_api_mlx._arguments import Axis, axes_of, axis_of, operands, reduced, unwrap, unwrap_of
from array_api_mlx._array_object import Array
from array_api_mlx._dtypes import ALL, BOOL, INDEX, INTEGRAL, PROMOTION, REAL, pairs_of
from array_api_mlx._keys import to_numpy

_REAL_PAIRS = pairs_of(REAL)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the first position of the greatest element, or of NaN."""
    return _position(x, "argmax", mx.argmax, axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the first position of the least element, or of NaN."""
    return _position(x, "argmin", mx.argmin, axis, keepdims)


def _position(x: Any, function: str, search: Any, axis: int | None, keepdims: bool) -> Array:
    a = unwrap_of(REAL, x, function)
    index = None if axis is None else axis_of(axis, a.ndim, function)
    if not (a.size if index is None else a.shape[index]):
        raise ValueError(f"{function}: x has shape {a.shape} and no elements to search")
    if a.size:
        return Array(search(a, axis=index, keepdims=keepdims).astype(INDEX))
    axes = tuple(range(a.ndim)) if index is None else (index,)
    return Array(reduced(mx.max, a, axes, keepdims, 0).astype(INDEX))


def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the number of nonzero elements along some or all axes."""
    a = unwrap(x, "count_nonzero")
    axes = axes_of(axis, a.ndim, "count_nonzero")
    return Array(reduced(mx.sum, (a != 0).astype(INDEX), axes, keepdims, 0).astype(INDEX))


def nonzero(x: Any, /) -> tuple[Array, ...]:
    """Compute `x` and return the indices of its nonzero elements, one array per axis."""
    a = unwrap(x, "nonzero")
    if not a.ndim:
        raise ValueError("nonzero: x has no dimensions")
    return tuple(Array(mx.array(positions.astype(np.int32))) for positions in np.nonzero(to_numpy(a != 0)))


def searchsorted(x1: Any, x2: Any, /, *, side: Literal["left", "right"] = "left", sorter: Any = None) -> Array:
    """Return where to insert elements of `x2` into `x1`, which is sorted directly or by `sorter`."""
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is {side!r}, expected 'left' or 'right'")
    a, b = operands(x1, x2, "searchsorted", _REAL_PAIRS, REAL)
    if a.ndim != 1:
        raise ValueError(f"searchsorted: x1 has {a.ndim} dimensions, expected 1")
    if sorter is not None:
        a = mx.take(a, unwrap_of(INTEGRAL, sorter, "searchsorted", "sorter"), axis=0)
    dtype = PROMOTION[a.dtype, b.dtype]
    if not a.size or not b.size:
        return Array(mx.zeros(b.shape, dtype=INDEX))
    return Array(mx.searchsorted(a.astype(dtype), b.astype(dtype), side=side).astype(INDEX))


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """Return elements of `x1` where the condition is true, and of `x2` elsewhere."""
    chosen = unwrap_of(BOOL, condition, "where", "condition")
    a, b = operands(x1, x2, "where", PROMOTION, ALL)
    return Array(mx.where(chosen, a, b))
