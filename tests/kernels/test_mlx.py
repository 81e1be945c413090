"""MLX's own product with packed matrices: as exact as the operator promises, in every dtype."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import DTYPES, REFERENCES, assert_matches

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
