"""How plans run on PyOpenCL arrays: compiled once for a device, then each call only allocates and enqueues.

Arrays are taken as those of `array_api_pyopencl`, which share memory and queue with PyOpenCL's own, and whose layout is
one interned object. A call is found by the layouts of its arrays and the values of its options.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from tensorops._messages import describe_error
from tensorops._operator import Operator
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.planners import Planner
from tensorops.kernels._gpu.plans import Device, Launch, Operand, Plan

_MAX_CALLS = 4096  # of one operator; beyond it all are forgotten


_known: list[dict[Any, _Call | str]] = []


def forget_calls() -> None:
    """Forget all calls that were planned, such as when `facts_of` is to answer differently in a test."""
    for calls in _known:
        calls.clear()


class _Step(NamedTuple):
    """A compiled launch, and which arrays it gets: positions of arguments, and in the list of all buffers."""

    launch: Any
    slots: tuple[tuple[int, int], ...]


class _Call(NamedTuple):
    """What calls with the same layouts and options have in common."""

    inputs: tuple[int, ...]  # which of the arrays among the arguments are read
    layouts: tuple[Any, ...]  # of the results, then of the temporaries
    results: tuple[int | None, ...]  # positions in `layouts`
    steps: tuple[_Step, ...]


class _Found(NamedTuple):
    """A call, the arrays among its arguments, and whether any of them is in a wrapper."""

    call: _Call | str  # or why there is none
    arrays: list[Any]
    wrapped: bool


def register(operator: Operator[..., Any], planner: Planner) -> None:
    """Register an operator's kernel."""
    known: dict[Any, _Call | str] = {}
    _known.append(known)

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Found:
        cl = _modules()
        arrays: list[Any] = []
        key: list[Any] = [len(args), *kwargs]
        wrapped = False
        for value in (*args, *kwargs.values()):
            kind = type(value)
            if kind is cl.wrapper:
                wrapped = True
                key.append(value._layout)
                arrays.append(value)
            elif kind is cl.array:
                value = cl.wrap(value)
                key.append(value._layout)
                arrays.append(value)
            else:
                key += (kind, value)
        device = arrays[0]._device
        for array in arrays:
            if array._device is not device:
                return _Found("the arrays are on different devices", arrays, wrapped)
        sign = (device, *key)
        call = known.get(sign)
        if call is None:
            call = _prepare(operator, planner, device, args, kwargs)
            if len(known) >= _MAX_CALLS:
                known.clear()
            known[sign] = call
        return _Found(call, arrays, wrapped)

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        try:
            call = find(args, kwargs).call
        except ValueError as error:  # an array without a queue, or on one that executes out of order
            return str(error)
        return call if isinstance(call, str) else None

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            call, arrays, wrapped = find(args, kwargs)
        except (TypeError, ValueError, IndexError):  # wrong arguments; the operator's words follow
            return NotImplemented
        return NotImplemented if isinstance(call, str) else _run(call, arrays, wrapped)

    operator.kernel("opencl", supports=supports, checks=True, wrappers=True)(kernel)


def _run(call: _Call, arrays: list[Any], wrapped: bool) -> Any:
    cl = _modules()
    device = arrays[0]._device
    buffers = [arrays[i]._buffer for i in call.inputs]
    made = [device.allocate(layout.nbytes) for layout in call.layouts]
    buffers += made
    with device.lock:
        for launch, slots in call.steps:
            if launch.global_size is not None:
                launch.set_buffers(tuple([x for at, slot in slots for x in (at, buffers[slot])]))
                cl.enqueue(device.queue, launch.kernel, launch.global_size, launch.local_size)
    results = []
    for i in call.results:
        y = None if i is None else cl.wrapper(made[i], call.layouts[i], device)
        results.append(y if wrapped or y is None else y.cl_array)
    return results[0] if len(results) == 1 else tuple(results)


def _prepare(
    operator: Operator[..., Any], planner: Planner, device: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Call | str:
    """Plan a call and compile its kernels, or return why that is not possible."""
    arguments = operator.canonical(*args, **kwargs)
    arrays = [id(value) for value in (*args, *kwargs.values()) if _is_array(value)]
    names = [name for name, value in arguments.items() if _is_array(value)]
    metadata = {name: _operand(value) if name in names else value for name, value in arguments.items()}
    plan = operator.apply(functools.partial(planner, facts_of(device)), metadata)
    if isinstance(plan, str):
        return plan
    return _compiled(device, plan, names, tuple(arrays.index(id(arguments[name])) for name in names))


def _compiled(device: Any, plan: Plan, names: list[str], inputs: tuple[int, ...]) -> _Call | str:
    from array_api_pyopencl import _dtypes, _layout

    made = {name: y for name, y in plan.results.items() if y is not None} | (plan.temporaries or {})
    slots = {name: slot for slot, name in enumerate((*names, *made))}
    try:
        steps = tuple(_step(device, launch, slots) for launch in plan.launches)
        layouts = tuple(_layout.contiguous(device.require(_dtypes.ALL[y.dtype]), y.shape) for y in made.values())
    except Exception as error:  # of the device's compiler: of no type in common
        return describe_error(error)
    order = list(made)
    return _Call(inputs, layouts, tuple(order.index(name) if name in made else None for name in plan.results), steps)


def _step(device: Any, launch: Launch, slots: dict[str, int]) -> _Step:
    from array_api_pyopencl import _launch

    text = sources.program(launch.source, tuple(launch.defines.items()), "opencl.h")
    numbers = [None if isinstance(argument, str) else argument for argument in launch.arguments]
    size = (launch.groups * launch.block,)
    made = _launch.launch(device, text, launch.kernel, numbers, size, (launch.block,))
    arrays = [argument for argument in launch.arguments if isinstance(argument, str)]
    return _Step(made, tuple(zip(made.buffers, (slots[name] for name in arrays), strict=True)))


def facts_of(device: Any) -> Device:
    """Return what plans must know of a device of `array_api_pyopencl`."""
    import numpy as np

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
    wrapper: Any = x if type(x) is _modules().wrapper else _modules().wrap(x)
    layout = wrapper._layout
    return Operand(layout.dtype.name, layout.shape, layout.strides, layout.offset)


class _Modules(NamedTuple):
    """PyOpenCL and its namespace, imported when the first array arrives."""

    wrapper: type
    array: type
    wrap: Callable[[Any], Any]
    enqueue: Callable[..., Any]


@functools.cache
def _modules() -> _Modules:
    import pyopencl as cl
    import pyopencl.array

    import array_api_pyopencl
    from array_api_pyopencl._arguments import wrap

    return _Modules(array_api_pyopencl.Array, pyopencl.array.Array, wrap, cl.enqueue_nd_range_kernel)


def _is_array(x: Any) -> bool:
    return type(x) in (_modules().wrapper, _modules().array)
