"""Statistical functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from array_api_mlx._arguments import Axis, Shape, axes_of, axis_of, reduced, unwrap_of
from array_api_mlx._array_object import Array
from array_api_mlx._dtypes import ACCUMULATOR, FLOATING, INTEGRAL_OR_BOOL, NUMERIC, REAL, require_dtype
from array_api_mlx._shapeless import filled_like, is_shapeless, require_lengths

_SUMMABLE = NUMERIC | INTEGRAL_OR_BOOL
_BLOCK = 128  # shorter sums lose few digits, if any


def _accumulated(
    x: Any, function: str, reduce: Callable[..., Any], first: int, axis: Axis, dtype: Any, keepdims: bool
) -> Array:
    a = unwrap_of(_SUMMABLE, x, function)
    target = ACCUMULATOR[a.dtype] if dtype is None else require_dtype(dtype, function)
    axes = axes_of(axis, a.ndim, function)
    return Array(reduced(reduce, a.astype(target), axes, keepdims, first).astype(target))


def total(a: Any, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return the sum of an ``mx.array``: on processors MLX adds in order, so of many terms blocks are summed first."""
    axes = axes_of(axis, a.ndim, "sum")
    many = a.dtype in FLOATING and a.size and math.prod(a.shape[each] for each in axes) > _BLOCK
    many = many and not is_shapeless()  # blocks would be those of the traced array
    for each in axes if many else ():
        while a.shape[each] > _BLOCK:
            whole = a.shape[each] // _BLOCK * _BLOCK
            head, rest = mx.split(a, [whole], axis=each)
            sums = mx.sum(mx.unflatten(head, each, (-1, _BLOCK)), axis=each + 1)
            a = mx.concatenate([sums, mx.sum(rest, axis=each, keepdims=True)], axis=each) if rest.size else sums
        a = mx.sum(a, axis=each, keepdims=True)
    return mx.sum(a, axis=axes, keepdims=keepdims)


def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the sum along some or all axes; integers are added in the default integer dtype or a wider one."""
    return _accumulated(x, "sum", total, 0, axis, dtype, keepdims)


def prod(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the product along some or all axes; integers multiply in the default integer dtype or a wider one."""
    return _accumulated(x, "prod", mx.prod, 1, axis, dtype, keepdims)


def _extreme(x: Any, function: str, reduce: Callable[..., Any], axis: Axis, keepdims: bool) -> Array:
    a = unwrap_of(REAL, x, function)
    axes = axes_of(axis, a.ndim, function)
    if any(a.shape[each] == 0 for each in axes):
        raise ValueError(f"{function}: x has shape {a.shape} and no elements along axis {axis}")
    return Array(reduced(reduce, a, axes, keepdims, 0))


def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the greatest element along some or all axes, or NaN if there is one."""
    return _extreme(x, "max", mx.max, axis, keepdims)


def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the least element along some or all axes, or NaN if there is one."""
    return _extreme(x, "min", mx.min, axis, keepdims)


def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the mean along some or all axes."""
    a = unwrap_of(FLOATING, x, "mean")
    return Array(_mean(a, axes_of(axis, a.ndim, "mean"), keepdims))


def _mean(a: Any, axes: Shape, keepdims: bool) -> Any:
    count = math.prod(a.shape[each] for each in axes)
    if not count or (count <= _BLOCK and not is_shapeless()):
        return reduced(mx.mean, a, axes, keepdims, math.nan)
    return reduced(total, a, axes, keepdims, 0) / _count(a, axes, keepdims)


def _count(a: Any, axes: Shape, keepdims: bool, correction: float = 0.0) -> Any:
    """Return the number of elements along axes less `correction`, at least 0."""
    real = mx.real(a).dtype if a.dtype == mx.complex64 else a.dtype
    if is_shapeless():
        counts = reduced(mx.sum, filled_like(a, mx.array(1)), axes, keepdims, 0).astype(real)
        return mx.maximum(counts - mx.array(correction, dtype=real), mx.array(0, dtype=real))
    left = math.prod(a.shape[each] for each in axes) - correction
    return mx.array(left if left > 0 else 0.0, dtype=real)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the variance along some or all axes: squared deviations summed, divided by the count less `correction`."""
    return Array(_variance(x, "var", axis, correction, keepdims))


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the square root of the variance, see `var`."""
    return Array(mx.sqrt(_variance(x, "std", axis, correction, keepdims)))


def _variance(x: Any, function: str, axis: Axis, correction: float, keepdims: bool) -> Any:
    a = unwrap_of(FLOATING, x, function)
    axes = axes_of(axis, a.ndim, function)
    magnitude = mx.abs(a - _mean(a, axes, keepdims=True))
    squares = reduced(total, mx.square(magnitude), axes, keepdims, 0)
    return squares / _count(a, axes, keepdims, correction)


def _cumulated(
    x: Any, function: str, scan: Callable[..., Any], first: int, axis: int | None, dtype: Any, include_initial: bool
) -> Array:
    a = unwrap_of(_SUMMABLE, x, function)
    if axis is None and a.ndim != 1:
        raise ValueError(f"{function}: axis must be given for an array of {a.ndim} dimensions")
    index = axis_of(0 if axis is None else axis, a.ndim, function)
    target = ACCUMULATOR[a.dtype] if dtype is None else require_dtype(dtype, function)
    result = scan(a.astype(target), axis=index).astype(target) if a.size else a.astype(target)
    if include_initial:
        require_lengths(f"{function} with include_initial")
        shape = tuple(1 if i == index else n for i, n in enumerate(a.shape))
        result = mx.concatenate([mx.full(shape, first, dtype=target), result], axis=index)
    return Array(result)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the cumulative sum along an axis, optionally with a leading zero."""
    return _cumulated(x, "cumulative_sum", mx.cumsum, 0, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the cumulative product along an axis, optionally with a leading one."""
    return _cumulated(x, "cumulative_prod", mx.cumprod, 1, axis, dtype, include_initial)
