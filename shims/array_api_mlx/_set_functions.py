"""Set functions. Those whose result shape depends on values compute them, and sort with NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from array_api_mlx._arguments import operands, unwrap
from array_api_mlx._array_object import Array
from array_api_mlx._creation_functions import from_numpy
from array_api_mlx._dtypes import ALL, COMPLEX, PROMOTION
from array_api_mlx._keys import to_numpy
from array_api_mlx._shapeless import needs_lengths


class UniqueAll(NamedTuple):
    """The result of `unique_all`."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The result of `unique_counts`."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The result of `unique_inverse`."""

    values: Array
    inverse_indices: Array


def unique_all(x: Any, /) -> UniqueAll:
    """Compute `x` and return its distinct values, the first index of each, each element's value index, and the counts.

    NaNs are distinct from each other.
    """
    a = unwrap(x, "unique_all")
    values, first, inverse, counts = np.unique(
        to_numpy(a), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    return UniqueAll(_values(values, a), _positions(first), _positions(inverse.reshape(a.shape)), _positions(counts))


def unique_counts(x: Any, /) -> UniqueCounts:
    """Compute `x` and return its distinct values and their counts."""
    every = unique_all(x)
    return UniqueCounts(every.values, every.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """Compute `x` and return its distinct values, and for each element the index of its value."""
    every = unique_all(x)
    return UniqueInverse(every.values, every.inverse_indices)


def unique_values(x: Any, /) -> Array:
    """Compute `x` and return its distinct values."""
    a = unwrap(x, "unique_values")
    return _values(np.unique(to_numpy(a), equal_nan=False), a)


@needs_lengths
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Return which elements of `x1` are among those of `x2`; with `invert`, which are not."""
    a, b = operands(x1, x2, "isin", PROMOTION, ALL)
    dtype = PROMOTION[a.dtype, b.dtype]
    a, b = a.astype(dtype), b.astype(dtype).reshape(-1)
    if not b.size or not a.size:
        found = mx.zeros(a.shape, dtype=mx.bool_)
    elif dtype in COMPLEX:
        found = mx.any(a[..., None] == b, axis=-1)
    else:
        a, b = (a.astype(mx.uint8), b.astype(mx.uint8)) if dtype == mx.bool_ else (a, b)
        ordered = mx.sort(b)
        place = mx.minimum(mx.searchsorted(ordered, a), mx.array(b.size - 1, dtype=mx.uint32))
        found = mx.take(ordered, place) == a
    return Array(mx.logical_not(found) if invert else found)


def _values(values: np.ndarray[Any, Any], like: Any) -> Array:
    return Array(from_numpy(values, like.dtype))


def _positions(positions: np.ndarray[Any, Any]) -> Array:
    return Array(from_numpy(positions.astype(np.int32)))
