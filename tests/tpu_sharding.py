"""What programs for four TPUs send to each other, without a TPU: they are compiled for v5e's topology 2x2.

As a program, it compiles the operators that have Pallas kernels, and others that XLA splits, and prints for each where
it runs and which collectives are in the compiled text; anything unexpected ends it with an error. .ci/tpu provides what
it needs:

    python tests/tpu_sharding.py [regular expression for rows]
"""

from __future__ import annotations

# ruff: noqa: T201
import argparse
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tensorops._operator import OPERATORS
from tensorops.kernels.pallas.planners import PLANNERS

TOPOLOGY = "v5e:2x2"
COLLECTIVES = re.compile(r"= (.*) (all-\w+|reduce-scatter|collective-\w+|ragged-\w+)(?:-start)?\(")
ROWS, COLUMNS, EVERY = PartitionSpec("devices"), PartitionSpec(None, "devices"), PartitionSpec()


class Row(NamedTuple):
    """One call: its arrays with their shardings, and what its program must contain.

    Parameters
    ----------
    operator, label, arrays, options
        The call.
    kernel
        Whether the Pallas kernel must be in it, where JAX is told how arrays are split.
    result
        The sharding of the result.
    body
        The collectives of the body.
    """

    operator: str
    label: str
    arrays: dict[str, tuple[tuple[int, ...], Any, PartitionSpec]]
    kernel: bool
    result: PartitionSpec = ROWS
    body: frozenset[str] = frozenset()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def few(self) -> int:
        """How many elements a collective may have: a number for each row."""
        return math.prod(next(iter(self.arrays.values()))[0][:-1])


def _rows() -> Iterator[Row]:
    half = jnp.bfloat16
    square, width = (4096, 4096), (4096,)
    summed = frozenset({"all-reduce"})

    def split(spec: PartitionSpec, *names: str) -> dict[str, Any]:
        every = {name: (square, half, spec) for name in names if name in ("x", "residual")}
        return every | {name: (width, half, EVERY) for name in names if name not in every}

    parameters = {
        "rms_norm": ("x", "weight"),
        "add_rms_norm": ("x", "residual", "weight"),
        "layer_norm": ("x", "weight", "bias"),
        "l2_norm": ("x",),
        "softmax": ("x",),
        "log_softmax": ("x",),
        "logsumexp": ("x",),
    }
    for name, names in parameters.items():
        yield Row(name, "rows", split(ROWS, *names), True)
        yield Row(name, "columns", split(COLUMNS, *names), False, COLUMNS, summed)
    channels = {"x": ((8, 256, 64, 128), half, ROWS), "weight": ((256,), half, EVERY)}
    yield Row("group_norm", "batch", channels, True, options=(("num_groups", 32),))
    yield Row("instance_norm", "batch", channels, True)
    yield Row("top_k", "rows", {"x": ((64, 128256), half, ROWS)}, True, options=(("k", 50),))
    heads = (4, 32, 2048, 128)
    for label, spec in (("batch", ROWS), ("heads", COLUMNS)):
        yield Row("rope", label, {"x": (heads, half, spec), "positions": ((2048,), jnp.int32, EVERY)}, True, spec)
        shapes = {"q": heads, "k": (4, 8, 2048, 128), "v": (4, 8, 2048, 128)}
        name = "scaled_dot_product_attention"
        arrays = {of: (shape, half, spec) for of, shape in shapes.items()}
        yield Row(name, label, arrays, name in PLANNERS, spec, options=(("is_causal", True),))
    logits, targets = ((4096, 32000), half, ROWS), ((4096,), jnp.int32, ROWS)
    none = (("reduction", "none"),)
    yield Row("cross_entropy", "rows", {"logits": logits, "targets": targets}, True, ROWS, options=none)
    for label, of_x, of_weight in (("rows", ROWS, EVERY), ("outputs", EVERY, ROWS)):
        parts = {"weight": ((14336, 2048), jnp.uint8), "scales": ((14336, 128), half), "biases": ((14336, 128), half)}
        arrays = {"x": ((512, 4096), half, of_x), **{of: (*part, of_weight) for of, part in parts.items()}}
        kernel = "quantized_linear" in PLANNERS
        yield Row("quantized_linear", label, arrays, kernel, ROWS if label == "rows" else COLUMNS)


def _compiled(row: Row, mesh: Mesh, way: str) -> str:
    """Return the text of the program of a row in which JAX learns in one of three ways how arrays are split."""
    types = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
        for shape, dtype, spec in row.arrays.values()
    ]
    operator = OPERATORS[row.operator]

    def function(*values: Any) -> Any:
        return operator(**dict(zip(row.arrays, values, strict=True)), **dict(row.options))

    if way == "shard_map":
        specs = tuple(spec for *_, spec in row.arrays.values())
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=row.result, check_vma=False)
    return str(jax.jit(function).lower(*types).compile().as_text())


def _is_expected(row: Row, way: str, kernels: int, sent: dict[str, int]) -> bool:
    """Return whether a program has the kernel where it must, and no device sends its rows."""
    if row.kernel and way != "auto":  # there, XLA's compiler for TPUs does not ask how to split a call
        return kernels == 1 and not sent
    return kernels == 0 and set(sent) == row.body and all(elements <= row.few for elements in sent.values())


def _sent(text: str) -> dict[str, int]:
    """Return the collectives in a program, each with the most elements that a result of it has."""
    found: dict[str, int] = {}
    for results, name in COLLECTIVES.findall(text):
        sizes = (math.prod(map(int, filter(None, shape.split(",")))) for shape in re.findall(r"\[([\d,]*)\]", results))
        found[name] = max(found.get(name, 0), *sizes)
    return found


def main() -> None:
    """Print what is in the programs, and fail if it is not what is expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", default="", help="a regular expression")
    wanted = parser.parse_args().rows
    devices = np.array(topologies.get_topology_desc(TOPOLOGY, "tpu").devices)
    kinds = {"explicit": AxisType.Explicit, "shard_map": AxisType.Auto, "auto": AxisType.Auto}
    meshes = {way: Mesh(devices, ("devices",), axis_types=(kind,)) for way, kind in kinds.items()}
    wrong = []
    print("| operator | split | axes | on each TPU | sent, elements |\n|---|---|---|---|---|")
    for row in _rows():
        if not re.search(wanted, f"{row.operator} {row.label}"):
            continue
        for way, mesh in meshes.items():
            if way == "shard_map" and not row.kernel:
                continue  # a device would need what the others have
            text = _compiled(row, mesh, way)
            kernels = text.count('custom_call_target="tpu_custom_call"')
            sent = _sent(text)
            shown = ", ".join(f"{name} of {elements}" for name, elements in sorted(sent.items())) or "nothing"
            print(f"| {row.operator} | {row.label} | {way} | {'kernel' if kernels else 'body'} | {shown} |", flush=True)
            if not _is_expected(row, way, kernels, sent):
                wrong.append(f"{row.operator}, {row.label}, {way}: this is not what was expected")
    raise SystemExit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
