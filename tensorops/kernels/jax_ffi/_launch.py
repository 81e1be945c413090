"""How a compiled kernel becomes part of a program that XLA compiles for the CPU; see `kernels._jax.primitive`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tensorops._dtypes import dtype_name
from tensorops._kernel import BY_BODY
from tensorops._operator import Operator
from tensorops.kernels._jax import partitioning, primitive
from tensorops.kernels._jax.primitive import Call
from tensorops.kernels.cpu import _native
from tensorops.kernels.cpu.derivatives import derivative_of
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
        derivative = derivative_of(operator.__name__)
        reverse = primitive.Reverse(derivative.kept) if derivative else None
        every = tuple(options.items())
        return Call(
            operator, names, count, batched, every, most, along, _PROVIDER, reverse=reverse, correspond=correspond
        )

    compiled = derivative_of(operator.__name__)
    derivative = compiled.name if compiled else BY_BODY
    primitive.register(operator, _PROVIDER, prepare, draw=draw, derivative=derivative)


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


def _attributes(parameters: Sequence[str], arrays: Iterable[str], options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the attributes of a program's call: its options, and which parameters its arrays are."""
    found: dict[str, Any] = {"arrays": np.int64(sum(1 << parameters.index(name) for name in arrays))}
    for name, value in options:
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


def _is_elsewhere(ctx: Any, call: Call) -> bool:
    """Return whether a program may run where the kernels are not."""
    module = ctx.module_context
    exported = getattr(module.lowering_parameters, "for_export", False) or len(module.platforms) != 1
    return call.provider != _PROVIDER or exported


def _lower(ctx: Any, *operands: Any, call: Call) -> Any:
    import jax

    if _is_elsewhere(ctx, call):
        return None
    parameters = call.operator.parameters
    places = [parameters.index(name) for name in call.names]
    assert places == sorted(places)  # the order in which the compiled module reads arrays
    attributes = _attributes(parameters, call.names, call.options)
    return jax.ffi.ffi_lowering(f"tensorops.{call.operator.__name__}")(ctx, *operands, **attributes)


def _lower_reverse(ctx: Any, *operands: Any, call: Call, moving: tuple[int, ...]) -> Any:
    """Call the vector-Jacobian product with those of the operands that it takes."""
    import jax

    derivative = derivative_of(call.operator.__name__)
    assert derivative is not None
    names = (*call.names, *(derivative.results[i] for i in derivative.kept), *derivative.cotangents)
    given = dict(zip(names, zip(operands, ctx.avals_in, strict=True), strict=True))
    arrays = {name: given[name] for name in derivative.parameters if name in given}
    asked = {call.names[i] for i in moving}
    wanted = derivative.wanted(asked)
    options = {name: value for name, value in call.options if name in derivative.parameters}
    if "wanted" in derivative.parameters:
        options["wanted"] = sum(1 << i for i in wanted)
    # A gradient has the shape and dtype of its parameter or, where none is given, of the first.
    like = [next((n for n in derivative.gradients[i] if n in given), call.names[0]) for i in wanted]
    described = {name: (aval.dtype.name, list(aval.shape)) for name, (_, aval) in arrays.items()}
    made_of = {given[name][1].dtype for name in (*derivative.cotangents, call.names[0])}
    if (
        _is_elsewhere(ctx, call) or len(made_of) > 1 or not asked <= derivative.provided
    ):  # results of another dtype than x
        return None
    if _native.refuse(derivative.name, described, {name: _option(value) for name, value in options.items()}):
        return None
    within = ctx.replace(avals_in=[aval for _, aval in arrays.values()], avals_out=[given[name][1] for name in like])
    attributes = _attributes(derivative.parameters, arrays, options.items())
    found = jax.ffi.ffi_lowering(f"tensorops.{derivative.name}")(within, *[x for x, _ in arrays.values()], **attributes)
    by_name = {name: y for i, y in zip(wanted, found, strict=True) for name in derivative.gradients[i]}
    return [by_name[call.names[i]] for i in moving]


primitive.lower_on("cpu", _lower, reverse=_lower_reverse)
