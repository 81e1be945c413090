"""MLX's own product with packed matrices: as exact as the operator promises, in every dtype."""

import functools

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import formats
from tensorops.testing import DTYPES, REFERENCES, assert_matches
from tensorops.testing._stored_blocks import FORMATS, decode, random_blocks

support.require("mlx")
support.require_provider("mlx")


def product(x, weight, scales, biases, **options):
    """Return the kernel's result on the host, after asserting that it is the kernel that computes."""
    args = support.there((x, weight, scales, biases), "mlx")
    assert tp.quantized_linear.explain(*args, **options).kernel == "mlx"
    return support.back(tp.quantized_linear(*args, **options))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("parameters", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_long_rows_are_summed_in_float32(dtype, parameters, bits, rng):
    """A sum of 4096 products needs more digits than a half type has: the result is exact except for its rounding."""
    rows, columns = 48, 4096
    x = rng.standard_normal((3, columns)).astype(DTYPES[dtype])
    weight = rng.integers(0, 256, (rows, columns * bits // 8), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.02, (rows, columns // 64)).astype(DTYPES[parameters])
    biases = rng.standard_normal((rows, columns // 64)).astype(DTYPES[parameters])
    options = {"bits": bits, "group_size": 64}
    y = product(x, weight, scales, biases, **options)
    expected = REFERENCES["quantized_linear"](x, weight, scales, biases, **options)
    assert y.dtype == DTYPES[dtype]
    assert_matches(y, expected, dtype, tolerance=2 if dtype in support.HALVES else 64)


def test_sums_beyond_the_range_of_float16_on_the_way():
    """Two groups add 65280 each to the sum, and two take it away again."""
    x = np.repeat(np.array([[1.0, 1.0, -1.0, -1.0]]), 32, axis=1).astype(np.float16)
    weight = np.full((1, 128), 255, np.uint8)
    scales, biases = np.full((1, 4), 8.0, np.float16), np.zeros((1, 4), np.float16)  # each element adds 2040
    assert product(x, weight, scales, biases, bits=8, group_size=32).tolist() == [[0.0]]


# The most that a product may be off by, in units of the sum of |x w|: MLX adds products one after another on the CPU
BOUND = 2e-6
AFFINE = ("iq4_nl", "iq4_xs", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q8_0")
OWN = ("mxfp4", "nvfp4")


def assert_product(y, x, w):
    x = x.astype(np.float64)
    errors = np.abs(y.astype(np.float64) - x @ w.T) / (np.abs(x) @ np.abs(w).T)
    assert errors.max() < (BOUND if y.dtype == np.float32 else 4e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("columns", [64, 448, 4096])
@pytest.mark.parametrize("name", OWN)
def test_blocks_that_mlx_has_a_mode_for(name, columns, dtype, rng):
    stored, x = random_blocks(rng, name, 17, columns), (rng.standard_normal((2, 3, columns)) + 1).astype(DTYPES[dtype])
    there = support.there((x, stored), "mlx")
    prepared = tp.prepare("quantized_linear", weight=there[1], format=name)
    for call in (functools.partial(tp.quantized_linear, weight=there[1], format=name), prepared):
        with tp.trace() as log:
            y = support.back(call(there[0]))
        assert [record.kernel for record in log] == ["mlx"]
        assert y.dtype == x.dtype
        assert_product(y, x, decode(name, stored))
    assert prepared.nbytes <= stored.nbytes
    np.testing.assert_array_equal(support.back(prepared.plain()["weight"]), stored)


@pytest.mark.parametrize("name", OWN)
def test_every_scale_and_code(name):
    elements, nbytes, _ = FORMATS[name]
    stored = np.tile(np.arange(nbytes, dtype=np.uint8) * 37, (255, 1))
    stored[:, : nbytes - elements // 2] = np.arange(255)[:, None]  # 255 is no number in mxfp4
    with np.errstate(over="ignore"):
        expected = decode(name, stored).astype(np.float32)
    x, stored = support.there((np.eye(elements, dtype=np.float32), stored), "mlx")
    y = support.back(tp.quantized_linear(x, stored, format=name)).T
    exact = np.isfinite(expected).all(axis=1)  # 0 times what is infinite is NaN
    assert exact.sum() >= 252
    np.testing.assert_array_equal(y[exact], expected[exact])


@pytest.mark.parametrize("name", AFFINE)
def test_groups_with_the_values_of_blocks(name, rng):
    """Signed integers get an offset, once if they are prepared."""
    stored, x = random_blocks(rng, name, 17, 2048), rng.standard_normal((3, 2048), dtype=np.float32)
    made = formats.get(name).affine(np, stored)
    *arrays, there = support.there((*made[:3], x), "mlx")
    options = {"bits": made.bits, "group_size": made.group_size}
    with tp.trace() as log:
        y = support.back(tp.quantized_linear(there, *arrays, **options))
        if made.biases is None:
            prepared = tp.prepare("quantized_linear", weight=arrays[0], scales=arrays[1], **options)
            np.testing.assert_array_equal(support.back(prepared(there)), y)
            for key, given in zip(("weight", "scales"), made, strict=False):
                np.testing.assert_array_equal(support.back(prepared.plain()[key]), given)
    assert {record.kernel for record in log} == {"mlx"}
    assert_product(y, x, decode(name, stored))


@pytest.mark.parametrize("experts", [[2], [0, 2], [2, 0, 1, 1, 2, 0, 2]])
@pytest.mark.parametrize("name", [*OWN, "q4_1", "q8_0"])
def test_products_by_expert(name, experts, rng):
    stored = random_blocks(rng, name, 3, 17, 512)
    x = rng.standard_normal((len(experts), 512), dtype=np.float32)
    options = {"format": name}
    arrays = [stored]
    if name not in OWN:
        *arrays, bits, group_size = formats.get(name).affine(np, stored)
        options = {"bits": bits, "group_size": group_size}
    there = support.there((x, np.asarray(experts), *arrays), "mlx")
    with tp.trace() as log:
        y = support.back(tp.grouped_quantized_linear(*there, **options))
    assert [record.kernel for record in log] == ["mlx"]
    for row, expert in enumerate(experts):
        assert_product(y[row : row + 1], x[row : row + 1], decode(name, stored[expert]))


def test_an_expert_that_there_is_not(rng):
    stored, x = random_blocks(rng, "mxfp4", 3, 17, 64), np.ones((3, 64), np.float32)
    there = support.there((x, np.asarray([1, 3, -1]), stored), "mlx")
    y = support.back(tp.grouped_quantized_linear(*there, format="mxfp4"))
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1:]).all()


@pytest.mark.parametrize("name", OWN)
def test_gradients_of_blocks(name, rng):
    import mlx.core as mx

    stored = random_blocks(rng, name, 3, 17, 128)
    x, weight, one, dy = support.there(
        (np.ones((2, 128), np.float32), stored, stored[0], np.ones((2, 17), np.float32)), "mlx"
    )
    (dx,) = mx.vjp(lambda x: [tp.quantized_linear(x, one, format=name)], [x], [dy])[1]
    np.testing.assert_allclose(
        support.back(dx), np.tile(decode(name, stored[0]).sum(axis=0), (2, 1)), rtol=1e-4, atol=1e-4
    )
    experts = mx.array([2, 0])
    (dx,) = mx.vjp(lambda x: [tp.grouped_quantized_linear(x, experts, weight, format=name)], [x], [dy])[1]
    np.testing.assert_allclose(support.back(dx), decode(name, stored[[2, 0]]).sum(axis=1), rtol=1e-4, atol=1e-4)


def test_what_mlx_has_no_mode_for_is_said(rng):
    x = np.ones((1, 256), np.float32)
    for name, rest in (
        ("q4_k", ", only for the groups that tensorops.formats.get('q4_k').affine makes of them"),
        ("q6_k", ""),
    ):
        there = support.there((x, random_blocks(rng, name, 3, 256)), "mlx")
        explained = tp.quantized_linear.explain(*there, format=name)
        assert explained.refused["mlx"] == f"mx.quantized_matmul has no mode for blocks of format '{name}'" + rest
        prepared = tp.prepare("quantized_linear", weight=there[1], format=name)
        assert prepared.refused == {"mlx": explained.refused["mlx"]}
