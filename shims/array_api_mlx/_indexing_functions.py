"""Indexing functions. Indices out of bounds are clipped, because MLX does not check them."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from array_api_mlx._arguments import axis_of, unwrap, unwrap_of
from array_api_mlx._array_object import Array
from array_api_mlx._dtypes import INTEGRAL
from array_api_mlx._keys import within
from array_api_mlx._shapeless import needs_lengths


@needs_lengths
def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """Return the elements at some indices along an axis, which is optional for a 1-D array."""
    a = unwrap(x, "take")
    if axis is None and a.ndim != 1:
        raise ValueError(f"take: axis must be given for an array of {a.ndim} dimensions")
    index = axis_of(0 if axis is None else axis, a.ndim, "take")
    places = within(unwrap_of(INTEGRAL, indices, "take", "indices"), a.shape[index], index)
    return Array(mx.take(a, places, axis=index))


@needs_lengths
def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """Return the elements at the indices for each slice along an axis."""
    a, places = unwrap(x, "take_along_axis"), unwrap_of(INTEGRAL, indices, "take_along_axis", "indices")
    if a.ndim != places.ndim:
        raise ValueError(f"take_along_axis: x has {a.ndim} dimensions, but indices {places.ndim}")
    index = axis_of(axis, a.ndim, "take_along_axis")
    places = within(places, a.shape[index], index)
    others = mx.broadcast_shapes(*((*s[:index], 1, *s[index + 1 :]) for s in (a.shape, places.shape)))
    a, places = (mx.broadcast_to(y, (*others[:index], y.shape[index], *others[index + 1 :])) for y in (a, places))
    # MLX refuses to differentiate what depends on x through the indices, though integers do not vary.
    return Array(mx.take_along_axis(a, mx.stop_gradient(places), axis=index))
