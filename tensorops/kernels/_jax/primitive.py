"""How a kernel becomes part of a JAX trace, whatever the provider and the platform are.

All kernels share one JAX primitive, whose parameter holds the call's options. A provider says how it becomes part of
programs for its platform. Derivatives, and programs that cannot contain the kernel, use the operator's body, so all of
JAX's transformations work as they do without the kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tensorops import _providers
from tensorops._operator import Operator
from tensorops._row_axes import RowAxes
from tensorops._typing import Array
from tensorops.kernels._jax import partitioning

_MOST_KNOWN = 4096
"""How many decisions (by shape, dtype, device and options) are remembered per operator."""


@dataclass(frozen=True)
class Call:
    """A call without its arrays. JAX compiles once for each.

    Parameters
    ----------
    operator
        The operator.
    handler
        The kernel's name for its provider.
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
    provider
        Whose kernel was chosen.
    correspond
        Tells how axes correspond, if the operator does not declare it.
    placement
        How the arrays are spread over devices, if that is known.
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
    provider: str = ""
    correspond: Callable[..., RowAxes] | None = None
    placement: partitioning.Placement | None = None

    def body(self, *arrays: Array) -> list[Array]:
        """Run the operator's own body and return its results as a list."""
        result = self.operator.compute(**dict(zip(self.names, arrays, strict=True)), **dict(self.options))
        return list(result) if isinstance(result, tuple) else [result]

    def row_axes(self, *arrays: Array) -> RowAxes | None:
        """Return how the axes of these arrays correspond, if that is declared."""
        if not (self.correspond or self.operator.divides):
            return None
        arguments = self.operator.canonical(**dict(zip(self.names, arrays, strict=True)), **dict(self.options))
        return self.correspond(**arguments) if self.correspond else self.operator.rows(arguments)

    def numbers(self) -> dict[str, np.float64]:
        """Return what the kernel is told besides the arrays; a tuple gives a number for each element."""
        places = {name: place for place, name in enumerate(self.names) if place}
        found: dict[str, Any] = {"axes": self.axes} if self.axes > 1 else {}
        for name, value in {**dict(self.options), **places}.items():
            if name in self.attributes:
                found |= {f"{name}_{i}": v for i, v in enumerate(value)} if isinstance(value, tuple) else {name: value}
        return {name: np.float64(value) for name, value in found.items() if value is not None}


Rule: TypeAlias = Callable[..., Any]
"""Takes what `mlir.register_lowering` passes on; returns the results of the operation, or ``None`` for the body."""

_rules: dict[str, Rule] = {}


def lower_on(platform: str, rule: Rule) -> None:
    """Register how calls become part of programs for a platform, whichever provider was chosen for them.

    Providers do so when they are loaded. A program may be compiled on another machine than it runs on.
    """
    _rules[platform] = rule


def register(
    operator: Operator[..., Any],
    provider: str,
    prepare: Callable[[dict[str, Any]], str | Call],
    *,
    draw: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    in_place: Callable[[Call], Callable[..., list[Array]] | None] = lambda call: None,
) -> None:
    """Register a provider's kernel of an operator.

    Parameters
    ----------
    operator
        The operator.
    provider
        The provider's name.
    prepare
        Makes a call of canonical arguments, or says why the kernel does not support them.
    draw
        Returns the arguments with numbers in place of a generator of them.
    in_place
        Returns what computes a call instead of the primitive, if anything does.
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
        remembered = known.get(metadata)
        found = remembered or prepare(arguments)
        if isinstance(found, str):
            return NotImplemented
        compute = in_place(found)
        if compute is None and metadata is not None and remembered is None:
            placement = partitioning.placement_of([arguments[name] for name in found.names])
            found = replace(found, placement=placement)
            if len(known) < _MOST_KNOWN:
                known[metadata] = found
        results = (compute or _compiled(found))(*[arguments[name] for name in found.names])
        return tuple(results) if len(results) > 1 else results[0]

    known: dict[object, Call] = {}
    operator.kernel(provider, supports=supports, declines=True)(kernel)


def _metadata(arguments: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return everything a decision depends on, unless an array is traced: deciding takes as long as a call."""
    import jax

    found: list[Any] = []
    for value in arguments.values():
        if isinstance(value, jax.core.Tracer):
            return None
        found.append((value.aval, value.sharding) if isinstance(value, jax.Array) else value)
    return tuple(found)


def refuse_device(name: str, x: Array, wanted: str) -> str | None:
    """Return why an array is not in the memory of a platform's devices."""
    import jax

    if isinstance(x, jax.core.Tracer):
        platform = jax.default_backend()
        return None if platform == wanted else f"{name} is traced, and the default platform is {platform}"
    devices = x.devices()
    if len(devices) > 1 and not (isinstance(x.sharding, jax.sharding.NamedSharding) or partitioning.can_divide(wanted)):
        return f"{name} is spread over {len(devices)} devices"
    device = next(iter(devices))  # one sharding has devices of one platform
    return None if device.platform == wanted else f"{name} is on {device.platform}"


@functools.lru_cache(maxsize=1024)
def _compiled(call: Call) -> Callable[..., list[Array]]:
    import jax

    shared = primitive()
    return jax.jit(  # type: ignore[no-any-return]
        lambda *arrays: shared.bind(*(arrays if call.mixed else _fitting(arrays, call.rows)), call=call), inline=True
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
def primitive() -> Any:
    """Return the primitive that all kernels share."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    shared = Primitive("tensorops")
    shared.multiple_results = True
    shared.def_impl(_run_body)  # outside of a program, as under jax.disable_jit()
    shared.def_abstract_eval(_abstract_results)
    ad.primitive_jvps[shared] = _derivative
    batching.primitive_batchers[shared] = _map
    mlir.register_lowering(shared, mlir.lower_fun(_run_body, multiple_results=True))
    for provider in _providers.serving_library("jax"):
        _providers.load(provider)  # it has a rule for its platform
    for platform, rule in _rules.items():
        mlir.register_lowering(shared, functools.partial(_lower, rule), platform=platform)
    return shared


def row_count(x: Array) -> int:
    """Return how many rows along the last axis an array has."""
    return math.prod(x.shape[:-1])


def _run_body(*arrays: Array, call: Call) -> list[Array]:
    return call.body(*arrays)


def _abstract_results(*arrays: Any, call: Call) -> Any:
    import jax

    return partitioning.typed_results(call, arrays) or jax.make_jaxpr(call.body)(*arrays).out_avals


def _lower(rule: Rule, ctx: Any, *operands: Any, call: Call) -> Any:
    from jax.interpreters import mlir

    is_split = not _is_for_one_device(ctx.module_context)
    results = (partitioning.lower if is_split else rule)(ctx, *operands, call=call)
    if results is None:
        return mlir.lower_fun(_run_body, multiple_results=True)(ctx, *operands, call=call)
    return results


def _is_for_one_device(module: Any) -> bool:
    """Return whether a program may contain a kernel, which XLA cannot split over devices."""
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
    if call.most_rows and row_count(rows[0]) > call.most_rows:
        return mapped_body()
    results = primitive().bind(*rows, call=call)
    if call.batched:
        results = [jax.numpy.reshape(y, (size, batch, *y.shape[1:])) for y in results]
    return results, [0] * len(results)
