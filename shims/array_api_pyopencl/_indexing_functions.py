"""Indexing functions. Indices are checked on the device first, which waits for the queue."""

from __future__ import annotations

from array_api_pyopencl import _calls, _indexing, _layout
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Return the elements of `x` at given positions along an axis, which is optional for one dimension.

    Raises
    ------
    IndexError
        If an index is out of bounds.
    """
    x = as_array("take", x)
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: axis must be given for an array of {x.ndim} dimensions")
        axis = 0
    axis = _layout.normalize_axis(axis, x.ndim)
    return x[(slice(None),) * axis + (as_array("take", indices),)]


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Return the element of `x` at each index along an axis; the other axes broadcast.

    Raises
    ------
    IndexError
        If an index is out of bounds.
    """
    x = as_array("take_along_axis", x)
    axis = _layout.normalize_axis(axis, x.ndim)
    _, (x, indices) = _calls.meet("take_along_axis", x, as_array("take_along_axis", indices))
    if indices.dtype.kind not in "iu" or indices.ndim != x.ndim:
        raise ValueError("take_along_axis: indices must be integers with as many dimensions as x")
    around = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
    shape = list(_layout.broadcast_shapes(around, tuple(1 if a == axis else n for a, n in enumerate(indices.shape))))
    shape[axis] = indices.shape[axis]
    offsets = _indexing.offsets_of(x.device, [(indices, x.shape[axis], x._layout.strides[axis])])
    offsets = offsets._view(
        tuple(shape), _layout.broadcast_strides(offsets.shape, offsets._layout.strides, tuple(shape))
    )
    strides = tuple(
        0 if a == axis or n == 1 else s for a, (n, s) in enumerate(zip(x.shape, x._layout.strides, strict=True))
    )
    view = x._view(around, strides)
    return _indexing.gather_along(view, offsets)
