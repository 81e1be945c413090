"""How a Pallas kernel becomes part of a program that XLA compiles for TPUs; see `kernels._jax.primitive`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from tensorops._operator import Operator
from tensorops.hardware.accelerators import tpu_version
from tensorops.kernels._jax import primitive
from tensorops.kernels._jax.primitive import Call
from tensorops.kernels.pallas.blocks import UNKNOWN, VMEM
from tensorops.kernels.pallas.planners import PLANNERS, Planner, Program

_PROVIDER = "pallas"
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


def generation() -> str:
    """Return the generation of the TPU that this process computes on, or the one whose blocks fit all."""
    import jax

    found = tpu_version(jax.devices()[0].device_kind) if jax.default_backend() == "tpu" else None
    return found if found in VMEM else UNKNOWN


def register(
    operator: Operator[..., Any], planner: Planner, sharing: Callable[[Any], int], *, batched: bool = False
) -> None:
    """Register the kernel of an operator; `sharing` tells how many arrays get more rows if a call is mapped.

    If it is `batched`, a mapped axis makes the first axis of arrays longer instead; see `Call`.
    """

    def prepare(arguments: dict[str, Any]) -> str | Call:
        declared = operator.rows(arguments)
        reason = _refuse_arrays({name: arguments[name] for name in declared.arrays})
        program = reason or planner(generation(), **arguments)
        if isinstance(program, str):
            return program
        options = {name: v for name, v in arguments.items() if name not in declared.arrays and v is not None}
        if "axis" in options:
            options["axis"] = -1
        along = tuple(axes[:1] == (0,) for axes in declared.arrays.values()) if batched else ()
        call = (operator, operator.__name__, tuple(declared.arrays), sharing(declared), batched)
        return Call(*call, options=tuple(options.items()), mixed=True, along=along, provider=_PROVIDER)

    primitive.register(operator, _PROVIDER, prepare, in_place=_interpreter)


def _refuse_arrays(arrays: dict[str, Any]) -> str | None:
    import jax

    for name, a in arrays.items():
        if not isinstance(a, jax.Array):
            return f"{name} is not a jax.Array"
        if reason := primitive.refuse_device(name, a, "cpu" if _interpreting.get() else "tpu"):
            return reason
    return None


def planned(call: Call, arrays: Sequence[Any]) -> Program | str:
    """Plan a call, whichever provider was chosen for it, for arrays with these shapes and dtypes."""
    planner = PLANNERS.get(call.operator.__name__)
    if planner is None:
        return f"there is no kernel for {call.operator.__name__}"
    program = planner(generation(), **dict(zip(call.names, arrays, strict=True)), **dict(call.options))
    if isinstance(program, str):
        return program
    return lambda *arrays: program(**dict(zip(call.names, arrays, strict=True)))


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
    if isinstance(program, str) or not primitive.is_for_one_device(ctx.module_context):
        return None
    return mlir.lower_fun(program, multiple_results=True)(ctx, *operands)


primitive.lower_on("tpu", _lower)
