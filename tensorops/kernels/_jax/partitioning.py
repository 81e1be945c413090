"""How a call is divided in a program that XLA splits over devices: the kernel runs on each device's part of the rows.

If arrays or their types tell how they are split, the call becomes a `jax.shard_map`, or the body if an axis is split
that the kernel needs whole. Otherwise XLA decides after the program is traced, so the program contains the body as well
as a call that takes the arrays and the body's results. Once the shardings are known, the call becomes the kernel on the
parts of the arrays, and XLA removes the body, which nothing uses. If an axis is split that the kernel needs whole, the
call becomes the body's results: XLA has split the body, with a sum over devices where it reduces that axis.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorops._providers import GENERIC
from tensorops._row_axes import Correspondence, RowAxes, Split
from tensorops.libraries._jax_meshes import Placement, on_parts, specs_of_parts, typed_placement
from tensorops.typing import Array

if TYPE_CHECKING:
    from tensorops.kernels._jax.primitive import Call


def can_divide(platform: str) -> bool:
    """Return whether XLA can be told how to split a call.

    Its compiler for TPUs does not ask (https://github.com/jax-ml/jax/issues/38196): there, calls are split whose arrays
    or types say how. GSPMD would need other rules than Shardy.
    """
    import jax

    return platform == "cpu" and bool(getattr(jax.config, "jax_use_shardy_partitioner", True))


def refuse_split(rows: RowAxes, arguments: dict[str, Any]) -> str | None:
    """Return which axis the kernel cannot have split, if the arrays say so before a program is compiled."""
    import jax

    rows = rows._replace(arrays={name: a for name, a in rows.arrays.items() if isinstance(arguments[name], jax.Array)})
    arrays = [arguments[name] for name in rows.arrays]
    if all(isinstance(a, jax.core.Tracer) or len(a.devices()) == 1 for a in arrays):
        return None
    parts = [
        (1,) * a.ndim
        if isinstance(a, jax.core.Tracer) or 0 in a.shape
        else tuple(n // m for n, m in zip(a.shape, a.sharding.shard_shape(a.shape), strict=True))
        for a in arrays
    ]
    found = Correspondence.of(rows, [tuple(a.shape) for a in arrays]).unsuitable(parts)
    if found is None:
        return None
    i, axis = found
    counted = f"axis {axis - arrays[i].ndim} of {list(rows.arrays)[i]} is split over {parts[i][axis]} devices"
    return f"{counted}: XLA splits the body"


def lower(ctx: Any, *operands: Any, call: Call) -> Any:
    """Return the results of a call in a program for several devices, or ``None`` for the body."""
    from jax.interpreters import mlir

    if call.statistics:  # for kernels of derivatives, which have no rule here
        return None
    module = ctx.module_context
    if placement := _of_context(call.placement) or typed_placement(ctx.avals_in):
        mapped = functools.partial(_mapped, call, placement, ctx.avals_out)
        return mlir.lower_fun(mapped, multiple_results=True)(ctx, *operands)
    exported = getattr(module.lowering_parameters, "for_export", False) or len(module.platforms) != 1
    is_for_some = hasattr(module.axis_context, "num_devices") and can_divide(module.platforms[0])
    if exported or not is_for_some or call.provider == GENERIC:
        return None
    # JAX does not say which devices it lowers for, and may use the program for several sets of them. Shardings that
    # count devices are enough.
    axes = dataclasses.replace(module.axis_context, device_assignment=_any_devices(module.axis_context.num_devices))
    ctx = ctx.replace(module_context=module.replace(axis_context=axes))
    return mlir.lower_fun(functools.partial(_divided, call), multiple_results=True)(ctx, *operands)


def _divided(call: Call, *arrays: Array) -> list[Array]:
    """Return the results of the body, or what XLA replaces by the kernel on each part."""
    from jax.experimental.custom_partitioning import custom_partitioning

    results = call.body(*arrays)
    rows = call.row_axes(*arrays)
    shapes = [tuple(a.shape) for a in (*arrays, *results)]
    if rows is None or any(0 in shape for shape in shapes):
        return results
    correspondence = Correspondence.of(rows, shapes)
    split = custom_partitioning(lambda *operands: list(operands[len(arrays) :]))
    partition = functools.partial(_partition, call, correspondence)
    split.def_partition(partition, decode_shardings=False, sharding_rule=_rule(correspondence))
    return list(split(*arrays, *results))


def _partition(
    call: Call, correspondence: Correspondence, mesh: Any, operands: Sequence[Any], results: Sequence[Any]
) -> Any:
    """Return the kernel on parts or the identity of the body's results, and the shardings for it."""
    count = len(call.names)
    arrays = [*operands[:count], *results]
    held = [_places(a.sharding, a.ndim) for a in arrays]
    if correspondence.unsuitable([tuple(max(place) + 1 for place in places) for places in held]):
        given = [a.sharding for a in arrays]
        return mesh, lambda *parts: list(parts[count:]), given[count:], (*given[:count], *given[count:])

    devices = operands[0].sharding.num_devices
    shardings = [_sharding(places, devices) for places in correspondence.split(held, _is_tiling, (0,) * devices)]
    unused = [a.sharding for a in operands[count:]]

    def kernel(*parts: Array) -> list[Array]:
        return call.bind(*parts[:count])

    return mesh, kernel, shardings[count:], (*shardings[:count], *unused)


def _rule(of: Correspondence) -> Any:
    """Return Shardy's rule for a call that takes the arrays and the results of the body."""
    from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule

    others = (f"own{i}" for i in itertools.count())
    shortest: dict[int | None, int] = {}
    for key, n in of.dimensions():
        shortest[key] = min(shortest.get(key, n), n)
    sizes: dict[str, int] = {}

    def factor(key: int | None, n: int) -> Any:
        if key is None:
            return next(others)
        if n == shortest[key]:
            return f"axis{key}"
        sizes[f"axis{key}of{n}"] = n // shortest[key]
        return CompoundFactor(f"axis{key}", f"axis{key}of{n}")

    found = [
        ArrayMapping(*(factor(key, n) for key, n in zip(keys, shape, strict=True)))
        for keys, shape in zip(of.keys, of.shapes, strict=True)
    ]
    return SdyShardingRule(tuple(found), tuple(found[of.arrays :]), **sizes)


# ------------------------------------------------------------------------------------ shardings that are known before


def placement_of(arrays: Sequence[Array]) -> Placement | None:
    """Return how arrays that are not traced are split, if they are over one mesh."""
    import jax

    spread = [a.sharding for a in arrays if len(a.devices()) > 1]
    if not spread or not all(isinstance(sharding, jax.sharding.NamedSharding) for sharding in spread):
        return None
    if len({sharding.mesh for sharding in spread}) > 1:
        return None
    return spread[0].mesh, tuple(getattr(a.sharding, "spec", ()) for a in arrays)


def _of_context(placement: Placement | None) -> Placement | None:
    """Return a placement unless `jax.set_mesh` has set another mesh, which `jax.shard_map` would not allow."""
    import jax

    context = jax.sharding.get_abstract_mesh()
    return placement if placement and (context.empty or context == placement[0].abstract_mesh) else None


def _mapped(call: Call, placement: Placement, results: Sequence[Any], *arrays: Array) -> list[Array]:
    """Return the results of the kernel on parts that are known, or of the body."""
    specs = specs_of_parts(call.row_axes(*arrays), placement, arrays, [tuple(y.shape) for y in results])
    if specs is None:
        return call.body(*arrays)

    def kernel(*parts: Array) -> list[Array]:
        return dataclasses.replace(call, placement=None).bind(*parts)

    return list(on_parts(kernel, placement[0], specs[: len(arrays)], specs[len(arrays) :], arrays))


# --------------------------------------------------------------------------------------------------- XLA's shardings


def _places(sharding: Any, ndim: int) -> list[Split]:
    """Return which part of each axis every device holds."""
    found = sharding._to_xla_hlo_sharding(ndim)
    if not found.is_tiled():
        return [(0,) * sharding.num_devices] * ndim
    order = np.argsort(np.asarray(found.tile_assignment_devices()))
    places = np.unravel_index(order, found.tile_assignment_dimensions())
    return [tuple(place.tolist()) for place in places[:ndim]]


def _any_devices(count: int) -> tuple[Any, ...]:
    """Return something that JAX takes for that many devices."""
    import jax

    return (jax.local_devices()[0],) * count


def _is_tiling(places: Sequence[Split]) -> bool:
    """Return whether the same number of devices holds each combination of parts."""
    combinations = Counter(zip(*places, strict=True))
    complete = len(combinations) == math.prod(max(place) + 1 for place in places)
    return not places or (complete and len(set(combinations.values())) == 1)


def _sharding(places: Sequence[Split], devices: int) -> Any:
    """Return the sharding over that many devices with the parts of each axis at these places."""
    from jax.extend import sharding

    wanted = sharding.get_op_sharding_from_serialized_proto(b"")
    counts = [max(place) + 1 for place in places]
    if any(count > 1 for count in counts):
        same = devices // math.prod(counts)
        wanted.type = type(wanted).Type.OTHER
        wanted.tile_assignment_dimensions = [*counts, same] if same > 1 else counts
        wanted.tile_assignment_devices = np.lexsort(places[::-1]).tolist()
        wanted.replicate_on_last_tile_dim = same > 1
    return sharding.GSPMDSharding(_any_devices(devices), wanted)
