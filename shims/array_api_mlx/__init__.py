"""The Python Array API standard over MLX: a thin adapter, not complete yet.

MLX already follows most of the standard. This module passes every name through to `mlx.core` and replaces
the functions whose signatures or results differ, as far as `tensorops` calls them; arrays are plain
`mlx.core.array` objects, lazy as ever, and `mx.grad`, `mx.vmap` and `mx.compile` see only MLX operations.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

bool = mx.bool_


def __getattr__(name: str) -> Any:
    return getattr(mx, name)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Any:
    """Return `obj` as an MLX array; ``copy`` is always fulfilled where MLX arrays are immutable anyway."""
    if isinstance(obj, mx.array):
        return obj if dtype is None else obj.astype(dtype)
    return mx.array(obj, dtype=dtype)


def astype(x: Any, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Any:
    """Return `x` converted to `dtype`."""
    return x if x.dtype == dtype else x.astype(dtype)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Any:
    """Return evenly spaced values; like the standard, integers unless an argument is a float."""
    first, last = (0, start) if stop is None else (start, stop)
    return mx.arange(first, last, step, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array of zeros."""
    return mx.zeros(shape, dtype=mx.float32 if dtype is None else dtype)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array of ones."""
    return mx.ones(shape, dtype=mx.float32 if dtype is None else dtype)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array filled with one value."""
    return mx.full(shape, fill_value, dtype=dtype)


def sort(x: Any, /, *, axis: int = -1, descending: Any = False, stable: Any = True) -> Any:
    """Return `x` sorted along an axis."""
    y = mx.sort(x, axis=axis)
    return _flip(y, axis) if descending else y


def flip(x: Any, /, *, axis: int | tuple[int, ...] | None = None) -> Any:
    """Return `x` with the order of its elements reversed along the given axes, or along all of them."""
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    for a in axes:
        x = _flip(x, a)
    return x


def argmax(x: Any, /, *, axis: int | None = None, keepdims: Any = False) -> Any:
    """Return the index of the first largest element, in the standard's default index dtype."""
    return mx.argmax(x, axis=axis, keepdims=keepdims).astype(mx.int32)


def _flip(x: Any, axis: int) -> Any:
    backwards = mx.arange(x.shape[axis] - 1, -1, -1)
    return mx.take(x, backwards, axis=axis)
