"""Operators on JAX arrays that are spread over devices: a program, as JAX learns the number of devices when it starts.

`ROWS` are calls, with the shardings of their arrays and what the compiled program must contain; `CHECKS` are programs
with several calls. The program runs those whose label is given, or all, and prints a line of JSON for each, with the
error or an empty string:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/sharding_program.py [label …]

With ``--process i of n at port``, it is one of several processes that have the devices together.
"""

from __future__ import annotations

# ruff: noqa: T201
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import DTYPES, REFERENCES, assert_matches

Spec = tuple[str | None, ...]
AXES = {"a": 2, "b": 4}
"""The mesh; "ab" in a spec is all of it."""
EVERY: Spec = ("ab",)


class Row(NamedTuple):
    """One call of an operator.

    Parameters
    ----------
    label
        What is special about it.
    operator
        The operator's name.
    arrays
        The arrays by parameter, each with its sharding.
    options
        The other arguments.
    result
        The sharding of the results.
    kernel
        The handler of the kernel that runs on each device, or an empty string for the body.
    collectives
        What XLA's partitioner adds.
    """

    label: str
    operator: str
    arrays: dict[str, tuple[Any, Spec]]
    options: dict[str, Any]
    result: Spec
    kernel: str
    collectives: frozenset[str]


def _rows() -> Iterator[Row]:
    rng = np.random.default_rng(0)

    def normal(*shape: int, dtype: str = "float32") -> Any:
        return rng.standard_normal(shape).astype(DTYPES[dtype])

    def row(
        operator: str,
        label: str,
        result: Spec = EVERY,
        kernel: str | None = None,
        collectives: str = "",
        options: dict[str, Any] | None = None,
        **arrays: Any,
    ) -> Row:
        pairs = {name: a if isinstance(a, tuple) else (a, EVERY) for name, a in arrays.items()}
        needed = frozenset(collectives.split())
        return Row(
            f"{operator}, {label}",
            operator,
            pairs,
            options or {},
            result,
            operator if kernel is None else kernel,
            needed,
        )

    x, weight = normal(16, 32), normal(32)
    every, split, apart = (weight, ()), (None, "ab"), (x, (None, "ab"))
    for name in ("sigmoid", "silu", "softplus", "mish", "selu", "gelu", "quick_gelu", "elu"):
        yield row(name, "rows", x=x)
    yield row("silu", "columns", split, x=apart)
    yield row("silu", "two axes", ("a", "b"), x=(x, ("a", "b")))
    for name in ("swiglu", "geglu"):
        yield row(name, "rows", gate=x, up=normal(16, 32))
    for name in ("softmax", "log_softmax", "logsumexp"):
        yield row(name, "rows", x=x)
        yield row(name, "columns", () if name == "logsumexp" else split, "", "all-reduce", x=apart)
    yield row("softmax", "half", x=normal(16, 32, dtype="bfloat16"))
    for name in ("l2_norm", "rms_norm", "layer_norm"):
        parameters = {"l2_norm": {}, "rms_norm": {"weight": every}, "layer_norm": {"weight": every, "bias": every}}[
            name
        ]
        yield row(name, "rows", x=x, **parameters)
        yield row(name, "columns", split, "", "all-reduce", x=apart, **parameters)
    yield row("rms_norm", "rows and a weight in parts", x=x, weight=weight, collectives="all-gather")
    yield row("rms_norm", "on every device", (), x=(x, ()), weight=every)
    yield row("rms_norm", "batch and sequence", ("a", "b"), x=(normal(4, 8, 32), ("a", "b")), weight=every)
    yield row("add_rms_norm", "rows", x=x, residual=normal(16, 32), weight=every)
    yield row("add_rms_norm", "columns", split, "", "all-reduce", x=apart, residual=apart, weight=every)
    images, channels = normal(8, 16, 3, 3), (normal(16), ())
    yield row("group_norm", "batch", options={"num_groups": 4}, x=images, weight=channels, bias=channels)
    yield row("instance_norm", "batch", x=images, weight=channels, bias=channels)
    yield row("instance_norm", "channels", split, x=(images, split), weight=normal(16), bias=normal(16))

    targets = rng.integers(0, 32, 16)
    none, mean = {"reduction": "none"}, {"reduction": "mean"}
    yield row("cross_entropy", "rows", EVERY, "cross_entropy", options=none, logits=x, targets=targets)
    yield row("cross_entropy", "mean", (), "", "all-reduce", mean, logits=x, targets=targets)
    classes = (normal(48, 32), ())
    yield row("linear_cross_entropy", "rows", EVERY, options=none, x=x, weight=classes, targets=targets)
    experts = {"gate_up_proj": (normal(4, 16, 32), ()), "down_proj": (normal(4, 32, 8), ())}
    yield row("moe", "rows", options={"top_k": 2}, x=x, router_logits=normal(16, 4), **experts)
    yield row("cross_entropy", "classes", (), "", "all-reduce", none, logits=apart, targets=(targets, ()))

    q, k, v = normal(8, 16, 4, 8), normal(8, 8, 4, 8), normal(8, 8, 4, 8)
    attention = "scaled_dot_product_attention"
    yield row(attention, "batch", q=q, k=k, v=v, options={"is_causal": True})
    yield row(attention, "heads", split, q=(q, split), k=(k, split), v=(v, split), options={"is_causal": True})
    yield row(attention, "heads of q only", split, q=(q, split), k=(k, ()), v=(v, ()))
    yield row(
        attention, "batch and heads", ("a", "b"), **{n: (a, ("a", "b")) for n, a in zip("qkv", (q, k, v), strict=True)}
    )
    yield row(attention, "one head of keys", split, q=(q, split), k=(k[:, :1], ()), v=(v[:, :1], ()))
    yield row(attention, "fewer heads of keys", split, "", q=(q, split), k=(k[:, :2], ()), v=(v[:, :2], ()))
    yield row(attention, "queries", (None, None, "b"), q=(q, (None, None, "b")), k=(k, ()), v=(v, ()))
    sequences, filters = normal(8, 5, 16), normal(16, 4)
    of_batch = {"x": sequences, "state": normal(8, 3, 16)}
    yield row("causal_conv1d", "batch", weight=(filters, ()), options={"activation": "silu"}, **of_batch)
    last = (None, None, "ab")
    yield row("causal_conv1d", "channels", last, x=(sequences, last), weight=filters)
    tokens = {"g": -np.abs(normal(8, 16, 4)), "beta": np.abs(normal(8, 16, 4))}
    yield row("gated_delta_rule", "batch", q=q, k=0.3 * q, v=q, **tokens)
    divided = {name: (a, split) for name, a in {"q": q, "k": 0.3 * q, "v": q, **tokens}.items()}
    yield row("gated_delta_rule", "heads", split, **divided)
    keys = (None, None, "b")
    yield row(attention, "keys", (), "", "all-reduce", q=(q, ()), k=(k, keys), v=(v, keys))
    mask, sinks, lengths = normal(16, 4, 4), normal(16), rng.integers(1, 5, 8)
    mixed = {"mask": (mask, ("b",)), "sinks": (sinks, ("b",)), "lengths": (lengths, ("a",))}
    yield row(
        attention,
        "all arguments",
        ("a", "b"),
        **{n: (a, ("a", "b")) for n, a in zip("qkv", (q, k, v), strict=True)},
        **mixed,
    )

    positions = (np.arange(4), ())
    yield row("rope", "batch", x=q, positions=positions)
    yield row("rope", "heads", split, x=(q, split), positions=positions)
    yield row("rope", "sequence", (None, None, "b"), x=(q, (None, None, "b")), positions=(np.arange(4), ("b",)))
    tables = {name: (normal(64, 4), ()) for name in ("cos", "sin")}
    yield row("rope", "tables", EVERY, "rope", x=q, positions=positions, **tables)

    matrix = normal(24, 32)
    yield row("linear", "rows", x=x, weight=(matrix, ()), bias=(normal(24), ()))
    yield row("linear", "outputs", split, x=(x, ()), weight=matrix, bias=normal(24))
    yield row("linear", "rows and outputs", ("a", "b"), x=(x, ("a",)), weight=(matrix, ("b",)))
    yield row("linear", "inputs", (), "", "all-reduce", x=apart, weight=(matrix, split))
    packed = [np.asarray(a) for a in tp.quantize(normal(24, 256), bits=4, group_size=32)]
    names, bits = ("weight", "scales", "biases"), {"bits": 4, "group_size": 32}
    wide = normal(16, 256)
    yield row(
        "quantized_linear", "rows", options=bits, x=wide, **{n: (a, ()) for n, a in zip(names, packed, strict=True)}
    )
    yield row("quantized_linear", "outputs", split, options=bits, x=(wide, ()), **dict(zip(names, packed, strict=True)))
    inputs = {"x": (wide, split), **{n: (a, split) for n, a in zip(names, packed, strict=True)}}
    yield row("quantized_linear", "inputs", (), "", "all-reduce", bits, **inputs)
    experts, of_experts = rng.integers(0, 3, (16, 2)), (normal(3, 24, 32), ())
    yield row("grouped_linear", "rows", x=normal(16, 2, 32), experts=experts, weight=of_experts)
    stacked = [np.stack([a, a]) for a in packed]
    yield row(
        "grouped_quantized_linear",
        "rows",
        options=bits,
        x=wide,
        experts=targets % 2,
        **{n: (a, ()) for n, a in zip(names, stacked, strict=True)},
    )
    yield row("top_k", "rows", options={"k": 3}, x=x)
    yield row("top_k", "columns", (), "", "all-reduce", {"k": 3}, x=apart)
    numbers = rng.random(16, dtype=np.float32)
    yield row("sample", "rows", logits=x, rng=numbers, options={"temperature": 0.7, "top_k": 5})


ROWS = {row.label: row for row in _rows()}

_COLLECTIVES = re.compile(r" (all-\w+|reduce-scatter|collective-\w+|ragged-\w+)(?:-start)?\(")


def main(arguments: list[str]) -> None:
    """Run the rows with these labels, or all."""
    import jax

    if arguments[:1] == ["--process"]:
        _, i, _, n, _, port, *arguments = arguments
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", int(n), int(i))
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))
    for label in arguments or (*ROWS, *CHECKS):
        try:
            check(ROWS[label], mesh) if label in ROWS else CHECKS[label](mesh)
            error = ""
        except Exception:
            error = traceback.format_exc()
        print(f"\n{json.dumps([label, error])}", flush=True)  # other lines are Gloo's


def check(row: Row, mesh: Any) -> None:
    """Assert that a call's results are those of the reference, its kernel runs on parts, and nothing else is sent."""
    import jax

    operator = OPERATORS[row.operator]
    there = {name: _spread(a, spec, mesh) for name, (a, spec) in row.arrays.items()}
    compiled = jax.jit(lambda arrays: operator(**arrays, **row.options)).lower(there).compile()
    results = compiled(there)
    reference = REFERENCES[row.operator](**{name: a for name, (a, _) in row.arrays.items()}, **row.options)
    # Without jit, a body's operations are compiled one by one, which takes long, and none of it is ours.
    eager = operator(**there, **row.options) if row.kernel or row.operator == "rms_norm" else results
    for found in (results, eager):
        for y, expected in zip(jax.tree.leaves(found), jax.tree.leaves(reference), strict=True):
            close(y, np.asarray(expected))
    for y in jax.tree.leaves(results):
        wanted = sharding(row.result, mesh)
        assert y.sharding.is_equivalent_to(wanted, y.ndim), f"results have {y.sharding}, expected {wanted}"

    text = compiled.as_text()
    calls = [line for line in text.splitlines() if 'custom_call_target="tensorops.' in line]
    assert len(calls) == bool(row.kernel), f"kernels: {calls}"
    if row.kernel:
        assert f'"tensorops.{row.kernel}"' in calls[0], calls[0]
        for y in jax.tree.leaves(results):
            part = ",".join(map(str, y.sharding.shard_shape(y.shape)))
            assert f"[{part}]" in calls[0].split("custom-call(")[0], f"expected parts of shape [{part}]: {calls[0]}"
    ran = operator.explain(**there, **row.options)
    assert (ran.kernel == "jax_ffi") == bool(row.kernel), str(ran)
    sent = set(_COLLECTIVES.findall(text))
    if row.kernel or not row.collectives:
        assert sent == row.collectives, f"XLA sends: {sent}"
    else:
        assert sent >= row.collectives, f"XLA sends: {sent}"


def sharding(spec: Spec, mesh: Any) -> Any:
    """Return the sharding of a spec."""
    import jax

    axes = (None if axis is None else tuple(axis) for axis in spec)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


def _spread(a: Any, spec: Spec, mesh: Any) -> Any:
    """Return an array that is spread over the mesh, of which each process makes the parts that it has."""
    import jax

    narrow = a.astype(np.int32) if a.dtype == np.int64 else a
    return jax.make_array_from_callback(a.shape, sharding(spec, mesh), lambda index: narrow[index])


def close(y: Any, expected: Any) -> None:
    """Assert that the parts that are here are close to those of a result."""
    assert y.shape == expected.shape, f"shape {y.shape}, expected {expected.shape}"
    for part in y.addressable_shards:
        actual = np.asarray(part.data)
        if np.issubdtype(actual.dtype, np.integer):
            np.testing.assert_array_equal(actual, expected[part.index])
        else:
            assert_matches(actual, expected[part.index], actual.dtype.name, tolerance=64, scale_axis=None)


# ------------------------------------------------------------------------------------------ programs of several calls


def _kernels(compiled: Any) -> list[str]:
    return re.findall(r'custom_call_target="tensorops\.(\w+)"', compiled.as_text())


def _normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def shard_map(mesh: Any) -> None:
    """Within `jax.shard_map`, a device computes for itself, and sends what the program says."""
    import jax

    spec = jax.sharding.PartitionSpec
    x, targets, weight = _normal(16, 32), np.arange(16, dtype=np.int32), np.linspace(0.5, 2, 32, dtype=np.float32)

    def loss(x: Any, weight: Any, targets: Any) -> Any:
        return jax.lax.pmean(tp.cross_entropy(tp.rms_norm(x, weight), targets), ("a", "b"))

    rows = spec(("a", "b"))
    mapped = jax.shard_map(loss, mesh=mesh, in_specs=(rows, spec(), rows), out_specs=spec())
    there = [_spread(a, s, mesh) for a, s in ((x, EVERY), (weight, ()), (targets, EVERY))]
    compiled = jax.jit(mapped).lower(*there).compile()
    assert _kernels(compiled) == ["rms_norm", "cross_entropy"], _kernels(compiled)
    close(compiled(*there), np.asarray(REFERENCES["cross_entropy"](REFERENCES["rms_norm"](x, weight), targets)))


def gradients(mesh: Any) -> None:
    """Derivatives with respect to rows stay in parts; those of a weight are summed over devices."""
    import jax
    import jax.numpy as jnp

    def loss(compute: str, x: Any, weight: Any, q: Any, targets: Any) -> Any:
        def of(name: str) -> Any:
            return OPERATORS[name].generic if compute == "generic" else OPERATORS[name]

        hidden = of("add_rms_norm")(x, x, weight)[0]
        mixed = of("scaled_dot_product_attention")(q, q, q, is_causal=True)
        return of("cross_entropy")(hidden, targets) + jnp.sum(jnp.sin(mixed))

    arrays = [_normal(16, 32), np.linspace(0.5, 2, 32, dtype=np.float32), _normal(8, 4, 4, 8)]
    targets = np.arange(16, dtype=np.int32)
    there = [_spread(a, s, mesh) for a, s in zip([*arrays, targets], [EVERY, (), EVERY, EVERY], strict=True)]
    values = jax.jit(jax.value_and_grad(lambda *a: loss("", *a), (0, 1, 2)))(*there)
    generic = jax.jit(jax.value_and_grad(lambda *a: loss("generic", *a), (0, 1, 2)))
    wanted = generic(*map(jnp.asarray, [*arrays, targets]))
    for y, expected in zip(jax.tree.leaves(values), jax.tree.leaves(wanted), strict=True):
        close(y, np.asarray(expected))
    x, weight, _ = values[1]
    assert x.sharding.is_equivalent_to(sharding(EVERY, mesh), 2), x.sharding
    assert weight.sharding.is_fully_replicated, weight.sharding


def chain(mesh: Any) -> None:
    """A block as of a language model, two layers by `lax.scan`, divided by batch and heads: no rows are gathered."""
    import jax
    import jax.numpy as jnp

    def layer(x: Any, weights: Any) -> Any:
        norm, project, back = weights
        batch, length, width = x.shape
        heads = jnp.moveaxis(tp.rms_norm(x, norm) @ project.reshape(width, -1), -1, 1).reshape(batch, 4, 8, length)
        q = tp.rope(jnp.moveaxis(heads, -1, -2), jnp.arange(length))
        mixed = tp.scaled_dot_product_attention(q, q, q, is_causal=True)
        return x + tp.silu(jnp.einsum("bhld,hdw->blw", mixed, back)), None

    def network(x: Any, weights: Any) -> Any:
        return jax.lax.scan(layer, x, weights)[0]

    x = _normal(4, 8, 32)
    weights = [_normal(2, 32), 0.2 * _normal(2, 32, 4, 8), 0.2 * _normal(2, 4, 8, 32)]
    specs = [(), (None, None, "b"), (None, "b")]
    there = _spread(x, ("a",), mesh), [_spread(a, s, mesh) for a, s in zip(weights, specs, strict=True)]
    compiled = jax.jit(network).lower(*there).compile()
    assert sorted(_kernels(compiled)) == ["rms_norm", "rope", "scaled_dot_product_attention", "silu"], _kernels(
        compiled
    )
    assert set(_COLLECTIVES.findall(compiled.as_text())) == {"all-reduce"}, _COLLECTIVES.findall(compiled.as_text())
    with tp.set_backend("jax", providers=["generic"]):
        expected = jax.jit(network)(jnp.asarray(x), [jnp.asarray(w) for w in weights])
    close(compiled(*there), np.asarray(expected))


def divided_axes(mesh: Any) -> None:
    """Rows that are spread over a part of a mesh axis, and meshes of several shapes in one program."""
    import jax

    other = jax.make_mesh((8,), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(other, jax.sharding.PartitionSpec("all"))
    x = _normal(16, 32)

    def compute(x: Any) -> Any:
        y = tp.softmax(x.reshape(2, 8, 32))  # the first axis has two of the eight parts, the second four
        return jax.lax.with_sharding_constraint(tp.silu(y.reshape(16, 32)), sharding(("a", "b"), mesh))

    there = jax.make_array_from_callback(x.shape, rows, lambda index: x[index])
    compiled = jax.jit(compute).lower(there).compile()
    assert sorted(_kernels(compiled)) == ["silu", "softmax"], _kernels(compiled)
    close(compiled(there), np.asarray(REFERENCES["silu"](REFERENCES["softmax"](x))))
    with jax.set_mesh(mesh):
        close(tp.softmax(there), np.asarray(REFERENCES["softmax"](x)))


def transformations(mesh: Any) -> None:
    """Mapped, donated and exported programs."""
    import jax

    x, weight = _normal(4, 16, 32), np.linspace(0.5, 2, 32, dtype=np.float32)
    expected = np.asarray(REFERENCES["rms_norm"](x, weight))
    there = _spread(x, (None, "ab"), mesh), _spread(weight, (), mesh)
    mapped = jax.jit(jax.vmap(tp.rms_norm, (0, None)))
    compiled = mapped.lower(*there).compile()
    assert _kernels(compiled) == ["rms_norm"]
    assert not _COLLECTIVES.findall(compiled.as_text())
    close(compiled(*there), expected)
    exported = jax.export.export(mapped)(*there)  # it can be loaded where there are no kernels
    assert "CustomSPMDPartitioning" not in exported.mlir_module()
    assert "tensorops.rms" not in exported.mlir_module()
    close(jax.jit(exported.call)(*there), expected)
    close(jax.jit(lambda x, w: tp.rms_norm(x, w), donate_argnums=0)(*there), expected)


def explanations(mesh: Any) -> None:
    """`explain` names the axis that is in parts and must not be."""
    x = _spread(_normal(16, 32), (None, "ab"), mesh)
    reason = "axis -1 of x is split over 8 devices: XLA splits the body"
    assert tp.rms_norm.explain(x).refused["jax_ffi"] == reason, tp.rms_norm.explain(x)
    assert tp.silu.explain(x).kernel == "jax_ffi"
    k = _spread(_normal(8, 2, 4, 8), (None, "a"), mesh)
    q = _spread(_normal(8, 16, 4, 8), (None, "ab"), mesh)
    reason = "axis -3 of q is split over 8 devices: XLA splits the body"
    assert tp.scaled_dot_product_attention.explain(q, k, k).refused["jax_ffi"] == reason


def generators(mesh: Any) -> None:
    """A generator's numbers are those that it gives for the same array on one device."""
    import jax.numpy as jnp

    x = 3 * _normal(16, 32)
    found = tp.sample(_spread(x, EVERY, mesh), rng=np.random.default_rng(1))
    close(found, np.asarray(tp.sample(jnp.asarray(x), rng=np.random.default_rng(1))))


def explicit_axes(mesh: Any) -> None:
    """Calls whose types say how arrays are split: programs know it when they are traced."""
    import jax

    explicit = jax.make_mesh(
        tuple(AXES.values()), tuple(AXES), axis_types=(jax.sharding.AxisType.Explicit,) * len(AXES)
    )
    for label in (
        "rms_norm, rows and a weight in parts",
        "rms_norm, columns",
        "logsumexp, rows",
        "cross_entropy, rows",  # JAX cannot type the body
        "scaled_dot_product_attention, all arguments",
        "linear, rows and outputs",
        "quantized_linear, outputs",
        "top_k, rows",
    ):
        check(ROWS[label], explicit)
    there = _spread(_normal(16, 32), EVERY, explicit)
    gradient = jax.jit(jax.grad(lambda x: tp.rms_norm(x).sum()))(there)
    wanted = jax.grad(lambda x: tp.rms_norm.generic(x).sum())(jax.numpy.asarray(_normal(16, 32)))
    np.testing.assert_allclose(gradient, wanted, atol=1e-5)


def manual_axes(mesh: Any) -> None:
    """Where `jax.shard_map` leaves an axis of the mesh to XLA, XLA splits the body along it."""
    import jax

    spec, x = jax.sharding.PartitionSpec, _normal(16, 32)
    mapped = jax.shard_map(tp.softmax, mesh=mesh, in_specs=spec("a"), out_specs=spec("a"), axis_names={"a"})
    there = _spread(x, ("a", "b"), mesh)
    compiled = jax.jit(mapped).lower(there).compile()
    assert not _kernels(compiled), _kernels(compiled)
    assert set(_COLLECTIVES.findall(compiled.as_text())) == {"all-reduce"}
    close(compiled(there), np.asarray(REFERENCES["softmax"](x)))


def for_tpus(mesh: Any) -> None:
    """A program for TPUs has the Pallas kernel for a device's rows where types tell which these are."""
    import jax

    explicit = jax.make_mesh(
        tuple(AXES.values()), tuple(AXES), axis_types=(jax.sharding.AxisType.Explicit,) * len(AXES)
    )
    for over, has_kernel in ((explicit, True), (mesh, False)):
        x = _spread(_normal(64, 128), EVERY, over)
        text = jax.jit(lambda x: tp.rms_norm(x)).trace(x).lower(lowering_platforms=("tpu",)).as_text()
        assert ("@tpu_custom_call" in text) == has_kernel, text
        assert "CustomSPMDPartitioning" not in text, text
        assert not has_kernel or re.search(r"@tpu_custom_call\(.*\(tensor<8x128xf32>\) -> tensor<8x128xf32>", text), (
            text
        )


CHECKS: dict[str, Callable[[Any], None]] = {
    f.__name__: f
    for f in (
        shard_map,
        gradients,
        chain,
        divided_axes,
        transformations,
        explanations,
        generators,
        explicit_axes,
        manual_axes,
        for_tpus,
    )
}

if __name__ == "__main__":
    main(sys.argv[1:])
