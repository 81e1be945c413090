"""Sorting functions; MLX's sort is stable and puts NaN at the end."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from array_api_mlx._arguments import axis_of, unwrap_of
from array_api_mlx._array_object import Array
from array_api_mlx._dtypes import INDEX, REAL


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the order that sorts `x` along an axis; equal elements keep their order, whatever `stable` says."""
    a = mx.stop_gradient(unwrap_of(REAL, x, "argsort"))  # integers have none, and MLX refuses to index by what has one
    index = axis_of(axis, a.ndim, "argsort")
    if not descending:
        return Array(mx.argsort(a, axis=index).astype(INDEX))
    backwards = mx.argsort(mx.flip(a, axis=index), axis=index).astype(INDEX)  # the last of equal elements comes first
    return Array(mx.flip(mx.array(a.shape[index] - 1, dtype=INDEX) - backwards, axis=index))


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return `x` sorted along an axis."""
    a = unwrap_of(REAL, x, "sort")
    index = axis_of(axis, a.ndim, "sort")
    y = mx.sort(a, axis=index)
    return Array(mx.flip(y, axis=index) if descending else y)
