"""Manipulation functions: views where possible, else copies on the device."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

from array_api_pyopencl import _calls, _dtypes, _indexing, _layout
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._creation_functions import arange
from array_api_pyopencl._data_type_functions import result_type
from array_api_pyopencl._layout import Shape
from array_api_pyopencl._scans import scan
from array_api_pyopencl._searching_functions import searchsorted


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays with the shape to which they all broadcast, without copies."""
    arrays = tuple(as_array("broadcast_arrays", x) for x in arrays)
    shape = _layout.broadcast_shapes(*(x.shape for x in arrays))
    return tuple(broadcast_to(x, shape) for x in arrays)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape to which all shapes broadcast."""
    return _layout.broadcast_shapes(*(tuple(s) for s in shapes))


def broadcast_to(x: Array, /, shape: Shape) -> Array:
    """Return `x` with a shape to which it broadcasts, without a copy.

    Raises
    ------
    ValueError
        If it does not broadcast to that shape.
    """
    x = as_array("broadcast_to", x)
    shape = _layout.as_shape(shape)
    if len(shape) < x.ndim or _layout.broadcast_shapes(x.shape, shape) != shape:
        raise ValueError(f"an array of shape {x.shape} does not broadcast to {shape}")
    return x._view(shape, _layout.broadcast_strides(x.shape, x._layout.strides, shape))


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Return the arrays joined along an axis, or flattened and joined if it is ``None``."""
    if not arrays:
        raise ValueError("concat needs at least one array")
    _, found = _calls.meet("concat", *(as_array("concat", x) for x in arrays))
    if axis is None:
        found = tuple(reshape(x, (-1,)) for x in found)
        axis = 0
    if any(x.ndim == 0 for x in found):
        raise ValueError("concat needs arrays of one dimension or more")
    axis = _layout.normalize_axis(axis, found[0].ndim)
    first = found[0].shape
    for x in found:
        if x.ndim != len(first) or any(a != axis and n != first[a] for a, n in enumerate(x.shape)):
            raise ValueError(f"concat: shapes {first} and {x.shape} differ in more than axis {axis}")
    length = sum(x.shape[axis] for x in found)
    shape = (*first[:axis], length, *first[axis + 1 :])
    result: Array = _calls.empty(found[0].device, result_type(*found), shape)
    start = 0
    for x in found:
        part = result[(slice(None),) * axis + (slice(start, start + x.shape[axis]),)]
        _calls.assign(part, x)
        start += x.shape[axis]
    return result


def expand_dims(x: Array, /, axis: int | tuple[int, ...] = 0) -> Array:
    """Return `x` with dimensions of length 1 inserted at the positions `axis` of the result, without a copy."""
    x = as_array("expand_dims", x)
    count = len(axis) if isinstance(axis, tuple | list) else 1
    axes = _layout.normalize_axes(axis, x.ndim + count)
    shape, strides = list(x._layout.shape), list(x._layout.strides)
    for a in sorted(axes):
        shape.insert(a, 1)
        strides.insert(a, 0)
    return x._view(tuple(shape), tuple(strides))


def flip(x: Array, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """Return `x` with the order of its elements reversed along axes, by default all, without a copy."""
    x = as_array("flip", x)
    axes = _layout.normalize_axes(axis, x.ndim)
    return x[tuple(slice(None, None, -1) if a in axes else slice(None) for a in range(x.ndim))]


def moveaxis(x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Array:
    """Return `x` with some axes moved to other positions, without a copy."""
    x = as_array("moveaxis", x)
    sources = _layout.normalize_axes(source, x.ndim)
    destinations = _layout.normalize_axes(destination, x.ndim)
    if len(sources) != len(destinations):
        raise ValueError(f"moveaxis: source {source} and destination {destination} differ in length")
    order = [a for a in range(x.ndim) if a not in sources]
    for to, a in sorted(zip(destinations, sources, strict=True)):
        order.insert(to, a)
    return permute_dims(x, tuple(order))


def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Return `x` with its axes in another order, without a copy."""
    x = as_array("permute_dims", x)
    order = _layout.normalize_axes(tuple(axes), x.ndim)
    if len(order) != x.ndim:
        raise ValueError(f"permute_dims: axes {axes} are not all axes of an array of {x.ndim} dimensions")
    shape, strides = x._layout.shape, x._layout.strides
    return x._view(tuple(shape[a] for a in order), tuple(strides[a] for a in order))


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Return each element repeated in place.

    If `repeats` is an array, its sum is read, which waits for the queue.
    """
    x = as_array("repeat", x)
    if axis is None:
        x = reshape(x, (-1,))
        axis = 0
    axis = _layout.normalize_axis(axis, x.ndim)
    n = x.shape[axis]
    if isinstance(repeats, Array) and repeats.size == 1:
        repeats = int(reshape(repeats, ()))
    if isinstance(repeats, int):
        if repeats < 0:
            raise ValueError(f"repeat: repeats is {repeats}, expected a non-negative number")
        view = expand_dims(x, axis=axis + 1)
        view = broadcast_to(view, (*view.shape[: axis + 1], repeats, *view.shape[axis + 2 :]))
        return reshape(view, (*x.shape[:axis], n * repeats, *x.shape[axis + 1 :]), copy=True)
    _, (x, counts) = _calls.meet("repeat", x, repeats)
    if counts.shape != (n,) or counts.dtype.kind not in "iu":
        raise ValueError(f"repeat: repeats must be {n} integers, one for each element along the axis, or one integer")
    ends = scan("sum", counts, 0, _dtypes.int64)
    total = int(ends[-1]) if n else 0
    sources = searchsorted(ends, arange(total, device=x.device), side="right")
    return x[(slice(None),) * axis + (sources,)]


def reshape(x: Array, /, shape: Shape, *, copy: bool | None = None) -> Array:
    """Return `x` with another shape, without a copy where its strides allow; one length may be -1.

    Raises
    ------
    ValueError
        If the shape has another number of elements, or ``copy=False`` and a copy is needed.
    """
    x = as_array("reshape", x)
    lengths = _full_shape(x, tuple(map(operator.index, shape)) if isinstance(shape, tuple | list) else (shape,))
    strides = None if copy else _view_strides(x._layout.shape, x._layout.strides, lengths)
    if strides is not None:
        return x._view(lengths, strides)
    if copy is False:
        raise ValueError(f"copy=False, but an array of shape {x.shape} with these strides must be copied")
    y = _calls.compute("copy", (x,))
    return y._view(lengths, _layout.contiguous_strides(lengths), 0)


def _full_shape(x: Array, shape: tuple[int, ...]) -> Shape:
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and x.size % known == 0:
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) != x.size:
        raise ValueError(f"an array of shape {x.shape} cannot be reshaped to {shape}")
    return shape


@functools.lru_cache(maxsize=4096)
def _view_strides(old: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Return the strides with which the same memory has the shape `new`, or ``None`` if there are none."""
    if 0 in old:
        return _layout.contiguous_strides(new)
    lengths, (steps,) = _layout.collapse(old, strides)
    result: list[int] = []
    remaining = list(zip(lengths, steps, strict=True))
    size = 1
    for n in reversed(new):
        if n == 1:
            result.append(1)
            continue
        if not remaining:
            return None
        length, step = remaining[-1]
        if length % (size * n):
            return None
        result.append(step * size)
        size *= n
        if size == length:
            remaining.pop()
            size = 1
    return tuple(reversed(result))


def roll(x: Array, /, shift: int | tuple[int, ...], *, axis: int | tuple[int, ...] | None = None) -> Array:
    """Return `x` with its elements moved cyclically along axes."""
    x = as_array("roll", x)
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    shifts = shift if isinstance(shift, tuple | list) else (shift,)
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    if len(shifts) == 1:
        shifts = tuple(shifts) * len(axes)
    if len(axes) == 1:
        axes = tuple(axes) * len(shifts)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: shift {shift} and axis {axis} differ in length")
    for s, a in zip(shifts, axes, strict=True):
        x = _roll_one(x, int(s), _layout.normalize_axis(a, x.ndim))
    return x


def _roll_one(x: Array, shift: int, axis: int) -> Array:
    n = x.shape[axis]
    cut = -shift % n if n else 0
    lead = (slice(None),) * axis
    return concat((x[(*lead, slice(cut, None))], x[(*lead, slice(None, cut))]), axis=axis)


def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """Return `x` without some dimensions of length 1, without a copy.

    Raises
    ------
    ValueError
        If one of them has another length.
    """
    x = as_array("squeeze", x)
    axes = _layout.normalize_axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: axis {axis} of shape {x.shape} is not of length 1")
    kept = [a for a in range(x.ndim) if a not in axes]
    return x._view(tuple(x.shape[a] for a in kept), tuple(x._layout.strides[a] for a in kept))


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Return arrays of one shape joined along a new axis."""
    arrays = [as_array("stack", x) for x in arrays]
    if any(x.shape != arrays[0].shape for x in arrays):
        raise ValueError(f"stack: the shapes {', '.join(str(x.shape) for x in arrays)} differ")
    return concat([expand_dims(x, axis=axis) for x in arrays], axis=axis)


def tile(x: Array, repetitions: tuple[int, ...], /) -> Array:
    """Return `x` repeated along each axis."""
    x = as_array("tile", x)
    ndim = max(x.ndim, len(repetitions))
    shape = (1,) * (ndim - x.ndim) + x.shape
    times = (1,) * (ndim - len(repetitions)) + tuple(repetitions)
    pairs = [part for n, t in zip(shape, times, strict=True) for part in (1, n)]
    wide = [part for n, t in zip(shape, times, strict=True) for part in (t, n)]
    whole = tuple(n * t for n, t in zip(shape, times, strict=True))
    return reshape(broadcast_to(reshape(x, tuple(pairs)), tuple(wide)), whole, copy=True)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the parts of `x` along an axis, without copies."""
    x = as_array("unstack", x)
    axis = _layout.normalize_axis(axis, x.ndim)
    return tuple(_indexing.basic(x, (slice(None),) * axis + (i,)) for i in range(x.shape[axis]))
