"""The Pallas kernel of embedding: rows and ids in the interpreter, what is copied, plans, and programs for TPUs."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import DTYPES

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from pallas_support import exported, interpreting, races, text_of_kernel  # noqa: E402
from tensorops.kernels.pallas import _call, blocks, compiling_for, lookup_plans  # noqa: E402
from tensorops.kernels.pallas.lookup_plans import divided  # noqa: E402
from tensorops.kernels.pallas.planners import PLANNERS  # noqa: E402

KERNEL = 'kernel_name = "embedding"'
BITS = {"bfloat16": np.uint16, "float32": np.uint32}


def run(ids, weight):
    """Run the kernel in the interpreter; return its result and the number of steps."""
    there = support.there((ids, weight), "jax")
    assert there[0].dtype == ids.dtype
    with tp.set_backend("jax", providers=["pallas"]), interpreting() as steps, tp.trace() as log:
        y = support.back(jax.block_until_ready(tp.embedding(*there)))
        assert not races()
    assert [record.kernel for record in log] == ["pallas"]
    return y, len(steps)


def expected(ids, weight):
    """Return the rows by Python's integers: negative ids count from the end, beyond it all elements are NaN."""
    rows = [weight[i] if -len(weight) <= i < len(weight) else np.full_like(weight[0], np.nan) for i in ids.ravel()]
    return np.reshape(rows, (*ids.shape, weight.shape[1]))


def table(rng, rows, features, dtype):
    return rng.standard_normal((rows, features)).astype(DTYPES[dtype])


# Rows of the table and features, the shape of the ids, and how many blocks of 16 these have: one with one row, whole
# blocks, an incomplete last one, an even number, which two cores share, and an odd one.
SHAPES = [
    ((50, 128), (), 1),
    pytest.param((50, 128), (3, 12), 3, marks=pytest.mark.exhaustive),
    pytest.param((51, 384), (2, 8, 4), 4, marks=pytest.mark.exhaustive),
    ((3, 256), (29,), 2),
    pytest.param((2, 128), (5, 1), 1, marks=pytest.mark.exhaustive),
]


@pytest.mark.costly
@pytest.mark.parametrize(("shape", "of_ids", "count"), SHAPES)
@pytest.mark.parametrize("dtype", BITS)
def test_rows(dtype, shape, of_ids, count, rng, monkeypatch):
    monkeypatch.setattr(lookup_plans, "_MOST_ROWS", 16)
    monkeypatch.setattr(lookup_plans, "_STEPS", 1)
    weight = table(rng, *shape, dtype)
    ids = rng.integers(-len(weight), len(weight), of_ids, dtype=np.int32)
    if ids.size > 4:  # the first and the last row, and those beyond them
        ids.flat[:4] = len(weight) - 1, -len(weight), len(weight), -len(weight) - 1
    y, steps = run(ids, weight)
    cores = 1 if count % 2 else 2
    assert steps == cores * (count // cores + 1)
    assert y.dtype == weight.dtype
    np.testing.assert_array_equal(y.astype(np.float64), expected(ids, weight).astype(np.float64))


@pytest.mark.costly
@pytest.mark.parametrize("dtype", BITS)
def test_bits_are_those_of_the_table(dtype, rng):
    """Subnormal numbers, infinities and every NaN are copied as they are."""
    size = np.dtype(BITS[dtype]).itemsize
    if dtype == "bfloat16":
        bits = np.arange(2**16, dtype=np.uint16)
    else:
        bits = np.concatenate([rng.integers(0, 2**32, 2**14 - 4, np.uint32), np.uint32([1, 2**31, 0x7F800001, 0])])
    bits = bits.reshape(-1, 128)
    ids = rng.permutation(len(bits)).astype(np.int32)[:100]
    y, _ = run(ids, bits.view(DTYPES[dtype]))
    assert y.dtype.itemsize == size
    np.testing.assert_array_equal(np.asarray(y).view(BITS[dtype]), bits[ids])


INDICES = ["int8", "uint8", "uint32", "int64", "uint64", *(pytest.param(i, marks=pytest.mark.exhaustive)
           for i in ("int16", "uint16"))]  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.exhaustive)])
def test_ids_of_every_dtype(dtype, index, rng):
    weight = table(rng, 201, 128, dtype)  # more rows than int8 counts
    ids = np.array([0, 100, 127, 3], index)
    with jax.enable_x64(index.endswith("64")):
        if index == "uint64":
            ids[1] = 2**32 + 1  # int32 would wrap it around to a row
        elif index == "int64":
            ids[1:] = 2**32 + 1, -(2**32) + 5, -1
        elif index == "uint32":
            ids[1:3] = 2**32 - 1, 2**31
        elif index.startswith("int"):
            ids[1] = -1
        y, _ = run(ids, weight)
    np.testing.assert_array_equal(y.astype(np.float64), expected(ids, weight).astype(np.float64))
    assert np.isfinite(y[0].astype(np.float64)).all()


def test_ids_out_of_range_are_as_in_the_body(rng):
    ids, weight = np.arange(-13, 13, dtype=np.int32), table(rng, 6, 128, "float32")
    y, _ = run(ids, weight)
    body = jax.jit(lambda *xs: tp.embedding.generic(*xs))  # traced ids are not checked
    np.testing.assert_array_equal(y, body(jnp.asarray(ids), jnp.asarray(weight)))


# ------------------------------------------------------------------------------------------------ what is copied


@pytest.mark.costly
@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(("dtype", "of_each"), [("float32", 4 * 128), ("bfloat16", 2 * 2 * 128)])
def test_copies_are_counted(dtype, of_each, count, rng, monkeypatch):
    """A row, or a pair of bfloat16, moves for each id, and none for what is beyond the last."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    started, counted = [], []

    def start(*args, of_jax=interpret_pallas_call.dma_start, **options):  # there is no public interface
        started.append(args)
        return of_jax(*args, **options)

    def count_bytes(*args, of_call=_call.traffic_of_copies):
        counted.append(of_call(*args))
        return counted[-1]

    monkeypatch.setattr(interpret_pallas_call, "dma_start", start)
    monkeypatch.setattr(_call, "traffic_of_copies", count_bytes)
    run(rng.integers(0, 40, count, dtype=np.int32), table(rng, 40, 128, dtype))
    assert len(started) == count
    assert counted == [count * of_each]


COPIES = [
    ((4,), lambda i: 3, 4 * 3),
    ((2, 3), lambda i, j: i + 2 * j, 3 + 2 * 2 * 3),
    ((5,), lambda i: jnp.clip(7 - 2 * i, 0, 2), 7),
]


@pytest.mark.parametrize(("grid", "count", "parts"), COPIES)
def test_traffic_of_copies(grid, count, parts):
    copied = _call.Copied(jax.ShapeDtypeStruct((1000, 128), jnp.bfloat16), (2, 128), count)
    assert _call.traffic_of_copies(grid, copied) == parts * 2 * 128 * 2


# ------------------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("dim", [128, 4096, 16384])
@pytest.mark.parametrize("count", [1, 9, 300, 513, 4096, 1_000_003])
def test_division(count, dim, itemsize, generation):
    found = divided(count, dim, itemsize, generation)
    assert found is not None
    assert found.rows % (32 // itemsize) == 0
    assert found.together * itemsize == 4
    assert (found.steps * found.cores - 1) * found.rows < count <= found.steps * found.cores * found.rows
    assert found.cores <= (2 if generation in ("v4", "v5p") else 1)
    held = 2 * found.rows * dim * itemsize * (found.together + 1)
    assert held < found.vmem < blocks.VMEM[generation]


def test_many_rows_are_divided_over_two_cores():
    for count in (300, 4096, 1_000_003):
        assert divided(count, 4096, 2, "v5p").cores == 2
        assert divided(count, 4096, 2, "v5e").cores == 1


def like(ids="int32", weight="float32", shape=(7, 128), of_ids=(3,)):
    return {
        "ids": np.broadcast_to(np.zeros((), ids), of_ids),
        "weight": np.broadcast_to(np.zeros((), DTYPES[weight]), shape),
    }


REFUSED = [
    ({"weight": "float16"}, "weight has dtype float16, and Pallas' compiler for TPUs takes bfloat16 and float32"),
    ({"weight": "float64"}, "weight has dtype float64, and"),
    ({"shape": (7, 64)}, "rows of weight have 64 elements, not a multiple of 128: XLA would copy the table"),
    ({"shape": (1, 128), "weight": "bfloat16"}, "weight has one row, and rows of bfloat16 are copied in pairs"),
    ({"shape": (0, 128)}, "weight is empty"),
    ({"of_ids": (2, 0)}, "ids is empty"),
    ({"shape": (7, 2**20)}, "rows of 1048576 elements do not fit the vector memory of a TPU v4"),
]


@pytest.mark.parametrize(("changed", "reason"), REFUSED, ids=str)
def test_refusals(changed, reason):
    found = PLANNERS["embedding"]("v4", **like(**changed))
    assert isinstance(found, str)
    assert found.startswith(reason)


# --------------------------------------------------------------------------------------------- programs for TPUs


def shapes(ids=(5, 3), weight=(51, 128), dtype=jnp.bfloat16, index=jnp.int32):
    return jax.ShapeDtypeStruct(ids, index), jax.ShapeDtypeStruct(weight, dtype)


@pytest.fixture
def for_tpu():
    """Trace as on a TPU: no kernel on the processor is part of the program in place of this one."""
    with compiling_for("v5e"):
        yield


@pytest.mark.parametrize("dtype", BITS)
def test_programs_for_tpus_have_the_kernel(dtype, for_tpu):
    text = exported(lambda *xs: tp.embedding(*xs), *shapes(dtype=dtype))
    assert text.count("@tpu_custom_call") == 1
    assert KERNEL in text
    assert "@tpu_custom_call" not in exported(lambda *xs: tp.embedding.generic(*xs), *shapes(dtype=dtype))
    assert "@tpu_custom_call" not in exported(lambda *xs: tp.embedding(*xs), *shapes(dtype=jnp.float16))


def test_programs_have_the_kernel_where_jax_has_float64(for_tpu):
    with jax.enable_x64(True):
        ids, weight = shapes(index=jnp.int64)
        assert KERNEL in exported(lambda *xs: tp.embedding(*xs), ids, weight)
        program = PLANNERS["embedding"]("v5e", ids=ids, weight=weight)
        assert "i64" not in text_of_kernel(lambda *xs: program(*xs), ids, weight)


def test_ids_that_are_mapped_have_the_kernel_and_tables_the_body(for_tpu):
    text = exported(jax.vmap(lambda *xs: tp.embedding(*xs), in_axes=(0, None)), *shapes())
    assert text.count("@tpu_custom_call") == 1
    mapped = jax.vmap(lambda *xs: tp.embedding(*xs), in_axes=(None, 0))
    assert "@tpu_custom_call" not in exported(mapped, *shapes(weight=(4, 51, 128)))


def test_derivatives_are_those_of_the_body(for_tpu):
    def total(ids, weight):
        return jnp.sum(tp.embedding(ids, weight))

    text = exported(jax.grad(total, argnums=1), *shapes(dtype=jnp.float32))
    assert "@tpu_custom_call" not in text
    assert "scatter" in text
