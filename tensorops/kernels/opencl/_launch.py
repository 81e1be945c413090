"""How plans run on PyOpenCL arrays: compiled once for a device, then each call only allocates and enqueues.

Arrays are taken as those of `array_api_pyopencl`, which share memory and queue with PyOpenCL's own, and whose layout is
one interned object. What runs a call is found among the plans of its device, by the layouts of the arrays and the
values of the options.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyopencl as cl
import pyopencl.array

from array_api_pyopencl import Array as Wrapper, _devices, _dtypes, _launch, _layout
from array_api_pyopencl._arguments import attributes, device_of, raw_of, wrap
from array_api_pyopencl._calls import meet
from tensorops._display import printable
from tensorops._messages import describe_error
from tensorops._operator import Operator
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.planners import Planner
from tensorops.kernels._gpu.plans import Device, Launch, Operand
from tensorops.kernels.opencl import _drivers

Bare = pyopencl.array.Array
Generator = np.random.Generator
Run: TypeAlias = Callable[[Any, list[Any], list[Any]], Any]
"""Runs a call: takes a device of `array_api_pyopencl`, the buffers and generators among its arguments, and events to
wait for."""

_NO_QUEUE = object()
_new = object.__new__


def kernel_of(operator: Operator[..., Any], planner: Planner) -> Callable[..., Any]:
    """Return an operator's kernel, which takes arguments as callers write them.

    Each call takes the buffers and events of its arrays, and looks up what runs it by everything else about them.
    """

    def kernel(*args: Any, **kwargs: Any) -> Any:
        key: list[Any] = [operator]
        values: Any = args
        if kwargs:
            key += (len(args), *kwargs)
            values = (*args, *kwargs.values())
        buffers: list[Any] = []
        events: list[Any] = []
        device: Any = None
        queue: Any = _NO_QUEUE  # of PyOpenCL's arrays, which mostly share the object
        try:
            for value in values:
                kind = type(value)
                if kind is Wrapper:
                    key.append(value._layout)
                    if value._device is not device:
                        if device is None or value._device.records:
                            device, first = _device_of_both(operator, device, value), value
                        else:
                            value = _moved(operator, first, value)
                    buffers.append(value._buffer)
                elif kind is Bare:
                    key += (value.dtype, value.shape, value.strides, value.offset)
                    if value.queue is not queue:
                        own = device_of(value)
                        if device is None:
                            device, first = own, value
                        elif own is not device:
                            buffers.append(_moved(operator, first, value)._buffer)
                            continue
                        queue = value.queue
                    events += value.events  # whether they are complete takes longer to tell
                    data = value.base_data
                    buffers.append(device.allocate(0) if data is None else data)
                elif kind is Generator:
                    key.append(kind)
                    buffers.append(value)  # in place of what it draws
                else:
                    key += (kind, value)
            run = device.plans.get(tuple(key))
            if run is None:
                run = _launch.remember(device, tuple(key), _prepare(operator, planner, device, args, kwargs))
        except (TypeError, ValueError, IndexError):  # wrong arguments; the operator's words follow
            return NotImplemented
        return NotImplemented if type(run) is str else run(device, buffers, events)

    return kernel


def _device_of_both(operator: Operator[..., Any], device: Any, value: Any) -> Any:
    """Return the device of an array; one that records takes the place of that of the arrays before only if equal."""
    if device is not None and device != value._device:
        raise ValueError(f"{operator.__name__}: the arrays are on different queues, {device!r} and {value._device!r}")
    return value._device


def _moved(operator: Operator[..., Any], first: Any, value: Any) -> Any:
    """Return an array of another queue as one on the queue of the first array."""
    return meet(operator.__name__, first, value)[1][1]


def why_not(
    operator: Operator[..., Any], planner: Planner, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return why an operator's kernel cannot compute with these arguments, or ``None``."""
    key: list[Any] = [why_not, operator, len(args), *kwargs]
    devices = []
    try:
        for value in (*args, *kwargs.values()):
            if _is_array(value):
                array = _wrapped(value)
                devices.append(array._device)
                key.append(array._layout)
            else:
                key += (type(value), None if type(value) is Generator else value)
    except ValueError as error:  # an array without a queue, or on one that executes out of order
        return str(error)
    device = devices[0]
    for other in devices:
        if other.context != device.context:
            return f"the arrays are of different OpenCL contexts, on {device!r} and {other!r}"
    run = device.plans.get(tuple(key))
    if run is None:
        run = _launch.remember(device, tuple(key), _prepare(operator, planner, device, args, kwargs))
    return run if type(run) is str else None


def _prepare(
    operator: Operator[..., Any], planner: Planner, device: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Run | str:
    """Plan a call and compile its kernels; return what runs it, or why that is not possible."""
    arguments = operator.canonical(*args, **kwargs)
    # By name, not by identity: another call may have two arrays where this one has the same array twice.
    given = zip((*operator.parameters[: len(args)], *kwargs), (*args, *kwargs.values()), strict=True)
    places = [name for name, value in given if _is_array(value) or type(value) is Generator]
    metadata = {name: _operand(value) if _is_array(value) else value for name, value in arguments.items()}
    plan = operator.apply(functools.partial(planner, facts_of(device)), metadata)
    if isinstance(plan, str):
        return plan
    made = {name: y for name, y in plan.results.items() if y is not None} | (plan.temporaries or {})
    constants, drawn = plan.constants or {}, plan.drawn or {}
    if not drawn.keys() <= set(places):
        raise TypeError("a seed, of which the operator makes a generator anew for each call")
    slots = {name: slot for slot, name in enumerate((*places, *made, *constants))}
    if reason := _drivers.why_not(device.cl_device):
        return reason
    try:
        layouts = [_layout.contiguous(device.require_stored(_dtypes.ALL[y.dtype]), y.shape) for y in made.values()]
        steps = [_step(device, launch, slots) for launch in plan.launches if launch.groups]
    except Exception as error:  # of the device's compiler: of no type in common
        return _first_words(error)
    order = list(made)
    results = [None if y is None else order.index(name) for name, y in plan.results.items()]
    wrapped = any(type(value) is Wrapper for value in arguments.values())
    made_of = [None if wrapped else attributes(layout, device) for layout in layouts]
    short = len(steps) == len(layouts) == 1 and results == [0] and not constants and not drawn
    if short and layouts[0].nbytes <= _devices.LARGE:
        return _short_runner(layouts[0], made_of[0], steps[0])
    written = [device.write(np.ascontiguousarray(a)) for a in constants.values()]
    random = {slots[name]: y.shape for name, y in drawn.items()}
    return _runner(layouts, made_of, results, steps, written, random)


def _first_words(error: Exception) -> str:
    """Return a compiler's first error as one line, or what went wrong otherwise."""
    lines = str(error).splitlines()
    return next((printable(line.strip()) for line in lines if "error:" in line), describe_error(error))


class _Step(NamedTuple):
    """A compiled launch of at least one block.

    `set_several` sets arguments that alternate with their positions; `arguments` takes these from the list of all
    buffers with `positions` at its end.
    """

    set_several: Callable[[tuple[Any, ...]], object]
    positions: list[int]
    arguments: Callable[[list[Any]], tuple[Any, ...]]
    kernel: Any
    global_size: tuple[int, ...] | None
    local_size: tuple[int, ...] | None


def _step(device: Any, launch: Launch, slots: dict[str, int]) -> _Step:
    text = sources.program(launch.source, tuple(launch.defines.items()), "opencl.h")
    numbers = [None if isinstance(argument, str) else argument for argument in launch.arguments]
    made = _launch.launch(device, text, launch.kernel, numbers, (launch.groups * launch.block,), (launch.block,))
    buffers = [slots[argument] for argument in launch.arguments if isinstance(argument, str)]
    alternating = [place for i, slot in enumerate(buffers) for place in (len(slots) + i, slot)]
    kernel, sizes = made.kernel, (made.global_size, made.local_size)
    return _Step(made.set_buffers, made.buffers, itemgetter(*alternating), kernel, *sizes)


def _runner(
    layouts: list[Any],
    attributes_of: list[dict[str, Any] | None],
    results: list[int | None],
    steps: list[_Step],
    constants: list[Any],
    drawn: dict[int, tuple[int, ...]],
) -> Run:
    """Return what allocates arrays of these layouts, runs the steps, and returns the arrays at `results`.

    These are PyOpenCL's own where there are attributes of them. Generators at the places `drawn` draw as many numbers.
    """

    def run(device: Any, buffers: list[Any], events: list[Any]) -> Any:
        made = [device.allocate(layout.nbytes) for layout in layouts]
        buffers += made
        buffers += constants
        for place, shape in drawn.items():
            buffers[place] = device.draw(buffers[place], shape)
        with device.lock:
            for set_several, positions, arguments, kernel, global_size, local_size in steps:
                set_several(arguments(buffers + positions))
                events = [device.enqueue(kernel, global_size, local_size, None, events)]
        arrays = [None if i is None else _array(device, layouts[i], attributes_of[i], made[i], events) for i in results]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    return run


def _array(device: Any, layout: Any, own: dict[str, Any] | None, buffer: Any, events: list[Any]) -> Any:
    return Wrapper(buffer, layout, device) if own is None else raw_of(own, buffer, events.copy())


def _short_runner(layout: Any, own: dict[str, Any] | None, step: _Step) -> Run:
    """Do what `_runner` does for one result of one launch, fast: for small arrays, this is what a call takes."""
    nbytes = layout.nbytes or 1
    set_several, positions, arguments, kernel, global_size, local_size = step

    def run(device: Any, buffers: list[Any], events: list[Any]) -> Any:
        try:
            made = device.pool.allocate(nbytes)
        except cl.Error as error:
            device.report(nbytes, error)
        buffers.append(made)
        buffers += positions
        lock = device.lock
        lock.acquire()  # `with` takes twice as long
        try:
            set_several(arguments(buffers))
            done = device.enqueue(kernel, global_size, local_size, None, events)
        finally:
            lock.release()
        if own is not None:
            return raw_of(own, made, [done])
        y = _new(Wrapper)  # faster than its constructor
        y._buffer, y._layout, y._device = made, layout, device
        return y

    return run


def facts_of(device: Any) -> Device:
    """Return what plans must know of a device of `array_api_pyopencl`."""
    cl_device = device.cl_device
    return Device(
        kind="cpu" if device.is_cpu else "gpu",
        units=int(cl_device.max_compute_units),
        lanes=_lanes(cl_device),
        local_bytes=int(cl_device.local_mem_size),
        max_block=int(cl_device.max_work_group_size),
        float64=np.dtype("float64") in device.dtypes,
    )


def _lanes(cl_device: Any) -> int:
    """Return the size of subgroups that a program can ask for and whose work-items can exchange values, or 0.

    PyOpenCL does not tell the sizes that a device has; all of Intel's have 16.
    """
    needed = {"cl_khr_subgroup_shuffle", "cl_intel_required_subgroup_size"}
    return 16 if needed.issubset(cl_device.extensions.split()) else 0


def _operand(x: Any) -> Operand:
    layout = _wrapped(x)._layout
    return Operand(layout.dtype.name, layout.shape, layout.strides, layout.offset)


def _is_array(x: Any) -> bool:
    return type(x) in (Wrapper, Bare)


def _wrapped(x: Any) -> Any:
    return wrap(x) if type(x) is Bare else x


def forget_calls() -> None:
    """Forget all calls that were planned, such as when `facts_of` is to answer differently in a test."""
    for device in _devices.known():
        device.plans.clear()
