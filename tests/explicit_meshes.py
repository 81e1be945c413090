"""Every operator on JAX arrays whose types say how they are split: on meshes with explicit axes, JAX's default.

A program, as JAX learns the number of devices when it starts. It takes operators by name, and prints a line of JSON for
each way in which arrays of their cases can be split over devices, with the error or an empty string:

    XLA_FLAGS=--xla_force_host_platform_device_count=7 python tests/explicit_meshes.py [--few] [operator …]
"""

from __future__ import annotations

# ruff: noqa: T201
import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from differentiable import ALL, DIFFERENTIABLE
from tensorops._operator import OPERATORS
from tensorops._trees import map_arrays
from tensorops.backends import set_backend
from tensorops.backends.registry import BACKENDS
from tensorops.kernels.cpu.rows import rows_of
from tensorops.testing import CASES, REFERENCES, assert_matches
from tensorops.testing._libraries import arrays_in, there
from tensorops.testing.entries import cast

DEVICES = 7
"""So that an axis with 2, 3, 4, 5, 6 or 7 elements can be split."""


class Way(NamedTuple):
    """A call, and how its arrays are split.

    Parameters
    ----------
    label
        What it is called in messages.
    call
        The label of the call, which is the same for all ways to split its arrays.
    name
        The operator's name.
    args, options
        The arguments, with NumPy arrays.
    devices
        Into how many parts axes are split.
    split
        For each array among the arguments, which axis is split, if one is.
    kept
        Whether the results are also split, instead of being gathered.
    tolerance, scale_axis
        The allowed error, see `assert_matches`.
    differentiated
        Whether derivatives are wanted as well.
    """

    label: str
    call: str
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    devices: int
    split: tuple[int | None, ...]
    kept: bool
    tolerance: float
    scale_axis: Any
    differentiated: bool


def parts_of(length: int) -> int:
    """Return into how many parts an axis can be split: the least number of devices that divides it, or 1."""
    return next((n for n in range(2, DEVICES + 1) if length % n == 0), 1) if length else 1


def ways(
    label: str, name: str, args: Any, options: Any, tolerance: float, scale_axis: Any, differentiated: bool
) -> Iterator[Way]:
    """Yield each way to split the arrays of a call: along each axis that they share, and each array alone."""
    operator = OPERATORS[name]
    arrays = arrays_in((args, options))
    shapes = [a.shape for a in arrays]
    found: dict[tuple[int | None, ...], tuple[int, bool]] = {}
    with set_backend("numpy"):
        canonical = operator.canonical(*args, **options)
    rows = rows_of(operator, canonical)
    if rows is not None and len(rows.arrays) == len(arrays):
        places = [next(i for i, a in enumerate(arrays) if a is canonical[n]) for n in rows.arrays]
        axes = dict(zip(places, rows.arrays.values(), strict=True))
        for axis in sorted({axis for own in axes.values() for axis in own}):
            length = max(shapes[i][own.index(axis)] for i, own in axes.items() if axis in own)
            split = tuple(
                axes[i].index(axis) if axis in axes[i] and shape[axes[i].index(axis)] == length else None
                for i, shape in enumerate(shapes)
            )
            divided = axis not in rows.whole and axis in rows.result and axis not in rows.shortened
            found[split] = parts_of(length), divided and not any(axis in group for group in rows.together)
    for i, shape in enumerate(shapes if differentiated or rows is None else ()):
        for axis, length in enumerate(shape):
            alone = tuple(axis if j == i else None for j in range(len(shapes)))
            found.setdefault(alone, (parts_of(length), False))
    for split, (devices, kept) in found.items():
        if devices > 1:
            yield Way(
                f"{label}, {split}",
                label,
                name,
                args,
                options,
                devices,
                split,
                kept,
                tolerance,
                scale_axis,
                differentiated,
            )


def every_way(name: str, few: bool) -> Iterator[Way]:
    """Yield the ways of an operator's cases, and of calls to differentiate."""
    for label, (args, options) in ALL.items():
        if label.partition("-")[0] == name:
            args, options = cast((args, options), "float32")
            yield from ways(label, name, args, options, 64.0, None, label in DIFFERENTIABLE)
    for case in () if few else CASES[name]:
        if "float32" in case.dtypes:
            args, options = case.build(dtype_name="float32")
            yield from ways(str(case), name, args, options, case.tolerance, case.scale_axis, False)


def results(operator: Callable[..., Any], tree: Any, differentiated: bool, arrays: Sequence[Any]) -> list[Any]:
    """Return the results of a call with these arrays, then the derivatives with respect to the floating-point ones."""

    def compute(*moved: Any) -> list[Any]:
        given = iter({**dict(enumerate(arrays)), **dict(zip(moving, moved, strict=True))}.values())
        args, options = map_arrays(lambda _: next(given), tree)
        return jax.tree.leaves(operator(*args, **options))

    moving = [i for i, a in enumerate(arrays) if differentiated and is_floating(a)]
    if not moving:
        return compute()
    made, pull = jax.vjp(compute, *(arrays[i] for i in moving))
    rng = np.random.default_rng(5)
    return [*made, *pull([_like(rng.standard_normal(y.shape), y) for y in made])]


def is_floating(a: Any) -> bool:
    """Return whether an array is one of floating-point numbers."""
    return bool(jax.numpy.issubdtype(a.dtype, np.floating))


def _like(a: Any, y: Any) -> Any:
    """Return a cotangent of a result, split as it is."""
    if not is_floating(y):
        return np.zeros(y.shape, jax.dtypes.float0)
    a = jax.numpy.asarray(a, y.dtype)
    sharding = jax.typeof(y).sharding
    return a if sharding.mesh.empty else jax.sharding.reshard(a, sharding)


def compiled(operator: Callable[..., Any], calls: Sequence[tuple[Any, bool, Sequence[Any]]]) -> list[Any]:
    """Return the results of each call, or its error; all are compiled as one program, as each takes long by itself."""
    errors: dict[int, str] = {}

    def traced(every: Sequence[Sequence[Any]]) -> list[list[Any]]:
        made = []
        for i, ((tree, differentiated, _), arrays) in enumerate(zip(calls, every, strict=True)):
            try:
                made.append(results(operator, tree, differentiated, arrays))
            except Exception:
                made.append([])
                errors[i] = traceback.format_exc()
        return made

    made = jax.jit(traced)([arrays for *_, arrays in calls])
    return [errors.get(i, y) for i, y in enumerate(made)]


def check(way: Way, spread: Sequence[Any], made: Sequence[Any], plain: Sequence[Any]) -> None:
    """Assert that results on a mesh are those of the reference, and derivatives those on one device."""
    expected = jax.tree.leaves(REFERENCES[way.name](*way.args, **way.options))
    for y, wanted in zip(made[: len(expected)], expected, strict=True):
        actual = np.asarray(y)
        if is_floating(actual):
            assert_matches(actual, wanted, actual.dtype.name, tolerance=way.tolerance, scale_axis=way.scale_axis)
        else:
            np.testing.assert_array_equal(actual, wanted)
        assert not way.kept or "d" in jax.typeof(y).sharding.spec, f"results were gathered: {jax.typeof(y)}"
    moved = [a for a in spread if way.differentiated and is_floating(a)]
    for a, d, wanted in zip(moved, made[len(expected) :], plain[len(expected) :], strict=True):
        assert jax.typeof(d).sharding.spec == jax.typeof(a).sharding.spec, f"{jax.typeof(d)} of {jax.typeof(a)}"
        largest = np.nanmax(np.abs(wanted), initial=1.0)
        np.testing.assert_allclose(np.asarray(d), np.asarray(wanted), rtol=2e-4, atol=1e-5 * largest)


def run(name: str, few: bool) -> Iterator[tuple[str, str]]:
    """Yield each way of an operator and its errors: with whatever kernels there are, and with the body alone."""
    found = list(every_way(name, few))
    kinds = {"kernels": OPERATORS[name], "body": OPERATORS[name].generic}
    trees = {way.call: there((way.args, way.options), BACKENDS["jax"]) for way in found}
    errors: dict[str, str] = {way.label: "" for way in found}
    alone = {way.call: (trees[way.call], way.differentiated, arrays_in(trees[way.call])) for way in found}
    plain = dict(zip(alone, compiled(kinds["body"], list(alone.values())), strict=True))
    for devices in sorted({way.devices for way in found}):
        here = [way for way in found if way.devices == devices]
        mesh = jax.make_mesh((devices,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:devices])
        spread = [
            [
                jax.device_put(
                    a, NamedSharding(mesh, PartitionSpec(*[None] * (axis or 0), axis if axis is None else "d"))
                )
                for a, axis in zip(arrays_in(trees[way.call]), way.split, strict=True)
            ]
            for way in here
        ]
        calls = [(trees[way.call], way.differentiated, arrays) for way, arrays in zip(here, spread, strict=True)]
        for kind, operator in kinds.items():
            with jax.set_mesh(mesh) if kind == "body" else contextlib.nullcontext():  # either must do
                every = compiled(operator, calls)
            for way, arrays, made in zip(here, spread, every, strict=True):
                try:
                    assert not isinstance(made, str), made
                    check(way, arrays, made, plain[way.call])
                except Exception:
                    errors[way.label] += f"{kind}: {traceback.format_exc()}"
    yield from errors.items()


def main(arguments: list[str]) -> None:
    """Run the ways of operators with these names."""
    few = "--few" in arguments
    for name in [a for a in arguments if a != "--few"] or OPERATORS:
        for label, error in run(name, few):
            print(f"\n{json.dumps([label, error])}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
