"""How a kernel becomes part of a JAX trace, whatever the provider and the platform are.

All kernels share one JAX primitive, whose parameter holds the call's options. A provider says how it becomes part of
programs for its platform. Derivatives, and programs that cannot contain the kernel, use the operator's body, so all of
JAX's transformations work as they do without the kernel.

A provider may also have kernels for derivatives in reverse mode. `jax.custom_vjp` would lose forward mode, so the
derivative of such a call is a second primitive, the linear map from the tangents of its arrays to those of its results.
Where that is evaluated, as in forward mode, it is the derivative of the body. Where JAX transposes it, as in reverse
mode, it becomes a third primitive, which is lowered to a kernel, or to the derivative of the body where there is none.
Both are linear in their last operands; every further derivative is that of the body. Calls of other providers do not
pay for this: the derivative of a body shares its intermediate results with the call.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tensorops import _providers
from tensorops._kernel import BY_BODY, Configuration
from tensorops._operator import Operator
from tensorops._row_axes import RowAxes
from tensorops.kernels._jax import partitioning
from tensorops.libraries._jax_meshes import Placement, over_parts
from tensorops.typing import Array

_MOST_KNOWN = 4096
"""How many decisions (by shape, dtype, device and options) are remembered per operator."""


@dataclass(frozen=True)
class Reverse:
    """Inputs of kernels for derivatives in reverse mode, besides the arrays and the cotangents of the results.

    Parameters
    ----------
    results
        The places of the results that are kept for them.
    statistics
        What else is kept: the kernel of a call whose `Call.statistics` are these has an array for each of them after
        its results. Each is a function that takes what the operator's body takes, and computes the same array where
        the call gets no kernel: a program for a derivative may have another one than the program of the call.
    """

    results: tuple[int, ...] = ()
    statistics: tuple[Callable[..., Array], ...] = ()


@dataclass(frozen=True)
class Call:
    """A call without its arrays. JAX compiles once for each.

    Parameters
    ----------
    operator
        The operator.
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
    most_rows
        Up to how many rows the kernel is faster than XLA; 0 if it always is.
    along
        Of a batched kernel, whether the first axis of each array counts rows.
    provider
        Whose kernel was chosen.
    reverse
        What is kept for derivatives in reverse mode, if the provider has kernels for these. All results are then
        floating point.
    statistics
        Each computes a further result; see `Reverse`.
    correspond
        Tells how axes correspond, if the operator does not declare it.
    tuned
        Values that override what the kernel chooses; see `tensorops.tune`.
    placement
        How the arrays are spread over devices, if that is known.
    """

    operator: Operator[..., Any]
    names: tuple[str, ...]
    rows: int = 1
    batched: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    most_rows: int = 0
    along: tuple[bool, ...] = ()
    provider: str = ""
    reverse: Reverse | None = None
    statistics: tuple[Callable[..., Array], ...] = ()
    correspond: Callable[..., RowAxes] | None = None
    tuned: tuple[tuple[str, int], ...] = ()
    placement: Placement | None = None

    def body(self, *arrays: Array) -> list[Array]:
        """Run the operator's own body and return its results as a list."""
        import jax

        def compute(arguments: dict[str, Any]) -> tuple[Array, ...]:
            result = self.operator.compute(**arguments)
            results = result if isinstance(result, tuple) else (result,)
            return *results, *(statistic(**arguments) for statistic in self.statistics)

        def rows(**arguments: Any) -> RowAxes | None:
            return None if self.statistics else self.row_axes(*(arguments[name] for name in self.names))

        arrays = tuple(jax.numpy.asarray(a) for a in arrays)  # constants of a program can be NumPy's
        return list(over_parts(compute, {**dict(zip(self.names, arrays, strict=True)), **dict(self.options)}, rows))

    def bind(self, *arrays: Array) -> list[Array]:
        """Return the results of the primitive, which a provider computes when the program is compiled."""
        return list(primitive().bind(*arrays, call=self))

    def along_rows(self) -> tuple[bool, ...]:
        """Return of each array whether a mapped axis is added to it, rather than being the same for every row."""
        return self.along or tuple(i < self.rows for i in range(len(self.names)))

    def row_axes(self, *arrays: Array) -> RowAxes | None:
        """Return how the axes of these arrays correspond, if that is declared."""
        if not (self.correspond or self.operator.divides):
            return None
        arguments = self.operator.canonical(**dict(zip(self.names, arrays, strict=True)), **dict(self.options))
        return self.correspond(**arguments) if self.correspond else self.operator.rows(arguments)


Rule: TypeAlias = Callable[..., Any]
"""Takes what `mlir.register_lowering` passes on; returns the results of the operation, or ``None`` for the body."""


_rules: dict[str, Rule] = {}
_reverse_rules: dict[str, Rule] = {}


def lower_on(platform: str, rule: Rule, *, reverse: Rule | None = None) -> None:
    """Register how calls become part of programs for a platform, whichever provider was chosen for them.

    Providers do so when they are loaded. A program may be compiled on another machine than it runs on.

    Parameters
    ----------
    platform
        The platform.
    rule
        Takes the arrays of a call.
    reverse
        Takes the arrays of a call that has a `Call.reverse`, what is kept for it, and the cotangents of the results;
        also `moving`, the places of the arrays whose cotangents are wanted.
    """
    _rules[platform] = rule
    if reverse is not None:
        _reverse_rules[platform] = reverse


_target: ContextVar[str] = ContextVar("tensorops_jax_target", default="")


@contextlib.contextmanager
def compiling_for(platform: str) -> Iterator[None]:
    """Let what is traced be part of programs for a platform, which this machine need not have."""
    token = _target.set(platform)
    try:
        yield
    finally:
        _target.reset(token)


def register(
    operator: Operator[..., Any],
    provider: str,
    prepare: Callable[[dict[str, Any]], str | Call],
    *,
    draw: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    in_place: Callable[[Call], Callable[..., list[Array]] | None] = lambda call: None,
    configuration: Configuration | None = None,
    elsewhere: Callable[[dict[str, Any]], str | Call] | None = None,
    derivative: str = BY_BODY,
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
    configuration
        What the kernel chooses, if `tensorops.tune` may override it.
    elsewhere
        Makes a call of arguments for a program whose platform is not known yet, if `prepare` refuses them as this
        machine has none: it is the body but where `lower_on` has a rule for the platform.
    derivative
        What computes gradients in reverse mode.
    """

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        found = prepare(operator.named(args, kwargs))
        return found if isinstance(found, str) else None

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tuned = tuple((name, kwargs.pop(name)) for name in parameters if name in kwargs) if parameters else ()
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
        call = replace(found, tuned=tuned) if tuned else found
        compute = in_place(call)
        if compute is None and metadata is not None and remembered is None:
            found = replace(found, placement=partitioning.placement_of([arguments[name] for name in found.names]))
            call = replace(found, tuned=tuned) if tuned else found
            if len(known) < _MOST_KNOWN:
                known[metadata] = found
        results = (compute or _compiled(call))(*[arguments[name] for name in found.names])
        return tuple(results) if len(results) > 1 else results[0]

    known: dict[object, Call] = {}
    parameters = configuration.parameters if configuration else ()
    operator.kernel(
        provider,
        supports=supports,
        declines=True,
        configuration=configuration,
        elsewhere=None if elsewhere is None else functools.partial(_traced_elsewhere, operator, elsewhere),
        derivative=derivative,
    )(kernel)


def _traced_elsewhere(
    operator: Operator[..., Any], prepare: Callable[..., str | Call], *args: Any, **kwargs: Any
) -> Any:
    """Return what becomes a kernel or the body when a program is compiled; ``NotImplemented`` outside of programs."""
    import jax

    arguments = operator.named(args, kwargs)
    if _target.get() or not any(isinstance(value, jax.core.Tracer) for value in arguments.values()):
        return NotImplemented
    call = prepare(arguments)
    if isinstance(call, str):
        return NotImplemented
    results = _compiled(call)(*[arguments[name] for name in call.names])
    return tuple(results) if len(results) > 1 else results[0]


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

    target = _target.get()
    if isinstance(x, jax.core.Tracer):
        platform = target or jax.default_backend()
        kind = "target" if target else "default platform"
        return None if platform == wanted else f"{name} is traced, and the {kind} is {platform}"
    if target == wanted:  # next to traced arrays, others are constants of the program
        return None
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
        lambda *arrays: shared.bind(*arrays, call=call), inline=True
    )


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


def _abstract(compute: Callable[..., Any], *arrays: Any, **parameters: Any) -> Any:
    import jax

    return jax.make_jaxpr(functools.partial(compute, **parameters))(*arrays).out_avals


def _abstract_results(*arrays: Any, call: Call) -> Any:
    return _abstract(_run_body, *arrays, call=call)


def _lower(rule: Rule, ctx: Any, *operands: Any, body: Callable[..., Any] = _run_body, **parameters: Any) -> Any:
    from jax.interpreters import mlir

    if _is_for_one_device(ctx.module_context):
        results = rule(ctx, *operands, **parameters)
    else:
        results = partitioning.lower(ctx, *operands, **parameters) if body is _run_body else None
    if results is None:
        return mlir.lower_fun(body, multiple_results=True)(ctx, *operands, **parameters)
    return results


def _is_for_one_device(module: Any) -> bool:
    """Return whether a program may contain a kernel, which XLA cannot split over devices."""
    axes = module.axis_context
    if hasattr(axes, "num_devices"):
        return bool(axes.num_devices == 1)
    mesh = getattr(axes, "mesh", None)  # with all axes manual, a program is also for one device
    return mesh is None or mesh.size == 1 or set(axes.manual_axes) == set(mesh.axis_names)


# ---------------------------------------------------------------------------------------------- derivatives


def _derivative(arrays: Sequence[Array], tangents: Sequence[Any], *, call: Call) -> Any:
    from jax.interpreters import ad

    reverse = call.reverse
    if reverse is None:
        return _derivative_of(functools.partial(_run_body, call=call), arrays, tangents)
    moving = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    every = _varying_alike([*arrays, *(tangents[i] for i in moving)])
    arrays, moved = every[: len(arrays)], every[len(arrays) :]
    found = primitive().bind(*arrays, call=replace(call, reverse=None, statistics=reverse.statistics))
    results = found[: len(found) - len(reverse.statistics)]
    kept = [*(results[i] for i in reverse.results), *found[len(results) :]]
    return results, linear_primitives()[0].bind(*arrays, *kept, *moved, call=call, moving=moving)


def _derivative_of(function: Callable[..., Any], values: Sequence[Array], tangents: Sequence[Any]) -> Any:
    """Differentiate a function with respect to the arrays that have a tangent."""
    import jax
    from jax.interpreters import ad

    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    moved = [values[i] for i in moving]
    return jax.jvp(_of_moving(function, values, moving), moved, [tangents[i] for i in moving])


def _of_moving(function: Callable[..., Any], values: Sequence[Array], moving: Sequence[int]) -> Callable[..., Any]:
    """Return the function of the arrays in some places, the others being these."""
    return lambda *moved: function(*(dict(enumerate(values)) | dict(zip(moving, moved, strict=True))).values())


def _varying_alike(arrays: Sequence[Array]) -> list[Array]:
    """Let arrays vary over the same axes of a mesh under `jax.shard_map`.

    Of an array that is the same in all shards, the cotangent is a sum over them: it is then not part of the derivative.
    """
    import jax

    def varies(a: Array) -> frozenset[str]:
        kind = jax.typeof(a)
        kind = getattr(kind, "mat", kind)
        return frozenset(getattr(kind, "varying", ()) or getattr(kind, "vma", ()))

    every = frozenset().union(*map(varies, arrays))
    cast = getattr(jax.lax, "pcast", None)
    cast = functools.partial(cast, to="varying") if cast else jax.lax.pvary
    return [cast(a, missing) if (missing := tuple(every - varies(a))) else a for a in arrays]


@functools.cache
def linear_primitives() -> tuple[Any, Any]:
    """Return the primitives of the derivative of calls: from tangents to tangents, from cotangents to cotangents.

    The operands of both are the arrays of the call, what is kept of it, and those that they are linear in: for the
    first, the tangents of the arrays in the places `moving`, for the second, the cotangents of the results. They are
    each other's transpose.
    """
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    forward, reverse = Primitive("tensorops_tangents"), Primitive("tensorops_cotangents")
    for linear, compute, map_ in ((forward, _tangents, _map_body), (reverse, _cotangents, _map_cotangents)):
        linear.multiple_results = True
        linear.def_impl(compute)
        linear.def_abstract_eval(functools.partial(_abstract, compute))
        ad.primitive_jvps[linear] = functools.partial(_derivative_of_linear, linear, compute)
        batching.primitive_batchers[linear] = functools.partial(map_, compute)
        mlir.register_lowering(linear, mlir.lower_fun(compute, multiple_results=True))
    ad.primitive_transposes[forward] = functools.partial(_transpose, reverse)
    ad.primitive_transposes[reverse] = functools.partial(_transpose, forward)
    for platform, rule in _reverse_rules.items():
        lower = functools.partial(_lower, rule, body=_cotangents)
        mlir.register_lowering(reverse, lower, platform=platform)
    return forward, reverse


def _first_linear(call: Call) -> int:
    """Return how many operands of the linear primitives come before those in which they are linear."""
    assert call.reverse is not None
    return len(call.names) + len(call.reverse.results) + len(call.reverse.statistics)


def _tangents(*operands: Array, call: Call, moving: tuple[int, ...]) -> list[Array]:
    """Return the tangents of the results of the body."""
    import jax

    arrays, moved = operands[: len(call.names)], operands[_first_linear(call) :]
    body = _of_moving(functools.partial(_run_body, call=call), arrays, moving)
    return jax.jvp(body, [arrays[i] for i in moving], list(moved))[1]  # type: ignore[no-any-return]


def _cotangents(*operands: Array, call: Call, moving: tuple[int, ...]) -> list[Array]:
    """Return the cotangents of the arrays that move, by the body."""
    import jax

    arrays, cotangents = operands[: len(call.names)], operands[_first_linear(call) :]
    body = _of_moving(functools.partial(_run_body, call=call), arrays, moving)
    return list(jax.vjp(body, *(arrays[i] for i in moving))[1](list(cotangents)))


def _transpose(other: Any, cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> list[Any]:
    from jax.interpreters import ad

    linear = _first_linear(parameters["call"])
    found = other.bind(*operands[:linear], *map(ad.instantiate_zeros, cotangents), **parameters)
    wanted = [y if ad.is_undefined_primal(x) else None for x, y in zip(operands[linear:], found, strict=True)]
    return [*[None] * linear, *wanted]


def _derivative_of_linear(
    primitive: Any, compute: Callable[..., Any], values: Sequence[Array], tangents: Sequence[Any], **parameters: Any
) -> Any:
    from jax.interpreters import ad

    linear = _first_linear(parameters["call"])
    if any(type(t) is not ad.Zero for t in tangents[:linear]):
        return _derivative_of(functools.partial(compute, **parameters), values, tangents)
    moved = map(ad.instantiate_zeros, tangents[linear:])
    return primitive.bind(*values, **parameters), primitive.bind(*values[:linear], *moved, **parameters)


# --------------------------------------------------------------------------------------------------- mapping


def _map(arrays: Sequence[Array], axes: Sequence[int | None], *, call: Call) -> Any:
    """Map over an axis: this adds rows, unless arrays that apply to all rows are also mapped."""
    along = call.along_rows()
    if call.rows == 0 or any(axis is not None and not each for axis, each in zip(axes, along, strict=True)):
        return _map_body(_run_body, arrays, axes, call=call)
    rows, shorter = _with_more_rows(call, arrays, axes, along)
    if call.most_rows and row_count(rows[0]) > call.most_rows:
        return _map_body(_run_body, arrays, axes, call=call)
    return shorter(primitive().bind(*rows, call=call))


def _map_body(
    compute: Callable[..., Any], arrays: Sequence[Array], axes: Sequence[int | None], **parameters: Any
) -> Any:
    import jax

    results = jax.vmap(functools.partial(compute, **parameters), tuple(axes))(*arrays)
    return results, [0] * len(results)


def _map_cotangents(
    compute: Callable[..., Any], operands: Sequence[Array], axes: Sequence[int | None], **parameters: Any
) -> Any:
    """Map over an axis: this adds rows, unless a cotangent is that of an array that applies to all rows."""
    call: Call = parameters["call"]
    along = (*call.along_rows(), *[True] * (len(operands) - len(call.names)))
    mapped_otherwise = any(axis is not None and not each for axis, each in zip(axes, along, strict=True))
    if call.rows == 0 or mapped_otherwise or not all(along[i] for i in parameters["moving"]):
        return _map_body(compute, operands, axes, **parameters)
    rows, shorter = _with_more_rows(call, operands, axes, along)
    return shorter(linear_primitives()[1].bind(*rows, **parameters))


def _with_more_rows(
    call: Call, arrays: Sequence[Array], axes: Sequence[int | None], along: Sequence[bool]
) -> tuple[list[Array], Callable[[Sequence[Array]], Any]]:
    """Add a mapped axis to the arrays that have rows; also return what makes mapped results of results."""
    import jax

    size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)
    batch = next(n for i, n in enumerate(arrays[0].shape) if i != axes[0]) if call.batched else 0

    def longer(a: Array, axis: int | None) -> Array:
        a = jax.numpy.broadcast_to(a, (size, *a.shape)) if axis is None else jax.numpy.moveaxis(a, axis, 0)
        if not call.batched:
            return a
        a = jax.numpy.broadcast_to(a, (size, batch, *a.shape[2:]))  # a mask may have one element for all of the batch
        return jax.numpy.reshape(a, (size * batch, *a.shape[2:]))

    def shorter(results: Sequence[Array]) -> tuple[Sequence[Array], list[int]]:
        if call.batched:
            results = [jax.numpy.reshape(y, (size, batch, *y.shape[1:])) for y in results]
        return results, [0] * len(results)

    return [
        longer(*each) if is_along else each[0] for *each, is_along in zip(arrays, axes, along, strict=True)
    ], shorter
