"""Products with experts' matrices in C++: every SIMD target, distribution of rows, format of weights and layout."""

import numpy as np
import pytest

import support
import tensorops as tp
from support import normal
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()
SHORT = ("float16", "bfloat16", "float32")
FORMATS = {"4": (4, True), "8": (8, True), "8 symmetric": (8, False)}
# Which of three experts each row has: one row, few rows, an expert without rows, all rows to one, more rows of an
# expert than a batch holds, and many of all.
ROWS = {
    "one": [2],
    "few": [1, 0, 1, 2, 1],
    "some without": [0, 2, 0, 0, 2, 2, 0, 2, 0],
    "all to one": [1] * 40,
    "more than a batch": [0] * 3 + [2] * 310 + [1] * 60,
    "many": list(np.random.default_rng(0).integers(0, 3, 200)),
}
every_distribution = pytest.mark.parametrize("experts", ROWS.values(), ids=ROWS)


@every_distribution
@pytest.mark.parametrize("weight_dtype", SHORT)
@pytest.mark.parametrize("dtype", SHORT)
def test_every_distribution_of_rows(target, dtype, weight_dtype, experts, rng):
    experts = np.asarray(experts)
    for inputs, outputs in ((5, 3), (67, 33), (130, 100)):
        x = normal(rng, len(experts), inputs, dtype=dtype)
        weight, bias = (normal(rng, *s, dtype=weight_dtype) for s in ((3, outputs, inputs), (3, outputs)))
        for args in ((x, experts, weight), (x, experts, weight, bias)):
            assert_matches(_native.grouped_linear(*args), REFERENCES["grouped_linear"](*args), dtype, tolerance=32)


@pytest.mark.parametrize("form", FORMATS)
@every_distribution
@pytest.mark.parametrize("scale_dtype", SHORT)
def test_every_distribution_of_rows_with_quantized_weights(target, scale_dtype, experts, form, rng):
    experts, (bits, affine) = np.asarray(experts), FORMATS[form]
    options = {"bits": bits, "group_size": 32}
    for dtype, inputs, outputs in (("float32", 32, 3), ("bfloat16", 576, 100), ("float16", 96, 67)):
        x = normal(rng, len(experts), inputs, dtype=dtype)
        weight = rng.integers(0, 256, (3, outputs, inputs * bits // 8), dtype=np.uint8)
        scales = (rng.random((3, outputs, inputs // 32)) * 0.01 + 0.001).astype(DTYPES[scale_dtype])
        biases = (rng.standard_normal(scales.shape) * 0.05).astype(DTYPES[scale_dtype]) if affine else None
        y = _native.grouped_quantized_linear(x, experts, weight, scales, biases, **options)
        expected = REFERENCES["grouped_quantized_linear"](x, experts, weight, scales, biases, **options)
        assert_matches(y, expected, dtype, tolerance=64, scale_axis=None)


@pytest.mark.parametrize("extreme", [np.inf, np.nan, 1e33, 1e-35])
def test_rows_beyond_the_range_of_integers_leave_others_alone(target, extreme, rng):
    experts = np.asarray([0, 1, 0, 1, 2])
    x = normal(rng, 5, 64)
    weight, scales = rng.integers(0, 256, (3, 40, 32), dtype=np.uint8), np.full((3, 40, 2), 0.01, np.float32)
    args = (experts, weight, scales, -8 * scales)
    before = _native.grouped_quantized_linear(x, *args)
    x[2] *= 1e-3
    x[2, 7] = extreme
    if extreme == 1e-35:
        x[2] = extreme
    y = _native.grouped_quantized_linear(x, *args)
    others = [0, 1, 3, 4]
    np.testing.assert_allclose(y[others], before[others], rtol=1e-4, atol=1e-5)
    assert_matches(y, REFERENCES["grouped_quantized_linear"](x, *args), "float32", tolerance=64)


def layouts(rng):
    """Yield arguments of grouped_linear in many layouts, with and without copies of rows."""
    x, experts = normal(rng, 4, 6, 34), rng.integers(0, 3, (4, 6))
    weight, bias = normal(rng, 3, 40, 34), normal(rng, 3, 40)
    yield x[:, ::2, 1:], experts[:, ::2], weight[:, :, 1:], bias
    yield x[::-1].transpose(1, 0, 2), experts.T, weight, bias
    yield x[:, :1], experts, weight, bias
    yield np.broadcast_to(x[0], x.shape), experts[:, :1], weight, bias
    yield x, experts[2], weight[:, :20], bias[:, 20:]
    yield x, experts, weight[:, 20:], bias[:, :20]
    yield x, experts % 1, weight[1:2, ::2], bias[1:2, :20]


def test_layouts(target, rng):
    for args in layouts(rng):
        y = _native.grouped_linear(*args)
        assert_matches(y, REFERENCES["grouped_linear"](*args), "float32", tolerance=32)


def test_quantized_matrices_that_are_parts_of_larger_ones(target, rng):
    weight, scales = rng.integers(0, 256, (3, 40, 32), dtype=np.uint8), rng.random((3, 40, 2)).astype(np.float32)
    biases = -8 * scales
    x, experts = normal(rng, 9, 64), rng.integers(0, 3, 9)
    for part in (slice(0, 20), slice(20, 40)):
        args = (x, experts, weight[:, part], scales[:, part], biases[:, part])
        y = _native.grouped_quantized_linear(*args)
        assert_matches(y, REFERENCES["grouped_quantized_linear"](*args), "float32", tolerance=64)


X, E, W = np.ones((2, 8), np.float32), np.zeros(2, np.int64), np.ones((3, 4, 8), np.float32)
REFUSED = {
    "x has dtype float64, whose products numpy.matmul computes": (X.astype(np.float64), E, W),
    "weight has dtype float64": (X, E, W.astype(np.float64)),
    "experts has a dtype that is not an integer": (X, E.astype(np.float32), W),
    "experts has more dimensions than x has rows": (X, E[None], W),
    "experts does not broadcast with the rows of x": (X, np.zeros(3, np.int64), W),
    "an index in experts is out of range": (X, E + 3, W),
    "the last axis of weight is not contiguous": (X[:, :4], E, W[:, :, ::2]),
    "the matrices of weight do not follow each other after whole rows": (X, E, W[::-1]),
    "x has no rows": (X[:1], E[:0], W),
    "x or weight is empty": (X[:0], E[:0], W),
    "bias has shape (3, 5), not (3, 4)": (X, E, W, np.ones((3, 5), np.float32)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason):
    args = REFUSED[reason]
    assert _native.grouped_linear_supports(*args) == reason
    assert _native.grouped_linear(*args) is NotImplemented


def test_scales_that_are_laid_out_otherwise_than_weights():
    weight, scales = np.zeros((3, 4, 32), np.uint8), np.ones((3, 8, 2), np.float32)
    args = (np.ones((2, 64), np.float32), E, weight, scales[:, :4], np.ones((3, 4, 2), np.float32))
    reason = _native.grouped_quantized_linear_supports(*args)
    assert reason == "weight, scales and biases are not laid out alike"
    assert tp.grouped_quantized_linear.explain(*args).kernel == "generic"
    np.testing.assert_array_equal(tp.grouped_quantized_linear(*args), np.full((2, 4), 64.0))


@pytest.mark.parametrize("dtype", SHORT)
def test_torch_tensors_share_the_kernels(dtype, rng):
    support.require("torch")
    x, experts, weight = normal(rng, 5, 1, 16, dtype=dtype), rng.integers(0, 3, (5, 2)), normal(rng, 3, 8, 16)
    there = support.there((x, experts, weight), "torch")
    assert tp.grouped_linear.explain(*there).kernel == "torch_cpu"
    y = support.back(tp.grouped_linear(*there))
    assert_matches(y, REFERENCES["grouped_linear"](x, experts, weight), dtype, tolerance=32)
