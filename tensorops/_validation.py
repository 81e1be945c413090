"""Checks of arguments, all in the caller's terms: ``operator: argument …``.

They look at metadata only. The one exception is `require_indices`, which reads values where that costs
nothing but the reading (arrays in host memory, computed eagerly).
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from tensorops import _dtypes
from tensorops._namespaces import has_host_values
from tensorops._typing import Array, Namespace


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``"1 element"``, ``"2 elements"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def require_floating(operator: str, **arrays: Array | None) -> None:
    """Raise `TypeError` unless every array given is real floating point."""
    for name, x in arrays.items():
        if x is not None and not _dtypes.is_floating(x):
            raise TypeError(
                f"{operator}: {name} has dtype {_dtypes.dtype_name(x)}, expected one of {', '.join(_dtypes.FLOATING)}"
            )


def require_integer(operator: str, **arrays: Array) -> None:
    """Raise `TypeError` unless every array given holds integers."""
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
    """Raise `ValueError` unless all arrays have the shape of the first, as far as Dask knows theirs."""
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
    fits = len(own) <= len(shape) and all(n in (1, m) for n, m in zip(reversed(own), reversed(shape), strict=False))
    if not fits:
        raise ValueError(f"{operator}: {name} has shape {own}, which does not broadcast to {shape}")


def require_choice(operator: str, name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise `ValueError` unless `value` is one of `choices`."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{operator}: {name} is {value!r}, expected one of {listed}")


def require_eps(operator: str, eps: Any) -> None:
    """Raise unless `eps` is a finite number of at least 0."""
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(f"{operator}: eps is {eps!r}, expected a number")
    if not 0.0 <= float(eps) < float("inf"):
        raise ValueError(f"{operator}: eps is {eps}, expected 0 or more")


def normalize_axis(operator: str, axis: Any, ndim: int) -> int:
    """Return `axis` counted from the front; raise in the caller's terms if `x` has no such axis."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise TypeError(f"{operator}: axis is {axis!r}, expected an integer")
    index = axis.__index__()
    if not -ndim <= index < ndim:
        raise ValueError(f"{operator}: axis {index} is out of range, x has {plural(ndim, 'dimension')}")
    return int(index % ndim)


def normalize_axes(operator: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes named by an integer or a tuple of integers, ascending and without repetition."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = sorted(normalize_axis(operator, a, ndim) for a in given)
    if not axes:
        raise ValueError(f"{operator}: axis is empty, expected at least one")
    if len(set(axes)) < len(axes):
        raise ValueError(f"{operator}: axis {axis} names an axis of x twice")
    return tuple(axes)


def require_indices(operator: str, name: str, ids: Array, size: int, xp: Namespace) -> None:
    """Raise `ValueError` if a host-memory, eager array holds an index outside ``[0, size)``."""
    if 0 in ids.shape or not has_host_values(ids):
        return
    low, high = int(xp.min(ids)), int(xp.max(ids))
    if low < 0 or high >= size:
        raise ValueError(f"{operator}: {name} holds {low if low < 0 else high}, outside of 0 … {size - 1}")
