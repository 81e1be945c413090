"""How a call is divided in a program that XLA splits over devices: the kernel runs on each device's part of the rows.

XLA decides on shardings after a program is traced, so the program contains the body as well as a call that takes the
arrays and the body's results. Once the shardings are known, the call becomes the kernel on the parts of the arrays,
and XLA removes the body, which nothing uses. If an axis is split that the kernel needs whole, the call becomes the
body's results: XLA has split the body, with a sum over devices where it reduces that axis.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tensorops._row_axes import RowAxes
from tensorops._typing import Array

if TYPE_CHECKING:
    from tensorops.kernels._jax.primitive import Call

Shape: TypeAlias = tuple[int, ...]
Places: TypeAlias = np.ndarray[Any, Any]
"""Which part of an axis each device holds, counted from 0."""


def can_divide(platform: str) -> bool:
    """Return whether XLA can be told how to split a call.

    Its compiler for TPUs asks nobody (https://github.com/jax-ml/jax/issues/38196), and GSPMD would need other rules
    than Shardy.
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

    module = ctx.module_context
    exported = getattr(module.lowering_parameters, "for_export", False) or len(module.platforms) != 1
    is_for_some = hasattr(module.axis_context, "num_devices") and can_divide(module.platforms[0])
    if exported or call.statistics or not is_for_some:
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
    split.def_partition(partition, decode_shardings=False, sharding_rule=correspondence.rule())
    return list(split(*arrays, *results))


def _partition(
    call: Call, correspondence: Correspondence, mesh: Any, operands: Sequence[Any], results: Sequence[Any]
) -> Any:
    """Return the kernel on parts or the identity of the body's results, and the shardings for it."""
    from tensorops.kernels._jax.primitive import primitive

    count = len(call.names)
    arrays = [*operands[:count], *results]
    held = [_places(a.sharding, a.ndim) for a in arrays]
    if correspondence.unsuitable([tuple(int(p.max()) + 1 for p in places) for places in held[:count]]):
        given = [a.sharding for a in arrays]
        return mesh, lambda *parts: list(parts[count:]), given[count:], (*given[:count], *given[count:])

    wanted = correspondence.parts(held)
    shardings = [
        _sharding(a.sharding, places) for a, places in zip(arrays, correspondence.places(wanted, held), strict=True)
    ]
    unused = [a.sharding for a in operands[count:]]

    def kernel(*parts: Array) -> list[Array]:
        return list(primitive().bind(*parts[:count], call=call))

    return mesh, kernel, shardings[count:], (*shardings[:count], *unused)


class Correspondence(NamedTuple):
    """Which dimensions of arrays and results are divided together.

    Parameters
    ----------
    arrays
        How many of the shapes are those of arrays.
    shapes
        The shapes of the arrays, then those of the results.
    keys
        Equal for dimensions that are divided together, in each shape; ``None`` for one that is not divided, as it has
        one element for all of the axis.
    whole
        The keys of what is not divided.
    vectors
        The places of arrays that apply to all rows and are small: if they are split, they are gathered.
    """

    arrays: int
    shapes: list[Shape]
    keys: list[tuple[int | None, ...]]
    whole: frozenset[int]
    vectors: frozenset[int]

    @classmethod
    def of(cls, rows: RowAxes, shapes: list[Shape]) -> Correspondence:
        """Return what an operator declares of arrays, and of as many results as there are more shapes."""
        every = [*rows.arrays.values()] + [rows.result] * (len(shapes) - len(rows.arrays))
        lengths: dict[int, int] = {}
        for axes, shape in zip(rows.arrays.values(), shapes, strict=False):
            for axis, n in zip(axes, shape, strict=True):
                lengths[axis] = max(lengths.get(axis, 1), n)
        same = {axis: axis for axis in lengths}
        for group in rows.together:
            several = [axis for axis in group if lengths[axis] > 1]
            same |= dict.fromkeys(several, several[0]) if several else {}
        keys = [
            tuple(same[axis] if n == lengths[axis] else None for axis, n in zip(axes, shape, strict=True))
            for axes, shape in zip(every, shapes, strict=True)
        ]
        divided = {same[axis] for group in rows.together for axis in group}
        vectors = [i for i, name in enumerate(rows.arrays) if i >= rows.sharing and len(rows.arrays[name]) == 1]
        return cls(len(rows.arrays), shapes, keys, frozenset(rows.whole) - divided, frozenset(vectors))

    def rule(self) -> Any:
        """Return Shardy's rule for a call that takes the arrays and the results of the body."""
        from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule

        others = (f"own{i}" for i in itertools.count())
        shortest: dict[int | None, int] = {}
        for key, n in self._dimensions():
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
            for keys, shape in zip(self.keys, self.shapes, strict=True)
        ]
        return SdyShardingRule(tuple(found), tuple(found[self.arrays :]), **sizes)

    def _dimensions(self) -> list[tuple[int | None, int]]:
        return [
            pair for keys, shape in zip(self.keys, self.shapes, strict=True) for pair in zip(keys, shape, strict=True)
        ]

    def unsuitable(self, parts: Sequence[Shape]) -> tuple[int, int] | None:
        """Return which axis of which array the kernel cannot have in so many parts, if there is one."""
        for i, (keys, counts) in enumerate(zip(self.keys, parts, strict=False)):
            for axis, (key, count) in enumerate(zip(keys, counts, strict=True)):
                uneven = any(n % count for other, n in self._dimensions() if other == key)
                if count > 1 and i not in self.vectors and (key is None or key in self.whole or uneven):
                    return i, axis
        return None

    def parts(self, held: Sequence[Sequence[Places]]) -> dict[int, Places]:
        """Return how what can be divided is divided: as in the results, then as in the first array that is."""
        found: dict[int, Places] = {}
        for i in (*range(self.arrays, len(held)), *range(self.arrays)):
            for key, place in zip(self.keys[i], held[i], strict=True):
                if key is None or key in self.whole or key in found or i in self.vectors or not place.any():
                    continue
                if all(map(_is_tiling, self.places({**found, key: place}, held))):
                    found[key] = place
        return found

    def places(self, wanted: dict[int, Places], held: Sequence[Sequence[Places]]) -> list[list[Places]]:
        """Return where the parts of each array are."""
        everywhere = np.zeros_like(next(place for places in held for place in places))
        return [[everywhere if key is None else wanted.get(key, everywhere) for key in keys] for keys in self.keys]


# --------------------------------------------------------------------------------------------------- XLA's shardings


def _places(sharding: Any, ndim: int) -> list[Places]:
    """Return where the parts of each axis are."""
    found = sharding._to_xla_hlo_sharding(ndim)
    if found.is_replicated():
        return [np.zeros(sharding.num_devices, np.int64)] * ndim
    order = np.argsort(np.asarray(found.tile_assignment_devices()))
    return list(np.unravel_index(order, found.tile_assignment_dimensions())[:ndim])


def _any_devices(count: int) -> tuple[Any, ...]:
    """Return something that JAX takes for so many devices."""
    import jax

    return (jax.local_devices()[0],) * count


def _is_tiling(places: Sequence[Places]) -> bool:
    """Return whether equally many devices hold each combination of parts."""
    counts = [int(p.max()) + 1 for p in places]
    devices = np.bincount(np.ravel_multi_index(list(places), counts), minlength=math.prod(counts)) if places else [1]
    return len(set(devices)) == 1


def _sharding(like: Any, places: Sequence[Places]) -> Any:
    """Return the sharding with the parts of each axis at these places, over as many devices as another sharding."""
    from jax.extend import sharding

    wanted = sharding.get_op_sharding_from_serialized_proto(b"")
    counts = [int(p.max()) + 1 for p in places]
    if any(count > 1 for count in counts):
        same = like.num_devices // math.prod(counts)
        wanted.type = type(wanted).Type.OTHER
        wanted.tile_assignment_dimensions = [*counts, same] if same > 1 else counts
        wanted.tile_assignment_devices = np.lexsort(places[::-1]).tolist()
        wanted.replicate_on_last_tile_dim = same > 1
    return sharding.GSPMDSharding(_any_devices(like.num_devices), wanted)
