"""Arguments of functions: arrays of this namespace and of `pyopencl.array`, whose memory is shared."""

from __future__ import annotations

from typing import Any

import pyopencl as cl
import pyopencl.array

from array_api_pyopencl import _dtypes, _launch, _layout, _registered as _objects
from array_api_pyopencl._devices import Device, device_of_queue

_COMPLETE = cl.command_execution_status.COMPLETE


def as_array(function: str, x: Any) -> _objects.Array:
    """Return an argument of `function` that must be an array."""
    if type(x) is _objects.Array:
        return x
    if isinstance(x, pyopencl.array.Array):
        return wrap(x)
    if isinstance(x, _objects.Array):
        return x
    raise TypeError(f"{function}: an argument is {name_of_type(x)}, expected an array of array_api_pyopencl")


def named(function: Any, name: str, qualified: str = "") -> Any:
    """Return a function that was made for a table, with a name of its own.

    Its frames have the name as well, in tracebacks and for `tensorops.PersistentKernel`, which shows what a step calls.
    """
    function.__name__, function.__qualname__ = name, qualified or name
    function.__code__ = function.__code__.replace(co_name=name, co_qualname=qualified or name)
    return function


def name_of_type(x: object) -> str:
    """Return the name of an argument's type for a message, with its module unless it is a built-in type."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def wrap(x: Any) -> _objects.Array:
    """Return an array that shares the memory and the queue of a `pyopencl.array.Array`."""
    device = device_of(x)
    key = ("wrap", x.dtype, x.shape, x.strides, x.offset)
    layout = device.plans.get(key)
    if layout is None:
        layout = _launch.remember(device, key, _layout_of(x, device))
    if x.events:
        wait_for(x.events, device.queue)
    buffer = x.base_data
    return _objects.Array(device.allocate(0) if buffer is None else buffer, layout, device)


def device_of(x: Any) -> Device:
    """Return the device that represents the queue of a `pyopencl.array.Array`."""
    if x.queue is None:
        raise ValueError("the pyopencl.array.Array has no queue; attach one with its method with_queue")
    return device_of_queue(x.queue)


def _layout_of(x: Any, device: Device) -> _layout.Layout:
    dtype = device.require_stored(_dtypes.as_dtype(x.dtype))  # what computes with it requires more
    size = dtype.itemsize
    if x.offset % size or any(s % size for s in x.strides):
        raise ValueError("the elements of the pyopencl.array.Array are not aligned to multiples of their size")
    strides = tuple(s // size for s in x.strides)
    return _layout.layout(dtype, tuple(map(int, x.shape)), strides, int(x.offset) // size)


def wait_for(events: list[Any], queue: Any) -> None:
    """Let a queue wait for those events that its own order does not put before what comes."""
    others = [e for e in events if e.command_execution_status != _COMPLETE and not _is_on(queue, e)]
    if others:
        cl.enqueue_barrier(queue, wait_for=others)


def _is_on(queue: Any, event: Any) -> bool:
    try:
        return bool(event.command_queue == queue)
    except cl.LogicError:  # that queue is gone: Intel's events do not keep it alive
        return False


def raw(buffer: Any, layout: _layout.Layout, device: Device) -> Any:
    """Return a `pyopencl.array.Array` of a buffer, on the device's queue."""
    return raw_of(attributes(layout, device), buffer, [])


def raw_of(common: dict[str, Any], buffer: Any, events: list[Any]) -> Any:
    """Return a `pyopencl.array.Array` of a buffer with what `attributes` returned; its values depend on `events`.

    Its constructor takes longer than most launches.
    """
    made = _new(pyopencl.array.Array)
    own = common.copy()
    own["base_data"] = buffer
    own["events"] = events
    made.__dict__ = own
    return made


_new = object.__new__


def attributes(layout: _layout.Layout, device: Device) -> dict[str, Any]:
    """Return the attributes that all of PyOpenCL's arrays of a layout have on a device's queue."""
    key = ("raw", layout)
    found: dict[str, Any] | None = device.plans.get(key)
    return _launch.remember(device, key, _attributes(layout, device)) if found is None else found


def _attributes(layout: _layout.Layout, device: Device) -> dict[str, Any]:
    size = layout.itemsize
    strides = tuple(s * size for s in layout.strides)
    made = pyopencl.array.Array(
        device.queue,
        layout.shape,
        layout.dtype,
        data=device.allocate(0),
        offset=layout.offset * size,
        strides=strides,
        allocator=device.pool,
    )
    return {**vars(made), "base_data": None}
