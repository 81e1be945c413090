"""Data type functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from array_api_mlx._arguments import require_device, unwrap
from array_api_mlx._array_object import Array, scalar_operand
from array_api_mlx._dtypes import (
    COMPLEX,
    FLOATING,
    INTEGRAL,
    KINDS,
    LIMITS,
    PROMOTION,
    PUBLIC,
    REAL_PART,
    DType,
    common_dtype,
    name_of,
    require_dtype,
)


@dataclass(frozen=True)
class FInfo:
    """The limits of a floating-point dtype, as Python numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any


@dataclass(frozen=True)
class IInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Any


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """Return `x` converted to `dtype`; floats out of range for an integer dtype convert as in MLX."""
    a = unwrap(x, "astype")
    dtype = require_dtype(dtype, "astype")
    require_device(device, "astype")
    if a.dtype == dtype:
        return x if not copy and type(x) is Array else Array(a)
    if a.dtype in COMPLEX and dtype not in COMPLEX:
        raise TypeError(f"astype: {name_of(a.dtype)} cannot be converted to {name_of(dtype)}; use real, imag or abs")
    return Array(a.astype(dtype))


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether a dtype, or that of an array, promotes to another."""
    dtype = _dtype_of(from_, "can_cast")
    target = require_dtype(to, "can_cast")
    promoted = PROMOTION.get((dtype, target))
    return promoted is not None and bool(promoted == target)


def finfo(type: Any, /) -> FInfo:  # noqa: A002
    """Return the limits of a floating-point dtype; for a complex dtype, those of its parts."""
    dtype = _dtype_of(type, "finfo")
    if dtype not in FLOATING:
        raise TypeError(f"finfo: type is {name_of(dtype)}, expected a floating-point data type")
    part = REAL_PART[dtype]
    info = mx.finfo(part)
    return FInfo(
        8 * part.size, float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), PUBLIC[part]
    )


def iinfo(type: Any, /) -> IInfo:  # noqa: A002
    """Return the limits of an integer dtype."""
    dtype = _dtype_of(type, "iinfo")
    if dtype not in INTEGRAL:
        raise TypeError(f"iinfo: type is {name_of(dtype)}, expected an integer data type")
    low, high = LIMITS[dtype]
    return IInfo(8 * dtype.size, high, low, PUBLIC[dtype])


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype equals another one, is of a kind, or matches any of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    bare = require_dtype(dtype, "isdtype")
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"isdtype: kind is {kind!r}, expected one of {', '.join(KINDS)}")
        return bare in KINDS[kind]
    return bool(bare == require_dtype(kind, "isdtype"))


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the dtype that arrays, dtypes and Python numbers promote to."""
    dtypes, numbers = [], []
    for each in arrays_and_dtypes:
        if isinstance(each, bool | int | float | complex):
            numbers.append(each)
        else:
            dtypes.append(_dtype_of(each, "result_type"))
    if not dtypes:
        raise ValueError("result_type: expected at least one array or data type")
    result = common_dtype("result_type", dtypes)
    for number in sorted(numbers, key=lambda n: isinstance(n, complex)):
        result = mx.result_type(result, scalar_operand(number, result, "result_type").dtype)
    return PUBLIC[result]


def _dtype_of(x: Any, function: str) -> Any:
    return require_dtype(x, function) if isinstance(x, DType | mx.Dtype | type) else unwrap(x, function).dtype
