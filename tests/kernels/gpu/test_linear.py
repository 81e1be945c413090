"""linear on OpenCL devices: sizes, dtypes and strides beyond the operator's common cases."""

from __future__ import annotations

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import REFERENCES, assert_matches

support.require("pyopencl")
pytestmark = pytest.mark.dimensions


def check(arrays, views=lambda *a: a, dtype="float32"):
    device = views(*support.on_opencl(list(arrays)))
    explained = tp.linear.explain(*device)
    assert explained.kernel == "opencl", explained
    y = support.back(tp.linear(*device))
    assert_matches(y, REFERENCES["linear"](*views(*arrays)), dtype, tolerance=32.0, scale_axis=None)


@pytest.mark.parametrize(
    ("rows", "outputs", "columns"),
    [(1, 5, 1), (1, 1030, 64), (2, 3, 4400), (4, 2, 70), (7, 1, 257), (9, 6, 48), (33, 66, 35), (130, 70, 64)],
)
def test_products_of_every_size(geometry, rows, outputs, columns):
    rng = np.random.default_rng(0)
    check((support.normal(rng, rows, columns), support.normal(rng, outputs, columns), support.normal(rng, outputs)))


@pytest.mark.parametrize("rows", [1, 40])
def test_rows_that_are_not_adjacent(geometry, rows):
    rng = np.random.default_rng(1)
    arrays = (support.normal(rng, rows, 3, 80), support.normal(rng, 18, 70), support.normal(rng, 18))
    check(arrays, lambda x, w, b: (x[:, ::2, 1:66], w[1::2, 3:68], b[::2]))
    check(arrays, lambda x, w, b: (x[:, 1, ::-2], w[:, :40], b))


@pytest.mark.parametrize("x_dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight_dtype", ["float16", "float32", "float64"])
def test_weights_of_another_dtype(geometry, x_dtype, weight_dtype):
    support.on_opencl_held(x_dtype, weight_dtype)
    rng = np.random.default_rng(2)
    x, w = support.normal(rng, 3, 72, dtype=x_dtype), support.normal(rng, 9, 72, dtype=weight_dtype)
    check((x, w, support.normal(rng, 9)), dtype=x_dtype)


def test_weights_that_are_transposed_are_left_to_matmul():
    x, w = support.there([np.ones((2, 8), np.float32), np.ones((8, 6), np.float32)], "pyopencl")
    explained = tp.linear.explain(x, w.T)
    assert explained.kernel == "generic"
    assert explained.refused["opencl"] == "the rows of weight are not contiguous"
