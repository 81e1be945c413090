"""Creation functions: constants and sequences are computed on the device, host data is copied there."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import pyopencl.array

from array_api_pyopencl import _calls, _codegen, _dlpack, _dtypes, _launch, _layout
from array_api_pyopencl._arguments import as_array, wrap
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._devices import Device, as_device
from array_api_pyopencl._dtypes import C_TYPES, DType
from array_api_pyopencl._expressions import convert
from array_api_pyopencl._launch import Plan, Value


def asarray(obj: Any, /, *, dtype: DType | None = None, device: Any = None, copy: bool | None = None) -> Array:
    """Return `obj` as an array.

    Parameters
    ----------
    obj
        An array of this namespace; a `pyopencl.array.Array`, whose memory and queue the result shares; a NumPy array
        or another object with a buffer, ``__dlpack__`` or ``__array__``; a Python scalar, or nested sequences.
    dtype
        The data type, by default that of `obj`; for Python numbers, int64 and the widest floating-point types that the
        device has.
    device
        A device of this namespace, a `pyopencl.CommandQueue` or a `pyopencl.Device`; by default where `obj` is.
    copy
        Whether to copy. ``None`` copies only if necessary; ``False`` never copies.

    Raises
    ------
    ValueError
        If ``copy=False`` and a copy is needed.
    TypeError
        If the device does not have the data type.
    """
    if isinstance(obj, pyopencl.array.Array):
        obj = wrap(obj)
    if isinstance(obj, Array):
        return _converted(obj, dtype, device, copy)
    target = as_device(device)
    if copy is False:
        raise ValueError(f"copy=False, but {type(obj).__name__} is not OpenCL memory and must be copied")
    wanted = None if dtype is None else target.require(target.as_dtype(dtype))
    host = _on_host(obj, wanted, target)
    layout = _layout.contiguous(target.require(_dtypes.as_dtype(host.dtype)), host.shape)
    return Array(target.write(host), layout, target)


def _converted(x: Array, dtype: DType | None, device: Any, copy: bool | None) -> Array:
    target = x.device if device is None else as_device(device)
    moves = target != x.device
    dtype = x.dtype if dtype is None else target.as_dtype(dtype)
    converts = dtype != x.dtype
    if copy is False and (moves or converts):
        raise ValueError("copy=False, but the array is of another type or on another device")
    if converts:
        if x.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"{x.dtype.name} cannot be converted to {dtype.name}; take the real part")
        x = _calls.convert(x, dtype)
    if moves:
        return x.to_device(target)
    return _calls.compute("copy", (x,)) if copy and not converts else x


def _on_host(obj: Any, dtype: DType | None, device: Device) -> np.ndarray[Any, Any]:
    if isinstance(obj, np.ndarray | np.generic):
        host = np.asarray(obj)
    elif hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        host = _dlpack.to_numpy(obj)
    elif hasattr(obj, "__array__") or _has_buffer(obj):
        host = np.asarray(obj)
    else:
        host = _from_python(obj, dtype, device)
    if dtype is not None:
        if host.dtype.kind == "c" and dtype.kind != "c":
            raise TypeError(f"complex numbers cannot be converted to {dtype.name}")
        host = host.astype(dtype, copy=False)
    elif not host.dtype.isnative:
        host = host.astype(host.dtype.newbyteorder("="))
    return np.ascontiguousarray(host).reshape(host.shape)


def _has_buffer(obj: Any) -> bool:
    try:
        memoryview(obj)
    except TypeError:
        return False
    return True


def _from_python(obj: Any, dtype: DType | None, device: Device) -> np.ndarray[Any, Any]:
    """Return scalars and nested sequences, which may contain arrays, as a NumPy array."""
    obj = _without_arrays(obj)
    if dtype is not None and dtype.kind in "iu":
        return np.asarray(obj, dtype)  # NumPy refuses what does not fit
    host = np.asarray(obj)
    if host.dtype.kind not in "biufc":
        if dtype is None and host.dtype.kind == "O":
            raise OverflowError(
                "an integer is beyond int64 and uint64, or the sequence has something that is not a number"
            )
        host = np.asarray(obj, dtype)
    if dtype is None and host.dtype == np.float64:  # the type of Python's numbers; arrays may be narrower
        return host.astype(device.default_float)
    if dtype is None and host.dtype == np.complex128:
        return host.astype(device.default_complex)
    return host


def _without_arrays(obj: Any) -> Any:
    if isinstance(obj, Array):
        return obj.numpy()
    if isinstance(obj, list | tuple):
        return [_without_arrays(o) for o in obj]
    if isinstance(obj, bool | int | float | complex | np.generic | np.ndarray | range):
        return obj
    raise TypeError(f"an array cannot be made of {type(obj).__name__}")


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array made from any object with ``__dlpack__``.

    Arrays of this namespace and of `pyopencl.array` are shared; all others are copied through host memory.

    Raises
    ------
    BufferError
        If ``copy=False`` and a copy is needed.
    """
    if isinstance(x, Array | pyopencl.array.Array):
        try:
            return asarray(x, device=device, copy=copy)
        except ValueError as error:
            raise BufferError(str(error)) from None
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{type(x).__name__} has no __dlpack__")
    if copy is False:
        raise BufferError(f"copy=False, but the memory of {type(x).__name__} is not OpenCL memory")
    return asarray(_dlpack.to_numpy(x), device=device)


def empty(shape: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an uninitialized array."""
    target = as_device(device)
    dtype = target.default_float if dtype is None else target.as_dtype(dtype)
    return _calls.empty(target, dtype, _layout.as_shape(shape))


def full(shape: Any, fill_value: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an array filled with one value.

    Raises
    ------
    TypeError
        If the kind of `fill_value` is above that of `dtype`.
    """
    target = as_device(device)
    if isinstance(fill_value, Array | pyopencl.array.Array):
        fill_value = as_array("full", fill_value)
        fill_value = fill_value.numpy()[()].item()
    dtype = _default_dtype(target, fill_value) if dtype is None else target.as_dtype(dtype)
    if dtype.kind == "b" and not isinstance(fill_value, bool):
        raise TypeError(f"full of {dtype.name} cannot be filled with {fill_value!r}")
    if isinstance(fill_value, bool) and dtype.kind != "b":
        fill_value = int(fill_value)
    if _dtypes.require_scalar_fits(fill_value, dtype) != dtype:
        raise TypeError(f"full of {dtype.name} cannot be filled with {fill_value!r}")
    result: Array = _calls.empty(target, dtype, _layout.as_shape(shape))
    _calls.fill(result, fill_value)
    return result


def _default_dtype(device: Device, value: Any) -> DType:
    if isinstance(value, bool):
        return _dtypes.bool
    if isinstance(value, int):
        return _dtypes.int64
    return device.default_complex if isinstance(value, complex) else device.default_float


def zeros(shape: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an array of zeros."""
    return _constant(shape, 0, dtype, device)


def ones(shape: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an array of ones."""
    return _constant(shape, 1, dtype, device)


def _constant(shape: Any, value: int, dtype: DType | None, device: Any) -> Array:
    result = empty(shape, dtype=dtype, device=device)
    _calls.fill(result, value)
    return result


def empty_like(x: Array, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an uninitialized array with the shape of `x`."""
    x = as_array("empty_like", x)
    return empty(x.shape, dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)


def full_like(x: Array, /, fill_value: Any, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an array with the shape of `x`, filled with one value."""
    x = as_array("full_like", x)
    device = x.device if device is None else device
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


def zeros_like(x: Array, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an array of zeros with the shape of `x`."""
    x = as_array("zeros_like", x)
    return zeros(x.shape, dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)


def ones_like(x: Array, /, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return an array of ones with the shape of `x`."""
    x = as_array("ones_like", x)
    return ones(x.shape, dtype=x.dtype if dtype is None else dtype, device=x.device if device is None else device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: DType | None = None, device: Any = None) -> Array:
    """Return evenly spaced values in the half-open interval from `start` to `stop`."""
    if stop is None:
        start, stop = 0, start
    target = as_device(device)
    if dtype is None:
        whole = all(isinstance(v, int) for v in (start, stop, step))
        dtype = _dtypes.int64 if whole else target.default_float
    dtype = target.require(target.as_dtype(dtype))
    if step == 0:
        raise ValueError("arange: step is 0")
    if all(isinstance(v, int) for v in (start, stop, step)):
        count = len(range(start, stop, step))
    else:
        count = max(math.ceil((stop - start) / step), 0)
    return _sequence(target, dtype, count, start, step, None)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: DType | None = None, device: Any = None, endpoint: bool = True
) -> Array:
    """Return `num` evenly spaced values from `start` to `stop`, which is included if `endpoint` is true."""
    if num < 0:
        raise ValueError(f"linspace: num is {num}, expected a non-negative number")
    target = as_device(device)
    if dtype is None:
        is_complex = isinstance(start, complex) or isinstance(stop, complex)
        dtype = target.default_complex if is_complex else target.default_float
    dtype = target.require(target.as_dtype(dtype))
    gaps = num - 1 if endpoint else num
    # Python floats are float64 on every device. The division comes last, so that whole steps stay whole.
    step = (stop - start) / gaps if gaps > 0 else 0.0
    if dtype.kind in "iu":
        host = np.linspace(start, stop, num, endpoint=endpoint, dtype=dtype)
        return asarray(host, device=target)
    return _sequence(target, dtype, num, start, step, stop if endpoint and num > 1 else None)


def _sequence(device: Device, dtype: DType, count: int, start: Any, step: Any, last: Any) -> Array:
    """Return ``start + i * step``; the last value is `last` if that is given."""
    result: Array = _calls.empty(device, dtype, (count,))
    wide = _dtypes.int64 if dtype.kind in "iu" else np.promote_types(dtype, device.default_float)
    t = C_TYPES[wide]
    text = _SEQUENCE.replace("OUT", C_TYPES[dtype]).replace("WIDE", t)
    text = text.replace(
        "VALUE", convert("value", wide, dtype) if wide.kind != "c" else f"convert_{C_TYPES[dtype]}(value)"
    )
    key = ("sequence", dtype, count)
    plan = device.plans.get(key)
    if plan is None:
        header = _codegen.header((dtype, wide), True)
        made = _launch.launch(device, header + text, "sequence", [None, np.int64(count), Value, Value, Value], (count,))
        plan = _launch.remember(device, key, Plan(made, result._layout, None))
    numbers = [_wrapped(v, wide) for v in (start, step, start if last is None else last)]
    if last is None and count:
        numbers[2] = _wrapped(start + (count - 1) * step, wide)
    plan.launch.run(device, result._buffer, *numbers)
    return result


def _wrapped(value: Any, dtype: DType) -> bytes:
    if dtype.kind == "i":
        return int(int(value) % 2**64).to_bytes(8, "little")
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(dtype).tobytes()


# Each value is computed from its position, because sums of steps would drift.
_SEQUENCE = """
__kernel void sequence(__global OUT* out, long n, WIDE start, WIDE step, WIDE last) {
  long i = get_global_id(0);
  if (i >= n) return;
  WIDE value = i == n - 1 ? last : start + (WIDE)i * step;
  out[i] = VALUE;
}
"""


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None, device: Any = None
) -> Array:
    """Return a matrix with ones on its diagonal number `k` and zeros elsewhere."""
    columns = n_rows if n_cols is None else n_cols
    result = zeros((n_rows, columns), dtype=dtype, device=device)
    row, column = max(-k, 0), max(k, 0)
    length = min(n_rows - row, columns - column)
    if length > 0:
        _calls.fill(result._view((length,), (columns + 1,), row * columns + column), 1)
    return result


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Return matrices with zeros above the diagonal number `k`."""
    x = as_array("tril", x)
    return _triangle(x, k, "<=")


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Return matrices with zeros below the diagonal number `k`."""
    x = as_array("triu", x)
    return _triangle(x, k, ">=")


def _triangle(x: Array, k: int, relation: str) -> Array:
    if x.ndim < 2:
        raise ValueError(f"tril and triu need two dimensions or more, not {x.ndim}")
    device = x.device
    columns = arange(x.shape[-1], device=device)
    diagonal = arange(k, x.shape[-2] + k, device=device)[:, None]
    out = _layout.contiguous(x.dtype, x.shape)
    key = ("triangle", x._layout, relation)
    plan = device.plans.get(key)
    if plan is None:
        sides = [x._layout, columns._layout, diagonal._layout]
        zero = f"({C_TYPES[x.dtype]})0"
        made = _launch.elementwise(
            device, f"b {relation} c ? a : {zero}", x.dtype, out, sides, [x.dtype, _dtypes.int64, _dtypes.int64]
        )
        plan = _launch.remember(device, key, Plan(made, out, None))
    buffer = device.allocate(out.nbytes)
    plan.launch.run(device, buffer, x._buffer, columns._buffer, diagonal._buffer)
    return Array(buffer, out, device)


def meshgrid(*arrays: Array, indexing: Literal["xy", "ij"] = "xy") -> tuple[Array, ...]:
    """Return the coordinates of a grid, one array for each axis, without copies.

    Raises
    ------
    ValueError
        If an array has more than one dimension, or `indexing` is neither ``"xy"`` nor ``"ij"``.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is {indexing!r}, expected 'xy' or 'ij'")
    arrays = tuple(as_array("meshgrid", x) for x in arrays)
    if any(x.ndim > 1 for x in arrays):
        raise ValueError("meshgrid takes arrays of one dimension")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[:2] = [1, 0]
    shape = [0] * len(arrays)
    for axis, x in zip(order, arrays, strict=True):
        shape[axis] = x.size
    result = []
    for axis, x in zip(order, arrays, strict=True):
        strides = [0] * len(arrays)
        strides[axis] = x._layout.strides[0] if x.ndim else 0
        result.append(x._view(tuple(shape), tuple(strides)))
    return tuple(result)
