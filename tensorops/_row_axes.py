"""The axes along which an operator call may be split into calls on parts of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from tensorops.typing import Array, Dtype

Axes: TypeAlias = tuple[int, ...]
Shape: TypeAlias = tuple[int, ...]
Split: TypeAlias = tuple[Any, ...]
"""How an axis is split: which part each device holds, counted from 0, or over which axes of a mesh."""


class RowAxes(NamedTuple):
    """How the axes of the arrays in one call correspond.

    Axes are numbered: those of the first array are 0, 1, …; an axis that it lacks has the next free number. Axes with
    the same number have equal or broadcastable lengths. Along every axis that is not `whole`, the operator computes
    each part of the result from the same part of the arrays.

    Parameters
    ----------
    arrays : dict of str to tuple of int
        The axes of every array argument, by parameter name, in parameter order.
    result : tuple of int
        The axes of each result.
    whole : tuple of int
        The axes along which each part must hold all elements.
    sharing : int
        The number of leading arrays with the shape of the first. The others apply to all rows.
    shortened : tuple of int
        The axes along which the results have the length `length`, whatever that of the arrays is.
    results : int
        The number of arrays that the operator returns.
    like : str
        The array whose dtype the results have; the first array if empty.
    length : int
        The length of the results along the shortened axes.
    indices : tuple of int
        Which of the results hold indices, in the default index dtype of the library.
    dtype : dtype, optional
        The dtype of the results, if it is given as an option.
    together : tuple of tuple of int
        Groups of whole axes that may yet be divided together, each into as many equal parts, such as heads and the
        heads of keys that several share: a part of one needs the same part of the others. An axis of length 1 is not
        divided.
    lengths : tuple of dict of int to int
        For each result, the lengths along those of its axes, by place, that have another length than `result` says;
        they are whole. Empty if there are none.
    widened : tuple of int
        Which of the results have the dtype in which half types are computed, float32.
    """

    arrays: dict[str, Axes]
    result: Axes
    whole: Axes = ()
    sharing: int = 1
    shortened: Axes = ()
    results: int = 1
    like: str = ""
    length: int = 1
    indices: tuple[int, ...] = ()
    dtype: Dtype | None = None
    together: tuple[Axes, ...] = ()
    lengths: tuple[dict[int, int], ...] = ()
    widened: Axes = ()

    def result_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Return the shapes of the results for arrays of these shapes."""
        along: dict[int, int] = {}
        for axes, shape in zip(self.arrays.values(), shapes, strict=True):
            for axis, n in zip(axes, shape, strict=True):
                along[axis] = n if along.get(axis, 1) == 1 else along[axis]
        along |= dict.fromkeys(self.shortened, self.length)
        common = [along[axis] for axis in self.result]
        return [tuple({**dict(enumerate(common)), **own}.values()) for own in self.lengths or [{}] * self.results]


def every_axis(x: Array) -> Axes:
    """Return the axes of the first array."""
    return tuple(range(x.ndim))


def last_axes(a: Array, ndim: int) -> Axes:
    """Return the axes of an array that broadcasts to a first array with `ndim` dimensions."""
    return tuple(range(ndim - a.ndim, ndim))


def given(**arrays: tuple[Array | None, Axes]) -> dict[str, Axes]:
    """Return the axes of the arrays that are not ``None``."""
    return {name: axes for name, (a, axes) in arrays.items() if a is not None}


def elementwise(*names: str) -> Callable[..., RowAxes]:
    """Return the declaration of an elementwise operator on arrays of equal shape."""

    def rows(**arguments: Any) -> RowAxes:
        every = every_axis(arguments[names[0]])
        return RowAxes(dict.fromkeys(names, every), every, sharing=len(names))

    return rows


class Correspondence(NamedTuple):
    """Which dimensions of arrays and results are divided together."""

    arrays: int  # how many of the shapes are those of arrays
    shapes: list[Shape]  # the shapes of the arrays, then those of the results
    # Equal for dimensions that are divided together, in each shape; None for one element for all of the axis.
    keys: list[tuple[int | None, ...]]
    whole: frozenset[int]  # the keys of what is not divided
    # The places of arrays that apply to all rows and are small: if they are split, they are gathered.
    vectors: frozenset[int]

    @classmethod
    def of(cls, rows: RowAxes, shapes: list[Shape]) -> Correspondence:
        """Return what an operator declares of arrays, and of as many results as there are more shapes."""
        every = [*rows.arrays.values()] + [rows.result] * (len(shapes) - len(rows.arrays))
        lengths: dict[int, int] = {}
        for axes, shape in zip(rows.arrays.values(), shapes, strict=False):
            for axis, n in zip(axes, shape, strict=True):
                lengths[axis] = max(lengths.get(axis, 1), n)
        same = {axis: axis for axis in lengths}
        for group in rows.together:
            several = [axis for axis in group if lengths[axis] > 1]
            same |= dict.fromkeys(several, several[0]) if several else {}
        keys = [
            tuple(same[axis] if n == lengths[axis] else None for axis, n in zip(axes, shape, strict=True))
            for axes, shape in zip(every, shapes, strict=True)
        ]
        divided = {same[axis] for group in rows.together for axis in group}
        vectors = [i for i, name in enumerate(rows.arrays) if i >= rows.sharing and len(rows.arrays[name]) == 1]
        return cls(len(rows.arrays), shapes, keys, frozenset(rows.whole) - divided, frozenset(vectors))

    def dimensions(self) -> list[tuple[int | None, int]]:
        """Return the key and the length of every dimension."""
        return [
            pair for keys, shape in zip(self.keys, self.shapes, strict=True) for pair in zip(keys, shape, strict=True)
        ]

    def unsuitable(self, parts: Sequence[Shape]) -> tuple[int, int] | None:
        """Return which axis the kernel cannot have in that many parts, if there is one, after the place of its array.

        Results may be left out. Parts of unequal length would be filled with elements that no kernel expects.
        """
        for i, (keys, counts) in enumerate(zip(self.keys, parts, strict=False)):
            for axis, (key, count) in enumerate(zip(keys, counts, strict=True)):
                needed = i < self.arrays and i not in self.vectors and (key is None or key in self.whole)
                uneven = key is not None and any(n % count for other, n in self.dimensions() if other == key)
                if count > 1 and (needed or uneven):
                    return i, axis
        return None

    def split(self, held: Sequence[Sequence[Split]], fits: Callable[[Sequence[Split]], bool], no: Split) -> list[Any]:
        """Return how to split the axes of each array and result, `no` if not at all.

        Axes are split as in the results, then as in the first array in which they are, if this fits all arrays.
        """
        found: dict[int | None, Split] = {}

        def of_arrays(found: dict[int | None, Split]) -> list[list[Split]]:
            return [[found.get(key, no) for key in keys] for keys in self.keys]

        for i in (*range(self.arrays, len(held)), *range(self.arrays)):
            for key, split in zip(self.keys[i], held[i], strict=True):
                fixed = key is None or key in self.whole or key in found or i in self.vectors
                if not fixed and any(split) and all(map(fits, of_arrays({**found, key: split}))):
                    found[key] = split
        return of_arrays(found)
