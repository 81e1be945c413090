"""Indexing: views if a key has only integers and slices, gathers and scatters if it has arrays.

Integer arrays are checked on the device before anything is read or written through them, which waits for the queue. A
mask also waits, for the number of its true values, except where it only selects the elements to set to one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from array_api_pyopencl import _calls, _codegen, _dtypes, _launch, _layout, _registered as _objects, _scans
from array_api_pyopencl._devices import Device
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._launch import Plan, Value
from array_api_pyopencl._layout import Layout, Shape

_MAX_VIEWS = 16384
_views: dict[Any, Layout] = {}
_BOUNDS = (int, type(None))


def getitem(x: Any, key: Any) -> _objects.Array:
    """Return ``x[key]``."""
    keys = key if isinstance(key, tuple) else (key,)
    sign = _sign(x._layout, keys)
    if sign is None:
        return _getitem(x, keys)
    layout = _views.get(sign)
    if layout is None:
        layout = basic(x, keys)._layout
        if len(_views) >= _MAX_VIEWS:
            _views.clear()
        _views[sign] = layout
    return _objects.Array(x._buffer, layout, x._device)


def _sign(layout: Layout, keys: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return what the layout of a view depends on, if the keys are all of the plainest kinds."""
    sign: list[Any] = [layout]
    for key in keys:
        kind = type(key)
        if kind is slice:
            bounds = (key.start, key.stop, key.step)
            for bound in bounds:
                if type(bound) not in _BOUNDS:
                    return None
            sign.append(bounds)
        elif kind is int or key is None or key is Ellipsis:
            sign.append(key)
        else:
            return None
    return tuple(sign)


def _getitem(x: Any, keys: Sequence[Any]) -> _objects.Array:
    arrays = [k for k in keys if isinstance(k, _objects.Array)]
    if not arrays:
        return basic(x, keys)
    for index in arrays:
        if index._device.records:
            x = _calls.meet("__getitem__", index, x)[1][1]
    if _is_mask(keys, arrays):
        offsets = _offsets_of_mask(x, arrays[0])
        return gather(x, offsets, x._layout.strides[arrays[0].ndim :], x.shape[arrays[0].ndim :])
    view, offsets, place, strides, rest = _resolve(x, keys)
    result = gather(view, offsets, strides, rest)
    return _put_axes(result, offsets.ndim, place)


def setitem(x: Any, key: Any, value: Any) -> None:
    """Do ``x[key] = value``."""
    keys = key if isinstance(key, tuple) else (key,)
    arrays = [k for k in keys if isinstance(k, _objects.Array)]
    for y in (x, value, *arrays):
        if isinstance(y, _objects.Array):
            y._device.before_write(x._buffer)
    value = _as_value(x, value)
    if not arrays:
        _set(getitem(x, keys), value)
        return
    if _is_mask(keys, arrays):
        _set_masked(x, arrays[0], value)
        return
    view, offsets, place, strides, rest = _resolve(x, keys)
    if isinstance(value, _objects.Array):
        shape = (*rest[:place], *offsets.shape, *rest[place:])
        value = _take_axes(_broadcast(value, shape), offsets.ndim, place)
    scatter(view, offsets, strides, rest, value)


def _as_value(x: Any, value: Any) -> Any:
    _, (_, value) = _calls.meet("__setitem__", x, value)
    found = _calls.common_dtype((x, value))
    if found != x.dtype:
        kind = value.dtype.name if isinstance(value, _objects.Array) else f"a Python {type(value).__name__}"
        raise TypeError(f"an array of {x.dtype.name} cannot be set to values of {kind}")
    return value


def _set(x: Any, value: Any) -> None:
    if isinstance(value, _objects.Array):
        _calls.assign(x, _broadcast(value, x.shape))
    else:
        _calls.fill(x, value)


def _broadcast(x: _objects.Array, shape: Shape) -> _objects.Array:
    if x.shape == shape:
        return x
    if _layout.broadcast_shapes(x.shape, shape) != shape:
        raise ValueError(f"a value of shape {x.shape} does not broadcast to {shape}")
    return x._view(shape, _layout.broadcast_strides(x.shape, x._layout.strides, shape))


# --------------------------------------------------------------------------------------- integers and slices


def basic(x: _objects.Array, keys: Sequence[Any]) -> _objects.Array:
    """Return the view that a key of integers, slices, ``None`` and an ellipsis selects."""
    old = x._layout
    shape: list[int] = []
    strides: list[int] = []
    offset = old.offset
    axis = 0
    for key in _expand(keys, x.ndim):
        if key is None:
            shape.append(1)
            strides.append(0)
            continue
        n, s = old.shape[axis], old.strides[axis]
        if isinstance(key, slice):
            start, stop, step = key.indices(n)
            length = len(range(start, stop, step))
            shape.append(length)
            strides.append(s * step)
            offset += s * start if length else 0
        else:
            offset += s * _position(key, n, axis)
        axis += 1
    return x._view(tuple(shape), tuple(strides), offset)


def _expand(keys: Sequence[Any], ndim: int) -> list[Any]:
    """Replace the ellipsis, or the dimensions missing from the key, by full slices."""
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if used > ndim:
        raise IndexError(f"{used} indices for an array of {ndim} dimensions")
    ellipses = sum(k is Ellipsis for k in keys)
    if ellipses > 1:
        raise IndexError("an index can have only one ellipsis")
    full = [slice(None)] * (ndim - used)
    if not ellipses:
        return [*keys, *full]
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    return [*keys[:at], *full, *keys[at + 1 :]]


def _position(key: Any, n: int, axis: int) -> int:
    if isinstance(key, bool | np.ndarray) or not hasattr(key, "__index__"):
        found = "a numpy.ndarray" if isinstance(key, np.ndarray) else repr(key)
        raise IndexError(
            f"an index is {found}, expected integers, slices, None, an ellipsis or arrays of array_api_pyopencl"
        )
    index: int = key.__index__()
    if not -n <= index < n:
        raise IndexError(f"index {index} is out of bounds for axis {axis} of length {n}")
    return index % n


# ------------------------------------------------------------------------------------------- integer arrays


def _resolve(x: Any, keys: Sequence[Any]) -> tuple[Any, Any, int, Shape, Shape]:
    """Analyse a key with integer arrays.

    Returns
    -------
    view, offsets
        The array after its integers and slices, and the offset of each selected element from its start.
    place
        The remaining dimension before which those of the index arrays go.
    strides, rest
        The strides and lengths of the remaining dimensions.
    """
    expanded = _expand(keys, x.ndim)
    for k in expanded:
        if isinstance(k, _objects.Array) and k.dtype.kind not in "iu":
            raise IndexError(f"an index array is of {k.dtype.name}, expected integers, or one mask as the only index")
    advanced = [i for i, k in enumerate(expanded) if k is not None and not isinstance(k, slice)]
    given = [i for i, k in enumerate(keys) if not (k is None or k is Ellipsis or isinstance(k, slice))]
    view = basic(x, [slice(None) if isinstance(k, _objects.Array) else k for k in expanded])
    selected = []
    place = axis = 0
    for i, k in enumerate(expanded):
        if isinstance(k, _objects.Array):
            selected.append((axis, k))
        elif i < advanced[0]:
            place += 1
        axis += isinstance(k, slice | _objects.Array) or k is None
    adjacent = given[-1] - given[0] == len(given) - 1  # an ellipsis separates, even an empty one
    axes = {axis for axis, _ in selected}
    lengths, steps = view.shape, view._layout.strides
    offsets = offsets_of(x._device, [(k, lengths[a], steps[a]) for a, k in selected])
    strides = tuple(s for a, s in enumerate(steps) if a not in axes)
    rest = tuple(n for a, n in enumerate(lengths) if a not in axes)
    return view, offsets, place if adjacent else 0, strides, rest


def offsets_of(device: Device, indices: Sequence[tuple[Any, int, int]]) -> _objects.Array:
    """Return the offsets from the start of the elements that index arrays select.

    Parameters
    ----------
    device
        Where to compute.
    indices
        Each index array, with the length and the stride of the dimension that it selects from.

    Raises
    ------
    IndexError
        If an index is out of bounds; finding out waits for the queue. While calls are only recorded, the offset is
        ``NOWHERE`` instead.
    """
    arrays = [_calls.meet("__getitem__", index)[1][0].to_device(device) for index, _, _ in indices]
    shape = _layout.broadcast_shapes(*(index.shape for index in arrays))
    result = _calls.empty(device, _dtypes.int64, shape)
    if result.size == 0:
        return result
    key = ("offsets", *((index._buffer, index._layout, n, s) for index, (_, n, s) in zip(arrays, indices, strict=True)))
    if device.records:  # as long as no index changes, offsets stay what they are
        if key in device.plans:
            known: _objects.Array = device.plans[key]
            return known
        _launch.remember(device, key, result)
    flag = device.write(np.zeros(1, np.int32))
    for number, index in enumerate(arrays):
        flat = _calls.compute("copy", (_broadcast(index, shape),))
        _, length, stride = indices[number]
        source = _offsets_source(index.dtype, number == 0)
        arguments = [None, None, None, np.int64(length), np.int64(stride), np.int64(result.size)]
        _launch.launch(device, source, "offsets", arguments, (result.size,)).run(
            device, result._buffer, flat._buffer, flag
        )
    if not device.records and device.read(flag, 0, 1, np.dtype(np.int32))[0]:
        lengths = ", ".join(str(length) for _, length, _ in indices)
        raise IndexError(f"an index array has an index out of bounds for a dimension of length {lengths}")
    return result


def _offsets_source(dtype: DType, first: bool) -> str:
    bad = "i >= length" if dtype.kind == "i" else "i >= length || i < 0"  # large unsigned values become negative
    lines = (
        _codegen.header((), True),
        f"__kernel void offsets(__global long* out, __global const {C_TYPES[dtype]}* index, __global int* flag,",
        "                      long length, long stride, long n) {",
        "  idx at = get_global_id(0);",
        "  if (at >= n) return;",
        "  long i = (long)index[at];",
        f"  if (i < -length || {bad}) {{",
        "    *flag = 1;",
        f"    out[at] = {_codegen.NOWHERE};",
        "    return;",
        "  }",
        "  if (i < 0) i += length;",
        "  out[at] = i * stride;" if first else f"  if (out[at] != {_codegen.NOWHERE}) out[at] += i * stride;",
        "}",
    )
    return "\n".join(lines)


def gather(x: Any, offsets: Any, strides: Shape, rest: Shape) -> _objects.Array:
    """Return the elements of `x` at `offsets` from its start, with all of the remaining dimensions."""
    device = x._device
    out = _layout.contiguous(x.dtype, offsets.shape + rest)
    key = ("gather", x._layout, offsets._layout, strides, rest)
    plan = device.plans.get(key)
    if plan is None:
        elements, place = _around(x, offsets, strides, rest)
        launch = _launch.elementwise(device, "b", x.dtype, out, [place, elements], [_dtypes.int64, x.dtype], indirect=1)
        plan = _launch.remember(device, key, Plan(launch, out, None))
    buffer = device.allocate(out.nbytes)
    plan.launch.run(device, buffer, offsets._buffer, x._buffer)
    return _objects.Array(buffer, out, device)


def scatter(x: Any, offsets: Any, strides: Shape, rest: Shape, value: Any) -> None:
    """Set the elements that `gather` would return; where offsets repeat, to one of the values."""
    device = x._device
    _, place = _around(x, offsets, strides, rest)
    out = _layout.layout(x.dtype, offsets.shape + rest, (0,) * offsets.ndim + strides, x._layout.offset)
    if isinstance(value, _objects.Array):
        if value._buffer is x._buffer:
            value = _calls.compute("copy", (value,))
        side: Any = value._layout
        argument = value._buffer
    else:
        side = Value(x.dtype)
        argument = _launch.packer(x.dtype)(value)
    launch = _launch.elementwise(device, "b", x.dtype, out, [place, side], [_dtypes.int64, x.dtype], indirect=-1)
    launch.run(device, x._buffer, offsets._buffer, argument)


def _around(x: Any, offsets: Any, strides: Shape, rest: Shape) -> tuple[Any, Any]:
    """Return the layouts of the elements and of the offsets, both with all dimensions of the result."""
    ones = (1,) * offsets.ndim
    elements = _layout.layout(x.dtype, ones + rest, (0,) * offsets.ndim + strides, x._layout.offset)
    old = offsets._layout
    place = _layout.layout(old.dtype, old.shape + (1,) * len(rest), old.strides + (0,) * len(rest), old.offset)
    return elements, place


def _put_axes(x: Any, count: int, place: int) -> _objects.Array:
    """Move the first `count` dimensions behind the next `place` ones."""
    order = (*range(count, count + place), *range(count), *range(count + place, x.ndim))
    return _permute(x, order)


def _take_axes(x: Any, count: int, place: int) -> _objects.Array:
    """Undo `_put_axes`."""
    order = (*range(place, place + count), *range(place), *range(place + count, x.ndim))
    return _permute(x, order)


def _permute(x: _objects.Array, order: Sequence[int]) -> _objects.Array:
    shape, strides = x._layout.shape, x._layout.strides
    return x._view(tuple(shape[a] for a in order), tuple(strides[a] for a in order))


# ---------------------------------------------------------------------------------------------------- masks


def _is_mask(keys: Sequence[Any], arrays: Sequence[Any]) -> bool:
    if not any(k.dtype.kind == "b" for k in arrays):
        return False
    if len(keys) != 1:
        raise IndexError("a mask must be the only index")
    return True


def _require_mask_fits(x: Any, mask: Any) -> None:
    fits = mask.ndim <= x.ndim and all(m in (n, 0) for m, n in zip(mask.shape, x.shape, strict=False))
    if not fits:
        raise IndexError(f"a mask of shape {mask.shape} does not fit an array of shape {x.shape}")


def _offsets_of_mask(x: Any, mask: Any) -> _objects.Array:
    _require_mask_fits(x, mask)
    _, (x, mask) = _calls.meet("__getitem__", x, mask)
    if mask.size == 0:
        return _calls.empty(x._device, _dtypes.int64, (0,))
    positions = true_positions(mask)
    lengths, (steps,) = _layout.collapse(mask.shape, x._layout.strides[: mask.ndim])
    parts = unravel(positions, lengths)
    total = _calls.binary("multiply", positions, 0)  # the only offset, for a zero-dimensional mask
    for part, step in zip(parts, steps, strict=True):
        total = _calls.binary("add", total, _calls.binary("multiply", part, step))
    return total


def true_positions(mask: Any) -> _objects.Array:
    """Return the positions of the true values in a flattened mask, in C order."""
    device = mask._device
    flat = _calls.compute("copy", (mask,))
    n = flat.size
    flat = _objects.Array(flat._buffer, _layout.contiguous(_dtypes.bool, (n,)), device)
    counts = _scans.scan("sum", flat, 0, _dtypes.int64)
    total = int(device.read(counts._buffer, n - 1, 1, _dtypes.int64)[0]) if n else 0
    result = _calls.empty(device, _dtypes.int64, (total,))
    launch = _launch.launch(device, _COMPRESS, "compress", [None, None, None, np.int64(n)], (n,))
    launch.run(device, result._buffer, flat._buffer, counts._buffer)
    return result


_COMPRESS = """
__kernel void compress(__global long* out, __global const uchar* mask, __global const long* counts, long n) {
  long i = get_global_id(0);
  if (i < n && mask[i]) out[counts[i] - 1] = i;
}
"""


def unravel(positions: Any, shape: Sequence[int]) -> list[Any]:
    """Return the indices along each dimension for positions in C order."""
    result = []
    inner = 1
    for axis in range(len(shape) - 1, -1, -1):
        index = _calls.binary("floor_divide", positions, inner) if inner != 1 else positions
        result.append(_calls.binary("remainder", index, shape[axis]) if axis else index)
        inner *= shape[axis]
    return result[::-1]


def _set_masked(x: Any, mask: Any, value: Any) -> None:
    _require_mask_fits(x, mask)
    _, (x, mask) = _calls.meet("__setitem__", x, mask)
    if mask.size == 0:
        return
    if isinstance(value, _objects.Array) and value.size != 1:
        offsets = _offsets_of_mask(x, mask)
        rest = x.shape[mask.ndim :]
        value = _broadcast(value, offsets.shape + rest)
        scatter(x, offsets, x._layout.strides[mask.ndim :], rest, value)
        return
    device = x._device
    condition = mask._view(mask.shape + (1,) * (x.ndim - mask.ndim), mask._layout.strides + (0,) * (x.ndim - mask.ndim))
    if isinstance(value, _objects.Array):
        if value._buffer is x._buffer:
            value = _calls.compute("copy", (value,))
        side: Any = _layout.layout(value.dtype, (), (), value._layout.offset)
        argument = value._buffer
    else:
        side = Value(x.dtype)
        argument = _launch.packer(x.dtype)(value)
    meets = [x.dtype, _dtypes.bool, x.dtype]
    sides = [x._layout, condition._layout, side]
    launch = _launch.elementwise(device, "b ? c : a", x.dtype, x._layout, sides, meets)
    launch.run(device, x._buffer, x._buffer, condition._buffer, argument)


def gather_along(x: Any, offsets: Any) -> _objects.Array:
    """Return the elements at `offsets` from those of `x`, broadcast to the shape of `offsets`."""
    device = x._device
    out = _layout.contiguous(x.dtype, offsets.shape)
    launch = _launch.elementwise(
        device, "b", x.dtype, out, [offsets._layout, x._layout], [_dtypes.int64, x.dtype], indirect=1
    )
    buffer = device.allocate(out.nbytes)
    launch.run(device, buffer, offsets._buffer, x._buffer)
    return _objects.Array(buffer, out, device)
