"""The axes along which an operator call may be split into calls on parts of its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from tensorops.typing import Array, Dtype

Axes: TypeAlias = tuple[int, ...]


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
