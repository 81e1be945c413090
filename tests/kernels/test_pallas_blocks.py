"""The Pallas kernels of quantized_linear for blocks of formats: weights, products, plans and bytes."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.kernels.pallas import blocks, quantized_plans
from tensorops.testing import DTYPES
from tensorops.testing._stored_blocks import FORMATS, decode, random_blocks

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from pallas_support import exported, interpreting, races  # noqa: E402
from tensorops.kernels.pallas import quantized_blocks  # noqa: E402
from tensorops.kernels.pallas.planners import PLANNERS  # noqa: E402

BOUNDS = {"float32": 4e-7, "bfloat16": 4e-3}  # of errors, in units of the sum of |x w|
LANES, SUBLANES = 17, 136  # outputs with which XLA stores the bytes of rows that are no multiple of 128 along these

READ = [name for name in FORMATS if not name.startswith(("fp8", "sparse"))]


def weights_of_lanes(name, stored):
    """Return what the kernel for bytes along the lanes unpacks: its product with the identity."""
    found = quantized_blocks.plan(name, stored.shape[1], along_lanes=True)
    never_written = ((0, 0), (0, -stored.shape[1] % 128))
    return multiplied_by_one(found, np.pad(stored, never_written, constant_values=255))


def weights_of_sublanes(name, stored):
    """Return what the kernel for bytes along the sublanes unpacks."""
    return multiplied_by_one(quantized_blocks.plan(name, stored.shape[1], along_lanes=False), stored.T)


def multiplied_by_one(found, weight):
    columns = found.count * found.of.elements
    one = np.full((columns, columns + -columns % 128), np.nan, np.float32)
    one[:, :columns] = np.eye(columns)
    tables = jnp.asarray(found.tables)
    return found.product(quantized_blocks.Sorted(found, jnp.asarray(one), tables), jnp.asarray(weight), tables).T


@pytest.mark.parametrize("unpacked", [weights_of_lanes, weights_of_sublanes])
@pytest.mark.parametrize("name", READ)
def test_every_weight_is_exact(name, unpacked, rng):
    elements = FORMATS[name][0]
    for count in (1, 7):
        stored = random_blocks(rng, name, 5, count * elements)
        np.testing.assert_array_equal(np.asarray(unpacked(name, stored)), decode(name, stored).astype(np.float32))


@pytest.mark.parametrize("unpacked", [weights_of_lanes, weights_of_sublanes])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_every_scale_in_a_byte(name, unpacked):
    stored = random_blocks(np.random.default_rng(0), name, 256, 64)
    groups = FORMATS[name][1] - FORMATS[name][0] // 2
    stored.reshape(256, -1, FORMATS[name][1])[..., :groups] = np.arange(256)[:, None, None]
    stored = stored[2:] if name == "mxfp4" else stored  # others are not normal
    with np.errstate(over="ignore"):
        expected = decode(name, stored).astype(np.float32)
    are_numbers = np.isfinite(expected).all(axis=1)
    assert are_numbers.sum() >= 250
    np.testing.assert_array_equal(np.asarray(unpacked(name, stored[are_numbers])), expected[are_numbers])


def run(x, stored, name):
    there = support.there((x, stored), "jax")
    with tp.set_backend("jax", providers=["pallas"]), interpreting() as steps, tp.trace() as log:
        y = support.back(tp.quantized_linear(*there, format=name))
        assert not races()
    assert [record.kernel for record in log] == ["pallas"]
    return y, len(steps)


def assert_product(y, x, stored, name):
    w, wide = decode(name, stored), x.astype(np.float64)
    assert y.dtype == x.dtype
    errors = np.abs(y.astype(np.float64) - wide @ w.T) / (np.abs(wide) @ np.abs(w).T)
    assert errors.max() < BOUNDS[x.dtype.name]


CALLS = [
    pytest.param(name, outputs, dtype, marks=() if which in IN_SHORT else pytest.mark.exhaustive)
    for IN_SHORT in [{("q4_k", LANES, "float32"), ("q6_k", SUBLANES, "float32"), ("q5_0", SUBLANES, "bfloat16")}]
    for which in [(n, o, d) for n in READ for o in (LANES, SUBLANES) for d in BOUNDS]
    for name, outputs, dtype in [which]
]


@pytest.mark.costly(2)
@pytest.mark.parametrize(("name", "outputs", "dtype"), CALLS)
def test_products(name, outputs, dtype, rng):
    stored = random_blocks(rng, name, outputs, 768)
    x = rng.standard_normal((3, 768)).astype(DTYPES[dtype])
    y, _ = run(x, stored, name)
    assert_product(y, x, stored, name)


@pytest.mark.costly
@pytest.mark.exhaustive
@pytest.mark.parametrize(("columns", "vmem"), [(512, 3 * 2**19), (2048, 3 * 2**20)])
def test_several_blocks(columns, vmem, rng, monkeypatch):
    monkeypatch.setitem(blocks.VMEM, blocks.UNKNOWN, vmem)
    stored = random_blocks(rng, "q4_k", 300, columns)
    x = rng.standard_normal((100, columns), dtype=np.float32)
    y, steps = run(x, stored, "q4_k")
    assert steps >= 4  # of rows and of outputs, the last of each incomplete
    assert_product(y, x, stored, "q4_k")


@pytest.mark.costly
@pytest.mark.parametrize("outputs", [LANES, SUBLANES])
def test_an_infinite_scale_reaches_one_output(outputs, rng):
    stored, x = random_blocks(rng, "q8_0", outputs, 96), np.ones((2, 96), np.float32)
    stored[3, 68:70] = np.asarray([np.inf], "<f2").view(np.uint8)
    y, _ = run(x, stored, "q8_0")
    assert not np.isfinite(y[:, 3]).any()
    others = np.delete(stored, 3, axis=0)
    assert_product(np.delete(y, 3, axis=1), x, others, "q8_0")


# --------------------------------------------------------------------------------------------------------- plans


def traced(name, rows, columns, outputs, dtype="bfloat16"):
    """Return the call of the kernel in a program for v5e."""
    elements, nbytes, _ = FORMATS[name]
    x = jax.ShapeDtypeStruct((rows, columns), DTYPES[dtype])
    weight = jax.ShapeDtypeStruct((outputs, columns // elements * nbytes), np.uint8)
    program = PLANNERS["quantized_linear"]("v5e", x=x, weight=weight, bits=4, group_size=32, format=name)
    assert not isinstance(program, str)
    jaxpr = jax.make_jaxpr(lambda x, weight: program(x=x, weight=weight))(x, weight).jaxpr
    (found,) = [each for each in jaxpr.eqns if each.primitive.name == "pallas_call"]
    return found, x.size * x.dtype.itemsize + weight.size + rows * outputs * x.dtype.itemsize


@pytest.mark.parametrize("name", READ)
def test_bytes_are_those_of_the_blocks(name):
    found, needed = traced(name, 1, 4096, 2048)
    assert needed <= found.params["cost_estimate"].bytes_accessed <= 1.1 * needed


# As compiled by libtpu 0.0.42: whether XLA stores a row of that many bytes along the lanes
STORED = [
    (4096, 8064, True), (14336, 4352, True), (14336, 3360, False), (14335, 3360, False), (1536, 324, False),
    (1536, 612, False), (192, 68, False), (100, 324, True), (17, 144, True), (49152, 324, False),
]  # fmt: skip


@pytest.mark.parametrize(("outputs", "width", "expected"), STORED)
def test_rows_are_read_as_xla_stores_them(outputs, width, expected):
    assert quantized_plans._along_lanes(outputs, width) == expected


@pytest.mark.parametrize("name", ["q4_k", "q6_k"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_float32_are_in_full_precision(name, dtype):
    text = str(traced(name, 4, 512, 256, dtype)[0])
    assert text.count("dot_general") > 0
    assert text.count("HIGHEST") == (2 * text.count("dot_general[") if dtype == "float32" else 0)


def test_programs_for_tpus_have_the_kernel(rng):
    shapes = [((4, 512), jnp.bfloat16), ((40, 288), jnp.uint8)]
    arrays = [jax.ShapeDtypeStruct(*each) for each in shapes]
    text = exported(lambda *xs: tp.quantized_linear(*xs, format="q4_k"), *arrays)
    assert text.count("@tpu_custom_call") == 1
    assert 'kernel_name = "quantized_linear_q4_k"' in text
    mapped = jax.vmap(lambda *xs: tp.quantized_linear(*xs, format="q4_k"), in_axes=(0, None))
    several = jax.ShapeDtypeStruct((3, 4, 512), jnp.bfloat16)
    assert exported(mapped, several, arrays[1]).count("@tpu_custom_call") == 1


def test_a_format_of_another_package_is_refused_by_name():
    x, weight = jax.ShapeDtypeStruct((1, 64), np.float32), jax.ShapeDtypeStruct((3, 64), np.uint8)
    found = PLANNERS["quantized_linear"]("v5e", x=x, weight=weight, bits=4, group_size=32, format="other")
    assert found == "the kernel reads no blocks of format 'other'"
