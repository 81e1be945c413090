"""Argument checks, all in the caller's terms: ``operator: argument …``.

They read only metadata. The exceptions are `checked_indices` and `checked_counts`, which read the values of eager
arrays in host memory, where reading is cheap, and let lazy arrays be read when they are computed.
"""

from __future__ import annotations

import functools
from math import inf
from numbers import Integral, Number, Real
from typing import Any

from tensorops import _dtypes
from tensorops._messages import describe_type
from tensorops.libraries import creation_device, has_host_values, library_of, symbol_type
from tensorops.typing import Array, Dtype, Namespace


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``"1 element"``, ``"2 elements"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def require_floating(operator: str, **arrays: Array | None) -> None:
    """Raise `TypeError` unless every given array is real floating point."""
    for name, x in arrays.items():
        if x is not None and not _dtypes.is_floating(x):
            raise TypeError(
                f"{operator}: {name} has dtype {_dtypes.dtype_name(x)}, expected one of {', '.join(_dtypes.FLOATING)}"
            )


def require_integer(operator: str, **arrays: Array) -> None:
    """Raise `TypeError` unless every given array holds integers."""
    for name, x in arrays.items():
        if not _dtypes.is_integer(x):
            raise TypeError(f"{operator}: {name} has dtype {_dtypes.dtype_name(x)}, expected integers")


def require_same_dtype(operator: str, **arrays: Array) -> None:
    """Raise `TypeError` unless all arrays share the dtype of the first."""
    (first, x), *others = arrays.items()
    for name, other in others:
        if _dtypes.dtype_name(other) != _dtypes.dtype_name(x):
            raise TypeError(
                f"{operator}: {name} has dtype {_dtypes.dtype_name(other)}, but {first} has {_dtypes.dtype_name(x)}"
            )


def require_same_shape(operator: str, **arrays: Array) -> None:
    """Raise `ValueError` unless all arrays have the shape of the first; sizes unknown to Dask are not compared."""
    (first, x), *others = arrays.items()
    for name, other in others:
        sizes = zip(other.shape, x.shape, strict=False)
        if other.ndim != x.ndim or any(n != m and n == n and m == m for n, m in sizes):  # an unknown size is NaN
            raise ValueError(f"{operator}: {name} has shape {tuple(other.shape)}, but {first} has {tuple(x.shape)}")


def require_ndim(operator: str, name: str, x: Array, minimum: int, maximum: int | None = None) -> None:
    """Raise `ValueError` unless `x` has between `minimum` and `maximum` dimensions."""
    if x.ndim < minimum or (maximum is not None and x.ndim > maximum):
        wanted = f"{minimum}" if maximum == minimum else f"at least {minimum}"
        if maximum is not None and maximum != minimum:
            wanted = f"{minimum} to {maximum}"
        raise ValueError(f"{operator}: {name} has {plural(x.ndim, 'dimension')}, expected {wanted}")


def require_broadcastable(operator: str, name: str, x: Array, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless `x` broadcasts to exactly `shape`."""
    own = tuple(x.shape)
    fits = len(own) <= len(shape) and all(
        n == 1 or n == m for n, m in zip(reversed(own), reversed(shape), strict=False)
    )
    if not fits:
        raise ValueError(f"{operator}: {name} has shape {own}, which does not broadcast to {shape}")


def shown(value: object) -> str:
    """Format a wrong argument for a message: on one short line, without reading an array's values."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, tuple | list):
        few = ", ".join(describe_type(v) if isinstance(v, tuple | list) else shown(v) for v in value[:4])
        few += ", …" if len(value) > 4 else "," if len(value) == 1 and isinstance(value, tuple) else ""
        return f"({few})" if isinstance(value, tuple) else f"[{few}]"
    if value is None or isinstance(value, bool | Number | str | bytes):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:79]}…"
    return describe_type(value)


# These functions define valid options, for bodies and kernels. Numbers are Python or NumPy numbers, never arrays: an
# array's value may be on a device, not computed yet or traced, and would affect the result dtype. The functions
# return Python numbers, which never promote arrays. While a library traces, a number may be a symbol, such as a length
# that changes from call to call: it is returned as it is. Comparisons are what all symbols support; `math.isfinite`,
# `int` and the like need a value, so that a trace would hold for that one only.


def as_integer(operator: str, name: str, value: Any) -> int:
    """Return an option as an `int`; raise `TypeError` unless it is an integer."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        if symbol_type(value) is int:
            return value
        raise TypeError(f"{operator}: {name} is {shown(value)}, expected an integer")
    return int(value)


def as_number(operator: str, name: str, value: Any) -> float:
    """Return an option as a `float`; raise `TypeError` unless it is a number, and `ValueError` unless it is finite."""
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"{operator}: {name} is {shown(value)}, out of range for float64") from None
    elif symbol_type(value) in (int, float):
        number = 1.0 * value
    else:
        raise TypeError(f"{operator}: {name} is {shown(value)}, expected a number")
    if not -inf < number < inf:
        raise ValueError(f"{operator}: {name} is {number}, expected a finite number")
    return number


def as_nonnegative_number(operator: str, name: str, value: Any) -> float:
    """Return an option as a `float`; raise `ValueError` unless it is finite and at least 0."""
    number = as_number(operator, name, value)
    if number < 0.0:
        raise ValueError(f"{operator}: {name} is {number}, expected 0 or more")
    return number


def as_positive_number(operator: str, name: str, value: Any) -> float:
    """Return an option as a `float`; raise `ValueError` unless it is finite and greater than 0."""
    number = as_number(operator, name, value)
    if number <= 0.0:
        raise ValueError(f"{operator}: {name} is {number}, expected a positive number")
    return number


def as_share(operator: str, name: str, value: Any) -> float:
    """Return an option as a `float`; raise `ValueError` unless it is between 0 and 1."""
    number = as_number(operator, name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{operator}: {name} is {number}, expected 0 … 1")
    return number


def as_bool(operator: str, name: str, value: Any) -> bool:
    """Return an option as a `bool`; raise `TypeError` unless it is True or False."""
    if not isinstance(value, bool) and not _is_numpys_bool(value) and symbol_type(value) is not bool:
        raise TypeError(f"{operator}: {name} is {shown(value)}, expected True or False")
    return bool(value)


def as_floating_dtype(operator: str, name: str, value: Any, x: Array) -> Dtype | None:
    """Return an option as a floating-point dtype of the library of `x`, or ``None``; else raise `TypeError`.

    It stays a dtype of that library, as kernels take it; operators that take arrays to another one translate it.
    """
    if value is None:
        return None
    library = library_of(x)
    assert library is not None
    dtype = _dtypes.dtype_next_to(x, value, library.xp)
    said = shown(value) if dtype is None else _dtypes.name_of(dtype)
    if said not in _dtypes.FLOATING or dtype is None:
        raise TypeError(f"{operator}: {name} is {said}, expected a floating-point dtype of {library.name}")
    if said == "float64" and not library.holds_float64():
        raise TypeError(f"{operator}: {name} is float64, which {library.name} does not hold in its present setting")
    return dtype


def _is_numpys_bool(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.bool_)


def as_choice(operator: str, name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Return an option as a `str`; raise `TypeError` unless it is a string, `ValueError` unless it is valid."""
    if isinstance(value, str) and value in choices:
        return str(value)
    error = ValueError if isinstance(value, str) else TypeError
    raise error(f"{operator}: {name} is {shown(value)}, expected one of {', '.join(map(repr, choices))}")


def normalize_axis(operator: str, axis: Any, ndim: int, name: str = "axis") -> int:
    """Return an axis, which the caller names `name`, counted from the front; `ValueError` if `x` has no such axis."""
    index = as_integer(operator, name, axis)
    if not -ndim <= index < ndim:
        raise ValueError(f"{operator}: {name} {shown(index)} is out of range, x has {plural(ndim, 'dimension')}")
    return list(range(ndim))[index]  # a number even where the axis is a symbol: a trace has one graph for each axis


def normalize_axes(operator: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes named by an integer, a tuple of integers or, all of them, ``None``, in ascending order."""
    if axis is None and ndim > 0:
        return tuple(range(ndim))
    if not isinstance(axis, tuple | list):
        return (normalize_axis(operator, axis, ndim),)
    axes = sorted(normalize_axis(operator, a, ndim) for a in axis)
    if not axes:
        raise ValueError(f"{operator}: axis is empty, expected at least one")
    if len(set(axes)) < len(axes):
        raise ValueError(f"{operator}: axis {shown(axis)} names an axis of x twice")
    return tuple(axes)


def as_axes(axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Narrow the result of `normalize_axes` for type checkers, which still allow an integer and ``None``."""
    assert isinstance(axis, tuple)
    return axis


def checked_indices(operator: str, name: str, ids: Array, size: int, xp: Namespace) -> Array:
    """Return indices, which are errors if they lie outside ``[0, size)``, as far as a library can tell.

    An eager array in host memory raises `ValueError` here, a lazy one when it is computed.
    """
    return _checked(f"{operator}: {name} has the index", ids, size - 1, xp)


def checked_counts(operator: str, name: str, counts: Array, most: int, xp: Namespace) -> Array:
    """Return numbers, which are errors if they lie outside ``[0, most]``, as `checked_indices` does."""
    return _checked(f"{operator}: {name} has the number", counts, most, xp)


def _checked(what: str, values: Array, most: int, xp: Namespace) -> Array:
    library = library_of(values)
    if library is not None and library.lazy:
        return library.checked(values, functools.partial(_require_range, what, most))
    _require_range(what, most, values, xp)
    return values


def _require_range(what: str, most: int, values: Array, xp: Namespace | None = None) -> None:
    if 0 in values.shape or not has_host_values(values):
        return
    library = library_of(values)
    assert library is not None
    xp = xp or library.xp
    signed = _dtypes.widen_integers(xp, values, creation_device(values))  # torch has no minimum of unsigned integers
    low, high = int(xp.min(signed)), int(xp.max(signed))
    if low < 0 or high > most:
        wrong = high if low >= 0 else low if _dtypes.dtype_name(values) != "uint64" else low + 2**64
        raise ValueError(f"{what} {wrong}, outside 0 … {most}")
