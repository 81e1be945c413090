"""The Pallas kernels for TPUs on the CPU: values in Pallas' TPU interpreter, blocks, and exported programs."""

import itertools
import math

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops._trees import map_arrays
from tensorops.kernels.pallas import blocks, channels_plans
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, DTYPES, REFERENCES, assert_matches
from tensorops.testing._running import check_result

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental import pallas as pl  # noqa: E402

from pallas_support import exported, interpreting, races, text_of_kernel  # noqa: E402
from tensorops.kernels.pallas._call import traffic  # noqa: E402
from tensorops.kernels.pallas._launch import interpreted  # noqa: E402
from tensorops.kernels.pallas.planners import PLANNERS  # noqa: E402

DTYPES_OF_KERNELS = ("bfloat16", "float32")


@pytest.fixture
def steps():
    with interpreting() as found:
        yield found


def as_in_jax(a):
    return a.astype(np.int32) if a.dtype == np.int64 else a


def every_case():
    """Yield the cases that the kernels take; a short run has the first of each operator."""
    for name in PLANNERS:
        taken = 0
        for case, dtype in itertools.product(CASES[name], DTYPES_OF_KERNELS):
            if dtype not in case.dtypes:
                continue
            args, options = map_arrays(as_in_jax, case.build(dtype_name=dtype))
            if not isinstance(PLANNERS[name]("v4", **OPERATORS[name].canonical(*args, **options)), str):
                taken += 1
                marks = () if taken == 1 else pytest.mark.exhaustive
                yield pytest.param(case, dtype, marks=marks, id=f"{case}-{dtype}")


@pytest.mark.parametrize(("case", "dtype"), list(every_case()))
def test_values(case, dtype, steps):
    operator, row = OPERATORS[case.operator], LIBRARIES["jax"]
    args, options = case.build(dtype_name=dtype)
    call = support.there((args, options), "jax")
    with tp.set_backend("jax", providers=["pallas"]), tp.trace() as log:
        result = operator(*call[0], **call[1])
        jax.block_until_ready(result)
    assert [record.kernel for record in log] == ["pallas"]
    assert steps
    assert not races()
    check_result(result, REFERENCES[case.operator](*args, **options), case, row, dtype, call)


# Several blocks of rows with an incomplete last one, and parts of rows with an incomplete last one.
@pytest.mark.costly
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "logsumexp", "cross_entropy"])
def test_several_blocks(name, steps, rng, monkeypatch):
    monkeypatch.setattr(blocks, "_ENOUGH", 2**18)
    x = 3 * rng.standard_normal((300, 300)).astype(np.float32)
    x[7, 299], x[299, 0] = 90.0, -90.0  # larger than all before, and the first of the last row
    args = (x, rng.integers(0, 300, 300).astype(np.int32)) if name == "cross_entropy" else (x,)
    with tp.set_backend("jax", providers=["pallas"]):
        y = OPERATORS[name](*support.there(args, "jax"))
    assert len(steps) > 4
    assert not races()
    assert_matches(support.back(y), REFERENCES[name](*args), "float32", tolerance=16)


# Channels in planes of their own, along the sublanes and along the lanes, some of them so only as XLA stores them;
# several groups or elements of the batch in a block, and a last block with fewer elements.
CHANNELS = [
    ((5, 12, 8, 128), 4, 1),
    ((3, 4, 8, 256), 256, -1),
    pytest.param((5, 256, 3, 2, 16), 4, 1, marks=pytest.mark.exhaustive),
    pytest.param((5, 48, 130), 4, 1, marks=pytest.mark.exhaustive),
    pytest.param((5, 16, 96), 6, -1, marks=pytest.mark.exhaustive),
    pytest.param((3, 4, 8, 256), 2, -1, marks=pytest.mark.exhaustive),
]


@pytest.mark.costly
@pytest.mark.parametrize(("shape", "groups", "axis"), CHANNELS)
@pytest.mark.parametrize("dtype", DTYPES_OF_KERNELS)
def test_groups_of_channels(dtype, shape, groups, axis, steps, rng, monkeypatch):
    monkeypatch.setattr(channels_plans, "_ENOUGH", 2**18)
    x = np.moveaxis(rng.standard_normal(shape), axis, 1)
    x[0, 0], x[0, -1], x[-1, 0], x[-1, -1] = 1e-18, 1e18 * x[0, -1], 1e-18 * x[-1, 0], 1234.567  # groups apart
    x = np.ascontiguousarray(np.moveaxis(x, 1, axis)).astype(DTYPES[dtype])
    parameters = rng.standard_normal((2, shape[axis])).astype(np.float32)
    options = {"channel_axis": axis, "eps": 0.0 if dtype == "float32" and groups < shape[axis] else 1e-5}
    name = "instance_norm" if groups == shape[axis] else "group_norm"
    options |= {} if name == "instance_norm" else {"num_groups": groups}
    with tp.set_backend("jax", providers=["pallas"]):
        there = support.there({"x": x, "weight": parameters[0], "bias": parameters[1]}, "jax")
        y = OPERATORS[name](**there, **options)
    assert len(steps) > 1
    assert not races()
    weight, bias = parameters
    assert_matches(support.back(y), REFERENCES[name](x, weight=weight, bias=bias, **options), dtype, tolerance=64)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "instance_norm"])
def test_equal_elements_have_no_deviation(name, steps):
    x = np.full((2, 9, 1000), 1234.5678, np.float32)
    with tp.set_backend("jax", providers=["pallas"]):
        y = OPERATORS[name](*support.there((x,), "jax"), **({"num_groups": 3} if name == "group_norm" else {}))
    assert steps
    np.testing.assert_allclose(support.back(y), 0.0, atol=1e-6)


@pytest.mark.costly
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", DTYPES_OF_KERNELS)
@pytest.mark.parametrize("kind", ["random", "one_column", "ties", "numbers_at_the_end"])
def test_selection(kind, dtype, largest, steps, rng):
    """Rows of several parts, of which some need several rounds; NumPy's stable sort tells what is selected."""
    x = rng.standard_normal((19, 1500)).astype(DTYPES[dtype])
    if kind == "one_column":  # parts have 128 columns
        x[:, 5::128] = 100 if largest else -100
    elif kind == "ties":
        x = np.where(x > 0, 0.0, -0.0).astype(x.dtype)
    elif kind == "numbers_at_the_end":
        x[:, :-9] = np.nan
        x[3] = -np.inf if largest else np.inf
    wide = x.astype(np.float64)
    order = np.argsort(-wide if largest else wide, axis=-1, kind="stable")[:, :20]
    with tp.set_backend("jax", providers=["pallas"]):
        values, indices = tp.top_k(*support.there((x,), "jax"), 20, largest=largest)
    assert len(steps) == (2 if dtype == "bfloat16" else 3)
    assert not races()
    np.testing.assert_array_equal(support.back(indices), order)
    expected = np.take_along_axis(x, order, axis=-1)
    np.testing.assert_array_equal(support.back(values).astype(np.float64), expected.astype(np.float64))
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(support.back(values))[numbers], np.signbit(expected)[numbers])


def test_a_class_out_of_range_gives_nan(steps, rng):
    logits, targets = rng.standard_normal((4, 5)).astype(np.float32), np.array([1, 5, -3, -100], np.int32)
    there = support.there((logits, targets), "jax")
    with tp.set_backend("jax", providers=["pallas"]):
        losses = support.back(tp.cross_entropy(*there, reduction="none"))
    assert steps
    np.testing.assert_array_equal(np.isnan(losses), [False, True, True, False])


# Several blocks of positions and of heads, incomplete ones, one position, and positions or tables for each batch.
ROTATIONS = [((2, 3, 70, 128), (70,)), ((2, 5, 1, 256), (1,)), ((2, 3, 17, 128), (2, 17))]


@pytest.mark.costly
@pytest.mark.parametrize("tables", [False, True], ids=["angles", "tables"])
@pytest.mark.parametrize(("shape", "of_positions"), ROTATIONS)
@pytest.mark.parametrize("dtype", DTYPES_OF_KERNELS)
def test_rotation(dtype, shape, of_positions, tables, steps, rng, monkeypatch):
    monkeypatch.setattr(blocks, "_ENOUGH", 2**17)
    x = rng.standard_normal(shape).astype(DTYPES[dtype])
    args, options = (x, rng.integers(0, 50, of_positions)), {"attention_factor": 1.5}
    if tables:
        cos, sin = rng.standard_normal((2, *of_positions, shape[-1] // 2)).astype(np.float32)
        args, options = (x,), options | {"cos": cos, "sin": sin}
    there, options_there = support.there((args, options), "jax")
    with tp.set_backend("jax", providers=["pallas"]):
        y = tp.rope(*there, **options_there)
    assert len(steps) > 1
    assert not races()
    assert_matches(support.back(y), REFERENCES["rope"](*args, **options), dtype, tolerance=64)


@pytest.mark.costly
@pytest.mark.parametrize("tables", [False, True], ids=["angles", "tables"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dims", [pytest.param(2, marks=pytest.mark.exhaustive), 48, 128])
def test_pairs(dims, interleaved, tables, steps, rng):
    x = rng.standard_normal((2, 3, 8, 128)).astype(np.float32)
    x[0, 0, 0, dims:], x[0, 0, 0, dims - 1] = np.inf, 1e30  # features that do not rotate are in no product
    positions = rng.integers(0, 30, (2, 8)).astype(np.int32)
    options = {"dims": dims, "interleaved": interleaved, "attention_factor": 1.5}
    if tables:
        positions[1, 3] = -1
        options |= dict(zip(("cos", "sin"), rng.standard_normal((2, 30, dims // 2)).astype(np.float32), strict=True))
    there, at, options_there = support.there((x, positions, options), "jax")
    with tp.set_backend("jax", providers=["pallas"]):
        y = np.array(support.back(tp.rope(there, at, **options_there)))
    assert steps
    if tables:  # outside of the tables: NaN in all that rotates
        assert np.isnan(y[1, :, 3, :dims]).all()
        np.testing.assert_array_equal(y[1, :, 3, dims:], x[1, :, 3, dims:])
        y[1, :, 3], x[1, :, 3], positions[1, 3] = 0, 0, 0
    assert_matches(y, REFERENCES["rope"](x, positions, **options), "float32", tolerance=64)


# What the shares of classes add to one pass over the logits: smoothing, weights and probabilities, in several parts.
SHARED = [
    {"label_smoothing": 0.3},
    {"label_smoothing": 0.3, "weighted": True, "z_loss": 0.1},
    {"probable": True, "label_smoothing": 0.3, "weighted": True},
    {"probable": True, "z_loss": 0.1, "dtype": "bfloat16"},
]


@pytest.mark.costly
@pytest.mark.parametrize("options", SHARED, ids=lambda options: "-".join(options))
def test_shares_of_classes(options, steps, rng, monkeypatch):
    monkeypatch.setattr(blocks, "_ENOUGH", 2**16)
    dtype = options.get("dtype", "float32")
    logits = (3 * rng.standard_normal((20, 300))).astype(DTYPES[dtype])
    logits[3, 299], logits[4, 7] = 90.0, -np.inf  # larger than all before, and counting nothing
    targets = rng.integers(0, 300, 20)
    if "probable" in options:
        targets = rng.dirichlet(np.ones(300), 20).astype(DTYPES[dtype])
        targets[4, 7] = 0.0
    weight = [rng.random(300).astype(np.float32)] if "weighted" in options else []
    if weight:
        weight[0][7] = 0.0
    else:
        logits[4, 7] = 0.0
    options = {key: options[key] for key in ("label_smoothing", "z_loss") if key in options} | {"reduction": "none"}
    there = support.there((logits, targets, *weight), "jax")
    with tp.set_backend("jax", providers=["pallas"]):
        y = support.back(tp.cross_entropy(*there, **options))
    assert len(steps) > 1
    assert not races()
    assert_matches(y, REFERENCES["cross_entropy"](logits, targets, *weight, **options), dtype, tolerance=16)


WIDE_AND_NARROW = ("int8", "uint16", "int64", "uint64")


@pytest.mark.parametrize("index", ["uint32", *(pytest.param(i, marks=pytest.mark.exhaustive) for i in WIDE_AND_NARROW)])
def test_class_numbers_of_every_dtype(index, rng):
    logits, targets = rng.standard_normal((4, 5)).astype(np.float32), np.array([1, 0, 4, 2], index)
    with jax.enable_x64(index.endswith("64")), interpreted():
        there = support.there((logits, targets), "jax")
        assert there[1].dtype == index
        if index.endswith("64"):  # int32 would wrap it around to a class
            there = (there[0], there[1].at[1].set(2**32 + 1))
        with tp.set_backend("jax", providers=["pallas"]):
            y = np.array(support.back(tp.cross_entropy(*there, reduction="none")))
    expected = REFERENCES["cross_entropy"](logits, targets, reduction="none")
    if index.endswith("64"):
        assert np.isnan(y[1])
        y[1] = expected[1]
    assert_matches(y, expected, "float32", tolerance=16)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_refused_on_the_cpu(traced):
    x = jnp.ones((4, 128))
    call = jax.jit(tp.rms_norm) if traced else tp.rms_norm
    with tp.set_backend("jax", providers=["pallas"]), pytest.raises(tp.KernelRefusedError, match="pallas: x is "):
        call(x)


REFUSED = [
    ("rope", {"positions": np.zeros(4, int), "dims": 0}, "dims is 0"),
    ("softmax", {"axis": 0}, "axis is not the last of x"),
    ("top_k", {"k": 0}, "k is 0, expected 1 … 128"),
    ("top_k", {"k": 3, "axis": 0}, "axis is not the last of x"),
    ("instance_norm", {}, "x has no positions"),
    ("softmax", {"dtype": np.dtype("float16")}, "dtype is float16, and Pallas' compiler"),
    ("cross_entropy", {"targets": np.zeros((4, 128), np.float16)}, "targets has dtype float16, and Pallas' compiler"),
]


@pytest.mark.parametrize(("name", "options", "reason"), REFUSED)
def test_refusals(name, options, reason):
    x = np.ones((2, 4, 128) if name == "rope" else (4, 128), np.float32)
    found = PLANNERS[name]("v5e", **OPERATORS[name].canonical(x, **options))
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_blocks_can_be_overridden(steps, rng):
    x = rng.standard_normal((70, 300)).astype(np.float32)
    (there,) = support.there((x,), "jax")
    with tp.set_backend("jax", providers=["pallas"]):
        assert tp.softmax.explain(there).configuration == {"block_rows": 24, "block_columns": 300}
        with tp.tune("softmax", "pallas", block_rows=3):  # a tile has 8
            assert tp.softmax.explain(there).configuration["block_rows"] == 3
            y = tp.softmax(there)
        assert len(steps) == 9
        steps.clear()
        with tp.tune("logsumexp", "pallas", block_columns=100, block_rows=10**9):
            z = tp.logsumexp(there)
        assert len(steps) == 3
    assert_matches(support.back(y), REFERENCES["softmax"](x), "float32", tolerance=16)
    assert_matches(support.back(z), REFERENCES["logsumexp"](x), "float32", tolerance=16)


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize("wanted", [1, 100, 10**9])
def test_overridden_blocks_fit(wanted, generation):
    functions = (
        lambda: blocks.whole_rows(10**6, 3000, [2, 2], 4, generation),
        lambda: blocks.parts_of_rows(10**6, 30_000, [2], 3, generation),
        lambda: blocks.heads_and_positions(1000, 10**5, 128, 2, generation),
    )
    for function in functions:
        with blocks.choosing({"block_rows": wanted, "block_columns": wanted}) as choice:
            found = function()
        assert found == choice.found
        assert found != function()
        assert found.rows % 16 == 0
        assert found.vmem < blocks.VMEM[generation]


def test_rows_that_fit_no_vector_memory():
    x = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (16, 100_000), (0, 0))
    arguments = OPERATORS["rms_norm"].canonical(x)
    assert PLANNERS["rms_norm"]("v4", **arguments) == "rows of 100000 elements do not fit the vector memory of a TPU v4"
    assert callable(PLANNERS["rms_norm"]("v5e", **arguments))


# ------------------------------------------------------------------------------------------------------ blocks

SHAPES = [(1, 1), (3, 65), (8, 128), (4096, 4096), (4097, 4099), (100_003, 64), (17, 32_000), (2**24, 128)]


def covered(count, size):
    """Return whether blocks of a size, as many as the grid has, hold every element once; the last may be incomplete."""
    return size > 0 and (math.ceil(count / size) - 1) * size < count <= math.ceil(count / size) * size


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize(("rows", "length"), SHAPES)
@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (2, 4), (2, 2, 2, 2)], ids=str)
def test_blocks_of_rows(sizes, rows, length, generation):
    found = blocks.whole_rows(rows, length, sizes, 4, generation)
    tile, row = 32 // min(sizes), math.ceil(length / 128) * 128 * (2 * sum(sizes) + 16)
    assert (found is None) == (tile * row > 0.9 * blocks.VMEM[generation])
    if found is None:
        return
    assert found.rows == rows or found.rows % tile == 0
    assert found.columns == length
    assert covered(rows, found.rows)
    assert math.ceil(found.rows / tile) * tile * row <= found.vmem < blocks.VMEM[generation]


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize(("rows", "length"), [*SHAPES, (5, 10**8)])
@pytest.mark.parametrize("size", [2, 4])
def test_blocks_of_parts_of_rows(size, rows, length, generation):
    found = blocks.parts_of_rows(rows, length, [size], 3, generation)
    assert found.rows == rows or found.rows % 128 == 0  # results are along the lanes
    assert found.columns == length or found.columns % 128 == 0
    assert covered(rows, found.rows)
    assert covered(length, found.columns)
    assert found.rows * found.columns * (2 * size + 12) <= found.vmem < blocks.VMEM[generation]


@pytest.mark.parametrize(("heads", "positions"), [(1, 1), (32, 2048), (5, 77), (128, 1), (3, 100_000)])
def test_blocks_of_heads(heads, positions):
    found = blocks.heads_and_positions(heads, positions, 128, 2, "v4")
    assert found is not None
    assert found.rows == positions or found.rows % 16 == 0
    assert 1 <= found.columns <= heads
    assert found.vmem < blocks.VMEM["v4"]


# Grid, shape, block, index map, and the bytes of float32 that move, counted by hand.
TRAFFIC = [
    ((4,), (8, 128), (2, 128), lambda i: (i, 0), 8 * 128),  # each block once
    ((4,), (7, 128), (2, 128), lambda i: (i, 0), 7 * 128),  # the last is incomplete
    ((4,), (1, 128), (1, 128), lambda i: (0, 0), 128),  # stays
    ((2, 3), (4, 384), (2, 128), lambda i, j: (i, j), 4 * 384),
    ((2, 3), (4, 128), (2, 128), lambda i, j: (i, 0), 4 * 128),  # stays while the last axis changes
    ((2, 3), (2, 384), (2, 128), lambda i, j: (0, j), 2 * 2 * 384),  # is read again for each step of the first
]


@pytest.mark.parametrize(("grid", "shape", "block", "index_map", "elements"), TRAFFIC)
def test_traffic(grid, shape, block, index_map, elements):
    assert traffic(grid, shape, 4, pl.BlockSpec(block, index_map)) == 4 * elements


# --------------------------------------------------------------------------------------------- programs for TPUs


CALLS = {
    "rms_norm": ((64, 256), (256,)),
    "add_rms_norm": ((64, 256), (64, 256), (256,)),
    "layer_norm": ((64, 256), (256,), (256,)),
    "l2_norm": ((64, 256),),
    "group_norm": ((4, 8, 16, 128),),
    "instance_norm": ((4, 16, 128), (16,), (16,)),
    "softmax": ((64, 256),),
    "log_softmax": ((64, 256),),
    "logsumexp": ((64, 256),),
    "rope": ((2, 3, 64, 128), (64,)),
    "cross_entropy": ((64, 256), (64,)),
    "scaled_dot_product_attention": ((2, 4, 64, 128), (2, 2, 64, 128), (2, 2, 64, 128)),
    "quantized_linear": ((64, 256), (48, 128), (48, 8), (48, 8)),
    "linear_cross_entropy": ((64, 256), (512, 256), (64,)),
    "embedding": ((64,), (512, 256)),
    "top_k": ((64, 1000),),
}
OPTIONS = {"group_norm": {"num_groups": 4}, "top_k": {"k": 5}}
INTEGERS = {
    "rope": (1, jnp.int32),
    "cross_entropy": (1, jnp.int32),
    "quantized_linear": (1, jnp.uint8),
    "linear_cross_entropy": (2, jnp.int32),
    "embedding": (0, jnp.int32),
}
NAMED = {name: (place, jnp.dtype(dtype).name) for name, (place, dtype) in INTEGERS.items()}


def arguments(name, dtype="bfloat16"):
    place, integer = INTEGERS.get(name, (None, None))
    return [
        jax.ShapeDtypeStruct(shape, integer if i == place else jnp.dtype(dtype)) for i, shape in enumerate(CALLS[name])
    ]


@pytest.mark.parametrize("name", CALLS)
def test_programs_for_tpus_have_the_kernel(name):
    text = exported(lambda *xs: OPERATORS[name](*xs, **OPTIONS.get(name, {})), *arguments(name))
    assert text.count("@tpu_custom_call") == 1
    assert f'kernel_name = "{name}' in text
    assert "@tpu_custom_call" not in exported(
        lambda *xs: OPERATORS[name].generic(*xs, **OPTIONS.get(name, {})), *arguments(name)
    )


# A pure Python installation: JAX has no kernels for processors, and what it exports must not depend on them.
EXPORTING = f"""
import sys
sys.modules["tensorops.kernels.cpu._native"] = None
import jax, jax.numpy as jnp, numpy as np, tensorops as tp
from tensorops._operator import OPERATORS

def exported(function, *args, platforms=("tpu",)):
    return jax.export.export(jax.jit(function), platforms=platforms)(*args).mlir_module()

for name, shapes in {CALLS!r}.items():
    place, integer = {{key: (i, str(dtype)) for key, (i, dtype) in {NAMED!r}.items()}}.get(name, (None, None))
    options = {OPTIONS!r}.get(name, {{}})
    args = [jax.ShapeDtypeStruct(s, integer if i == place else "bfloat16") for i, s in enumerate(shapes)]
    assert "kernel_name = \\"" + name in exported(lambda *xs: OPERATORS[name](*xs, **options), *args), name
    with tp.set_backend("jax", providers=["generic"]):
        assert "@tpu_custom_call" not in exported(lambda *xs: OPERATORS[name](*xs, **options), *args), name
x, w = np.linspace(-3, 3, 512, dtype=np.float32).reshape(2, 256), np.linspace(1, 2, 256, dtype=np.float32)
with tp.trace() as log:
    y, dx = jax.jit(jax.value_and_grad(lambda x: jnp.sum(tp.rms_norm(x, jnp.asarray(w)) ** 2)))(jnp.asarray(x))
assert [record.kernel for record in log] == ["generic"], log
expected = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 1e-6) * w
np.testing.assert_allclose(y, (expected**2).sum(), rtol=1e-5)
text = exported(lambda x: tp.rms_norm(x, jnp.asarray(w)), jnp.asarray(x), platforms=("cpu", "tpu"))
assert text.count("@tpu_custom_call") == 1
print("done")
"""


@pytest.mark.exhaustive
def test_programs_have_the_kernel_without_the_compiled_module():
    result = support.python(EXPORTING)
    assert result.stdout == "done\n", result.stderr


@pytest.mark.parametrize("name", CALLS)
def test_kernels_have_no_int64(name):
    """What the interpreter cannot tell: the compiler for TPUs refuses it, also where JAX has it."""
    with jax.enable_x64(True):
        given = OPERATORS[name].canonical(*arguments(name), **OPTIONS.get(name, {}))
        arrays = {key: a for key, a in given.items() if isinstance(a, jax.ShapeDtypeStruct)}
        program = PLANNERS[name]("v5e", **given)
        assert "i64" not in text_of_kernel(lambda arrays: program(**arrays), arrays)


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "rope", "group_norm", "top_k"])
def test_mapped_programs_have_the_kernel(name):
    first, *others = arguments(name)
    several = jax.ShapeDtypeStruct((5, *first.shape), first.dtype)
    mapped = jax.vmap(lambda *xs: OPERATORS[name](*xs, **OPTIONS.get(name, {})), in_axes=(0, *[None] * len(others)))
    text = exported(mapped, several, *others)
    assert text.count("@tpu_custom_call") == 1


@pytest.mark.parametrize("name", ["rms_norm", "cross_entropy"])
def test_derivatives_are_those_of_the_body(name):
    first, *others = arguments(name, "float32")

    def total(x, *xs):
        return jnp.sum(OPERATORS[name](x, *xs))

    assert "@tpu_custom_call" not in exported(jax.grad(total), first, *others)


def test_float16_is_left_to_the_body():
    assert "@tpu_custom_call" not in exported(lambda *xs: tp.rms_norm(*xs), *arguments("rms_norm", "float16"))
