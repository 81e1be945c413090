"""How a compiled kernel becomes part of a JAX trace.

All kernels share one JAX primitive, whose parameter holds the call's options. Derivatives, and programs that cannot
contain the kernel, use the operator's body, so all of JAX's transformations work as they do without the kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorops._dtypes import dtype_name
from tensorops._operator import Operator
from tensorops._row_axes import RowAxes
from tensorops._typing import Array

_MOST_KNOWN = 4096
"""How many decisions (by shape, dtype, device and options) are remembered per operator."""

_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Call:
    """A call without its arrays. JAX compiles once for each.

    Parameters
    ----------
    operator
        The operator.
    handler
        The kernel's name in ``xla_handlers`` of the compiled module.
    names
        The parameters that are arrays, in the order of the arrays.
    rows
        How many leading arrays have the rows of the first, which a mapped axis is added to; the others apply to every
        row. 0 if the kernel cannot have more rows.
    batched
        Whether the first axis counts rows, and the kernel finds others by counting from it: to map over an axis then
        makes the first longer, instead of adding one.
    options
        The operator's options by name; an axis counts from the end.
    attributes
        The names of the options that the kernel takes, and of the arrays whose places it must be told.
    axes
        How many of the last axes are one row.
    mixed
        Whether the kernel reads parameters in any dtype, so that none is widened.
    most_rows
        Up to how many rows the kernel is faster than XLA; 0 if it always is.
    along
        Of a batched kernel, whether the first axis of each array counts rows.
    """

    operator: Operator[..., Any]
    handler: str
    names: tuple[str, ...]
    rows: int = 1
    batched: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    attributes: tuple[str, ...] = ()
    axes: int = 1
    mixed: bool = False
    most_rows: int = 0
    along: tuple[bool, ...] = ()

    def body(self, *arrays: Array) -> list[Array]:
        """Run the operator's own body and return its results as a list."""
        result = self.operator.compute(**dict(zip(self.names, arrays, strict=True)), **dict(self.options))
        return list(result) if isinstance(result, tuple) else [result]

    def numbers(self) -> dict[str, np.float64]:
        """Return what the kernel is told besides the arrays; a tuple gives a number for each element."""
        places = {name: place for place, name in enumerate(self.names) if place}
        found: dict[str, Any] = {"axes": self.axes} if self.axes > 1 else {}
        for name, value in {**dict(self.options), **places}.items():
            if name in self.attributes:
                found |= {f"{name}_{i}": v for i, v in enumerate(value)} if isinstance(value, tuple) else {name: value}
        return {name: np.float64(value) for name, value in found.items() if value is not None}


def register(
    operator: Operator[..., Any],
    *,
    handler: Callable[[dict[str, Any]], str] | None = None,
    attributes: tuple[str, ...] = (),
    refuse: Callable[[dict[str, Any]], str | None] | None = None,
    rows: Callable[[dict[str, Any]], int] | None = None,
    most_rows: Callable[[dict[str, Any]], int] | None = None,
    batched: bool = False,
    several_axes: bool = False,
    mixed: bool = False,
    correspond: Callable[..., RowAxes] | None = None,
    draw: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> None:
    """Register the kernel of an operator that declares how its calls may be split.

    Parameters
    ----------
    operator
        An operator on rows along the last axis and on parameters of those rows.
    handler
        Returns the handler's name for given arguments, if it is not the operator's name.
    attributes
        The options that the kernel takes, and the arrays whose places it must be told because others may be left out.
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
    mixed
        Whether the kernel reads parameters in any dtype; see `Call`.
    correspond
        Tells how axes correspond, if the operator does not declare it.
    draw
        Returns the arguments with numbers in place of a generator of them.
    """

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        found = prepare(operator.named(args, kwargs))
        return found if isinstance(found, str) else None

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        arguments = operator.named(args, kwargs)
        if draw is not None:
            if isinstance(prepare(arguments), str):  # before a number is drawn
                return NotImplemented
            arguments = draw(arguments)
        metadata = _metadata(arguments)
        found = known.get(metadata) or prepare(arguments)
        if isinstance(found, str):
            return NotImplemented
        if metadata is not None and len(known) < _MOST_KNOWN:
            known[metadata] = found
        results = _compiled(found)(*[arguments[name] for name in found.names])
        return tuple(results) if len(results) > 1 else results[0]

    known: dict[object, Call] = {}

    def prepare(arguments: dict[str, Any]) -> str | Call:
        declared = correspond(**arguments) if correspond else operator.rows(arguments)
        reason = refuse(arguments) if refuse else _refuse_rows(arguments, declared, several_axes)
        most = most_rows(arguments) if most_rows and not reason else 0
        if most and _row_count(arguments[next(iter(declared.arrays))]) > most:
            reason = f"there are more than {most} rows, which XLA computes as fast"
        if reason := reason or _unusable():
            return reason
        options = {
            name: value for name, value in arguments.items() if name not in declared.arrays and value is not None
        }
        axes = len(declared.whole) if several_axes else 1
        if "axis" in options:
            options["axis"] = tuple(range(-axes, 0)) if axes > 1 else -1
        name = handler(arguments) if handler else operator.__name__
        count = rows(arguments) if rows else declared.sharing
        names = tuple(declared.arrays)
        along = tuple(of[:1] == (0,) for of in declared.arrays.values()) if batched else ()
        options_of_call = tuple(options.items())
        return Call(operator, name, names, count, batched, options_of_call, attributes, axes, mixed, most, along)

    operator.kernel("jax_ffi", supports=supports, declines=True)(kernel)


def _metadata(arguments: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return everything a decision depends on, unless an array is traced: deciding takes as long as a call."""
    import jax

    found: list[Any] = []
    for value in arguments.values():
        if isinstance(value, jax.core.Tracer):
            return None
        found.append((value.aval, value.sharding) if isinstance(value, jax.Array) else value)
    return tuple(found)


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
    if isinstance(x, jax.core.Tracer):
        platform = jax.default_backend()
        return None if platform == "cpu" else f"{name} is traced, and the default platform is {platform}"
    devices = x.devices()
    if len(devices) > 1:
        return f"{name} is spread over {len(devices)} devices"
    (device,) = devices
    return None if device.platform == "cpu" else f"{name} is on {device.platform}"


@functools.cache
def _unusable() -> str:
    """Register the kernels with XLA, once; return why it does not accept them, or an empty string."""
    import jax

    from tensorops.kernels.cpu import _native

    try:
        for name, handler in _native.xla_handlers().items():
            jax.ffi.register_ffi_target(f"tensorops.{name}", handler, platform="cpu")
        _primitive()
    except Exception as error:  # another version of JAX or of XLA's interface
        return f"jax {jax.__version__} does not take the kernels: {error}"
    return ""


# --------------------------------------------------------------------------------------------- in JAX's terms


@functools.lru_cache(maxsize=1024)
def _compiled(call: Call) -> Callable[..., list[Array]]:
    import jax

    primitive = _primitive()
    return jax.jit(  # type: ignore[no-any-return]
        lambda *arrays: primitive.bind(*(arrays if call.mixed else _fitting(arrays, call.rows)), call=call), inline=True
    )


def _fitting(arrays: Sequence[Array], rows: int) -> Sequence[Array]:
    """Widen the parameters of rows to the dtype of the computation, unless the kernels read them as they are."""
    x, parameters = arrays[0], arrays[rows:]
    dtypes = {p.dtype for p in parameters}
    as_they_are = {x.dtype, np.dtype(np.float32)} if x.dtype.itemsize == 2 else {x.dtype}
    if len(dtypes) <= 1 and dtypes <= as_they_are:
        return arrays
    wide = np.float64 if x.dtype == np.float64 else np.float32
    return [*arrays[:rows], *(p.astype(wide) for p in parameters)]


@functools.cache
def _primitive() -> Any:
    """Return the primitive that all kernels share."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    primitive = Primitive("tensorops")
    primitive.multiple_results = True
    primitive.def_impl(_run_body)  # outside of a program, as under jax.disable_jit()
    primitive.def_abstract_eval(_abstract_results)
    ad.primitive_jvps[primitive] = _derivative
    batching.primitive_batchers[primitive] = _map
    mlir.register_lowering(primitive, mlir.lower_fun(_run_body, multiple_results=True))
    mlir.register_lowering(primitive, _lower_on_cpu, platform="cpu")
    return primitive


def _row_count(x: Array) -> int:
    return math.prod(x.shape[:-1])


def _run_body(*arrays: Array, call: Call) -> list[Array]:
    return call.body(*arrays)


def _abstract_results(*arrays: Any, call: Call) -> Any:
    import jax

    return jax.make_jaxpr(call.body)(*arrays).out_avals


def _lower_on_cpu(ctx: Any, *operands: Any, call: Call) -> Any:
    import jax
    from jax.interpreters import mlir

    if not _is_for_one_device_here(ctx.module_context):
        return mlir.lower_fun(_run_body, multiple_results=True)(ctx, *operands, call=call)
    return jax.ffi.ffi_lowering(f"tensorops.{call.handler}")(ctx, *operands, **call.numbers())


def _is_for_one_device_here(module: Any) -> bool:
    """Return whether a program may call the kernel, which exists only here and which XLA cannot split."""
    if getattr(module.lowering_parameters, "for_export", False) or len(module.platforms) != 1:
        return False
    axes = module.axis_context
    if hasattr(axes, "num_devices"):
        return bool(axes.num_devices == 1)
    mesh = getattr(axes, "mesh", None)  # with all axes manual, a program is also for one device
    return mesh is None or mesh.size == 1 or set(axes.manual_axes) == set(mesh.axis_names)


def _derivative(arrays: Sequence[Array], tangents: Sequence[Any], *, call: Call) -> Any:
    """Differentiate the body with respect to the arrays that have a tangent."""
    import jax
    from jax.interpreters import ad

    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def body(*moved: Array) -> list[Array]:
        every = dict(enumerate(arrays)) | dict(zip(moving, moved, strict=True))
        return call.body(*every.values())

    return jax.jvp(body, [arrays[i] for i in moving], [tangents[i] for i in moving])


def _map(arrays: Sequence[Array], axes: Sequence[int | None], *, call: Call) -> Any:
    """Map over an axis: this adds rows, unless arrays that apply to all rows are also mapped."""
    import jax

    size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)

    def mapped_body() -> Any:
        results = jax.vmap(call.body, tuple(axes))(*arrays)
        return results, [0] * len(results)

    along = call.along or tuple(i < call.rows for i in range(len(arrays)))
    if call.rows == 0 or any(axis is not None and not each for axis, each in zip(axes, along, strict=True)):
        return mapped_body()
    batch = next(n for i, n in enumerate(arrays[0].shape) if i != axes[0]) if call.batched else 0

    def longer(a: Array, axis: int | None) -> Array:
        a = jax.numpy.broadcast_to(a, (size, *a.shape)) if axis is None else jax.numpy.moveaxis(a, axis, 0)
        if not call.batched:
            return a
        a = jax.numpy.broadcast_to(a, (size, batch, *a.shape[2:]))  # a mask may have one element for all of the batch
        return jax.numpy.reshape(a, (size * batch, *a.shape[2:]))

    rows = [longer(*each) if is_along else each[0] for *each, is_along in zip(arrays, axes, along, strict=True)]
    if call.most_rows and _row_count(rows[0]) > call.most_rows:
        return mapped_body()
    results = _primitive().bind(*rows, call=call)
    if call.batched:
        results = [jax.numpy.reshape(y, (size, batch, *y.shape[1:])) for y in results]
    return results, [0] * len(results)
