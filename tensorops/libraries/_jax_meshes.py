"""Bodies on JAX arrays whose types say how they are split over the devices of a mesh (`AxisType.Explicit`).

On such arrays JAX derives how each intermediate result is split, and refuses what it cannot derive, such as many
gathers, sorts and reshapes, and their derivatives. A body therefore runs where nothing is to be derived: on each
device's part if the operator computes parts from parts, else with the axes of the mesh left to XLA. Either way, how the
results are split follows from the operator's row axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tensorops._row_axes import Correspondence, RowAxes, Split
from tensorops.typing import Array

Placement: TypeAlias = tuple[Any, tuple[Any, ...]]
"""A mesh, and for each array a `PartitionSpec`."""


def over_parts(
    function: Callable[[dict[str, Any]], Any], arguments: dict[str, Any], rows: Callable[..., RowAxes | None] | None
) -> Any:
    """Return ``function(arguments)``, computed in parts if types of arrays say that they are split.

    Parameters
    ----------
    function
        Computes an array or a tuple of arrays from arguments by name.
    arguments
        All arguments.
    rows
        Takes the arguments by name, and tells how the axes of their arrays correspond, if that is declared.
    """
    import jax

    names, arrays = zip(*((name, a) for name, a in arguments.items() if isinstance(a, jax.Array)), strict=True)
    types = [jax.typeof(a) for a in arrays]
    if not any(map(_is_split, types)):
        return function(arguments)
    declared = None if rows is None else rows(**arguments)
    if declared is not None and tuple(declared.arrays) != names:
        declared = None  # it knows of something else than arrays

    def of_arrays(*given: Array) -> Any:
        return function({**arguments, **dict(zip(names, given, strict=True))})

    placement = typed_placement(types)
    if placement is not None and declared is not None:
        shapes = declared.result_shapes([a.shape for a in arrays])
        if specs := specs_of_parts(declared, placement, arrays, shapes):
            inputs, outputs = specs[: len(arrays)], specs[len(arrays) :]
            places = tuple(outputs) if len(outputs) > 1 else outputs[0]
            return on_parts(of_arrays, placement[0], inputs, places, arrays)
    return _left_to_xla(of_arrays, arrays, types, declared)


def typed_placement(types: Sequence[Any]) -> Placement | None:
    """Return how types say that arrays are split, if they say it of all axes of one mesh."""
    import jax

    meshes = {a.sharding.mesh for a in types if not a.sharding.mesh.empty}
    mesh = meshes.pop() if len(meshes) == 1 else None
    if mesh is None or set(mesh.axis_types) != {jax.sharding.AxisType.Explicit}:
        return None
    return mesh, tuple(a.sharding.spec for a in types)


def _is_split(kind: Any) -> bool:
    """Return whether a type says that an array is split."""
    import jax

    explicit = not kind.sharding.mesh.empty and jax.sharding.AxisType.Explicit in kind.sharding.mesh.axis_types
    return explicit and any(part is not None for part in kind.sharding.spec)


def specs_of_parts(
    rows: RowAxes | None, placement: Placement, arrays: Sequence[Any], results: Sequence[tuple[int, ...]]
) -> list[Any] | None:
    """Return how to split arrays, and results of these shapes, or ``None`` if parts cannot be computed from parts."""
    if rows is None or any(0 in a.shape for a in arrays):
        return None
    mesh, own = placement
    held = _axes_held(own, arrays)
    parts = [tuple(math.prod(mesh.shape[name] for name in names) for names in own) for own in held]
    correspondence = Correspondence.of(rows, [*(tuple(a.shape) for a in arrays), *results])
    return None if correspondence.unsuitable(parts) else _specs(correspondence, held)


def on_parts(
    function: Callable[..., Any], mesh: Any, inputs: Sequence[Any], outputs: Any, arrays: Sequence[Array]
) -> Any:
    """Return what a function computes from each device's part of arrays."""
    import jax

    if typed_placement([jax.typeof(a) for a in arrays]):
        shardings = [jax.sharding.NamedSharding(mesh, spec) for spec in inputs]
        arrays = tuple(jax.sharding.reshard(a, sharding) for a, sharding in zip(arrays, shardings, strict=True))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=tuple(inputs), out_specs=outputs, check_vma=False)
    return mapped(*arrays)


def _left_to_xla(
    function: Callable[..., Any], arrays: Sequence[Array], types: Sequence[Any], rows: RowAxes | None
) -> Any:
    """Return what a function computes if XLA may choose how everything but the results is split."""
    import jax

    mesh = next(kind.sharding.mesh for kind in types if _is_split(kind))
    automatic = mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, jax.sharding.AxisType.Auto))
    with jax.sharding.use_abstract_mesh(automatic):
        untold = [jax.sharding.PartitionSpec(*[None] * a.ndim) for a in arrays]
        results = function(*map(jax.sharding.reshard, arrays, untold))
    leaves, structure = jax.tree.flatten(results)
    held = _axes_held([kind.sharding.spec for kind in types], arrays)
    if rows is None:
        specs = [_leading(held[0], arrays[0].shape, y.shape) for y in leaves]
    else:
        correspondence = Correspondence.of(rows, [tuple(a.shape) for a in (*arrays, *leaves)])
        specs = _specs(correspondence._replace(whole=frozenset()), held)[len(arrays) :]
    shardings = [jax.sharding.NamedSharding(mesh, spec) for spec in specs]
    return structure.unflatten(map(jax.sharding.reshard, leaves, shardings))


def _axes_held(specs: Sequence[Any], arrays: Sequence[Any]) -> list[list[Split]]:
    """Return over which axes of the mesh each axis of arrays is split."""
    return [[*map(_names, spec), *[()] * (a.ndim - len(spec))] for a, spec in zip(arrays, specs, strict=True)]


def _specs(correspondence: Correspondence, held: list[list[Split]]) -> list[Any]:
    """Return a `PartitionSpec` for each array and for each result, of which nothing is known."""
    import jax

    held = held + [[()] * len(shape) for shape in correspondence.shapes[len(held) :]]
    return [
        jax.sharding.PartitionSpec(*(names or None for names in own))
        for own in correspondence.split(held, _are_distinct, ())
    ]


def _leading(held: Sequence[Split], shape: Sequence[int], of_result: Sequence[int]) -> Any:
    """Return a `PartitionSpec` for a result whose first axes, as far as they are as long, are those of an array."""
    import jax

    same = [n == m for n, m in zip(shape, of_result, strict=False)]
    count = same.index(False) if False in same else len(same)
    names = [*(part or None for part in held[:count]), *[None] * (len(of_result) - count)]
    return jax.sharding.PartitionSpec(*names)


def _are_distinct(own: Sequence[Split]) -> bool:
    """Return whether each axis of a mesh splits one axis of an array."""
    names = [name for part in own for name in part]
    return len(set(names)) == len(names)


def _names(part: Any) -> Split:
    """Return the axes of a mesh that one entry of a `PartitionSpec` names."""
    return () if part is None else (part,) if isinstance(part, str) else tuple(part)
