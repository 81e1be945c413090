"""How a Pallas kernel becomes part of a program that XLA compiles for TPUs; see `kernels._jax.primitive`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from tensorops._kernel import Configuration
from tensorops._operator import Operator
from tensorops._providers import GENERIC
from tensorops.hardware.accelerators import tpu_version
from tensorops.kernels._jax import partitioning, primitive
from tensorops.kernels._jax.primitive import Call
from tensorops.kernels.pallas.blocks import PARAMETERS, UNKNOWN, VMEM, choosing
from tensorops.kernels.pallas.planners import PLANNERS, REVERSE, REVERSE_PLANNERS, WITH_STATISTICS, Planner, Program

_PROVIDER = "pallas"
_generation: ContextVar[str] = ContextVar("tensorops_pallas_generation", default="")
_interpreting: ContextVar[bool] = ContextVar("tensorops_pallas_interpreting", default=False)


@contextlib.contextmanager
def interpreted(**parameters: Any) -> Iterator[None]:
    """Run the kernels on the CPU, in Pallas' interpreter, with these `InterpretParams`: for tests."""
    from jax.experimental.pallas import tpu as pltpu

    token = _interpreting.set(True)
    try:
        with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(**parameters)):
            yield
    finally:
        _interpreting.reset(token)


@contextlib.contextmanager
def compiling_for(generation: str) -> Iterator[None]:
    """Compile for TPUs of a generation what is traced and compiled in this block; see `pallas.compiling_for`."""
    if generation not in VMEM:
        raise ValueError(f"compiling_for: unknown generation {generation!r}; valid names: {', '.join(VMEM)}")
    token = _generation.set(generation)
    try:
        with primitive.compiling_for("tpu"):
            yield
    finally:
        _generation.reset(token)


def generation() -> str:
    """Return the generation of the TPU that this process computes on, or the one whose blocks fit all."""
    import jax

    if wanted := _generation.get():
        return wanted
    found = tpu_version(jax.devices()[0].device_kind) if jax.default_backend() == "tpu" else None
    return found if found in VMEM else UNKNOWN


def register(
    operator: Operator[..., Any], planner: Planner, sharing: Callable[[Any], int], *, batched: bool = False
) -> None:
    """Register the kernel of an operator; `sharing` tells how many arrays get more rows if a call is mapped.

    If it is `batched`, a mapped axis makes the first axis of arrays longer instead; see `Call`.
    """

    def prepare(arguments: dict[str, Any], *, elsewhere: bool = False) -> str | Call:
        declared = operator.rows(arguments)
        reason = _refuse_arrays({name: arguments[name] for name in declared.arrays}, elsewhere=elsewhere)
        reason = reason or partitioning.refuse_split(declared, arguments)
        program = reason or planner(generation(), **arguments)
        if isinstance(program, str):
            return program
        options = {name: v for name, v in arguments.items() if name not in declared.arrays and v is not None}
        if "axis" in options:
            options["axis"] = -1
        along = tuple(axes[:1] == (0,) for axes in declared.arrays.values()) if batched else ()
        call = (operator, tuple(declared.arrays), sharing(declared), batched)
        # Elsewhere, the derivative of the body shares its intermediate results with the call.
        provider, reverse = (GENERIC, None) if elsewhere else (_PROVIDER, REVERSE.get(operator.__name__))
        return Call(*call, tuple(options.items()), along=along, provider=provider, reverse=reverse)

    def choose(*args: Any, **kwargs: Any) -> dict[str, int]:
        with choosing({}) as choice:
            planner(generation(), **operator.named(args, kwargs))
        return {"block_rows": choice.found.rows, "block_columns": choice.found.columns} if choice.found else {}

    configuration = Configuration(PARAMETERS, choose)
    others: dict[str, Any] = {"elsewhere": functools.partial(prepare, elsewhere=True), "configuration": configuration}
    if operator.__name__ in REVERSE:
        others["derivative"] = "a kernel of pallas"
    primitive.register(operator, _PROVIDER, prepare, in_place=_interpreter, **others)


def _refuse_arrays(arrays: dict[str, Any], *, elsewhere: bool) -> str | None:
    import jax

    for name, a in arrays.items():
        if not isinstance(a, jax.Array):
            return f"{name} is not a jax.Array"
        if not elsewhere and (reason := primitive.refuse_device(name, a, "cpu" if _interpreting.get() else "tpu")):
            return reason
    return None


def planned(call: Call, arrays: Sequence[Any]) -> Program | str:
    """Plan a call, whichever provider was chosen for it, for arrays with these shapes and dtypes."""
    name = call.operator.__name__
    planner = WITH_STATISTICS.get(name) if call.statistics else PLANNERS.get(name)
    if planner is None:
        return f"there is no kernel for {name}"
    with choosing(dict(call.tuned)):
        program = planner(generation(), **dict(zip(call.names, arrays, strict=True)), **dict(call.options))
    if isinstance(program, str):
        return program
    return lambda *arrays: program(**dict(zip(call.names, arrays, strict=True)))


def planned_reverse(call: Call, moving: tuple[int, ...], operands: Sequence[Any]) -> Program | str:
    """Plan the derivative of a call in reverse mode, for operands as `kernels._jax.primitive` passes them on."""
    planner = REVERSE_PLANNERS.get(call.operator.__name__)
    if planner is None:
        return f"there is no kernel for the derivative of {call.operator.__name__}"
    count = len(call.names)
    names = tuple(call.names[i] for i in moving)
    arguments = {**dict(zip(call.names, operands, strict=False)), **dict(call.options)}
    program = planner(generation(), names, operands[count:], **arguments)
    if isinstance(program, str):
        return program
    return lambda *operands: program(operands[count:], **dict(zip(call.names, operands, strict=False)))


def _interpreter(call: Call) -> Program | None:
    """Return a function that runs the kernel itself: its interpreter has effects, which the primitive must not have."""
    if not _interpreting.get():
        return None

    def compute(*arrays: Any) -> list[Any]:
        program = planned(call, arrays)
        assert not isinstance(program, str)  # it was planned before
        return program(*arrays)

    return compute


def _lower(ctx: Any, *operands: Any, call: Call) -> Any:
    from jax.interpreters import mlir

    program = planned(call, ctx.avals_in)
    if isinstance(program, str):
        return None
    return mlir.lower_fun(program, multiple_results=True)(ctx, *operands)


def _lower_reverse(ctx: Any, *operands: Any, call: Call, moving: tuple[int, ...]) -> Any:
    from jax.interpreters import mlir

    if call.provider != _PROVIDER:  # what its derivative keeps is for the kernels of another platform
        return None
    program = planned_reverse(call, moving, ctx.avals_in)
    if isinstance(program, str):
        return None
    return mlir.lower_fun(program, multiple_results=True)(ctx, *operands)


primitive.lower_on("tpu", _lower, reverse=_lower_reverse)
