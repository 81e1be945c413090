"""How a compiled kernel becomes part of a program that XLA compiles for the CPU; see `kernels._jax.primitive`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorops._dtypes import dtype_name
from tensorops._operator import Operator
from tensorops.kernels._jax import partitioning, primitive
from tensorops.kernels._jax.primitive import Call
from tensorops.kernels.cpu import _native
from tensorops.kernels.cpu.rows import ROWS, rows_of

_PROVIDER = "jax_ffi"
_NO_INTEGER = -(2**63)  # stands for None in a tuple of integers


def register(
    operator: Operator[..., Any],
    *,
    rows: Callable[[dict[str, Any]], int] | None = None,
    most_rows: Callable[[dict[str, Any]], int] | None = None,
    batched: bool = False,
    draw: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> None:
    """Register the kernel of an operator that declares how its calls may be split.

    Parameters
    ----------
    operator
        An operator on rows along the last axis and on parameters of those rows.
    rows
        Returns how many leading arrays have the rows of the first for given arguments, if it is not what the operator
        declares; see `Call`.
    most_rows
        Returns up to how many rows the kernel is faster than XLA for given arguments; see `Call`.
    batched
        Whether the first axis counts rows; see `Call`.
    draw
        Returns the arguments with numbers in place of a generator of them.
    """
    import jax

    def prepare(arguments: dict[str, Any]) -> str | Call:
        declared = rows_of(operator, arguments)
        assert declared is not None  # of all operators that are registered
        names = tuple(name for name in declared.arrays if not isinstance(arguments[name], np.random.Generator))
        others = {name: value for name, value in arguments.items() if name not in names and value is not None}
        options = {name: value for name, value in others.items() if not isinstance(value, jax.Array)}
        arrays = {name: arguments[name] for name in names}
        reason = _refuse_arrays(arrays) or _refuse(operator, arrays, options)
        most = most_rows(arguments) if most_rows and not reason else 0
        if most and primitive.row_count(arrays[names[0]]) > most:
            reason = f"there are more than {most} rows, which XLA computes as fast"
        if reason := reason or partitioning.refuse_split(declared, arguments) or _unusable():
            return reason
        if "axis" in options:  # so that it stays the same if a call is mapped
            ndim = arrays[names[0]].ndim
            axes = options["axis"] if isinstance(options["axis"], tuple) else (options["axis"],)
            counted = tuple(axis - ndim if axis >= 0 else axis for axis in axes)
            options["axis"] = counted if len(counted) > 1 else counted[0]
        count = rows(arguments) if rows else declared.sharing
        along = tuple(of[:1] == (0,) for of in declared.arrays.values()) if batched else ()
        correspond = ROWS.get(operator.__name__)
        return Call(
            operator, names, count, batched, tuple(options.items()), most, along, _PROVIDER, correspond=correspond
        )

    primitive.register(operator, _PROVIDER, prepare, draw=draw)


def _refuse_arrays(arrays: dict[str, Any]) -> str | None:
    """Return why arrays cannot be those of a program for this platform."""
    import jax

    for name, x in arrays.items():
        if not isinstance(x, jax.Array):
            return f"{name} is not a jax.Array"
        if not all(isinstance(n, int) for n in x.shape):
            return f"{name} has a symbolic shape"
        if reason := primitive.refuse_device(name, x, "cpu"):
            return reason
    return None


def _refuse(operator: Operator[..., Any], arrays: dict[str, Any], options: dict[str, Any]) -> str | None:
    """Return why the compiled operator does not take arrays of these shapes and dtypes."""
    described = {name: (dtype_name(x), list(x.shape)) for name, x in arrays.items()}
    return _native.refuse(operator.__name__, described, {name: _option(value) for name, value in options.items()})


def _option(value: Any) -> Any:
    """Return an option as the compiled module reads it: other libraries' dtypes by name."""
    if isinstance(value, bool | int | float | str | tuple | np.generic | np.random.Generator):
        return value
    return np.dtype(value).name


def _attributes(call: Call) -> dict[str, Any]:
    """Return the attributes of a program's call: its options, and which parameters its arrays are."""
    parameters = call.operator.parameters
    found: dict[str, Any] = {"arrays": np.int64(sum(1 << parameters.index(name) for name in call.names))}
    for name, value in call.options:
        option = _option(value)
        if isinstance(option, bool):
            found[name] = np.bool_(option)
        elif isinstance(option, int):
            found[name] = np.int64(option)
        elif isinstance(option, float):
            found[name] = np.float64(option)
        elif isinstance(option, tuple):
            found[name] = np.array([_NO_INTEGER if n is None else n for n in option], np.int64)
        else:
            found[name] = option
    return found


@functools.cache
def _unusable() -> str:
    """Register the kernels with XLA, once; return why it does not accept them, or an empty string."""
    import jax

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
    places = [call.operator.parameters.index(name) for name in call.names]
    assert places == sorted(places)  # the order in which the compiled module reads arrays
    return jax.ffi.ffi_lowering(f"tensorops.{call.operator.__name__}")(ctx, *operands, **_attributes(call))


primitive.lower_on("cpu", _lower)
