"""MKL: which of its products computes what, and that nothing runs it but its name."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.kernels import _gemm
from tensorops.testing import DTYPES

support.require("numpy")
support.require_provider("mkl")

from tensorops.kernels.mkl import table  # noqa: E402 - not before it is known to be installed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 16, 1024])
def test_nothing_runs_it_but_its_name(dtype, rows, rng):
    x, w = support.normal(rng, rows, 512, dtype=dtype), support.normal(rng, 5, 512, dtype=dtype)
    explained = tp.linear.explain(x, w)
    assert explained.kernel != "mkl"
    assert "mkl" not in explained.refused


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_its_product(dtype, monkeypatch, rng):
    used = []

    def spied(product, name):
        return lambda *args: used.append(name) or product(*args)

    products = {key: spied(product, key.name) for key, product in table._loaded().products.items()}
    monkeypatch.setattr(table._loaded(), "products", products)
    x, w = support.normal(rng, 9, 64, dtype=dtype), support.normal(rng, 5, 64, dtype=dtype)
    with tp.set_backend("numpy", providers=["mkl"]):
        tp.linear(x, w)
        if dtype == "bfloat16":
            x[0, 0] = 1e-39  # instructions for bfloat16 would flush it
            tp.linear(x, w)
    assert used == ([dtype, "float32"] if dtype == "bfloat16" else [dtype])


def test_float64_with_a_narrower_weight_is_multiplied_in_float64(rng):
    x, w = support.normal(rng, 4, 300, dtype="float64"), support.normal(rng, 5, 300, dtype="float32")
    with tp.set_backend("numpy", providers=["mkl"]):
        y = tp.linear(x, w)
    np.testing.assert_allclose(y, x @ w.astype(np.float64).T, rtol=1e-13, atol=1e-12)
    assert table._loaded().products.keys() == {_gemm.FLOAT16, _gemm.BFLOAT16, _gemm.FLOAT32, _gemm.FLOAT64}
