"""Set functions: by sorting, on the device. All but `isin` wait for the number of distinct values."""

from __future__ import annotations

from typing import Any, NamedTuple

from array_api_pyopencl import _calls, _dtypes, _indexing
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._creation_functions import asarray
from array_api_pyopencl._manipulation_functions import concat, reshape
from array_api_pyopencl._scans import scan
from array_api_pyopencl._searching_functions import searchsorted
from array_api_pyopencl._sorting_functions import sort_pairs


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Array
    inverse_indices: Array


def _first_of_each(ordered: Array) -> tuple[Array, Array]:
    """Return which elements of a sorted array differ from the one before, and the positions of those."""
    starts: Array = _calls.empty(ordered.device, _dtypes.bool, ordered.shape)
    _calls.fill(starts, True)
    if ordered.size > 1:
        _calls.assign(starts[1:], _calls.binary("not_equal", ordered[1:], ordered[:-1]))
    return starts, _indexing.true_positions(starts)


def _counts(firsts: Array, size: int) -> Array:
    ends = concat([firsts, asarray([size], dtype=_dtypes.int64, device=firsts.device)])
    return _calls.binary("subtract", ends[1:], ends[:-1])


def unique_all(x: Array, /) -> UniqueAll:
    """Return the distinct values in order, where each is first, which one each element is, and how often it is there.

    Every NaN is distinct.
    """
    x = as_array("unique_all", x)
    flat = reshape(x, (-1,))
    ordered, positions = sort_pairs(flat, 0, False, True)
    assert positions is not None
    starts, firsts = _first_of_each(ordered)
    numbers = _calls.binary("subtract", scan("sum", starts, 0, _dtypes.int64), 1)
    inverse: Array = _calls.empty(x.device, _dtypes.int64, flat.shape)
    _indexing.scatter(inverse, positions, (), (), numbers)
    return UniqueAll(
        _indexing.gather(ordered, firsts, (), ()),
        _indexing.gather(positions, firsts, (), ()),
        reshape(inverse, x.shape),
        _counts(firsts, flat.size),
    )


def unique_counts(x: Array, /) -> UniqueCounts:
    """Return the distinct values in order, and how often each is there."""
    x = as_array("unique_counts", x)
    ordered, _ = sort_pairs(reshape(x, (-1,)), 0, False, False)
    _, firsts = _first_of_each(ordered)
    return UniqueCounts(_indexing.gather(ordered, firsts, (), ()), _counts(firsts, ordered.size))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Return the distinct values in order, and which one each element is."""
    x = as_array("unique_inverse", x)
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Array, /) -> Array:
    """Return the distinct values in order."""
    x = as_array("unique_values", x)
    ordered, _ = sort_pairs(reshape(x, (-1,)), 0, False, False)
    _, firsts = _first_of_each(ordered)
    return _indexing.gather(ordered, firsts, (), ())


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Tell for each element of `x1` whether it is among those of `x2`; whether it is not, if `invert` is true."""
    device, (x1, x2) = _calls.meet("isin", x1, x2)
    dtype = _calls.common_dtype((x1, x2))
    x1 = _calls.convert(x1, dtype) if isinstance(x1, Array) else asarray(x1, dtype=dtype, device=device)
    x2 = _calls.convert(x2, dtype) if isinstance(x2, Array) else asarray(x2, dtype=dtype, device=device)
    if x2.size == 0:
        found: Array = _calls.empty(device, _dtypes.bool, x1.shape)
        _calls.fill(found, invert)
        return found
    ordered, _ = sort_pairs(reshape(x2, (-1,)), 0, False, False)
    places = _calls.compute("minimum", (searchsorted(ordered, x1), ordered.size - 1))
    nearest = _indexing.gather(ordered, places, (), ())
    return _calls.binary("not_equal" if invert else "equal", nearest, x1)


__all__ = ["isin", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
