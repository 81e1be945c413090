"""The layout of an array in its buffer: pure arithmetic on shapes and strides, without any device.

Layouts are interned, so that a plan for a call (see `_launch`) is found by the identity of its arrays' layouts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from array_api_pyopencl._dtypes import DType

Shape = tuple[int, ...]

MAX_DIMENSIONS = 64
_MAX_INTERNED = 16384


class Layout:
    """A type, a shape, strides and an offset; strides and offset are counted in elements."""

    __slots__ = ("contiguous", "dtype", "high", "itemsize", "low", "nbytes", "offset", "shape", "size", "strides")

    def __init__(self, dtype: DType, shape: Shape, strides: Shape, offset: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.itemsize = dtype.itemsize
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize
        self.contiguous = strides == contiguous_strides(shape) or _is_contiguous(shape, strides)
        reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)] if self.size else []
        self.low = offset + sum(r for r in reach if r < 0)  # the first and the last element that it touches
        self.high = offset + sum(r for r in reach if r > 0)


_interned: dict[tuple[DType, Shape, Shape, int], Layout] = {}


def layout(dtype: DType, shape: Shape, strides: Shape, offset: int) -> Layout:
    """Return the one layout with these properties."""
    key = (dtype, shape, strides, offset)
    found = _interned.get(key)
    if found is None:
        if len(_interned) >= _MAX_INTERNED:
            _interned.clear()  # equal layouts made later are other objects, and only their plans are made again
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"an array can have at most {MAX_DIMENSIONS} dimensions, not {len(shape)}")
        found = _interned[key] = Layout(dtype, shape, strides, offset)
    return found


def contiguous(dtype: DType, shape: Shape) -> Layout:
    """Return the layout of a new array, in C order."""
    return layout(dtype, shape, contiguous_strides(shape), 0)


def contiguous_strides(shape: Shape) -> Shape:
    """Return the strides of C order, in elements."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _is_contiguous(shape: Shape, strides: Shape) -> bool:
    expected = 1
    for n, s in zip(reversed(shape), reversed(strides), strict=True):
        if n == 0:
            return True
        if n != 1:
            if s != expected:
                return False
            expected *= n
    return True


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape to which all of `shapes` broadcast."""
    first = shapes[0] if shapes else ()
    if all(s == first for s in shapes):
        return first
    result = [1] * max(map(len, shapes))
    for shape in shapes:
        for i, n in enumerate(shape, len(result) - len(shape)):
            if n != 1 and result[i] not in (1, n):
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
            if n != 1:
                result[i] = n
    return tuple(result)


def broadcast_strides(shape: Shape, strides: Shape, to: Shape) -> Shape:
    """Return the strides of an array viewed with the shape `to`, to which `shape` broadcasts."""
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, to[lead:], strict=True))


def collapse(shape: Shape, *strides: Shape) -> tuple[list[int], list[list[int]]]:
    """Merge neighbouring dimensions that every operand steps through as if they were one; drop those of length 1."""
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        now = [s[axis] for s in strides]
        if lengths and all(step[-1] == s * n for step, s in zip(steps, now, strict=True)):
            lengths[-1] *= n
            for step, s in zip(steps, now, strict=True):
                step[-1] = s
        else:
            lengths.append(n)
            for step, s in zip(steps, now, strict=True):
                step.append(s)
    return lengths, steps


def normalize_axis(axis: Any, ndim: int) -> int:
    """Return `axis` counted from the front."""
    index = operator.index(axis)
    if not -ndim <= index < ndim:
        raise IndexError(f"axis {index} is out of bounds for an array of {ndim} dimensions")
    return index % ndim


def normalize_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes named by ``None`` (all of them), an integer, or a sequence of distinct integers."""
    if axis is None:
        return tuple(range(ndim))
    given: Sequence[Any] = axis if isinstance(axis, tuple | list) else (axis,)
    axes = tuple(normalize_axis(a, ndim) for a in given)
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis {axis} names a dimension twice")
    return axes


def as_shape(shape: Any) -> Shape:
    """Return a shape given as an integer or a sequence of integers."""
    lengths = tuple(map(operator.index, shape)) if isinstance(shape, tuple | list) else (operator.index(shape),)
    if any(n < 0 for n in lengths):
        raise ValueError(f"shape {shape} has a negative length")
    return lengths
