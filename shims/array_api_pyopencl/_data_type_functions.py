"""Data types: conversion, limits, and the rules of promotion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from array_api_pyopencl import _calls, _dtypes
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._creation_functions import asarray
from array_api_pyopencl._devices import default_device
from array_api_pyopencl._dtypes import DType


def astype(x: Array, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Array:
    """Return `x` converted to `dtype`.

    Floating-point numbers beyond the range of an integer type become its nearest bound, and NaN becomes 0. Integers
    beyond it wrap around.

    Raises
    ------
    TypeError
        If `x` is complex and `dtype` is not, or the device does not have `dtype`.
    """
    x = as_array("astype", x)
    result = asarray(x, dtype=dtype, device=device)
    return _calls.compute("copy", (result,)) if copy and result is x else result


def can_cast(from_: DType | Array, to: DType, /) -> bool:
    """Return whether the standard promotes `from_` and `to` to `to`."""
    source = _dtype_of(from_)
    target = _dtype_of(to)
    try:
        return _dtypes.promote(source, target) == target
    except TypeError:
        return False


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating-point data type, as the standard names them."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntInfo:
    """The limits of an integer data type, as the standard names them."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(type_: Any) -> DType:
    if isinstance(type_, Array):
        return type_.dtype
    if type_ is float or type_ is complex:  # only these depend on the device, and there may be none
        return default_device().as_dtype(type_)
    return _dtypes.as_dtype(type_)


def finfo(type: DType | Array, /) -> FloatInfo:  # noqa: A002 (the standard's name)
    """Return the limits of a floating-point type; for a complex type, those of its parts."""
    dtype = _dtype_of(type)
    if dtype.kind not in "fc":
        raise TypeError(f"finfo is not defined for {dtype.name}")
    real = _dtypes.real_of(dtype)
    i = np.finfo(real)
    return FloatInfo(i.bits, float(i.eps), float(i.max), float(i.min), float(i.smallest_normal), real)


def iinfo(type: DType | Array, /) -> IntInfo:  # noqa: A002 (the standard's name)
    """Return the limits of an integer type."""
    dtype = _dtype_of(type)
    if dtype.kind not in "iu":
        raise TypeError(f"iinfo is not defined for {dtype.name}")
    i = np.iinfo(dtype)
    return IntInfo(i.bits, int(i.max), int(i.min), dtype)


def isdtype(dtype: DType, kind: Any) -> bool:
    """Return whether a type equals another one, is of a named kind, or matches one of several of these.

    Raises
    ------
    ValueError
        If a kind is not in the standard.
    """
    dtype = _dtype_of(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _dtypes.KINDS:
            raise ValueError(f"kind is {kind!r}, expected one of {', '.join(_dtypes.KINDS)}")
        return bool(_dtypes.is_kind(dtype, kind))
    return dtype == _dtype_of(kind)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the type to which arrays, types and Python scalars promote.

    Raises
    ------
    TypeError
        If they have no common type, or there are only scalars.
    """
    dtypes = []
    scalars = []
    for x in arrays_and_dtypes:
        if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
            scalars.append(x)
        else:
            dtypes.append(_dtype_of(x))
    if not dtypes:
        raise TypeError("result_type needs at least one array or data type")
    result = dtypes[0]
    for d in dtypes[1:]:
        result = _dtypes.promote(result, d)
    for s in scalars:
        result = _dtypes.promote(result, _dtypes.require_scalar_fits(s, result))
    return result
