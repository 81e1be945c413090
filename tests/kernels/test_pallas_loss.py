"""The Pallas kernel of linear_cross_entropy: blocks, dtypes and options in the interpreter, programs, and plans."""

import math

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.kernels.pallas import blocks, projected_loss_plans
from tensorops.testing import DTYPES, REFERENCES, assert_matches

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from pallas_support import exported, interpreting, races  # noqa: E402
from tensorops.kernels.pallas.planners import PLANNERS  # noqa: E402

REFERENCE = REFERENCES["linear_cross_entropy"]
USUAL = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0, "z_loss": 0.0}


def run(*args, **options):
    """Run the kernel in the interpreter; return its result and the number of steps."""
    there, options = support.there((args, options), "jax")
    with tp.set_backend("jax", providers=["pallas"]), interpreting() as steps, tp.trace() as log:
        y = support.back(tp.linear_cross_entropy(*there, **options))
        assert not races()
    assert [record.kernel for record in log] == ["pallas"]
    return y, len(steps)


def arguments(rng, rows, features, classes, dtype="float32", weight_dtype=None):
    x = rng.standard_normal((*rows, features)).astype(DTYPES[dtype])
    weight = rng.normal(0.0, 0.3, (classes, features)).astype(DTYPES[weight_dtype or dtype])
    return x, weight, rng.integers(0, classes, rows).astype(np.int32)


# Rows and classes in several blocks, of which the last are incomplete, and several products in a block of rows.
@pytest.mark.costly
@pytest.mark.parametrize("memory", [2**20 * 9 // 4, 2**20 * 16], ids=["several blocks of rows", "one block of rows"])
def test_several_blocks(memory, rng, monkeypatch):
    monkeypatch.setitem(blocks.VMEM, blocks.UNKNOWN, memory)
    monkeypatch.setattr(projected_loss_plans, "_STREAMED", 2**16)
    x, weight, targets = arguments(rng, (600,), 40, 300)
    weight[299] *= 30.0  # the largest logits come last in half of the rows
    bias, of_classes = rng.standard_normal((2, 300)).astype(np.float32)
    targets[[3, 599]] = -100
    options = {"reduction": "none", "z_loss": 0.01}
    y, steps = run(x, weight, targets, bias, np.abs(of_classes), **options)
    assert steps == (9 if memory < 2**22 else 3)
    expected = REFERENCE(x, weight, targets, bias, np.abs(of_classes), **options)
    assert_matches(y, expected, "float32", tolerance=32)


@pytest.mark.costly
@pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", ["mean", pytest.param("sum", marks=pytest.mark.exhaustive)])
def test_dtypes(reduction, dtype, weight_dtype, rng):
    x, weight, targets = arguments(rng, (2, 5), 130, 140, dtype, weight_dtype)
    bias = rng.standard_normal(140).astype(DTYPES[weight_dtype])
    y, _ = run(x, weight, targets, bias, reduction=reduction)
    assert_matches(y, REFERENCE(x, weight, targets, bias, reduction=reduction), dtype, tolerance=16)


@pytest.mark.parametrize(("dtypes", "full"), [((2, 2), False), ((2, 4), True), ((4, 2), True), ((4, 4), True)], ids=str)
def test_products_of_float32_are_in_full_precision(dtypes, full):
    """What the interpreter cannot tell: a matrix unit rounds factors to bfloat16 unless it is asked not to."""
    of_size = {2: jnp.bfloat16, 4: jnp.float32}
    x, weight = (jax.ShapeDtypeStruct((n, 8), of_size[size]) for n, size in zip((4, 9), dtypes, strict=True))
    targets = jax.ShapeDtypeStruct((4,), jnp.int32)
    program = PLANNERS["linear_cross_entropy"]("v5e", **USUAL | {"x": x, "weight": weight, "targets": targets})
    text = str(
        jax.make_jaxpr(lambda x, weight, targets: program(x=x, weight=weight, targets=targets))(x, weight, targets)
    )
    assert text.count("dot_general") == 1
    assert ("HIGHEST" in text) == full


def test_classes_out_of_range_and_special_logits(rng):
    x, weight, targets = arguments(rng, (6,), 8, 5)
    targets[:3] = 5, -3, -100
    x[4, 2] = np.nan
    bias = np.array([-np.inf, 0.0, 0.0, 0.0, 0.0], np.float32)  # a class that is forbidden
    targets[5] = 0
    losses, _ = run(x, weight, targets, bias, reduction="none")
    np.testing.assert_array_equal(np.isnan(losses), [True, True, False, False, True, False])
    assert losses[2] == 0.0
    assert losses[5] == np.inf


# ------------------------------------------------------------------------------------------------------- plans


class Like:
    """Metadata of an array."""

    def __init__(self, shape, dtype):
        self.shape, self.ndim, self.dtype = shape, len(shape), np.dtype(DTYPES.get(dtype, dtype))


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (2, 4)], ids=str)
@pytest.mark.parametrize(("rows", "features", "classes"), [(4096, 4096, 32000), (5, 576, 49152), (257, 64, 3)])
def test_blocks(rows, features, classes, sizes, generation):
    found = projected_loss_plans._blocks(rows, classes, features, *sizes, generation)
    assert found is not None
    assert found.rows == rows <= projected_loss_plans.TOGETHER or found.rows % projected_loss_plans.TOGETHER == 0
    assert found.columns % 128 == 0
    assert (math.ceil(rows / found.rows) - 1) * found.rows < rows
    held = found.rows * features * sizes[0] + 2 * found.columns * features * sizes[1]
    assert held < found.vmem < blocks.VMEM[generation]


@pytest.mark.parametrize("generation", ["v5e", "v6e"])
def test_weights_are_read_once(generation):
    found = projected_loss_plans._blocks(4096, 32000, 4096, 2, 2, generation)
    assert found is not None
    assert found.rows == 4096


REFUSED = [
    ({"targets": Like((4, 9), "float32")}, "targets are probabilities"),
    ({"label_smoothing": 0.1}, "label_smoothing is not 0"),
    ({"x": Like((4, 8), "float16")}, "x has dtype float16, and Pallas' compiler for TPUs takes bfloat16 and float32"),
    ({"weight": Like((9, 8), "float64")}, "weight has dtype float64"),
    ({"ce_weight": Like((9,), "float64")}, "ce_weight has dtype float64"),
    ({"x": Like((0, 8), "float32")}, "x is empty"),
    (
        {"x": Like((4, 10**6), "float32"), "weight": Like((9, 10**6), "float32")},
        "rows of 1000000 elements do not fit the vector memory of a TPU v4",
    ),
]


@pytest.mark.parametrize(("changed", "reason"), REFUSED, ids=[reason.split(",")[0] for _, reason in REFUSED])
def test_refusals(changed, reason):
    call = {"x": Like((4, 8), "float32"), "weight": Like((9, 8), "float32"), "targets": Like((4,), "int32")}
    found = PLANNERS["linear_cross_entropy"]("v4", **USUAL | call | changed)
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_programs_for_tpus_have_the_kernel(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")  # no kernel on the CPU stands in for it
    shapes = [((64, 32), jnp.bfloat16), ((100, 32), jnp.bfloat16), ((64,), jnp.int32)]
    arrays = [jax.ShapeDtypeStruct(*each) for each in shapes]
    text = exported(lambda *xs: tp.linear_cross_entropy(*xs), *arrays)
    assert text.count("@tpu_custom_call") == 1
    assert 'kernel_name = "linear_cross_entropy"' in text
    assert "64x100x" not in text  # the logits
    assert "@tpu_custom_call" not in exported(lambda *xs: tp.linear_cross_entropy.generic(*xs), *arrays)
    gradient = jax.grad(lambda *xs: tp.linear_cross_entropy(*xs), argnums=(0, 1))
    assert "@tpu_custom_call" not in exported(gradient, *arrays)
