"""Every operator on arrays whose types say how they are split: a program, as JAX learns the number of devices early.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 python tests/explicit_mesh_program.py [--all] [operator …]

Each array axis that four devices can have in equal parts is split in turn, with the other arrays that have this axis.
Results are compared with the reference, gradients with those of the body on one device. Without ``--all``, only the
first case of each operator with such an axis is taken, with its first row axis and its first other axis. A line of JSON
is printed for each operator, with the number of calls and the errors.
"""

from __future__ import annotations

# ruff: noqa: T201
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorops._operator import OPERATORS
from tensorops.testing import CASES, REFERENCES, assert_matches

DEVICES = 4


def main(arguments: list[str]) -> None:
    """Run the operators with these names, or all."""
    import jax

    every = "--all" in arguments
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    for name in [a for a in arguments if not a.startswith("--")] or OPERATORS:
        count, errors = 0, []
        for case, axis, arrays in calls(name, every):
            count += 1
            try:
                check(name, case, axis, arrays, mesh)
            except Exception:
                errors.append(f"{case.name}, axis {axis}: {traceback.format_exc()}")
        print(f"\n{json.dumps([name, count, errors])}", flush=True)


def calls(name: str, every: bool) -> Iterator[tuple[Any, Any, dict[str, int]]]:
    """Yield cases, an axis to split (its number, if rows are declared), and where the arrays have it."""
    operator = OPERATORS[name]
    kinds: set[bool] = set()
    for case in CASES[name]:
        if "float32" not in case.dtypes or case.tags & {"extreme", "overflow", "special", "empty"}:
            continue
        args, kwargs = case.build(dtype_name="float32")
        arguments = operator.canonical(*args, **kwargs)
        arrays = {key: a for key, a in arguments.items() if isinstance(a, np.ndarray)}
        rows = operator.rows(arguments) if operator.divides else None
        if rows is None:
            axes = {(key, i): {key: i} for key, a in arrays.items() for i in range(a.ndim)}
        else:
            axes = {}
            for number in sorted({axis for of in rows.arrays.values() for axis in of}):
                axes[number] = {key: of.index(number) for key, of in rows.arrays.items() if number in of}
        for number, places in axes.items():
            there = {key: i for key, i in places.items() if arrays[key].shape[i] % DEVICES == 0 and arrays[key].size}
            if not there:
                continue
            along_rows = rows is not None and number not in rows.whole
            if not every and along_rows in kinds:
                continue
            kinds.add(along_rows)
            yield case, number, there


def check(name: str, case: Any, axis: Any, places: dict[str, int], mesh: Any) -> None:
    """Assert that results and gradients with these axes in parts are those on one device, and of the reference."""
    import jax
    import jax.numpy as jnp

    operator = OPERATORS[name]
    args, kwargs = case.build(dtype_name="float32")
    arguments = operator.canonical(*args, **kwargs)
    arrays = {key: narrow(a) for key, a in arguments.items() if isinstance(a, np.ndarray)}
    variadic = {key for key in arrays if "[" in key}
    options = {key: value for key, value in arguments.items() if key not in arrays}

    def call(given: dict[str, Any]) -> Any:
        by_position = [given[key] for key in arrays if key in variadic]
        named = {key: a for key, a in given.items() if key not in variadic}
        kept = {key: value for key, value in options.items() if key != "subscripts" or not variadic}
        first = [options["subscripts"]] if variadic and "subscripts" in options else []
        return operator(*first, *by_position, **named, **kept)

    spread = {}
    for key, a in arrays.items():
        spec = [None] * a.ndim
        if key in places:
            spec[places[key]] = "d"
        spread[key] = jax.device_put(a, jax.NamedSharding(mesh, jax.P(*spec)))
    expected = REFERENCES[name](*args, **kwargs)
    found = jax.jit(call)(spread)
    for y, reference in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert y.shape == reference.shape, f"shape {y.shape}, expected {reference.shape}"
        if np.issubdtype(np.asarray(y).dtype, np.floating):
            assert_matches(
                np.asarray(y), reference, y.dtype.name, tolerance=4 * case.tolerance_for("float32"),
                scale_axis=case.scale_axis,
            )  # fmt: skip
        else:
            np.testing.assert_array_equal(np.asarray(y), reference)
    floating = {key for key, a in arrays.items() if a.dtype.kind == "f"}
    if not floating or not any(y.dtype.kind == "f" for y in jax.tree.leaves(found)):
        return

    def loss(moving: dict[str, Any], others: dict[str, Any], compute: Any) -> Any:
        results = jax.tree.leaves(compute({key: {**moving, **others}[key] for key in arrays}))
        return sum(jnp.sum(jnp.sin(y)) for y in results if y.dtype.kind == "f")

    def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return {k: a for k, a in given.items() if k in floating}, {k: a for k, a in given.items() if k not in floating}

    got = jax.jit(jax.grad(lambda m, o: loss(m, o, call)))(*split(spread))
    alone = jax.jit(jax.grad(lambda m, o: loss(m, o, call)))(*split({k: jnp.asarray(a) for k, a in arrays.items()}))
    for key, value in alone.items():
        one = np.asarray(value)
        most = np.max(np.abs(one[np.isfinite(one)]), initial=1.0)
        np.testing.assert_allclose(np.asarray(got[key]), one, rtol=1e-4, atol=1e-4 * most, err_msg=f"gradient of {key}")


def narrow(a: Any) -> Any:
    """Return an array in a dtype that JAX holds."""
    return a.astype({"int64": np.int32, "uint64": np.uint32, "float64": np.float32}.get(a.dtype.name, a.dtype))


if __name__ == "__main__":
    main(sys.argv[1:])
