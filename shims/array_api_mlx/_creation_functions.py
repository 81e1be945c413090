"""Creation functions, and conversion from other libraries."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from array_api_mlx._arguments import require_device, shape_of, unwrap
from array_api_mlx._array_object import Array, name_of_type
from array_api_mlx._dtypes import COMPLEX, FLOATING, INTEGRAL, LIMITS, NAMES, REAL, common_dtype, name_of, require_dtype
from array_api_mlx._shapeless import filled_like, needs_lengths

_BY_NAME = {name: dtype for dtype, name in NAMES.items()}
_HOST_DTYPES = {dtype: np.dtype(np.float32 if dtype == mx.bfloat16 else name) for dtype, name in NAMES.items()}


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array made from an array of any library, a Python number, or nested sequences of numbers.

    An ``mx.array`` is wrapped, not copied. Two arrays never share changes in place, so ``copy=True`` costs nothing
    here. Other libraries' values are always copied, and ``copy=False`` is an error for them. Sequences get the default
    dtype of their kind, or a wider one if their integers need it.
    """
    if dtype is not None:
        dtype = require_dtype(dtype, "asarray")
    require_device(device, "asarray")
    if isinstance(obj, Array | mx.array):
        return _converted(obj, dtype, copy)
    if copy is False:
        raise ValueError(f"asarray: copy is False, but a {type(obj).__name__} must be copied to become an MLX array")
    return Array(_made_of(obj, dtype))


def _converted(x: Array | Any, dtype: Any, copy: bool | None) -> Array:
    a = unwrap(x, "asarray")
    dtype = None if dtype is None else require_dtype(dtype, "asarray")
    if dtype is not None and a.dtype != dtype:
        if copy is False:
            raise ValueError(
                f"asarray: copy is False, but {name_of(a.dtype)} must be copied to become {name_of(dtype)}"
            )
        return Array(a.astype(dtype))
    return x if type(x) is Array and not copy else Array(a)


def _made_of(obj: Any, dtype: Any) -> Any:
    """Return an ``mx.array`` made from another object."""
    if isinstance(obj, np.ndarray | np.generic):
        return from_numpy(np.asarray(obj), dtype)
    if isinstance(obj, bool | int | float | complex):
        return from_numpy(_of_numbers(obj, dtype), dtype)
    if isinstance(obj, list | tuple) or (isinstance(obj, Sequence) and not isinstance(obj, str | bytes)):
        if _holds_arrays(obj):
            return _stacked(obj, dtype)
        return from_numpy(_of_numbers(obj, dtype), dtype)
    if hasattr(obj, "__mlx_array__"):
        return _converted(obj.__mlx_array__(), dtype, None)._array
    if hasattr(obj, "__dlpack__"):
        return _converted(from_dlpack(obj), dtype, None)._array
    try:
        values = np.asarray(memoryview(obj))
    except TypeError:
        if not hasattr(obj, "__array__"):
            raise TypeError(
                f"asarray: obj is {name_of_type(obj)}, expected an array, a number, a sequence of them or a buffer"
            ) from None
        values = np.asarray(obj)
    return from_numpy(values, dtype)


def _holds_arrays(obj: Any) -> bool:
    return any(_holds_arrays(x) if isinstance(x, list | tuple) else isinstance(x, Array | mx.array) for x in obj)


def _stacked(obj: Any, dtype: Any) -> Any:
    """Return an array made from nested sequences with arrays in them, which stay lazy."""
    parts = [x.mlx if isinstance(x, Array) else x if isinstance(x, mx.array) else _made_of(x, None) for x in obj]
    if len({part.shape for part in parts}) > 1:
        raise ValueError("asarray: the arrays in a sequence have different shapes")
    target = common_dtype("asarray", [part.dtype for part in parts]) if dtype is None else dtype
    return mx.stack([part.astype(target) for part in parts])


def _of_numbers(obj: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return numbers in the default dtype of their kind, or in `dtype`, as a NumPy array."""
    if dtype is not None and dtype in INTEGRAL:  # NumPy refuses integers out of bounds only if it gets the dtype
        values = np.asarray(obj)
        if values.dtype.kind in "iuO" or not values.size:
            return np.asarray(obj, dtype=_HOST_DTYPES[dtype])
        return values
    values = np.asarray(obj)
    if dtype is None and values.dtype.kind in "iu" and values.size:
        low, high = int(values.min()), int(values.max())
        for fitting in (mx.int32, mx.int64, mx.uint64):
            if LIMITS[fitting][0] <= low and high <= LIMITS[fitting][1]:
                return values.astype(_HOST_DTYPES[fitting])
    if dtype is None and values.dtype.kind in "fc":
        return values.astype(np.complex64 if values.dtype.kind == "c" else np.float32)
    if values.dtype.kind == "O":
        raise OverflowError("asarray: obj has an integer that no data type can hold, or something that is not a number")
    return values


def from_numpy(values: np.ndarray[Any, Any], dtype: Any = None) -> Any:
    """Return the values of a NumPy array as an ``mx.array``, with the same dtype if MLX has it."""
    name = values.dtype.name
    if name not in _BY_NAME and not (name == "complex128" and dtype is not None):
        raise TypeError(f"asarray: MLX has no {name}" + ("; use dtype=complex64" if name == "complex128" else ""))
    if dtype is not None and values.dtype.kind == "c" and dtype not in COMPLEX:
        raise TypeError(f"asarray: complex numbers cannot be converted to {name_of(dtype)}")
    with np.errstate(all="ignore"):
        if dtype is not None and dtype != mx.bfloat16 and name != "bfloat16":
            values = values.astype(_HOST_DTYPES[dtype])
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if not values.flags.c_contiguous:
        values = values.copy(order="C")
    if values.dtype.name == "bfloat16":
        made = mx.array(values.view(np.uint16)).view(mx.bfloat16)
    else:
        made = mx.array(values, dtype=_BY_NAME[values.dtype.name])
    return made if dtype is None else made.astype(dtype)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array made from another library's array; its memory is shared where MLX supports it.

    MLX reads float64 through DLPack as float32, so float64 is copied through NumPy instead.
    """
    require_device(device, "from_dlpack")
    if isinstance(x, Array | mx.array):
        return _converted(x, None, copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: x is {type(x).__name__}, which has no __dlpack__")
    if copy is False:
        raise BufferError("from_dlpack: copy is False, but MLX copies the arrays of other libraries")
    if isinstance(x, np.ndarray):
        return Array(from_numpy(x))
    if int(x.__dlpack_device__()[0]) == 1:
        # NumPy reads bfloat16 from 2.5 on, if another package has registered it; MLX's own reading is exact for it.
        with contextlib.suppress(BufferError, RuntimeError):
            return Array(from_numpy(np.from_dlpack(x)))
    return Array(mx.from_dlpack(x))


# ------------------------------------------------------------------------------------- filled arrays


def _fill_value(value: Any, dtype: Any, function: str) -> Any:
    """Return the value of `full` as an ``mx.array``."""
    if isinstance(value, (Array, mx.array)):
        return _converted(value, dtype, None)._array
    if dtype is None:
        return _made_of(value, None)
    dtype = require_dtype(dtype, function)
    if dtype in INTEGRAL:
        low, high = LIMITS[dtype]
        if isinstance(value, int) and not low <= value <= high:
            raise OverflowError(f"{function}: fill_value {value} is out of bounds for {name_of(dtype)}")
        if isinstance(value, float | complex):
            raise TypeError(f"{function}: fill_value is a {type(value).__name__}, but dtype is {name_of(dtype)}")
    if isinstance(value, complex) and dtype not in COMPLEX:
        raise TypeError(f"{function}: fill_value is complex, but dtype is {name_of(dtype)}")
    return from_numpy(np.asarray(value), dtype)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return an array filled with one value, by default in the default dtype of its kind."""
    require_device(device, "full")
    return Array(mx.broadcast_to(_fill_value(fill_value, dtype, "full"), shape_of(shape, "full")))


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return an array with the shape of `x` and by default its dtype, filled with one value."""
    return _like(x, fill_value, dtype, device, "full_like")


def _like(x: Any, fill_value: Any, dtype: Any, device: Any, function: str) -> Array:
    require_device(device, function)
    a = unwrap(x, function)
    value = _fill_value(fill_value, a.dtype if dtype is None else dtype, function)
    if value.ndim:
        raise ValueError(f"{function}: fill_value has {value.ndim} dimensions, expected a number")
    return Array(filled_like(a, value))


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return an array of zeros, float32 by default."""
    require_device(device, "zeros")
    return Array(
        mx.zeros(shape_of(shape, "zeros"), dtype=mx.float32 if dtype is None else require_dtype(dtype, "zeros"))
    )


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Return zeros with the shape of `x` and by default its dtype."""
    return _like(x, 0, dtype, device, "zeros_like")


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return an array of ones, float32 by default."""
    require_device(device, "ones")
    return Array(mx.ones(shape_of(shape, "ones"), dtype=mx.float32 if dtype is None else require_dtype(dtype, "ones")))


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Return ones with the shape of `x` and by default its dtype."""
    return _like(x, 1, dtype, device, "ones_like")


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return zeros, because MLX has no uninitialized arrays."""
    return zeros(shape, dtype=dtype, device=device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Return zeros with the shape of `x` and by default its dtype."""
    return _like(x, 0, dtype, device, "empty_like")


@needs_lengths
def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """Return a matrix with ones on its `k`-th diagonal and zeros elsewhere."""
    require_device(device, "eye")
    columns = n_rows if n_cols is None else n_cols
    if n_rows < 0 or columns < 0:
        raise ValueError(f"eye: the shape {(n_rows, columns)} has a negative length")
    target = mx.float32 if dtype is None else require_dtype(dtype, "eye")
    if not n_rows or not columns:
        return zeros((n_rows, columns), dtype=target)
    offset = max(-n_rows, min(columns, k))
    on_diagonal = mx.arange(n_rows)[:, None] + offset == mx.arange(columns)[None, :]
    return Array(on_diagonal.astype(target))


# ------------------------------------------------------------------------------------- ranges


@needs_lengths
def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Array:
    """Return evenly spaced values; integers unless an argument is a float."""
    require_device(device, "arange")
    first, last = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ValueError("arange: step is zero")
    if dtype is None:
        whole = all(isinstance(value, int) for value in (first, last, step))
        dtype = mx.float32 if not whole else mx.int32 if _fits(first, last, step, mx.int32) else mx.int64
    else:
        dtype = require_dtype(dtype, "arange")
        if dtype not in REAL:
            raise TypeError(f"arange: dtype is {name_of(dtype)}, expected a real numeric data type")
    if all(isinstance(value, int) for value in (first, last, step)):
        length = max(0, -((first - last) // step))  # a quotient of floats may round to the next integer
    else:
        length = max(0, math.ceil((last - first) / step))
    if dtype in INTEGRAL and all(isinstance(value, int) for value in (first, step)):
        exact = [first + step * i for i in (0, max(0, length - 1))]
        if length and not (LIMITS[dtype][0] <= min(exact) and max(exact) <= LIMITS[dtype][1]):
            raise OverflowError(f"arange: the values from {first} to {last} are out of bounds for {name_of(dtype)}")
        steps = mx.arange(length).astype(dtype)
        return Array(steps * from_numpy(_wrapped(step, dtype)) + from_numpy(_wrapped(first, dtype)))
    # MLX's own arange accumulates in the dtype of the result, which would drift over many steps in float32.
    return Array(from_numpy(first + step * np.arange(length, dtype=np.float64), dtype))


def _fits(first: Any, last: Any, step: Any, dtype: Any) -> bool:
    low, high = LIMITS[dtype]
    return all(low <= value <= high for value in (first, last, step))


def _wrapped(value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an integer modulo the range of `dtype`, so that sums and products of it are right."""
    return np.asarray(value % (1 << 8 * dtype.size), dtype=np.uint64).astype(_HOST_DTYPES[dtype])


@needs_lengths
def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Array:
    """Return `num` evenly spaced values from `start` to `stop`, including or excluding `stop`."""
    require_device(device, "linspace")
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    target = (mx.complex64 if is_complex else mx.float32) if dtype is None else require_dtype(dtype, "linspace")
    if target not in FLOATING:
        raise TypeError(f"linspace: dtype is {name_of(target)}, expected a floating-point data type")
    return Array(from_numpy(np.linspace(start, stop, num, endpoint=endpoint), target))


@needs_lengths
def meshgrid(*arrays: Any, indexing: Literal["xy", "ij"] = "xy") -> tuple[Array, ...]:
    """Return coordinate matrices of coordinate vectors."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is {indexing!r}, expected 'xy' or 'ij'")
    bare = [unwrap(x, "meshgrid", "an argument") for x in arrays]
    return tuple(map(Array, mx.meshgrid(*bare, indexing=indexing))) if bare else ()


@needs_lengths
def tril(x: Any, /, *, k: int = 0) -> Array:
    """Return the elements of matrices on and below the `k`-th diagonal, and zeros above."""
    return _triangle(x, k, "tril", lambda column, row: column <= row)


@needs_lengths
def triu(x: Any, /, *, k: int = 0) -> Array:
    """Return the elements of matrices on and above the `k`-th diagonal, and zeros below."""
    return _triangle(x, k, "triu", lambda column, row: column >= row)


def _triangle(x: Any, k: int, function: str, keeps: Any) -> Array:
    a = unwrap(x, function)
    if a.ndim < 2:
        raise ValueError(f"{function}: x has {a.ndim} dimensions, expected at least 2")
    rows, columns = a.shape[-2:]
    offset = max(-rows, min(columns, k))
    kept = keeps(mx.arange(columns)[None, :], mx.arange(rows)[:, None] + offset)
    return Array(mx.where(kept, a, mx.array(0, dtype=a.dtype)))
