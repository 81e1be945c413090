"""How plans run on GPUs: compiled once for a device, then each call only allocates and launches.

A call is found by the metadata of its arrays and the values of its options. What it launches is ready but for the
addresses of its arrays. Nothing waits for the GPU, and all memory is the library's own, so calls can be captured in
graphs; only the first call of its kind compiles and loads its kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from tensorops._messages import describe_error
from tensorops._operator import Operator
from tensorops.kernels._gpu.planners import Planner
from tensorops.kernels._gpu.plans import Launch, Operand, Plan
from tensorops.kernels.cuda import _compile, _driver
from tensorops.kernels.cuda._arrays import Arrays, Facts, arrays_of

_MAX_CALLS = 4096  # of one operator; beyond it all are forgotten
_MAX_GROUPS = 2**31 - 1

_known: list[dict[Any, _Call | str]] = []


def forget_calls() -> None:
    """Forget all calls that were planned, such as when a test has replaced the driver."""
    for calls in _known:
        calls.clear()


class _Call(NamedTuple):
    """What calls with the same metadata and options have in common."""

    device: int
    inputs: tuple[int, ...]  # which of the arrays among the arguments are read
    makers: tuple[Callable[[], Any], ...]  # of the results, then of the temporaries
    constants: tuple[Any, ...]  # arrays
    results: tuple[int | None, ...]  # positions among what they make
    steps: tuple[_driver.Step, ...]


class _Found(NamedTuple):
    """A call, and where its arrays are."""

    call: _Call | str  # or why there is none
    arrays: Arrays
    pointers: list[int]


class _RefusedError(TypeError):
    """Why a call cannot be told from others by metadata."""


Compile: TypeAlias = Callable[[_driver.Device, Launch, dict[str, Operand], dict[str, int]], _driver.Step]
"""Makes a step of a launch, the metadata of its arrays, and their places among all arrays of the call."""


def register(
    operator: Operator[..., Any], planner: Planner, provider: str = "cuda", compiler: Compile | None = None
) -> None:
    """Register an operator's kernel of a provider; without a compiler, NVRTC compiles the sources in ``native/gpu``."""
    known: dict[Any, _Call | str] = {}
    _known.append(known)

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Found:
        key, library, facts, pointers = _sign(args, kwargs)
        call = known.get(key)
        if call is None:
            call = _prepare(operator, planner, compiler or _step, library, facts, args, kwargs)
            if len(known) >= _MAX_CALLS:
                known.clear()
            known[key] = call
        return _Found(call, library, pointers)

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
            call, library, pointers = find(args, kwargs)
        except (TypeError, ValueError, IndexError):  # wrong arguments; the operator's words follow
            return NotImplemented
        return NotImplemented if isinstance(call, str) else _run(call, library, pointers)

    operator.kernel(provider, supports=supports, checks=True)(kernel)


def _sign(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Arrays, list[Facts], list[int]]:
    """Return what tells a call from others, whose arrays it has, their metadata and addresses."""
    values = (*args, *kwargs.values())
    key: list[Any] = [len(args), *kwargs]
    library: Arrays | None = None
    every: list[Facts] = []
    pointers: list[int] = []
    for value in values:
        kind = type(value)
        owner = arrays_of(kind)
        if owner is None:
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
        every.append(facts)
        pointers.append(pointer)
    if library is None:
        raise _RefusedError(f"an argument is a {type(values[0]).__name__}")
    return tuple(key), library, every, pointers


def _run(call: _Call, library: Arrays, pointers: list[int]) -> Any:
    if call.device != library.current():
        with library.device(call.device):
            return _run(call, library, pointers)
    made = [make() for make in call.makers]
    places = [*map(pointers.__getitem__, call.inputs), *map(library.pointer, (*made, *call.constants))]
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
    facts: list[Facts],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Call | str:
    """Plan a call and compile its kernels, or return why that is not possible."""
    arguments = operator.canonical(*args, **kwargs)
    devices = sorted({device for device, *_ in facts})
    if len(devices) > 1:
        return f"the arrays are on different devices: CUDA devices {' and '.join(map(str, devices))}"
    arrays = [value for value in (*args, *kwargs.values()) if arrays_of(type(value))]
    inputs: dict[str, int] = {}
    operands: dict[str, Operand] = {}
    for name, value in arguments.items():
        if arrays_of(type(value)):
            at = next(i for i, array in enumerate(arrays) if array is value)
            operand = library.operand(facts[at])
            if isinstance(operand, str):
                return operand
            inputs[name], operands[name] = at, operand
    try:
        device = _driver.device(devices[0])
        plan = operator.apply(functools.partial(planner, device.facts), arguments | operands)
        if isinstance(plan, str):
            return plan
        if plan.drawn:
            return "numbers of a generator are drawn in host memory"
        return _compiled(device, devices[0], plan, compiler, library, inputs, operands)
    except (_compile.CompileError, _driver.CudaError) as error:
        return describe_error(error)


def _compiled(
    device: _driver.Device,
    index: int,
    plan: Plan,
    compiler: Compile,
    library: Arrays,
    inputs: dict[str, int],
    operands: dict[str, Operand],
) -> _Call:
    made = {name: y for name, y in plan.results.items() if y is not None} | (plan.temporaries or {})
    constants = {name: library.copy_of(a, index) for name, a in (plan.constants or {}).items()}
    slots = {name: slot for slot, name in enumerate((*inputs, *made, *constants))}
    every = operands | {name: y.operand for name, y in made.items()}
    order = list(made)
    return _Call(
        device=index,
        inputs=tuple(inputs.values()),
        makers=tuple(library.maker(y.shape, y.dtype, index) for y in made.values()),
        constants=tuple(constants.values()),
        results=tuple(order.index(name) if name in made else None for name in plan.results),
        steps=tuple(compiler(device, launch, every, slots) for launch in plan.launches if launch.groups),
    )


def _step(device: _driver.Device, launch: Launch, arrays: dict[str, Operand], slots: dict[str, int]) -> _driver.Step:
    if launch.groups > _MAX_GROUPS:
        raise _driver.CudaError(f"{launch.groups} blocks are more than a launch may have")
    return _driver.Step(device, _kernel(device, _compile.program(launch), launch.kernel), launch, slots)


@functools.cache
def _kernel(device: _driver.Device, text: str, name: str) -> Any:
    return device.load(_compile.cubin(text, device.architecture), name)
