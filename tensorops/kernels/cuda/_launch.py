"""How plans run on GPUs: compiled once for a device, then each call only allocates and launches.

A call is found by the metadata of its arrays and the values of its options. What it launches is ready but for the
addresses of its arrays.
Nothing waits for the GPU, and all memory is the library's own, so calls can be captured in graphs; only the first call
of its kind compiles and loads its kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from operator import lt
from typing import Any, TypeAlias

import numpy as np

from tensorops._messages import describe_error
from tensorops._operator import Operator
from tensorops.kernels._gpu.planners import Planner
from tensorops.kernels._gpu.plans import Launch, Operand, Plan, Result
from tensorops.kernels.cuda import _compile, _driver
from tensorops.kernels.cuda._arrays import Arrays, Generator, RefusedError, arrays_of, library_of, owners, reach

_MAX_CALLS = 4096  # of one operator; beyond it all are forgotten
_MAX_GROUPS = 2**31 - 1

Run: TypeAlias = Callable[[list[Any]], Any]
"""Runs a call: takes the addresses of its arrays, with generators in between as the call has them."""


@dataclass(frozen=True, slots=True)
class _Call:
    """What calls with the same metadata and options have in common."""

    run: Run
    reaches: list[int]  # how many bytes of memory each array must have
    refused: str | None = None  # why, of a call that is left to others


_known: list[dict[Any, Any]] = []


def forget_calls() -> None:
    """Forget all calls that were planned, such as when a test has replaced the driver."""
    for known in _known:
        known.clear()


Places: TypeAlias = dict[str, int]
Compile: TypeAlias = Callable[[_driver.Device, Launch, dict[str, Operand], Places, Places], _driver.Step]
"""Makes a step of a launch; is also given the metadata of arrays, where their addresses will be, and constants'."""


def register(
    operator: Operator[..., Any], planner: Planner, provider: str = "cuda", compiler: Compile | None = None
) -> None:
    """Register an operator's kernel of a provider; without a compiler, NVRTC compiles the sources in ``native/gpu``."""
    known: dict[Any, Any] = {}
    _known.append(known)

    def plan(key: tuple[Any, ...], library: Arrays, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        call = _prepare(operator, planner, compiler or _step, library, args, kwargs)
        if len(known) >= _MAX_CALLS:
            known.clear()
        known[key] = planned = _Call(_decline, [], call) if isinstance(call, str) else call
        return planned

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        values = (*args, *kwargs.values())
        library = library_of(values)
        if library is None:
            return f"an argument is a {type(values[0]).__name__}"
        if reason := library.refuse(values):
            return reason
        key: list[Any] = [len(args), *kwargs]
        try:
            library.sign(values, key, [])
            call = known.get(tuple(key)) or plan(tuple(key), library, args, kwargs)
        except RefusedError as error:
            return str(error)
        return call.refused

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        key: list[Any] = []
        values: Any = args
        if kwargs:
            key = [len(args), *kwargs]
            values = (*args, *kwargs.values())
        places: list[Any] = []
        try:
            library = owners.get(type(values[0])) or library_of(values)  # most calls have an array first
            if library is None:
                return NotImplemented
            rooms = library.sign(values, key, places)
            call = known.get(tuple(key)) or plan(tuple(key), library, args, kwargs)
        except (TypeError, ValueError, IndexError):  # wrong arguments; the operator's words follow
            return NotImplemented
        if rooms and any(map(lt, rooms, call.reaches)):
            return NotImplemented
        return call.run(places)

    operator.kernel(provider, supports=supports, checks=True)(kernel)


def _decline(places: list[Any]) -> Any:
    return NotImplemented


def _prepare(
    operator: Operator[..., Any],
    planner: Planner,
    compiler: Compile,
    library: Arrays,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Call | str:
    """Plan a call and compile its kernels, or return why that is not possible.

    Raises
    ------
    RefusedError
        If that depends on more than the key of the call.
    """
    values = (*args, *kwargs.values())
    if any(arrays_of(type(value)) not in (None, library) for value in values):
        raise RefusedError("the arrays are of different libraries")
    if reason := library.refuse(values):
        raise RefusedError(reason)
    arguments = operator.canonical(*args, **kwargs)
    # By name, not by identity: another call may have two arrays where this one has the same array twice.
    given = zip((*operator.parameters[: len(args)], *kwargs), (*args, *kwargs.values()), strict=True)
    places = [name for name, value in given if arrays_of(type(value)) or type(value) is Generator]
    facts = {name: library.facts(value) for name, value in arguments.items() if arrays_of(type(value))}
    devices = sorted({device for *_, device, _ in facts.values()})
    if len(devices) > 1:
        return f"the arrays are on different devices: CUDA devices {' and '.join(map(str, devices))}"
    operands: dict[str, Operand] = {}
    for name, fact in facts.items():
        operand = library.operand(fact)
        if isinstance(operand, str):
            return operand
        operands[name] = operand
    try:
        device = _driver.device(devices[0])
        plan = operator.apply(functools.partial(planner, device.facts), arguments | operands)
        if isinstance(plan, str):
            return plan
        if not (plan.drawn or {}).keys() <= set(places):
            raise TypeError("a seed, of which the operator makes a generator anew for each call")
        return _compiled(device, devices[0], plan, compiler, library, places, operands)
    except (_compile.CompileError, _driver.CudaError) as error:
        return describe_error(error)


def _compiled(
    device: _driver.Device,
    index: int,
    plan: Plan,
    compiler: Compile,
    library: Arrays,
    places: list[str],
    operands: dict[str, Operand],
) -> _Call:
    made = {name: y for name, y in plan.results.items() if y is not None} | (plan.temporaries or {})
    slots = {name: slot for slot, name in enumerate((*places, *made))}
    every = operands | {name: y.operand for name, y in made.items()}
    constants = {name: device.hold(a.tobytes()) for name, a in (plan.constants or {}).items()}
    steps = [compiler(device, launch, every, slots, constants) for launch in plan.launches if launch.groups]
    makers = [library.maker(y.shape, y.dtype, index) for y in made.values()]
    reaches = [reach(operands[name]) for name in places if name in operands]
    drawn = {slots[name]: (plan.drawn or {}).get(name) for name in places if name not in operands}
    if len(makers) == len(steps) == 1 and not drawn:  # most calls
        return _Call(_short_runner(library, index, makers[0], steps[0]), reaches)
    results = [None if y is None else list(made).index(name) for name, y in plan.results.items()]
    return _Call(_runner(library, index, makers, results, steps, drawn), reaches)


def _runner(
    library: Arrays,
    device: int,
    makers: list[Callable[[], Any]],
    results: list[int | None],
    steps: list[_driver.Step],
    drawn: dict[int, Result | None],
) -> Run:
    """Return what makes arrays on a device, runs the steps, and returns the arrays at `results`.

    Generators are at the places `drawn`, with the numbers that they draw, if any.
    """

    def run(places: list[Any]) -> Any:
        if device != library.current():
            with library.device(device):
                return run(places)
        numbers = []  # which must be there until the launch is under way
        for place, uniform in drawn.items():
            rng, places[place] = places[place], 0
            if uniform is not None:
                numbers.append(library.put(rng.random(uniform.shape, dtype=np.float32), device))
                places[place] = library.pointer(numbers[-1])
        made = [make() for make in makers]
        places += map(library.pointer, made)
        stream = library.stream(device)
        for step in steps:
            step.enqueue(stream, places)
        arrays = [None if i is None else made[i] for i in results]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    return run


def _short_runner(library: Arrays, device: int, make: Callable[[], Any], step: _driver.Step) -> Run:
    """Do what `_runner` does for one result of one launch."""
    current, pointer, stream, enqueue = library.current, library.pointer, library.stream, step.enqueue

    def run(places: list[Any]) -> Any:
        if device != current():
            with library.device(device):
                return run(places)
        made = make()
        places.append(pointer(made))
        enqueue(stream(device), places)
        return made

    return run


def _step(
    device: _driver.Device, launch: Launch, arrays: dict[str, Operand], slots: dict[str, int], constants: dict[str, int]
) -> _driver.Step:
    if launch.groups > _MAX_GROUPS:
        raise _driver.CudaError(f"{launch.groups} blocks are more than a launch may have")
    arguments = tuple([constants.get(a, a) if isinstance(a, str) else a for a in launch.arguments])
    kernel = _kernel(device, _compile.program(launch), launch.kernel)
    return _driver.Step(device, kernel, launch.groups, launch.block, arguments, slots)


@functools.cache
def _kernel(device: _driver.Device, text: str, name: str) -> Any:
    return device.load(_compile.cubin(text, device.architecture), name)
