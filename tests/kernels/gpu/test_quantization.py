"""Quantized weights and products on OpenCL devices: sizes, strides and values beyond the operators' common cases."""

from __future__ import annotations

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import REFERENCES, assert_matches

support.require("pyopencl")
pytestmark = pytest.mark.dimensions


def quantized(rng, outputs, columns, bits, group_size, symmetric=False):
    """Return any integers, scales, and biases or None."""
    shape = (outputs, columns // group_size)
    weight = rng.integers(0, 256, (outputs, columns * bits // 8), dtype=np.uint8)
    biases = None if symmetric else rng.standard_normal(shape).astype(np.float32)
    return weight, (rng.random(shape) + 0.1).astype(np.float32), biases


def computed(operator, arrays, options):
    """Return an operator's results as NumPy arrays, of a call that its kernel took."""
    explained = operator.explain(*arrays, **options)
    assert explained.kernel == "opencl", explained
    return support.back(operator(*arrays, **options))


def there(*arrays):
    return support.on_opencl(list(arrays))


@pytest.mark.parametrize(
    ("rows", "outputs", "columns", "bits", "group_size", "symmetric"),
    [
        (1, 9, 576, 4, 32, False),
        (2, 3, 4160, 4, 64, False),  # more than one block of sums, and fewer outputs than a tile
        (3, 1, 96, 8, 32, True),
        (5, 6, 160, 8, 16, False),
        (8, 5, 48, 4, 6, False),  # no chunk is in one group
        (9, 7, 72, 8, 3, True),
        (17, 34, 64, 4, 8, False),
        (70, 67, 96, 4, 32, False),  # tiles of a GPU
    ],
)
def test_products_of_every_size(geometry, rows, outputs, columns, bits, group_size, symmetric):
    rng = np.random.default_rng(0)
    arrays = (support.normal(rng, rows, columns), *quantized(rng, outputs, columns, bits, group_size, symmetric))
    options = {"bits": bits, "group_size": group_size}
    y = computed(tp.quantized_linear, there(*arrays), options)
    expected = REFERENCES["quantized_linear"](*arrays, **options)
    assert_matches(y, expected, "float32", tolerance=32.0, scale_axis=None)


@pytest.mark.parametrize("rows", [1, 4])
def test_products_of_views(geometry, rows):
    rng = np.random.default_rng(1)
    x = support.normal(rng, rows, 3, 2 * 64)
    weight, scales, biases = quantized(rng, 10, 128, 4, 32)
    options = {"bits": 4, "group_size": 32}
    views = (x[:, 1:, ::2], weight[1::2, 5:37], scales[1::2, 1:3], biases[1::2, 1:3])
    device = there(x, weight, scales, biases)
    device = [device[0][:, 1:, ::2], device[1][1::2, 5:37], device[2][1::2, 1:3], device[3][1::2, 1:3]]
    y = computed(tp.quantized_linear, device, options)
    assert_matches(y, REFERENCES["quantized_linear"](*views, **options), "float32", tolerance=32.0, scale_axis=None)
    w = computed(tp.dequantize, device[1:], options)
    assert_matches(w, REFERENCES["dequantize"](*views[1:], **options), "float32", tolerance=1.0)


def test_a_weight_of_zero_times_infinity_is_the_only_product_that_is_nan(geometry):
    weight = np.full((4, 16), 0x10, dtype=np.uint8)  # 0, 1, 0, 1, …
    scales, biases = np.full((4, 1), 2.0, np.float32), np.array([[1.0], [-1.0], [0.0], [-2.0]], np.float32)
    x = np.zeros((1, 32), np.float32)
    x[0, 4] = np.inf  # an integer of 0: the weight is the bias
    y = computed(tp.quantized_linear, there(x, weight, scales, biases), {"bits": 4, "group_size": 32})
    assert np.array_equal(y, [[np.inf, -np.inf, np.nan, -np.inf]], equal_nan=True)


def test_only_weights_out_of_range_overflow(geometry):
    weight = np.full((1, 16), 0xFF, dtype=np.uint8)
    scales, biases = np.full((1, 1), 3e37, np.float32), np.full((1, 1), -2e38, np.float32)
    options = {"bits": 4, "group_size": 32}
    w = computed(tp.dequantize, there(weight, scales, biases), options)
    np.testing.assert_allclose(w, REFERENCES["dequantize"](weight, scales, biases, **options), rtol=1e-6)
    x = np.zeros((1, 32), np.float32)
    x[0, 7] = 0.5
    y = computed(tp.quantized_linear, there(x, weight, scales, biases), options)
    np.testing.assert_allclose(y, [[1.25e38]], rtol=1e-6)


@pytest.mark.parametrize(
    ("bits", "group_size", "mode"),
    [(4, 32, "affine"), (4, 6, "affine"), (8, 3, "affine"), (8, 64, "symmetric"), (8, 20, "symmetric")],
)
def test_codes_and_scales_are_those_of_the_body(geometry, bits, group_size, mode):
    rng = np.random.default_rng(2)
    w = support.normal(rng, 7, 2 * 5 * group_size)
    w[1, :group_size] = 0.75
    w[2, 1], w[3, 1], w[4, :group_size] = np.nan, np.inf, np.linspace(-3e38, 3e38, group_size)
    w[5] *= 1e-36
    (device,) = there(w)
    for x, there_x in ((w, device), (w[::2, group_size:], device[::2, group_size:]), (w[:, ::2], device[:, ::2])):
        options = {"bits": bits, "group_size": group_size, "mode": mode}
        expected = tp.quantize.generic(x, **options)
        for actual, array in zip(computed(tp.quantize, [there_x], options), expected, strict=True):
            assert (actual is None) == (array is None)
            usual = slice(None) if x is not w else [0, 1, 4, 5, 6]  # of NaN, codes are anything
            if array is not None and array.dtype == np.uint8:
                support.assert_identical(actual[usual], array[usual])
            elif array is not None:
                np.testing.assert_array_equal(actual, array)


@pytest.mark.parametrize(
    ("bits", "group_size", "symmetric"), [(4, 32, False), (4, 10, False), (8, 5, True), (8, 64, False)]
)
def test_dequantize_every_size(geometry, bits, group_size, symmetric):
    rng = np.random.default_rng(3)
    arrays = quantized(rng, 5, 3 * group_size, bits, group_size, symmetric)
    options = {"bits": bits, "group_size": group_size}
    w = computed(tp.dequantize, there(*arrays), options)
    assert_matches(w, REFERENCES["dequantize"](*arrays, **options), "float32", tolerance=1.0)


@pytest.mark.parametrize(("columns", "group_size"), [(96, 32), (2592, 32), (2304, 64), (1152, 16)])
def test_half_scales(geometry, columns, group_size):
    """Rows with fewer groups than a vector, with one block of chunks and more, and with a last vector that overlaps."""
    rng = np.random.default_rng(4)
    weight, scales, biases = quantized(rng, 5, columns, 4, group_size)
    arrays = (support.normal(rng, 1, columns), weight, scales.astype(np.float16), biases.astype(np.float16))
    options = {"bits": 4, "group_size": group_size}
    y = computed(tp.quantized_linear, there(*arrays), options)
    assert_matches(y, REFERENCES["quantized_linear"](*arrays, **options), "float32", tolerance=32.0, scale_axis=None)
    w = computed(tp.dequantize, there(*arrays[1:]), options)
    assert_matches(w, REFERENCES["dequantize"](*arrays[1:], **options), "float16", tolerance=1.0)
