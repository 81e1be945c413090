"""Products with blocks of formats, by the compiled kernels of every target, against float64."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from block_products import BOUNDS, computed, errors
from tensorops.testing._stored_blocks import FORMATS, decode, random_blocks

# Rows of x to either side of where the method changes, and outputs that fill no unit of any
SHAPES = [(1, 1, 1), (2, 3, 7), (4, 17, 3), (5, 33, 1), (13, 35, 9), (64, 40, 3)]
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture(params=sorted(FORMATS))
def name(request):
    return request.param


def there(name, rows, columns, seed=0):
    return random_blocks(np.random.default_rng(seed), name, rows, columns)


@pytest.mark.parametrize("precision", BOUNDS)
def test_products(name, precision, target):
    rng = np.random.default_rng(1)
    for rows, outputs, blocks in SHAPES:
        columns = blocks * FORMATS[name][0]
        stored, x = there(name, outputs, columns), rng.standard_normal((rows, columns), dtype=np.float32)
        y = computed(x, stored, format=name, precision=precision)
        assert errors(y, x, decode(name, stored)).max() < BOUNDS[precision]


def test_long_rows_are_no_less_accurate(name, target):
    columns = 33 * 1024
    stored = there(name, 3, columns)
    x = np.random.default_rng(2).standard_normal((6, columns), dtype=np.float32) + 1.0
    for rows in (1, 6):
        y = computed(x[:rows], stored, format=name)
        assert errors(y, x[:rows], decode(name, stored)).max() < 2e-7


@pytest.mark.parametrize("dtype", HALVES)
def test_half_types_are_rounded_once(name, dtype, target):
    stored = there(name, 19, 1024)
    for rows in (3, 9):
        x = (
            np.random.default_rng(3)
            .standard_normal((rows, 1024))
            .astype({"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype])
        )
        y = computed(x, stored, format=name)
        assert y.dtype == x.dtype
        rounding = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
        exact = x.astype(np.float64) @ decode(name, stored).T
        magnitude = np.abs(x).astype(np.float64) @ np.abs(decode(name, stored)).T
        assert (np.abs(y.astype(np.float64) - exact) <= rounding * np.abs(exact) + 1e-6 * magnitude).all()


def test_rows_with_gaps_and_other_axes(name, target):
    stored = there(name, 40, 512)
    wide = np.zeros((40, stored.shape[1] + 5), dtype=np.uint8)
    wide[:, :-5] = stored
    x = np.random.default_rng(4).standard_normal((2, 7, 1024), dtype=np.float32)[:, ::2, :512]
    y = computed(x, wide[::2, :-5], format=name)
    assert y.shape == (2, 4, 20)
    assert errors(y, x, decode(name, stored[::2])).max() < BOUNDS["highest"]


def test_rows_beside_damaged_ones(name, target):
    """Kernels may read the next row with the last blocks of one: whatever is there changes nothing."""
    columns = 3 * FORMATS[name][0]
    stored = there(name, 9, columns)
    damaged = stored.copy()
    damaged[1::2] = 0xFF  # every scale is NaN
    x = np.random.default_rng(7).standard_normal((2, columns), dtype=np.float32)
    for precision in ("highest", "low"):
        with np.errstate(all="ignore"):
            y = computed(x, damaged, format=name, precision=precision)
        assert errors(y[:, ::2], x, decode(name, stored[::2])).max() < BOUNDS[precision]


def test_extreme_numbers_of_x(name, target):
    """Those that have no scale of their own: the weights themselves are multiplied."""
    stored = there(name, 5, 256)
    w = decode(name, stored)
    for rows, extreme in itertools.product((1, 9), (1e-36, 3e35, np.inf, np.nan)):
        x = np.random.default_rng(5).standard_normal((rows, 256), dtype=np.float32)
        x[-1, 3] = extreme
        with np.errstate(all="ignore"):
            exact = x.astype(np.float64) @ w.T
        y = computed(x, stored, format=name)
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
        np.testing.assert_allclose(y[finite], exact[finite], rtol=2e-5, atol=1e-3)


def test_tiny_and_large_rows(name, target):
    """Whatever the scale of x, the relative error stays."""
    stored = there(name, 9, 512)
    for exponent, rows in itertools.product((-90, -60, 60, 90), (1, 6)):
        x = np.random.default_rng(6).standard_normal((rows, 512)).astype(np.float32) * np.float32(2.0**exponent)
        y = computed(x, stored, format=name)
        assert errors(y, x, decode(name, stored)).max() < BOUNDS["highest"]


def test_values(name, target):
    for blocks in (1, 7, 16):
        stored = there(name, 5, blocks * FORMATS[name][0])
        with tp.trace() as log:
            values = tp.dequantize(stored, format=name)
            found = tp.embedding(np.asarray([[4, 0], [1, 4]]), stored, format=name)
        assert [call.kernel for call in log] == ["cpu", "cpu"]
        np.testing.assert_array_equal(values, tp.dequantize.generic(stored, format=name))
        np.testing.assert_array_equal(found, values[[[4, 0], [1, 4]]])


@pytest.mark.parametrize("precision", ["highest", "low"])
def test_products_by_expert(name, precision, target):
    rng = np.random.default_rng(7)
    stored = there(name, 3 * 21, 768).reshape(3, 21, -1)
    for rows in (1, 40):
        x, experts = rng.standard_normal((rows, 768), dtype=np.float32), rng.integers(0, 3, rows)
        with tp.trace() as log:
            y = tp.grouped_quantized_linear(x, experts, stored, format=name, precision=precision)
        assert [call.kernel for call in log] == ["cpu"]
        for row, expert in enumerate(experts):
            assert errors(y[row], x[row], decode(name, stored[expert])).max() < BOUNDS[precision]


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_other_libraries_call_the_same_kernel(name, library):
    support.require(library)
    stored = there(name, 9, 512)
    x = np.random.default_rng(8).standard_normal((3, 512), dtype=np.float32)
    with support.holding(library, "float32"):
        given = support.there(x, library), support.there(stored, library)
        with tp.trace() as log:
            y = tp.quantized_linear(*given, format=name)
    assert [call.kernel for call in log] == [{"jax": "jax_ffi", "torch": "torch_cpu"}[library]]
    np.testing.assert_array_equal(support.back(y), computed(x, stored, format=name))


def test_gradients_in_torch(name):
    support.require("torch")
    import torch

    stored = there(name, 9, 512)
    x = torch.randn(3, 512, requires_grad=True)
    dy = torch.randn(3, 9)
    tp.quantized_linear(x, torch.from_numpy(stored), format=name).backward(dy)
    expected = dy.double().numpy() @ decode(name, stored)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_has_no_kernel_is_said():
    x, stored = np.zeros((2, 64)), there("q8_0", 3, 64)
    explained = tp.quantized_linear.explain(x, stored, format="q8_0")
    assert "float64" in explained.refused["cpu"]
    assert "with format=q8_0" in str(explained)
    assert explained.formats == {"format": "q8_0"}
    assert tp.prepare(tp.quantized_linear, weight=stored, format="q8_0").explain(x).formats == {"format": "q8_0"}
    assert tp.quantized_linear.explain(x, *tp.quantize(np.ones((3, 64)))).formats == {}
    y = tp.quantized_linear(np.ones((2, 64)), stored, format="q8_0")
    np.testing.assert_allclose(y, np.ones((2, 64)) @ decode("q8_0", stored).T, rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100))
def test_random_calls(name, seed):
    """Any bytes, any shape: no crash, and what is finite is right."""
    rng = np.random.default_rng(seed)
    elements, nbytes, _ = FORMATS[name]
    for _ in range(20):
        rows, outputs, blocks = (int(n) for n in rng.integers(1, [20, 50, 40]))
        stored = rng.integers(0, 256, (outputs, blocks * nbytes), dtype=np.uint8)
        x = rng.standard_normal((rows, blocks * elements)).astype(np.float32)
        precision = str(rng.choice(list(BOUNDS)))
        with np.errstate(all="ignore"):
            y, w = computed(x, stored, format=name, precision=precision), decode(name, stored)
            exact, magnitude = x.astype(np.float64) @ w.T, np.abs(x) @ np.abs(w).T
        usual = np.isfinite(magnitude) & (magnitude < 1e30)
        assert (np.abs(y[usual] - exact[usual]) <= BOUNDS[precision] * magnitude[usual] + 1e-30).all()
        assert not np.isfinite(y[np.isnan(exact)]).any()
