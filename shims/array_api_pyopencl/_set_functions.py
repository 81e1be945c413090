"""Set functions, by sorting on the device. All except `isin` wait for the number of distinct values."""

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


def _first_of_each(ordered: Array) -> tuple[Array, Array]:
    """Return which elements of a sorted array differ from the previous one, and their positions."""
    starts: Array = _calls.empty(ordered.device, _dtypes.bool, ordered.shape)
    _calls.fill(starts, True)
    if ordered.size > 1:
        _calls.assign(starts[1:], _calls.binary("not_equal", ordered[1:], ordered[:-1]))
    return starts, _indexing.true_positions(starts)


def _counts(firsts: Array, size: int) -> Array:
    ends = concat([firsts, asarray([size], dtype=_dtypes.int64, device=firsts.device)])
    return _calls.binary("subtract", ends[1:], ends[:-1])


def unique_all(x: Array, /) -> UniqueAll:
    """Return the sorted distinct values, the first index of each, the value index of each element, and the counts.

    Each NaN is distinct.
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
    """Return the sorted distinct values and their counts."""
    x = as_array("unique_counts", x)
    ordered, _ = sort_pairs(reshape(x, (-1,)), 0, False, False)
    _, firsts = _first_of_each(ordered)
    return UniqueCounts(_indexing.gather(ordered, firsts, (), ()), _counts(firsts, ordered.size))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Return the sorted distinct values, and for each element the index of its value."""
    x = as_array("unique_inverse", x)
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Array, /) -> Array:
    """Return the sorted distinct values."""
    x = as_array("unique_values", x)
    ordered, _ = sort_pairs(reshape(x, (-1,)), 0, False, False)
    _, firsts = _first_of_each(ordered)
    return _indexing.gather(ordered, firsts, (), ())


def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Array:
    """Return whether each element of `x1` is among those of `x2`; if `invert` is true, whether it is not."""
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
