"""How many bytes the operators move in programs that are compiled for TPUs, without a TPU.

As a program, it compiles the operators ahead of time and prints a table; .ci/tpu provides what it needs:

    python tests/tpu_bytes.py [--bodies] [--hbm] [--generations v5e,v6e] [regular expression for rows]

Bytes are those that XLA's own analysis counts. For a Pallas call it counts what the call says of itself, and ours say
what `tensorops.kernels.pallas._call` computes from the grid, the blocks and the copies. XLA keeps arrays of some
megabytes in vector memory between operations, and also counts the accesses to these. With --hbm, it has no room for
them: the figures are then those of large arrays.
"""

from __future__ import annotations

# ruff: noqa: T201
import argparse
import inspect
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from tensorops._operator import OPERATORS
from tensorops.kernels.pallas import compiling_for

GENERATIONS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2"}
"""Topologies by generation; a program is compiled for one of their chips."""


_NO_ROOM = {"xla_tpu_scoped_vmem_limit_kib": "130000"}  # for arrays between operations, of the 131072 that there are


class Row(NamedTuple):
    """One operator on one set of shapes; `read` has those of the part that is needed of an array."""

    operator: str
    label: str
    arrays: dict[str, tuple[tuple[int, ...], Any]]
    options: dict[str, Any]
    wanted: tuple[str, ...] = ()  # gradients of these arrays, not the results; the last arrays are then cotangents
    read: dict[str, tuple[int, ...]] = {}  # noqa: RUF012 - never changed


def _rows() -> Iterator[Row]:
    half = jnp.bfloat16

    def row(operator: str, label: str, options: dict[str, Any] | None = None, **arrays: Any) -> Row:
        shapes = {name: a if a and isinstance(a[0], tuple) else (a, half) for name, a in arrays.items()}
        return Row(operator, label, shapes, options or {})

    def gradient(operator: str, wanted: tuple[str, ...] = (), **arrays: Any) -> Row:
        found = row(operator, f"gradient, {next(iter(arrays.values()))}", **arrays)
        return found._replace(wanted=wanted or tuple(name for name in arrays if name != "dy"))

    square, width = (4096, 4096), (4096,)
    yield row("rms_norm", "(4096, 4096)", x=square, weight=width)
    yield row("add_rms_norm", "(4096, 4096)", x=square, residual=square, weight=width)
    yield row("layer_norm", "(4096, 4096)", x=square, weight=width, bias=width)
    for name in ("l2_norm", "softmax", "log_softmax", "logsumexp"):
        yield row(name, "(4096, 4096)", x=square)
    of_channels = {"weight": (256,), "bias": (256,)}
    for name, groups in (("group_norm", {"num_groups": 32}), ("instance_norm", {})):
        yield row(name, "(8, 256, 64, 128)", groups, x=(8, 256, 64, 128), **of_channels)
        yield row(name, "(8, 256, 4096)", groups, x=(8, 256, 4096), **of_channels)
        yield row(name, "(8, 64, 64, 256)", groups | {"channel_axis": -1}, x=(8, 64, 64, 256), **of_channels)
    yield row("top_k", "50 of (64, 128256)", {"k": 50}, x=(64, 128256))
    yield gradient("rms_norm", x=square, weight=width, dy=square)
    # The gradients of x and of the residual are the same array.
    yield gradient("add_rms_norm", ("x", "weight"), x=square, residual=square, weight=width, dy=square, dr=square)
    yield gradient("layer_norm", x=square, weight=width, bias=width, dy=square)
    for name in ("l2_norm", "softmax", "log_softmax"):
        yield gradient(name, x=square, dy=square)
    yield gradient("logsumexp", x=square, dy=width)
    classes = {"logits": (4096, 32000), "targets": ((4096,), jnp.int32)}
    yield gradient("cross_entropy", ("logits",), **classes, dy=())
    yield row("softmax", "where", x=square, where=(square, jnp.bool_))
    yield row("cross_entropy", "label_smoothing", {"label_smoothing": 0.1, "z_loss": 1e-4}, **classes)
    yield row("cross_entropy", "probabilities", logits=(4096, 32000), targets=(4096, 32000))
    heads = (1, 32, 2048, 128)
    at = {"x": heads, "positions": ((2048,), jnp.int32)}
    yield row("rope", "interleaved", {"interleaved": True}, **at)
    yield row("rope", "64 of 128 features", {"dims": 64}, **at)
    yield row("rope", "tables and positions", **at, cos=(8192, 64), sin=(8192, 64))
    yield row("rope", "(1, 32, 2048, 128)", x=heads, positions=((2048,), jnp.int32))
    yield row("cross_entropy", "(4096, 32000)", logits=(4096, 32000), targets=((4096,), jnp.int32))
    projected = {"x": square, "weight": (32000, 4096), "targets": ((4096,), jnp.int32)}
    yield row("linear_cross_entropy", "4096 x 4096 -> 32000", **projected)
    few = (1, 8, 2048, 128)
    attention = "scaled_dot_product_attention"
    yield row(attention, "prefill, causal", {"is_causal": True}, q=heads, k=few, v=few)
    yield row(attention, "prefill, causal, window 256", {"is_causal": True, "window": 256}, q=heads, k=few, v=few)
    one = (1, 32, 1, 128)
    yield row(attention, "decode, 8192 keys", q=one, k=(1, 8, 8192, 128), v=(1, 8, 8192, 128))
    yield row(attention, "decode, 8192 keys of 64", q=(1, 32, 1, 64), k=(1, 8, 8192, 64), v=(1, 8, 8192, 64))
    several, lengths = (4, 32, 1, 128), ((4,), jnp.int32)
    of_each = {"k": (4, 8, 8192, 128), "v": (4, 8, 8192, 128), "lengths": lengths}
    yield row(attention, "decode, lengths to 8192", q=several, **of_each)
    for size, count in ((16, 512), (128, 64)):
        pool = (4 * count, 8, size, 128)
        pages = {"k": pool, "v": pool, "lengths": lengths, "page_table": ((4, count), jnp.int32)}
        yield row(attention, f"decode, lengths to 8192, pages of {size}", q=several, **pages)
    quantized = {"weight": ((14336, 2048), jnp.uint8), "scales": (14336, 128), "biases": (14336, 128)}
    for rows in (1, 512):
        yield row("quantized_linear", f"{rows} x 4096 -> 14336", x=(rows, 4096), **quantized)
        for name, width in (("q4_0", 2304), ("q8_0", 4352), ("q4_k", 2304), ("q6_k", 3360), ("mxfp4", 2176)):
            blocks = ((14336, width), jnp.uint8)
            label = f"{name}, {rows} x 4096 -> 14336"
            yield row("quantized_linear", label, {"format": name}, x=(rows, 4096), weight=blocks)
    for label, dtype in (("", half), (" in float32", jnp.float32)):
        table = ((128256, 4096), dtype)
        looked_up = row("embedding", f"4096 of (128256, 4096){label}", ids=((4096,), jnp.int32), weight=table)
        yield looked_up._replace(read={"weight": square})
    for name in ("silu", "gelu"):
        yield row(name, "(4096, 4096)", x=square)
    yield row("swiglu", "(4096, 4096)", gate=square, up=square)
    yield row("linear", "512 x 4096 -> 4096", x=(512, 4096), weight=square)


class Moved(NamedTuple):
    """What one program moves, in bytes."""

    accessed: float
    ideal: int
    temporary: int
    kernels: int

    @property
    def ratio(self) -> float:
        """Return how many times as many bytes as the arguments and the results have."""
        return self.accessed / self.ideal


def measured(row: Row, device: Any, *, bodies: bool = False, hbm: bool = False) -> Moved:
    """Return what the program of a row moves that is compiled for a device, with `hbm` only what is not kept."""
    sharding = SingleDeviceSharding(device)
    arrays = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in row.arrays.values()]
    operator = OPERATORS[row.operator]
    compute = operator.generic if bodies else operator
    names = tuple(row.arrays)

    def call(*values: Any) -> Any:
        return compute(**dict(zip(names, values, strict=False)), **row.options)

    def gradients(*values: Any) -> Any:
        places = [names.index(name) for name in row.wanted]

        def of_wanted(*wanted: Any) -> tuple[Any, ...]:
            every = dict(enumerate(values[:count])) | dict(zip(places, wanted, strict=True))
            return tuple(jax.tree.leaves(call(*every.values())))

        return jax.vjp(of_wanted, *(values[place] for place in places))[1](values[count:])

    count = len(set(names) & set(inspect.signature(operator).parameters))
    function = gradients if row.wanted else call
    compiled = jax.jit(function).lower(*arrays).compile(_NO_ROOM if hbm else None)
    results = jax.tree.leaves(jax.eval_shape(function, *arrays))
    needed = [row.read.get(name, a.shape) for name, a in zip(row.arrays, arrays, strict=True)]
    needed += [a.shape for a in results]
    ideal = sum(math.prod(n) * a.dtype.itemsize for n, a in zip(needed, (*arrays, *results), strict=True))
    temporary = compiled.memory_analysis().temp_size_in_bytes
    kernels = compiled.as_text().count('custom_call_target="tpu_custom_call"')
    return Moved(compiled.cost_analysis()["bytes accessed"], ideal, temporary, kernels)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", action="store_true", help="compile the generic bodies")
    parser.add_argument("--hbm", action="store_true", help="keep no array in vector memory between operations")
    parser.add_argument("--generations", default=",".join(GENERATIONS))
    parser.add_argument("rows", nargs="?", default="", help="a regular expression")
    options = parser.parse_args()
    devices = {
        g: topologies.get_topology_desc(GENERATIONS[g], "tpu").devices[0] for g in options.generations.split(",")
    }
    print("| operator | shape | " + " | ".join(f"{g}: × ideal | temporaries, MB | kernels" for g in devices) + " |")
    print("|---|---|" + "---|---|---|" * len(devices))
    for row in _rows():
        if not re.search(options.rows, f"{row.operator} {row.label}"):
            continue
        found = []
        for generation, device in devices.items():
            with compiling_for(generation):
                found.append(measured(row, device, bodies=options.bodies, hbm=options.hbm))
        cells = " | ".join(f"{m.ratio:.2f} | {m.temporary / 1e6:.1f} | {m.kernels or ''}" for m in found)
        print(f"| {row.operator} | {row.label} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
