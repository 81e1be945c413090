"""Compare nested results of any function, for which no case defines a tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tensorops.testing._libraries import arrays_in
from tensorops.testing.assertions import DTYPES, assert_matches, ulp_error

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOLERANCE = {"float16": 8.0, "bfloat16": 8.0, "float32": 256.0, "float64": 256.0}
"""The allowed error of an element, in `eps` of its dtype times the largest magnitude in the array.

Far more than rounding needs, and far less than the error of a wrong formula, a wrong axis or a narrower dtype inside.
"""


@dataclass(frozen=True)
class Difference:
    """The largest difference between a result and its expectation; `reason` says what exceeds the tolerance."""

    max_ulp: float = 0.0
    max_relative_error: float = 0.0
    reason: str = ""


def is_float(x: NDArray[Any]) -> bool:
    """Return whether a NumPy array holds real floating-point numbers, including those of ml_dtypes."""
    return x.dtype.name in DTYPES


def compare(actual: Any, expected: Any, dtype: str | None) -> Difference:
    """Compare two NumPy results of the same structure.

    `dtype` is the dtype of Python numbers and the narrowest that arrays may have, unless the expected arrays are
    narrower. ``None`` means float64 for Python numbers and any dtype for arrays.
    """
    try:
        pairs = _pairs(actual, expected, "the result", dtype or "float64")
        parts = [(path, _difference(a, e, dtype)) for path, a, e in pairs]
    except ValueError as error:
        return Difference(math.inf, math.inf, str(error))
    return Difference(
        max((d.max_ulp for _, d in parts), default=0.0),
        max((d.max_relative_error for _, d in parts), default=0.0),
        "; ".join(f"{path}: {d.reason}" for path, d in parts if d.reason),
    )


def narrowest(tree: Any) -> str | None:
    """Return the floating dtype of lowest resolution among the arrays of a tree; ``None`` if there is none."""
    dtypes = [x.dtype for x in arrays_in(tree) if is_float(x)]
    return max(dtypes, key=_eps).name if dtypes else None


def too_narrow(result: Any, dtype: str | None) -> str:
    """Return which dtype of a result is narrower than `dtype`, or an empty string."""
    parts = (x.real if x.dtype.kind == "c" else x for x in arrays_in(result))
    return next(filter(None, (_too_narrow(x, dtype) for x in parts if is_float(x))), "")


def _too_narrow(x: NDArray[Any], dtype: str | None) -> str:
    narrower = dtype is not None and _eps(x.dtype) > _eps(DTYPES[dtype])
    return f"dtype is {x.dtype.name}, narrower than the inputs' {dtype}" if narrower else ""


def _pairs(actual: Any, expected: Any, path: str, dtype: str) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Yield the parts of nested results in pairs; raise `ValueError` if the structures differ."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if set(actual) != set(expected):
            raise ValueError(f"{path} has the keys {sorted(map(str, actual))}, not {sorted(map(str, expected))}")
        for key in expected:
            yield from _pairs(actual[key], expected[key], f"{path}[{key!r}]", dtype)
    elif isinstance(expected, list | tuple) and isinstance(actual, list | tuple):
        if len(actual) != len(expected):
            raise ValueError(f"{path} has {len(actual)} parts, expected {len(expected)}")
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(a, e, f"{path}[{i}]", dtype)
    elif _is_value(actual) and _is_value(expected):
        yield path, _array(actual, dtype), _array(expected, "float64")
    elif actual is not None or expected is not None:
        raise ValueError(f"{path} is {_kind(actual)}, expected {_kind(expected)}")


def _is_value(x: object) -> bool:
    return isinstance(x, np.ndarray | np.generic | bool | int | float | complex)


def _kind(x: object) -> str:
    return "an array or a number" if _is_value(x) else type(x).__name__


def _array(x: Any, dtype: str) -> NDArray[Any]:
    """Return an array; a Python number has lost the dtype of its computation and gets that of the inputs."""
    with np.errstate(all="ignore"):
        return np.asarray(x, dtype=DTYPES[dtype]) if type(x) is float else np.asarray(x)


def _difference(actual: NDArray[Any], expected: NDArray[Any], dtype: str | None) -> Difference:
    if actual.shape != expected.shape:
        return Difference(math.inf, math.inf, f"shape is {actual.shape}, expected {expected.shape}")
    if (kind := _kind_of_dtype(expected)) != _kind_of_dtype(actual):
        return Difference(math.inf, math.inf, f"dtype is {actual.dtype.name}, expected {kind}")
    if actual.dtype.kind == "c":
        actual, expected = _real_and_imaginary(actual), _real_and_imaginary(expected)
    if not is_float(actual) or not is_float(expected):
        return _exact(actual, expected)
    meant = _eps(expected.dtype) >= _eps(actual.dtype)
    reason = "" if meant else _too_narrow(actual, dtype)
    # The reference has more digits than the result; between two backends, the coarser dtype counts.
    unit = max(actual.dtype, expected.dtype, key=_eps).name
    wide, eps = expected.astype(np.float64), _eps(DTYPES[unit])
    ulp = ulp_error(actual, wide, unit)
    try:
        with np.errstate(all="ignore"):
            rounded = actual.astype(DTYPES[unit])
        assert_matches(rounded, wide, unit, tolerance=TOLERANCE[unit], scale_axis=None)
    except AssertionError as error:
        reason = reason or str(error)
    return Difference(ulp, ulp * eps, reason)


def _kind_of_dtype(x: NDArray[Any]) -> str:
    kinds = {"b": "truth values", "i": "an integer one", "u": "an integer one", "c": "a complex one"}
    return "a floating one" if is_float(x) else kinds.get(x.dtype.kind, x.dtype.name)


def _exact(actual: NDArray[Any], expected: NDArray[Any]) -> Difference:
    wrong = int(np.sum(actual != expected))
    if not wrong:
        return Difference()
    return Difference(math.inf, math.inf, f"{wrong} of {actual.size} elements differ, and must be equal")


def _real_and_imaginary(x: NDArray[Any]) -> NDArray[Any]:
    return np.stack([x.real, x.imag])


def _eps(dtype: np.dtype[Any]) -> float:
    return float(ml_dtypes.finfo(dtype).eps)
