"""The data types: NumPy's own dtype objects, which `pyopencl.array.Array` carries as well.

The namespace exports NumPy's scalar types instead, as NumPy and CuPy do: an array's dtype equals one of them, and
unlike a dtype object, ``numpy.float64`` is not equal to ``None``.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

DType = np.dtype[Any]

bool: DType = np.dtype("bool")
int8: DType = np.dtype("int8")
int16: DType = np.dtype("int16")
int32: DType = np.dtype("int32")
int64: DType = np.dtype("int64")
uint8: DType = np.dtype("uint8")
uint16: DType = np.dtype("uint16")
uint32: DType = np.dtype("uint32")
uint64: DType = np.dtype("uint64")
float16: DType = np.dtype("float16")
float32: DType = np.dtype("float32")
float64: DType = np.dtype("float64")
complex64: DType = np.dtype("complex64")
complex128: DType = np.dtype("complex128")

ALL = {
    d.name: d
    for d in (
        *(bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
        *(float16, float32, float64, complex64, complex128),
    )
}

# The standard's names of kinds, as characters of `numpy.dtype.kind`.
KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}

_C_TYPES = {
    "bool": "uchar",
    "int8": "char",
    "int16": "short",
    "int32": "int",
    "int64": "long",
    "uint8": "uchar",
    "uint16": "ushort",
    "uint32": "uint",
    "uint64": "ulong",
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "complex64": "float2",
    "complex128": "double2",
}
C_TYPES = {ALL[name]: c_type for name, c_type in _C_TYPES.items()}

_REAL_OF = {complex64: float32, complex128: float64}
_COMPLEX_OF = {float16: complex64, float32: complex64, float64: complex128}


def as_dtype(dtype: Any) -> DType:
    """Return `dtype` as a dtype object, if it is one of the standard's types in native byte order.

    Python's `bool` and `int` mean their default types; `Device.as_dtype` also accepts `float` and `complex`.
    """
    if isinstance(dtype, type):
        if issubclass(dtype, np.generic):
            dtype = np.dtype(dtype)
        elif dtype is builtins.bool:
            return bool
        elif dtype is int:
            return int64
    if isinstance(dtype, np.dtype) and dtype in C_TYPES:
        return dtype
    raise TypeError(f"{dtype!r} is not a data type of array_api_pyopencl: {', '.join(ALL)}")


def real_of(dtype: DType) -> DType:
    """Return the type of the real and imaginary parts; a real type is returned unchanged."""
    return _REAL_OF.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """Return the complex type with parts of the real floating `dtype`; a complex type is returned unchanged."""
    return _COMPLEX_OF.get(dtype, dtype)


def is_kind(dtype: DType, kind: str) -> Any:
    """Return whether `dtype` is of one of the standard's named kinds."""
    return dtype.kind in KINDS[kind]


_promoted: dict[tuple[DType, DType], DType] = {}


def promote(a: DType, b: DType) -> DType:
    """Return the type to which two types promote, by the standard's table."""
    if a is b:
        return a
    found = _promoted.get((a, b))
    if found is None:
        found = _promoted[a, b] = _promote(a, b)
    return found


def _promote(a: DType, b: DType) -> DType:
    if a == b:
        return a
    together = a.kind + b.kind
    if all(k in "iu" for k in together) or all(k in "fc" for k in together):
        result = np.promote_types(a, b)
        if result.kind in together:
            return result
    raise TypeError(f"{a.name} and {b.name} have no common type in the standard; convert one of them with astype")


def require_scalar_fits(scalar: Any, dtype: DType) -> DType:
    """Return the common type of a Python scalar and an array of type `dtype`."""
    kind = dtype.kind
    if scalar is True or scalar is False:
        if kind == "b":
            return dtype
    elif isinstance(scalar, int):
        if kind in "iu":
            limits = np.iinfo(dtype)
            if not limits.min <= scalar <= limits.max:
                raise OverflowError(f"the Python integer {scalar} is out of bounds for {dtype.name}")
            return dtype
        if kind in "fc":
            return dtype
    elif isinstance(scalar, float):
        if kind in "fc":
            return dtype
    elif isinstance(scalar, complex) and kind in "fc":
        return complex_of(dtype)
    raise TypeError(f"a Python {type(scalar).__name__} cannot be combined with an array of {dtype.name}")
