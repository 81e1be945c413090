"""The Pallas kernel of quantized_linear: formats, blocks and special values in the interpreter, and plans."""

import math

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.kernels.pallas import blocks, quantized_plans
from tensorops.testing import DTYPES, REFERENCES, assert_matches

support.require("jax")
support.require_provider("pallas")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from pallas_support import exported, interpreting, races  # noqa: E402
from tensorops.kernels.pallas.planners import PLANNERS  # noqa: E402

MIB = 2**20


def arguments(rng, rows, columns, outputs, bits, group_size, dtype, scales_dtype, *, symmetric=False):
    """Return random arguments; all integers occur."""
    weight = rng.integers(0, 256, (outputs, columns * bits // 8), dtype=np.uint8)
    groups = (outputs, columns // group_size)
    scales = rng.uniform(0.5, 1.5, groups).astype(DTYPES[scales_dtype])
    biases = None if symmetric else rng.normal(-(2.0**bits) / 2, 1.0, groups).astype(DTYPES[scales_dtype])
    x = rng.standard_normal((rows, columns)).astype(DTYPES[dtype])
    return [x, weight, scales, biases], {"bits": bits, "group_size": group_size}


def run(args, options):
    """Run the kernel in the interpreter; return its result and the number of steps."""
    there, options = support.there((args, options), "jax")
    with tp.set_backend("jax", providers=["pallas"]), interpreting() as steps, tp.trace() as log:
        y = support.back(tp.quantized_linear(*there, **options))
        assert not races()
    assert [record.kernel for record in log] == ["pallas"]
    return y, len(steps)


# Rows, columns, outputs, bits, group size. Columns fill no register, one exactly, several and a part of one; a register
# has the scales of one group, of whole ones, of parts of them, and of groups whose scales are in two or three.
FORMATS = [
    (9, 576, 40, 4, 64),
    (3, 600, 5, 4, 24),
    (2, 300, 7, 8, 100),
    *(
        pytest.param(*each, marks=pytest.mark.exhaustive)
        for each in (
            (1, 256, 128, 4, 32),
            (3, 600, 5, 4, 2),
            (17, 1536, 3, 4, 768),
            (2, 387, 7, 8, 3),
            (1, 300, 7, 8, 1),
        )
    ),
]


@pytest.mark.costly(2)
@pytest.mark.parametrize(("rows", "columns", "outputs", "bits", "group_size"), FORMATS)
@pytest.mark.parametrize(
    ("dtype", "scales_dtype"),
    [
        ("float32", "float16"),
        pytest.param("float32", "bfloat16", marks=pytest.mark.exhaustive),
        pytest.param("bfloat16", "bfloat16", marks=pytest.mark.exhaustive),
        pytest.param("bfloat16", "float16", marks=pytest.mark.exhaustive),
        pytest.param("bfloat16", "float32", marks=pytest.mark.exhaustive),
    ],
)
def test_formats(dtype, scales_dtype, rows, columns, outputs, bits, group_size, rng):
    args, options = arguments(rng, rows, columns, outputs, bits, group_size, dtype, scales_dtype)
    y, _ = run(args, options)
    assert_matches(y, REFERENCES["quantized_linear"](*args, **options), dtype, tolerance=8, scale_axis=None)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_signed_integers(dtype, rng):
    args, options = arguments(rng, 3, 320, 9, 8, 64, dtype, dtype, symmetric=True)
    args[1][0, :256] = np.arange(256, dtype=np.uint8)
    y, _ = run(args, options)
    assert_matches(y, REFERENCES["quantized_linear"](*args, **options), dtype, tolerance=8, scale_axis=None)


@pytest.mark.costly
@pytest.mark.parametrize("bits", [4, 8])
def test_several_blocks(bits, rng, monkeypatch):
    monkeypatch.setitem(blocks.VMEM, blocks.UNKNOWN, MIB * 3 // 2)
    args, options = arguments(rng, 100, 512, 300, bits, 32, "float32", "float32")
    y, steps = run(args, options)
    assert steps >= 4  # of rows and of outputs, the last of each incomplete
    assert_matches(y, REFERENCES["quantized_linear"](*args, **options), "float32", tolerance=8, scale_axis=None)


def test_an_infinite_scale_reaches_one_output(rng):
    args, options = arguments(rng, 2, 96, 5, 4, 32, "float32", "float32")
    args[2][1, 2] = np.inf  # of the last group, to which what is beyond the last column also belongs
    y, _ = run(args, options)
    assert np.isfinite(np.delete(y, 1, axis=1)).all()
    np.testing.assert_array_equal(y[:, 1], REFERENCES["quantized_linear"](*args, **options)[:, 1])


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_scaled_integer_may_overflow_where_the_weight_does_not(dtype):
    args = [
        np.full((1, 4), 2.0**-100),
        np.full((1, 2), 0xFF, np.uint8),
        np.array([[2.0**125]]),
        np.array([[-(2.0**127)]]),
    ]
    args = [a if a.dtype == np.uint8 else a.astype(DTYPES[dtype]) for a in args]
    y, _ = run(args, {"group_size": 4})  # 15 · 2¹²⁵ is infinite
    np.testing.assert_array_equal(y.astype(np.float64), [[4 * 11 * 2.0**25]])


def test_every_float16_is_read():
    from tensorops.kernels.pallas import quantized

    bits = np.arange(2**16, dtype=np.uint16).view(np.int16)
    with np.errstate(invalid="ignore"):  # of signalling NaN
        expected = bits.view(np.float16).astype(np.float32) / 2
    np.testing.assert_array_equal(np.asarray(quantized._halves(jnp.asarray(bits))), expected)


# ------------------------------------------------------------------------------------------------------- plans


class Like:
    """Metadata of an array."""

    def __init__(self, shape, dtype):
        self.shape, self.ndim, self.dtype = shape, len(shape), np.dtype(DTYPES.get(dtype, dtype))


def metadata(rows, columns, outputs, *, x="bfloat16", weight="uint8", scales="bfloat16", biases="bfloat16", bits=4):
    groups = (outputs, columns // 32)
    return {
        "x": Like((rows, columns), x),
        "weight": Like((outputs, columns * bits // 8), weight),
        "scales": Like(groups, scales),
        "biases": Like(groups, biases),
        "bits": bits,
        "group_size": 32,
    }


@pytest.mark.parametrize("generation", blocks.VMEM)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("rows", "columns", "outputs"), [(1, 4096, 14336), (512, 4096, 14336), (5000, 14336, 4096), (3, 64, 5)]
)
def test_blocks(rows, columns, outputs, bits, generation):
    call = metadata(rows, columns, outputs, bits=bits)
    parameters = [call["scales"], call["biases"]]
    found = quantized_plans._blocks(rows, call["weight"].shape, bits, 2, parameters, bits == 4, generation)
    assert found is not None
    assert found.rows % 16 == 0
    assert found.columns % 128 == 0
    assert (math.ceil(rows / found.rows) - 1) * found.rows < rows
    held = found.rows * columns * 2 * (2 if bits == 4 else 1) + 2 * found.columns * columns * bits // 8
    assert held < found.vmem < blocks.VMEM[generation]
    if rows <= 512:  # every weight is read once
        assert found.rows >= rows


REFUSED = [
    ({"x": "float16"}, "x has dtype float16, and Pallas' compiler for TPUs takes bfloat16 and float32"),
    ({"scales": "float64"}, "scales has dtype float64"),
    ({"biases": "float64"}, "biases has dtype float64"),
    ({"rows": 0}, "x is empty"),
    ({"columns": 2**22}, "rows of 4194304 elements do not fit the vector memory of a TPU v4"),
]


@pytest.mark.parametrize(("changed", "reason"), REFUSED, ids=str)
def test_refusals(changed, reason):
    call = metadata(**({"rows": 4, "columns": 64, "outputs": 8} | changed))
    found = PLANNERS["quantized_linear"]("v4", **call)
    assert isinstance(found, str)
    assert found.startswith(reason)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_float32_are_in_full_precision(dtype):
    """What the interpreter cannot tell: a matrix unit rounds factors to bfloat16 unless it is asked not to."""
    call = metadata(4, 64, 8, x=dtype)
    arrays = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in call.items() if isinstance(a, Like)}
    program = PLANNERS["quantized_linear"]("v5e", **call)
    text = str(jax.make_jaxpr(lambda *values: program(**dict(zip(arrays, values, strict=True))))(*arrays.values()))
    assert text.count("dot_general") == 1
    assert ("HIGHEST" in text) == (dtype == "float32")


def test_programs_for_tpus_have_the_kernel():
    shapes = [((4, 64), jnp.bfloat16), ((40, 32), jnp.uint8), ((40, 2), jnp.float16), ((40, 2), jnp.float16)]
    arrays = [jax.ShapeDtypeStruct(*each) for each in shapes]
    text = exported(lambda *xs: tp.quantized_linear(*xs), *arrays)
    assert text.count("@tpu_custom_call") == 1
    assert 'kernel_name = "quantized_linear"' in text
    several = jax.ShapeDtypeStruct((3, 4, 64), jnp.bfloat16)
    mapped = jax.vmap(lambda *xs: tp.quantized_linear(*xs), in_axes=(0, None, None, None))
    assert exported(mapped, several, *arrays[1:]).count("@tpu_custom_call") == 1
    assert "@tpu_custom_call" not in exported(lambda *xs: OPERATORS["quantized_linear"].generic(*xs), *arrays)
