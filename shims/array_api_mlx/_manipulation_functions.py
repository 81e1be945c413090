"""Manipulation functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from array_api_mlx._arguments import axes_of, axis_of, shape_of, unwrap
from array_api_mlx._array_object import Array
from array_api_mlx._dtypes import INTEGRAL, common_dtype, wrong_category
from array_api_mlx._keys import to_numpy
from array_api_mlx._shapeless import needs_lengths


def broadcast_arrays(*arrays: Any) -> tuple[Array, ...]:
    """Return arrays broadcast against each other."""
    bare = [unwrap(x, "broadcast_arrays", "an argument") for x in arrays]
    return tuple(map(Array, mx.broadcast_arrays(*bare))) if bare else ()


def broadcast_shapes(*shapes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Return the common broadcast shape; an unknown length, ``None``, becomes that of the others or stays unknown."""
    result: list[int | None] = []
    for axis in range(-max((len(shape) for shape in shapes), default=0), 0):
        lengths = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        known = lengths - {None}
        if len(known) > 1:
            raise ValueError(f"broadcast_shapes: {', '.join(map(str, shapes))} do not broadcast")
        result.append(known.pop() if known else None if lengths else 1)
    return tuple(result)


def broadcast_to(x: Any, /, shape: tuple[int, ...]) -> Array:
    """Return `x` broadcast to a shape."""
    return Array(mx.broadcast_to(unwrap(x, "broadcast_to"), shape_of(shape, "broadcast_to")))


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Array:
    """Return arrays joined along an axis, or flattened and joined if it is ``None``."""
    bare = _promoted(arrays, "concat")
    if axis is None:
        return Array(mx.concatenate([a.reshape(-1) for a in bare], axis=0))
    index = axis_of(axis, bare[0].ndim, "concat")
    return Array(mx.concatenate(bare, axis=index))


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Array:
    """Return arrays joined along a new axis."""
    bare = _promoted(arrays, "stack")
    if len({a.shape for a in bare}) > 1:
        raise ValueError(f"stack: the arrays have different shapes: {', '.join(str(a.shape) for a in bare)}")
    return Array(mx.stack(bare, axis=axis_of(axis, bare[0].ndim + 1, "stack")))


def _promoted(arrays: Sequence[Any], function: str) -> list[Any]:
    bare = [unwrap(x, function, "an element of arrays") for x in arrays]
    if not bare:
        raise ValueError(f"{function}: arrays is empty")
    dtype = common_dtype(function, [a.dtype for a in bare])
    return [a.astype(dtype) for a in bare]


@needs_lengths
def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Return the slices of an array along an axis."""
    a = unwrap(x, "unstack")
    index = axis_of(axis, a.ndim, "unstack")
    every = (slice(None),) * index
    return tuple(Array(a[(*every, i)]) for i in range(a.shape[index]))


def expand_dims(x: Any, /, axis: int | tuple[int, ...] = 0) -> Array:
    """Return `x` with new axes of length one at the positions `axis` of the result."""
    a = unwrap(x, "expand_dims")
    axes = axis if isinstance(axis, tuple) else (axis,)
    return Array(mx.expand_dims(a, axes_of(axes, a.ndim + len(axes), "expand_dims")))


def squeeze(x: Any, /, axis: int | tuple[int, ...]) -> Array:
    """Return `x` without some axes of length one."""
    a = unwrap(x, "squeeze")
    axes = axes_of(axis, a.ndim, "squeeze")
    for each in axes:
        if a.shape[each] != 1:
            raise ValueError(f"squeeze: axis {each} of x has length {a.shape[each]}, expected 1")
    return Array(mx.squeeze(a, axis=axes) if axes else a)


@needs_lengths
def flip(x: Any, /, *, axis: int | tuple[int, ...] | None = None) -> Array:
    """Return `x` with the order of its elements reversed along some or all axes."""
    a = unwrap(x, "flip")
    axes = axes_of(axis, a.ndim, "flip")
    return Array(mx.flip(a, axis=axes) if axes else a)


def moveaxis(x: Any, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Array:
    """Return `x` with some axes moved to other positions; the others keep their order."""
    a = unwrap(x, "moveaxis")
    origins, targets = axes_of(source, a.ndim, "moveaxis"), axes_of(destination, a.ndim, "moveaxis")
    if len(origins) != len(targets):
        raise ValueError(f"moveaxis: source names {len(origins)} axes, but destination {len(targets)}")
    order = [axis for axis in range(a.ndim) if axis not in origins]
    for target, origin in sorted(zip(targets, origins, strict=True)):
        order.insert(target, origin)
    return Array(mx.transpose(a, order) if order else a)


def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Array:
    """Return `x` with its axes in another order."""
    a = unwrap(x, "permute_dims")
    order = axes_of(tuple(axes), a.ndim, "permute_dims")
    if len(order) != a.ndim:
        raise ValueError(f"permute_dims: axes names {len(order)} axes, but x has {a.ndim}")
    return Array(mx.transpose(a, order) if order else a)


@needs_lengths
def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Return `x` with each element repeated; an array `repeats` gives the count for each element and is computed."""
    a = unwrap(x, "repeat")
    if axis is None:
        a, axis = a.reshape(-1), 0
    index = axis_of(axis, a.ndim, "repeat")
    if isinstance(repeats, int):
        if repeats < 0:
            raise ValueError(f"repeat: repeats is {repeats}, expected a non-negative number")
        return Array(mx.repeat(a, repeats, axis=index))
    often = unwrap(repeats, "repeat", "repeats")
    if often.dtype not in INTEGRAL:
        raise wrong_category("repeat", "repeats", often.dtype, INTEGRAL)
    length = a.shape[index]
    if often.ndim > 1 or often.size not in (1, length):
        raise ValueError(f"repeat: repeats has shape {often.shape}, expected ({length},), the length of axis {axis}")
    places = np.repeat(np.arange(length), to_numpy(often))
    return Array(mx.take(a, mx.array(places.astype(np.int64)), axis=index))


def reshape(x: Any, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Array:
    """Return the elements in another shape; one length may be -1. Nothing is shared, whatever `copy` says."""
    a = unwrap(x, "reshape")
    given = shape_of(shape, "reshape")
    lengths = list(given)
    if lengths.count(-1) == 1:
        known = math.prod(n for n in lengths if n != -1)
        lengths[lengths.index(-1)] = a.size // known if known else 0
    if min(lengths, default=0) < 0 or math.prod(lengths) != a.size:
        raise ValueError(f"reshape: an array of shape {a.shape} cannot be reshaped to {shape}")
    return Array(mx.reshape(a, given if a.size else lengths))  # -1 is any length in a trace for any shape


@needs_lengths
def roll(x: Any, /, shift: int | tuple[int, ...], *, axis: int | tuple[int, ...] | None = None) -> Array:
    """Return `x` with its elements moved cyclically along some axes, or flattened if none is given."""
    a = unwrap(x, "roll")
    if not a.size:
        return Array(a)
    if axis is None:
        return Array(mx.roll(a.reshape(-1), shift if isinstance(shift, int) else sum(shift)).reshape(a.shape))
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: shift has {len(shifts)} numbers, but axis {len(axes)}")
    for by, along in zip(shifts, axes, strict=True):
        a = mx.roll(a, by, axis_of(along, a.ndim, "roll"))
    return Array(a)


@needs_lengths
def tile(x: Any, repetitions: tuple[int, ...], /) -> Array:
    """Return `x` repeated along each axis as often as `repetitions` says."""
    a = unwrap(x, "tile")
    if not all(repetitions) or not a.size:
        often = (1,) * (a.ndim - len(repetitions)) + tuple(repetitions)
        lengths = (1,) * (len(often) - a.ndim) + a.shape
        return Array(mx.zeros([n * k for n, k in zip(lengths, often, strict=True)], dtype=a.dtype))
    return Array(mx.tile(a, repetitions) if repetitions else a)
