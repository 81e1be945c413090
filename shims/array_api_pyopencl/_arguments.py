"""Arguments of functions: arrays of this namespace and of `pyopencl.array`, whose memory is shared."""

from __future__ import annotations

from typing import Any

import pyopencl as cl
import pyopencl.array

from array_api_pyopencl import _dtypes, _layout
from array_api_pyopencl import _registered as _objects
from array_api_pyopencl._devices import device_of_queue


def as_array(function: str, x: Any) -> _objects.Array:
    """Return an argument of `function` that must be an array.

    Raises
    ------
    TypeError
        If it is not an array.
    """
    if type(x) is _objects.Array:
        return x
    if isinstance(x, pyopencl.array.Array):
        return wrap(x)
    if isinstance(x, _objects.Array):
        return x
    raise TypeError(f"{function}: an argument is {name_of_type(x)}, expected an array of array_api_pyopencl")


def name_of_type(x: object) -> str:
    """Return the name of an argument's type for a message, with its module unless it is a built-in type."""
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def wrap(x: Any) -> _objects.Array:
    """Return an array that shares the memory and the queue of a `pyopencl.array.Array`.

    Raises
    ------
    ValueError
        If it has no queue, or its elements are not aligned.
    TypeError
        If its elements are not of one of the standard's data types.
    """
    if x.queue is None:
        raise ValueError("the pyopencl.array.Array has no queue; attach one with its method with_queue")
    device = device_of_queue(x.queue)
    dtype = device.require(_dtypes.as_dtype(x.dtype))
    size = dtype.itemsize
    if x.offset % size or any(s % size for s in x.strides):
        raise ValueError("the elements of the pyopencl.array.Array are not aligned to multiples of their size")
    if x.events:
        cl.enqueue_barrier(x.queue, wait_for=x.events)
    buffer = device.allocate(0) if x.base_data is None else x.base_data
    strides = tuple(s // size for s in x.strides)
    layout = _layout.layout(dtype, tuple(map(int, x.shape)), strides, int(x.offset) // size)
    return _objects.Array(buffer, layout, device)
