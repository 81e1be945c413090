"""The keys of ``x[...]``, on ``mx.array`` only.

MLX supports integers, slices, integer arrays, `None` and the ellipsis. It does not check bounds, and would access
foreign memory; `within` clips arrays of indices without computing them. MLX does not support boolean arrays: their
values are read here, since the shape of the result depends on them.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import mlx.core as mx
import numpy as np

from array_api_mlx._dtypes import LIMITS
from array_api_mlx._shapeless import require_lengths


def get(a: Any, key: Any) -> Any:
    """Return ``a[key]``."""
    if not all(map(_is_whole, key if type(key) is tuple else (key,))):
        require_lengths("x[…]")
    if type(key) is slice:
        return a[_checked_slice(key)] if a.ndim else _too_many(1, a)
    if type(key) is int and a.ndim and -a.shape[0] <= key < a.shape[0]:
        return a[key]
    if type(key) is tuple and len(key) <= a.ndim and all(type(k) is slice and k.step != 0 for k in key):
        return a[key]
    mask = _lone_mask(key)
    if mask is not None:
        positions = _positions(mask, a)
        return a.reshape(_flattened(a, mask))[positions] if mask.size else _nothing(a, mask)
    return a[_checked(key, a)]


def put(a: Any, key: Any, values: Any) -> Any:
    """Return `a` with ``a[key]`` replaced by `values`, broadcast to its shape."""
    mask = _lone_mask(key)
    if mask is not None and not values.ndim:
        _require_fit(mask, a)
        whole = mx.expand_dims(mask, tuple(range(mask.ndim, a.ndim)))
        return mx.where(whole, values, a) if mask.size else a
    require_lengths("x[…] = y")
    changed = mx.array(a)  # another name for the same value
    if mask is not None:
        if mask.size:
            flat = a.reshape(_flattened(a, mask))
            flat[_positions(mask, a)] = values
            changed = flat.reshape(a.shape)
        return changed
    changed[_checked(key, a)] = values
    return changed


def _is_whole(entry: Any) -> bool:
    """Return whether an entry of a key selects all elements of the axes for which it stands."""
    return entry is None or entry is Ellipsis or (type(entry) is slice and entry == slice(None))


# ---------------------------------------------------------------------------------------- boolean arrays


def _lone_mask(key: Any) -> Any:
    """Return the boolean array that a key consists of, or ``None``."""
    if isinstance(key, tuple) and len(key) == 1:
        key = key[0]
    if isinstance(key, bool | np.bool_):
        return mx.array(bool(key))
    if isinstance(key, mx.array) and key.dtype == mx.bool_:
        return key
    return None


def to_numpy(a: Any) -> np.ndarray[Any, Any]:
    """Compute an ``mx.array`` and return its values; bfloat16, which NumPy lacks, becomes float32."""
    a = a.astype(mx.float32) if a.dtype == mx.bfloat16 else a
    mx.eval(a)  # NumPy would ignore an error and show uninitialized memory, or crash, before MLX 0.32.4
    values = np.asarray(a)
    # MLX describes 64-bit integers as C's long long, a type of its own for compiled code that tells types by number.
    values = values.view(values.dtype.name)
    return values.copy() if a.size > 1 and 0 in values.strides else values  # elements that share memory


def _require_fit(mask: Any, a: Any) -> None:
    fits = mask.ndim <= a.ndim and all(m in (n, 0) for m, n in zip(mask.shape, a.shape, strict=False))
    if not fits:
        raise IndexError(f"a boolean index of shape {mask.shape} does not fit an array of shape {a.shape}")


def _positions(mask: Any, a: Any) -> Any:
    """Compute the mask and return where it is true in the flattened leading dimensions of `a`."""
    _require_fit(mask, a)
    return mx.array(np.flatnonzero(to_numpy(mask)).astype(np.int64))


def _flattened(a: Any, mask: Any) -> tuple[int, ...]:
    return math.prod(a.shape[: mask.ndim]), *a.shape[mask.ndim :]


def _nothing(a: Any, mask: Any) -> Any:
    return mx.zeros((0, *a.shape[mask.ndim :]), dtype=a.dtype)


# ---------------------------------------------------------------------------------------- everything else


def _checked(key: Any, a: Any) -> Any:
    """Return a key that MLX supports, with integers in bounds."""
    entries = key if isinstance(key, tuple) else (key,)
    used = sum(_dimensions(entry) for entry in entries)
    if used > a.ndim:
        _too_many(used, a)
    if sum(entry is Ellipsis for entry in entries) > 1:
        raise IndexError("an index can have only one ellipsis")
    checked: list[Any] = []
    axis = 0
    for entry in entries:
        if entry is Ellipsis:
            axis += a.ndim - used
            checked.append(entry)
        else:
            checked.extend(_entry(entry, a, axis))
            axis += _dimensions(entry)
    return tuple(checked)


def _dimensions(entry: Any) -> int:
    """Return the number of dimensions that an entry of a key selects from."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, mx.array) and entry.dtype == mx.bool_ else 1


def _entry(entry: Any, a: Any, axis: int) -> list[Any]:
    if isinstance(entry, slice):
        return [_checked_slice(entry)]
    if entry is None:
        return [None]
    if isinstance(entry, mx.array):
        if entry.dtype == mx.bool_:
            return _selected(entry, a, axis)
        if not mx.issubdtype(entry.dtype, mx.integer):
            raise IndexError(f"an index array is of {entry.dtype}, expected integers or booleans")
        return [within(entry, a.shape[axis], axis)]
    try:
        index = operator.index(entry)
    except TypeError:
        raise IndexError(
            f"an index is {type(entry).__name__}, expected integers, slices, arrays, None or an ellipsis"
        ) from None
    if isinstance(entry, bool) or not -a.shape[axis] <= index < a.shape[axis]:
        raise IndexError(f"index {entry} is out of bounds for axis {axis} of length {a.shape[axis]}")
    return [index]


def within(indices: Any, length: int, axis: int) -> Any:
    """Return an integer array with indices out of bounds clipped to the nearest valid index."""
    if not length and indices.size:
        raise IndexError(f"an index array is out of bounds for axis {axis} of length 0")
    low, high = LIMITS[indices.dtype]
    low, high = max(low, -length), min(high, max(length - 1, 0))
    return mx.clip(indices, mx.array(low, dtype=indices.dtype), mx.array(high, dtype=indices.dtype))


def _selected(mask: Any, a: Any, axis: int) -> list[Any]:
    """Compute a boolean array among other entries and return integer arrays in its place."""
    if not mask.ndim or mask.shape != a.shape[axis : axis + mask.ndim]:
        raise IndexError(f"a boolean index of shape {mask.shape} does not fit the axes from {axis} on of {a.shape}")
    return [mx.array(positions.astype(np.int64)) for positions in np.nonzero(to_numpy(mask))]


def _checked_slice(entry: slice) -> slice:
    if entry.step == 0:
        raise ValueError("the step of a slice is zero")
    return entry


def _too_many(used: int, a: Any) -> Any:
    raise IndexError(f"too many indices: the array has {a.ndim} dimensions, and {used} are indexed")
