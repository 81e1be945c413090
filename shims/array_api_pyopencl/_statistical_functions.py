"""Statistical functions: reductions and scans on the device."""

from __future__ import annotations

import math
from typing import Any

from array_api_pyopencl import _dtypes, _layout
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._reductions import reduce
from array_api_pyopencl._scans import scan
from array_api_pyopencl._searching_functions import count_nonzero

Axis = int | tuple[int, ...] | None


def _require(name: str, x: Array, kinds: str) -> None:
    if x.dtype.kind not in kinds:
        raise TypeError(f"{name} is not defined for {x.dtype.name}")


def _sum_dtype(name: str, x: Array, dtype: DType | None) -> DType:
    """Return the type of a sum or product; integers use at least the default type of their kind."""
    _require(name, x, "iufc")
    if dtype is not None:
        dtype = x.device.as_dtype(dtype)
        if x.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"{name} of {x.dtype.name} cannot be computed in {dtype.name}")
        return dtype
    return {"i": _dtypes.int64, "u": _dtypes.uint64}.get(x.dtype.kind, x.dtype)


def sum(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """Return the sum along axes, by default all; integers and booleans are summed in 64 bits."""
    if dtype is None and getattr(x, "dtype", None) == _dtypes.bool:
        return count_nonzero(x, axis=axis, keepdims=keepdims)
    x = as_array("sum", x)
    dtype = _sum_dtype("sum", x, dtype)
    return reduce("sum", x, _layout.normalize_axes(axis, x.ndim), keepdims, dtype)


def prod(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """Return the product along axes, by default all; integers are multiplied in 64 bits."""
    x = as_array("prod", x)
    dtype = _sum_dtype("prod", x, dtype)
    return reduce("prod", x, _layout.normalize_axes(axis, x.ndim), keepdims, dtype)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the greatest element along axes, or NaN if there is one.

    Raises
    ------
    ValueError
        If there are no elements.
    """
    x = as_array("max", x)
    _require("max", x, "iuf")
    return reduce("max", x, _layout.normalize_axes(axis, x.ndim), keepdims, x.dtype)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the least element along axes, or NaN if there is one.

    Raises
    ------
    ValueError
        If there are no elements.
    """
    x = as_array("min", x)
    _require("min", x, "iuf")
    return reduce("min", x, _layout.normalize_axes(axis, x.ndim), keepdims, x.dtype)


def _wide(dtype: DType) -> DType:
    return _dtypes.float32 if dtype == _dtypes.float16 else dtype


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the arithmetic mean along axes, or NaN if there are no elements."""
    x = as_array("mean", x)
    _require("mean", x, "fc")
    return _mean(x, _layout.normalize_axes(axis, x.ndim), keepdims, x.dtype)


def _mean(x: Array, axes: tuple[int, ...], keepdims: bool, out: DType) -> Array:
    count = math.prod(x.shape[a] for a in axes)
    result: Array = reduce("sum", x, axes, keepdims, _wide(x.dtype), out=out, finish="acc / scale", scale=float(count))
    return result


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the variance along axes: the sum of squared deviations divided by the count less `correction`."""
    x = as_array("var", x)
    return _spread("var", x, axis, correction, keepdims, "acc / scale")


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the standard deviation along axes, see `var`."""
    x = as_array("std", x)
    return _spread("std", x, axis, correction, keepdims, "sqrt(acc / scale)")


def _spread(name: str, x: Array, axis: Axis, correction: float, keepdims: bool, finish: str) -> Array:
    _require(name, x, "f")
    axes = _layout.normalize_axes(axis, x.ndim)
    scale = float(math.prod(x.shape[a] for a in axes) - correction)
    wide = _wide(x.dtype)
    means = _mean(x, axes, keepdims, wide)
    finish = finish if scale > 0 else f"({finish.replace('scale', '0 * scale')})"
    result: Array = reduce("squares", x, axes, keepdims, wide, out=x.dtype, mean=means, finish=finish, scale=scale)
    return result


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Array:
    """Return the cumulative sum along an axis, starting with 0 if `include_initial` is true."""
    x = as_array("cumulative_sum", x)
    return _cumulative("sum", "cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Array:
    """Return the cumulative product along an axis, starting with 1 if `include_initial` is true."""
    x = as_array("cumulative_prod", x)
    return _cumulative("prod", "cumulative_prod", x, axis, dtype, include_initial)


def _cumulative(op: str, name: str, x: Array, axis: int | None, dtype: Any, include_initial: bool) -> Array:
    dtype = _sum_dtype(name, x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"{name}: axis must be given for an array of {x.ndim} dimensions")
        axis = 0
    return scan(op, x, _layout.normalize_axis(axis, x.ndim), dtype, include_initial)
