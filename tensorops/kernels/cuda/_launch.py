"""How plans run on GPUs: compiled once for a device, then each call only allocates and launches.

A call is found by the metadata of its arrays and the values of its options. What it launches is ready but for the
addresses of its arrays. Nothing waits for the GPU, and all memory is the library's own, so calls can be captured in
graphs; only the first call of its kind compiles and loads its kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tensorops._messages import describe_error
from tensorops._operator import Operator
from tensorops.kernels._gpu.planners import Planner
from tensorops.kernels._gpu.plans import Launch, Operand, Plan
from tensorops.kernels.cuda import _compile, _driver
from tensorops.kernels.cuda._arrays import Arrays, arrays_of

_MAX_CALLS = 4096  # of one operator; beyond it all are forgotten
_MAX_GROUPS = 2**31 - 1

Generator = np.random.Generator

_known: list[dict[Any, _Call | str]] = []


def forget_calls() -> None:
    """Forget all calls that were planned, such as when a test has replaced the driver."""
    for calls in _known:
        calls.clear()


class _Call(NamedTuple):
    """What calls with the same metadata and options have in common."""

    device: int
    drawn: tuple[tuple[int, tuple[int, ...]], ...]  # places of generators, and the shapes of what they draw
    makers: tuple[Callable[[], Any], ...]  # of the results, then of the temporaries
    results: tuple[int | None, ...]  # positions among what they make
    steps: tuple[_driver.Step, ...]


class _Found(NamedTuple):
    """A call, and the addresses of its arrays, with generators in between as the call has them."""

    call: _Call | str  # or why there is none
    arrays: Arrays
    places: list[Any]


class _RefusedError(TypeError):
    """Why a call cannot be told from others by metadata."""


Places: TypeAlias = dict[str, int]
Compile: TypeAlias = Callable[[_driver.Device, Launch, dict[str, Operand], Places, Places], _driver.Step]
"""Makes a step of a launch; is also given the metadata of arrays, where their addresses will be, and constants'."""


def register(
    operator: Operator[..., Any], planner: Planner, provider: str = "cuda", compiler: Compile | None = None
) -> None:
    """Register an operator's kernel of a provider; without a compiler, NVRTC compiles the sources in ``native/gpu``."""
    known: dict[Any, _Call | str] = {}
    _known.append(known)

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Found:
        key, library, places = _sign(args, kwargs)
        call = known.get(key)
        if call is None:
            call = _prepare(operator, planner, compiler or _step, library, args, kwargs)
            if len(known) >= _MAX_CALLS:
                known.clear()
            known[key] = call
        return _Found(call, library, places)

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        try:
            call = find(args, kwargs).call
        except _RefusedError as reason:
            return str(reason)
        return call if isinstance(call, str) else None

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        try:
            call, library, places = find(args, kwargs)
        except (TypeError, ValueError, IndexError):  # wrong arguments; the operator's words follow
            return NotImplemented
        return NotImplemented if isinstance(call, str) else _run(call, library, places)

    operator.kernel(provider, supports=supports, checks=True)(kernel)


def _sign(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Arrays, list[Any]]:
    """Return what tells a call from others, whose arrays it has, and their addresses beside its generators."""
    values = (*args, *kwargs.values())
    key: list[Any] = [len(args), *kwargs]
    library: Arrays | None = None
    places: list[Any] = []
    for value in values:
        kind = type(value)
        owner = arrays_of(kind)
        if owner is None:
            if kind is Generator:
                key.append(kind)
                places.append(value)
            else:
                key += (kind, value)
            continue
        if owner is not library:
            if library is not None:
                raise _RefusedError("the arrays are of different libraries")
            library = owner
            if reason := owner.refuse(values):
                raise _RefusedError(reason)
        facts, pointer = owner.facts(value)
        key.append(facts)
        places.append(pointer)
    if library is None:
        raise _RefusedError(f"an argument is a {type(values[0]).__name__}")
    return tuple(key), library, places


def _run(call: _Call, library: Arrays, places: list[Any]) -> Any:
    if call.device != library.current():
        with library.device(call.device):
            return _run(call, library, places)
    drawn = []  # which must be there until the launch is under way
    for place, shape in call.drawn:
        drawn.append(library.put(places[place].random(shape, dtype=np.float32), call.device))
        places[place] = library.pointer(drawn[-1])
    made = [make() for make in call.makers]
    places += map(library.pointer, made)
    stream = library.stream(call.device)
    for step in call.steps:
        step(stream, places)
    if call.results == (0,):
        return made[0]
    return tuple([None if i is None else made[i] for i in call.results])


def _prepare(
    operator: Operator[..., Any],
    planner: Planner,
    compiler: Compile,
    library: Arrays,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Call | str:
    """Plan a call and compile its kernels, or return why that is not possible."""
    arguments = operator.canonical(*args, **kwargs)
    # By name, not by identity: another call may have two arrays where this one has the same array twice.
    given = zip((*operator.parameters[: len(args)], *kwargs), (*args, *kwargs.values()), strict=True)
    places = [name for name, value in given if arrays_of(type(value)) or type(value) is Generator]
    facts = {name: library.facts(value)[0] for name, value in arguments.items() if arrays_of(type(value))}
    devices = sorted({device for device, *_ in facts.values()})
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
    order = list(made)
    constants = {name: device.hold(a.tobytes()) for name, a in (plan.constants or {}).items()}
    return _Call(
        device=index,
        drawn=tuple((slots[name], y.shape) for name, y in (plan.drawn or {}).items()),
        makers=tuple(library.maker(y.shape, y.dtype, index) for y in made.values()),
        results=tuple(order.index(name) if name in made else None for name in plan.results),
        steps=tuple(compiler(device, launch, every, slots, constants) for launch in plan.launches if launch.groups),
    )


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
