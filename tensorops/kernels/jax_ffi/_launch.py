"""How a compiled kernel becomes part of a program that XLA compiles for the CPU; see `kernels._jax.primitive`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorops._dtypes import dtype_name
from tensorops._operator import Operator
from tensorops._row_axes import RowAxes
from tensorops._typing import Array
from tensorops.kernels._jax import partitioning, primitive
from tensorops.kernels._jax.primitive import Call
from tensorops.kernels.cpu.handlers import HANDLERS

_PROVIDER = "jax_ffi"
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def register(
    operator: Operator[..., Any],
    *,
    refuse: Callable[[dict[str, Any]], str | None] | None = None,
    rows: Callable[[dict[str, Any]], int] | None = None,
    most_rows: Callable[[dict[str, Any]], int] | None = None,
    batched: bool = False,
    several_axes: bool = False,
    draw: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> None:
    """Register the kernel of an operator that declares how its calls may be split.

    Parameters
    ----------
    operator
        An operator on rows along the last axis and on parameters of those rows.
    refuse
        Returns why the kernel does not support the arguments; replaces the check for rows and their parameters.
    rows
        Returns how many leading arrays have the rows of the first for given arguments, if it is not what the operator
        declares; see `Call`.
    most_rows
        Returns up to how many rows the kernel is faster than XLA for given arguments; see `Call`.
    batched
        Whether the first axis counts rows; see `Call`.
    several_axes
        Whether several of the last axes may be one row; the result may then have another dtype as well.
    draw
        Returns the arguments with numbers in place of a generator of them.
    """
    handler = HANDLERS[operator.__name__]

    def prepare(arguments: dict[str, Any]) -> str | Call:
        declared = handler.rows(**arguments) if handler.rows else operator.rows(arguments)
        reason = refuse(arguments) if refuse else _refuse_rows(arguments, declared, several_axes)
        most = most_rows(arguments) if most_rows and not reason else 0
        if most and primitive.row_count(arguments[next(iter(declared.arrays))]) > most:
            reason = f"there are more than {most} rows, which XLA computes as fast"
        if reason := reason or partitioning.refuse_split(declared, arguments) or _unusable():
            return reason
        options = {
            name: value for name, value in arguments.items() if name not in declared.arrays and value is not None
        }
        axes = len(declared.whole) if several_axes else 1
        if "axis" in options:
            options["axis"] = tuple(range(-axes, 0)) if axes > 1 else -1
        name = handler.name(arguments) if handler.name else operator.__name__
        count = rows(arguments) if rows else declared.sharing
        names = tuple(declared.arrays)
        along = tuple(of[:1] == (0,) for of in declared.arrays.values()) if batched else ()
        options_of_call = tuple(options.items())
        kernel = (handler.options, axes, handler.mixed, most, along, _PROVIDER)
        return Call(operator, name, names, count, batched, options_of_call, *kernel, correspond=handler.rows)

    primitive.register(operator, _PROVIDER, prepare, draw=draw)


# ---------------------------------------------------------------------------------------------- refusals


def _refuse_rows(arguments: dict[str, Any], rows: RowAxes, several_axes: bool) -> str | None:
    """Return why a call is not on rows along the last axes with parameters that the kernels support."""
    first, *others = rows.arrays
    x = arguments[first]
    for name in rows.arrays:
        if reason := refuse_array(name, arguments[name]):
            return reason
    if several_axes and len(rows.whole) > 1:
        if rows.whole[0] != x.ndim - len(rows.whole):
            return f"the axes are not the last of {first}"
    elif rows.whole not in ((), (x.ndim - 1,)):
        return f"axis is not the last of {first}"
    if any(x.shape[a] == 0 for a in rows.whole):
        return f"the last axis of {first} is empty" if len(rows.whole) == 1 else f"{first} is empty"
    result = x.dtype if rows.dtype is None else rows.dtype
    if result != x.dtype and not (result == np.float32 and x.dtype.itemsize == 2):
        return f"dtype is neither the dtype of {first} nor, for half types, float32"
    return _refuse_parameters(arguments, others[rows.sharing - 1 :], x)


def _refuse_parameters(arguments: dict[str, Any], names: Sequence[str], x: Array) -> str | None:
    for name in names:
        if arguments[name].dtype == np.float64 and x.dtype != np.float64:
            return f"{name} has dtype float64, and x a narrower one"
    return "bias is given without weight" if "bias" in names and "weight" not in names else None


def refuse_channels(arguments: dict[str, Any]) -> str | None:
    """Return why a call is not on groups of channels along the second axis that the kernels support."""
    x = arguments["x"]
    parameters = [name for name in ("weight", "bias") if arguments[name] is not None]
    for name in ("x", *parameters):
        if reason := refuse_array(name, arguments[name]):
            return reason
    if arguments["channel_axis"] != 1:
        return "channel_axis is not the second of x"
    return "x is empty" if 0 in x.shape else _refuse_parameters(arguments, parameters, x)


def refuse_array(name: str, x: Array, dtypes: tuple[str, ...] = _DTYPES, least: int = 1) -> str | None:
    """Return why the kernels do not take an array, which must have one of these dtypes and at least so many axes."""
    import jax

    if not isinstance(x, jax.Array):
        return f"{name} is not a jax.Array"
    if dtype_name(x) not in dtypes:
        return f"{name} has a dtype without a kernel"
    if x.ndim < least:
        return f"{name} has {x.ndim} dimensions"
    if not all(isinstance(n, int) for n in x.shape):
        return f"{name} has a symbolic shape"
    return primitive.refuse_device(name, x, "cpu")


@functools.cache
def _unusable() -> str:
    """Register the kernels with XLA, once; return why it does not accept them, or an empty string."""
    import jax

    from tensorops.kernels.cpu import _native

    try:
        for name, handler in _native.xla_handlers().items():
            jax.ffi.register_ffi_target(f"tensorops.{name}", handler, platform="cpu")
        primitive.primitive()
    except Exception as error:  # another version of JAX or of XLA's interface
        return f"jax {jax.__version__} does not take the kernels: {error}"
    return ""


def _lower(ctx: Any, *operands: Any, call: Call) -> Any:
    import jax

    module = ctx.module_context
    exported = getattr(module.lowering_parameters, "for_export", False) or len(module.platforms) != 1
    if call.provider != _PROVIDER or exported:  # the kernel is only here
        return None
    return jax.ffi.ffi_lowering(f"tensorops.{call.handler}")(ctx, *operands, **call.numbers())


primitive.lower_on("cpu", _lower)
