"""Comparison of a result with its float64 reference, in units in the last place of the result's dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Float64 = NDArray[np.float64]

__all__ = ["DTYPES", "assert_matches", "ulp_error"]

DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
"""The floating dtypes that operators support, by name."""


def _limits(dtype_name: str) -> tuple[float, float]:
    """Return ``eps`` (the distance from 1 to the next number) and the smallest normal number."""
    if dtype_name not in DTYPES:
        raise ValueError(f"dtype_name is {dtype_name!r}, expected one of {', '.join(DTYPES)}")
    info = ml_dtypes.finfo(DTYPES[dtype_name])
    return float(info.eps), float(info.smallest_normal)


def _round(values: _Float64, dtype_name: str) -> _Float64:
    """Round to the dtype and back; values beyond its range become infinite."""
    with np.errstate(all="ignore"):
        return np.asarray(values.astype(DTYPES[dtype_name]), dtype=np.float64)


def ulp_error(actual: NDArray[Any], expected: NDArray[Any], dtype_name: str) -> float:
    """Return the largest error in units in the last place of the dtype.

    The unit of each element is ``eps * max(|expected|, smallest_normal)``: `eps` is the distance from 1 to
    the next number, so a correctly rounded result is within 0.5. NaN must match NaN and an infinity the same
    infinity, otherwise the error is infinite; an expected value beyond the range of the dtype counts as
    infinite.

    Parameters
    ----------
    actual : ndarray
        The result, of any floating dtype.
    expected : ndarray
        The reference, of the same shape, in float64.
    dtype_name : {"float16", "bfloat16", "float32", "float64"}
        The dtype that sets the unit.

    Returns
    -------
    float
        The largest error of any element, 0.0 for empty arrays.

    Raises
    ------
    ValueError
        If the shapes differ or the dtype is not supported.

    Examples
    --------
    >>> import numpy as np
    >>> ulp_error(np.float32([1.0, 2.0 + 2**-21]), np.array([1.0, 2.0]), "float32")
    2.0
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        raise ValueError(f"actual has shape {actual.shape}, but expected has {expected.shape}")
    errors = _ulp_errors(actual.astype(np.float64), expected.astype(np.float64), dtype_name)
    return float(np.max(errors, initial=0.0))


def _ulp_errors(actual: _Float64, expected: _Float64, dtype_name: str) -> _Float64:
    eps, tiny = _limits(dtype_name)
    rounded = _round(expected, dtype_name)
    same = (actual == rounded) | (np.isnan(actual) & np.isnan(expected))
    finite = np.isfinite(actual) & np.isfinite(rounded)
    with np.errstate(all="ignore"):
        errors = np.abs(actual - expected) / (eps * np.maximum(np.abs(expected), tiny))
    return np.where(finite, errors, np.where(same, 0.0, np.inf))


def assert_matches(
    actual: NDArray[Any],
    expected: NDArray[Any],
    dtype_name: str,
    *,
    tolerance: float,
    scale_axis: int | tuple[int, ...] | None = -1,
) -> None:
    """Assert that a result has the dtype, the shape and, within a tolerance, the values of its reference.

    An element passes if ``|actual - expected| <= tolerance * eps * max(|expected|, scale)``. `scale` is the
    largest ``|expected|`` along `scale_axis` among the entries that the dtype can represent: if terms
    cancel, the error of an element is proportional to its neighbours, not to the element itself.
    Additional rules:

    * NaN must match NaN, and an infinity the same infinity. The sign of a zero is free.
    * If all values within the tolerance are beyond the range of the dtype, the result must be infinite; if
      some are, it may be.
    * If a value within the tolerance is below the smallest normal number, the result may be off by that
      number more, because several libraries flush subnormal numbers to zero.

    Parameters
    ----------
    actual : ndarray
        The result.
    expected : ndarray
        The reference: float64 for a floating dtype, integers or booleans for another.
    dtype_name : str
        The dtype that `actual` must have. Integers and booleans are compared exactly.
    tolerance : float
        Allowed error in `eps` of the dtype, at least 0. Rounding alone takes half a unit.
    scale_axis : int, tuple of ints or None, default -1
        Axis of the maximum that sets the scale, as in NumPy's reductions: ``()`` compares every element
        with itself, None uses the largest magnitude of the whole array.

    Raises
    ------
    AssertionError
        If the result differs; the message shows the element with the largest error.

    Examples
    --------
    >>> import numpy as np
    >>> assert_matches(np.float32([0.1]), np.array([0.1]), "float32", tolerance=0.5)
    """
    __tracebackhide__ = True
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.dtype.name != dtype_name:
        raise AssertionError(f"dtype is {actual.dtype.name}, expected {dtype_name}")
    if actual.shape != expected.shape:
        raise AssertionError(f"shape is {actual.shape}, expected {expected.shape}")
    if dtype_name not in DTYPES:
        wrong = np.asarray(actual != expected)
        if wrong.any():
            _fail(wrong, wrong.astype(np.float64), actual, expected, "must be equal")
        return
    wide, expected = actual.astype(np.float64), expected.astype(np.float64)
    allowed = _allowed_error(expected, dtype_name, tolerance, scale_axis)
    wrong = ~_passes(wide, expected, allowed, dtype_name)
    if wrong.any():
        errors = _ulp_errors(wide, expected, dtype_name)
        eps = _limits(dtype_name)[0]
        _fail(wrong, errors, wide, expected, f"tolerance {tolerance:g} eps, eps = {eps:.3g}", allowed)


def _allowed_error(
    expected: _Float64, dtype_name: str, tolerance: float, scale_axis: int | tuple[int, ...] | None
) -> _Float64:
    """Return the allowed absolute error of each element, 0 where `expected` is not finite."""
    eps, tiny = _limits(dtype_name)
    magnitude = np.abs(np.where(np.isfinite(expected), expected, 0.0))
    representable = np.where(np.isfinite(_round(magnitude, dtype_name)), magnitude, 0.0)
    if expected.ndim == 0:
        scale_axis = ()
    scale = np.max(representable, axis=scale_axis, keepdims=True, initial=0.0)
    with np.errstate(over="ignore"):
        # Below the smallest normal number the spacing is constant.
        allowed = tolerance * eps * np.maximum(np.maximum(magnitude, scale), tiny)
    near_subnormal = magnitude - allowed < tiny
    return np.where(np.isfinite(expected), allowed + np.where(near_subnormal, tiny, 0.0), 0.0)


def _passes(actual: _Float64, expected: _Float64, allowed: _Float64, dtype_name: str) -> NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        magnitude = np.abs(expected)
        close = np.isfinite(actual) & (np.abs(actual - expected) <= allowed)
        must_overflow = np.isinf(_round(magnitude - allowed, dtype_name))
        may_overflow = np.isinf(_round(magnitude + allowed, dtype_name))
        same_infinity = np.isinf(actual) & (np.signbit(actual) == np.signbit(expected))
    finite = (close & ~must_overflow) | (same_infinity & may_overflow)
    special = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    passes: NDArray[np.bool_] = np.where(np.isfinite(expected), finite, special)
    return passes


def _fail(
    wrong: NDArray[np.bool_],
    errors: _Float64,
    actual: NDArray[Any],
    expected: NDArray[Any],
    criterion: str,
    allowed: _Float64 | None = None,
) -> None:
    """Raise an `AssertionError` that shows the worst of the wrong elements."""
    __tracebackhide__ = True
    excess = errors
    if allowed is not None:  # the worst exceeds its allowance the most; it need not have the most units
        with np.errstate(all="ignore"):
            excess = np.abs(actual - expected) / allowed
    excess = np.where(wrong, np.where(np.isnan(excess), np.inf, excess), -1.0)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), wrong.shape))
    lines = [
        f"{int(wrong.sum())} of {wrong.size} elements differ ({criterion})",
        f"worst at {index}: actual {actual[index]!s}, expected {expected[index]!s}",
    ]
    if allowed is not None:
        difference = abs(float(actual[index]) - float(expected[index]))
        lines.append(f"off by {difference:.3g} = {errors[index]:.3g} ULP, allowed {allowed[index]:.3g}")
    raise AssertionError("\n".join(lines))
