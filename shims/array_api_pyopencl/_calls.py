"""Elementwise calls: from arrays and Python scalars to a plan, and its launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array

from array_api_pyopencl import _dtypes, _launch, _layout, _registered as _objects
from array_api_pyopencl._arguments import as_array, name_of_type, wrap
from array_api_pyopencl._devices import Device
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._expressions import expression
from array_api_pyopencl._launch import Plan, Value
from array_api_pyopencl._layout import Layout

_TRUTHS = frozenset(
    (
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or"),
        *("logical_xor", "logical_not", "isnan", "isinf", "isfinite", "signbit", "nonzero"),
    )
)
_OPERANDS = (bool, int, float, complex, np.generic, pyopencl.array.Array)
_REAL_PARTS = frozenset(("abs", "real", "imag"))


def result_dtype(name: str, dtype: DType) -> DType:
    """Return the type of an operation's result for operands with the common type `dtype`."""
    if name in _TRUTHS:
        return _dtypes.bool
    return _dtypes.real_of(dtype) if name in _REAL_PARTS else dtype


def meeting_dtype(name: str, device: Device, dtype: DType) -> DType:
    """Return the type to which operands of the common type `dtype` are converted: integers are divided as floats."""
    return device.default_float if name == "divide" and dtype.kind in "iu" else dtype


def unary(name: str, x: Any) -> _objects.Array:
    """Compute a function of one array."""
    if type(x) is not _objects.Array:
        x = as_array(name, x)
    device = x._device
    plan = device.plans.get((name, x._layout))
    if plan is None:
        plan = _unary_plan(name, device, x._layout)
    launch, layout, _ = plan
    buffer = device.allocate(layout.nbytes)
    if launch.global_size is not None:
        to, first = launch.buffers
        with device.lock:
            launch.set_buffers((to, buffer, first, x._buffer))
            device.enqueue(launch.kernel, launch.global_size, launch.local_size)
    return _objects.Array(buffer, layout, device)


def _unary_plan(name: str, device: Device, x: Layout) -> Plan:
    dtype = result_dtype(name, x.dtype)
    out = _layout.contiguous(dtype, x.shape)
    launch = _launch.elementwise(device, expression(name, x.dtype), dtype, out, [x], [x.dtype])
    plan: Plan = _launch.remember(device, (name, x), Plan(launch, out, None))
    return plan


def binary(name: str, x1: Any, x2: Any) -> _objects.Array:
    """Compute a function of two arrays, or of an array and a Python scalar."""
    result = operator(name, x1, x2)
    return compute(name, (x1, x2)) if result is NotImplemented else result


def operator(name: str, x1: Any, x2: Any) -> _objects.Array:
    """Do what `binary` does, but return ``NotImplemented`` for anything except arrays and Python scalars."""
    array = _objects.Array
    left: Any
    right: Any
    if type(x1) is array:
        device = x1._device
        left, right = x1._layout, x2._layout if type(x2) is array and x2._device is device else type(x2)
    elif type(x2) is array:
        device = x2._device
        left, right = type(x1), x2._layout
    else:
        return NotImplemented  # type: ignore[no-any-return]
    plan = device.plans.get((name, left, right))
    if plan is None:
        return compute(name, (x1, x2)) if _are_operands(x1, x2) else not_an_operand(name, x1, x2)
    launch, layout, pack = plan
    buffer = device.allocate(layout.nbytes)
    if launch.global_size is None:
        return array(buffer, layout, device)
    if pack is None:
        to, first, second = launch.buffers
        with device.lock:
            launch.set_buffers((to, buffer, first, x1._buffer, second, x2._buffer))
            device.enqueue(launch.kernel, launch.global_size, launch.local_size)
        return array(buffer, layout, device)
    scalar, x = (x2, x1) if type(x1) is array else (x1, x2)
    value = pack(scalar)
    to, first = launch.buffers
    with device.lock:
        launch.set_buffers((to, buffer, first, x._buffer))
        launch.set_values((launch.values[0], value))
        device.enqueue(launch.kernel, launch.global_size, launch.local_size)
    return array(buffer, layout, device)


def _are_operands(*operands: Any) -> bool:
    return all(isinstance(x, (_objects.Array, *_OPERANDS)) for x in operands)


def not_an_operand(name: str, *operands: Any) -> Any:
    """Return ``NotImplemented``, unless an operand is an array of another library.

    Otherwise Python's error would be less clear, the other library might move it silently, and ``==`` would return
    False.
    """
    for x in operands:
        if hasattr(x, "__dlpack__") and not isinstance(x, _objects.Array):
            raise TypeError(f"{name}: an operand is {name_of_type(x)}; use asarray to copy it to the device")
    return NotImplemented


def compute(name: str, operands: tuple[Any, ...], out: Any = None) -> _objects.Array:
    """Do what `unary` and `binary` do for operands of any kind; write into `out` if it is given."""
    device, operands = meet(name, *operands)
    sides = [x._layout if isinstance(x, _objects.Array) else type(x) for x in operands]
    key = (name, *sides) if out is None else (name, *sides, "into", out._layout)
    plan = device.plans.get(key)
    if plan is None:
        plan = _launch.remember(device, key, _plan(name, device, operands, out))
    values = []
    for x in operands:
        if isinstance(x, _objects.Array):
            values.append(x._buffer)
        else:
            values.append(plan.pack(x))
    buffer = device.allocate(plan.layout.nbytes) if out is None else out._buffer
    plan.launch.run(device, buffer, *values)
    return _objects.Array(buffer, plan.layout, device) if out is None else out


def _plan(name: str, device: Device, operands: tuple[Any, ...], out: Any) -> Plan:
    dtype = common_dtype(operands)
    meets = meeting_dtype(name, device, dtype)
    computes = result_dtype(name, meets)
    text = expression(name, meets)
    shapes = [x.shape for x in operands if isinstance(x, _objects.Array)]
    layout = _layout.contiguous(computes, _layout.broadcast_shapes(*shapes)) if out is None else out._layout
    sides = [x._layout if isinstance(x, _objects.Array) else Value(dtype) for x in operands]
    if name == "copy" and _dtypes.float16 not in device.dtypes and layout.dtype == dtype == _dtypes.float16:
        launch = _copy_of_bits(device, layout, operands[0]._layout)
    else:
        launch = _launch.elementwise(device, text, computes, layout, sides, [meets] * len(sides))
    return Plan(launch, layout, _launch.packer(dtype) if launch.values else None)


def _copy_of_bits(device: Device, out: Layout, x: Layout) -> _launch.Launch:
    """Copy float16 on a device that cannot compute with it, as integers: every device stores it."""
    out, x = (_layout.layout(_dtypes.uint16, y.shape, y.strides, y.offset) for y in (out, x))
    return _launch.elementwise(device, expression("copy", out.dtype), out.dtype, out, [x], [x.dtype])


def common_dtype(operands: tuple[Any, ...]) -> DType:
    """Return the common type of arrays and Python scalars."""
    dtypes = [x.dtype for x in operands if isinstance(x, _objects.Array)]
    result: DType = dtypes[0]
    for d in dtypes[1:]:
        result = _dtypes.promote(result, d)
    for x in operands:
        if not isinstance(x, _objects.Array):
            result = _dtypes.promote(result, _dtypes.require_scalar_fits(x, result))
    return result


def meet(name: str, *operands: Any) -> tuple[Device, tuple[Any, ...]]:
    """Return the device of the first array, and the operands there: arrays, and Python scalars unchanged.

    A device that records goes before the one that it stands for.
    An array on another queue of the same context is copied to this one's queue.
    """
    operands = tuple(wrap(x) if isinstance(x, pyopencl.array.Array) else x for x in operands)
    devices = [x._device for x in operands if isinstance(x, _objects.Array)]
    if not devices:
        raise TypeError(f"{name}: none of the arguments is an array of array_api_pyopencl")
    device = next((d for d in devices if d.records), devices[0])
    result: list[Any] = []
    for x in operands:
        if isinstance(x, _objects.Array):
            result.append(x if x._device is device else _follow(name, device, x))
        elif isinstance(x, np.generic):  # also float64, which is a Python float
            result.append(x.item())
        elif isinstance(x, bool | int | float | complex):
            result.append(x)
        else:
            raise TypeError(
                f"{name}: an argument is {name_of_type(x)}, expected an array of array_api_pyopencl or a Python scalar"
            )
    return device, tuple(result)


def _follow(name: str, device: Device, x: _objects.Array) -> _objects.Array:
    other = x._device
    if other == device:
        return _objects.Array(x._buffer, x._layout, device)
    if other.context != device.context:
        raise ValueError(
            f"{name}: the arrays are of different OpenCL contexts, on {device!r} and {other!r}; "
            "move one of them with to_device"
        )
    return _objects.Array(copy_between_queues(x._buffer, other, device), x._layout, device)


def copy_between_queues(buffer: Any, source: Device, target: Device) -> Any:
    """Return a copy of a buffer that belongs to another queue of the same context, in the order of both queues."""
    copy = target.allocate(buffer.size)
    ready = cl.enqueue_marker(source.queue)
    source.queue.flush()
    done = cl.enqueue_copy(target.queue, copy, buffer, byte_count=buffer.size, wait_for=[ready])
    target.queue.flush()
    cl.enqueue_barrier(source.queue, wait_for=[done])  # before the source's memory can be used again
    return copy


def in_place(name: str, x: Any, other: Any) -> _objects.Array:
    """Compute ``x = name(x, other)`` into the memory of `x`."""
    device, operands = meet(name, x, other)
    device.before_write(x._buffer)
    dtype = result_dtype(name, meeting_dtype(name, device, common_dtype(operands)))
    if dtype != x.dtype:
        raise TypeError(f"{name} in place: the result is {dtype.name}, which an array of {x.dtype.name} cannot hold")
    y = operands[1]
    if isinstance(y, _objects.Array):
        if _layout.broadcast_shapes(x.shape, y.shape) != x.shape:
            raise ValueError(f"{name} in place: shape {y.shape} does not broadcast to {x.shape}")
        if overlaps(x, y):
            y = compute("copy", (y,))
    return compute(name, (x, y), out=x)


def overlaps(x: Any, y: Any) -> bool:
    """Return whether writing to `x` element by element could change elements of `y` before they are read."""
    if x._layout is y._layout or x._buffer is not y._buffer:
        return False
    return bool(x._layout.low <= y._layout.high and y._layout.low <= x._layout.high)


def convert(x: Any, dtype: DType) -> _objects.Array:
    """Return a new array with the values of `x` converted to `dtype`."""
    device = x._device
    key = ("convert", x._layout, dtype)
    plan = device.plans.get(key)
    if plan is None:
        out = _layout.contiguous(dtype, x.shape)
        launch = _launch.elementwise(device, "a", x.dtype, out, [x._layout], [x.dtype])
        plan = _launch.remember(device, key, Plan(launch, out, None))
    buffer = device.allocate(plan.layout.nbytes)
    plan.launch.run(device, buffer, x._buffer)
    return _objects.Array(buffer, plan.layout, device)


def fill(x: Any, value: Any) -> None:
    """Set every element of `x` to a Python scalar of its kind."""
    device = x._device
    key = ("fill", x._layout)
    plan = device.plans.get(key)
    if plan is None:
        launch = _launch.elementwise(device, "a", x.dtype, x._layout, [Value(x.dtype)], [x.dtype])
        plan = _launch.remember(device, key, Plan(launch, x._layout, _launch.packer(x.dtype)))
    plan.launch.run(device, x._buffer, plan.pack(value))


def assign(x: Any, y: Any) -> None:
    """Set `x` to an array on its device, whose shape broadcasts and whose type promotes to that of `x`."""
    device = x._device
    if overlaps(x, y):
        y = compute("copy", (y,))
    key = ("assign", x._layout, y._layout)
    plan = device.plans.get(key)
    if plan is None:
        launch = _launch.elementwise(device, "a", x.dtype, x._layout, [y._layout], [x.dtype])
        plan = _launch.remember(device, key, Plan(launch, x._layout, None))
    plan.launch.run(device, x._buffer, y._buffer)


def empty(device: Device, dtype: DType, shape: tuple[int, ...]) -> _objects.Array:
    """Return a new uninitialized array."""
    layout = _layout.contiguous(device.require(dtype), shape)
    return _objects.Array(device.allocate(layout.nbytes), layout, device)
