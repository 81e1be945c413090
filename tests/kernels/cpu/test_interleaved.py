"""Products with interleaved blocks by the compiled kernel, against float64 of the blocks that they are made of."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from block_products import BOUNDS, computed, errors
from tensorops import formats
from tensorops.testing._stored_blocks import FORMATS, decode, random_blocks

MULTIPLIED = ("iq4_nl", "iq4_xs", "mxfp4", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0")
# Rows of x to either side of where the method changes, and rows of weights that fill no piece of 256
SHAPES = [(1, 32, 1), (2, 64, 7), (3, 32, 3), (16, 96, 33), (17, 32, 1), (32, 64, 9), (39, 96, 3)]


@pytest.fixture
def kernel(request, target):
    """Skips targets that multiply all blocks in the order of files."""
    name = request.node.callspec.params.get("name", "q5_k")
    stored = np.zeros((32, FORMATS[name][1]), dtype=np.uint8)
    x = np.zeros((1, FORMATS[name][0]), np.float32)
    refused = tp.quantized_linear.explain(x, stored, format=f"{name}_x32").refused
    assert ("cpu" in refused) == (target not in ("v3", "v4_vnni", "v4_bf16", "neon_dotprod", "neon_i8mm"))
    if "cpu" in refused:
        assert f"on the target {target}" in refused["cpu"]
        pytest.skip(refused["cpu"])


def made(name, rows, columns, seed=0):
    """Blocks, and the same interleaved."""
    stored = random_blocks(np.random.default_rng(seed), name, rows, columns)
    return stored, formats.get(f"{name}_x32").store(stored)


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", MULTIPLIED)
def test_products(name, precision, kernel):
    rng = np.random.default_rng(1)
    for rows, outputs, blocks in SHAPES:
        columns = blocks * FORMATS[name][0]
        (stored, interleaved), x = made(name, outputs, columns), rng.standard_normal((rows, columns), dtype=np.float32)
        y = computed(x, interleaved, format=f"{name}_x32", precision=precision)
        assert errors(y, x, decode(name, stored)).max() < BOUNDS[precision]


@pytest.mark.parametrize("name", MULTIPLIED)
def test_long_rows_are_no_less_accurate(name, kernel):
    columns = 33 * 1024
    stored, interleaved = made(name, 32, columns)
    x = np.random.default_rng(2).standard_normal((40, columns), dtype=np.float32) + 1.0
    for rows in (1, 2, 40):
        y = computed(x[:rows], interleaved, format=f"{name}_x32")
        assert errors(y, x[:rows], decode(name, stored)).max() < 2e-7


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_half_types_are_rounded_once(name, dtype, kernel):
    stored, interleaved = made(name, 32, 1024)
    for rows in (3, 37):
        x = np.random.default_rng(3).standard_normal((rows, 1024)).astype(dtype)
        y = computed(x, interleaved, format=f"{name}_x32")
        assert y.dtype == x.dtype
        exact, magnitude = (f(x.astype(np.float64)) @ f(decode(name, stored)).T for f in (np.asarray, np.abs))
        rounding = 2.0**-11 if dtype is np.float16 else 2.0**-8
        assert (np.abs(y.astype(np.float64) - exact) <= rounding * np.abs(exact) + 1e-6 * magnitude).all()


@pytest.mark.parametrize("name", MULTIPLIED)
def test_extreme_numbers(name, kernel):
    """Those of x that have no scale, damaged blocks, and rows of any scale."""
    stored, interleaved = made(name, 32, 512)
    w = decode(name, stored)
    for rows, extreme in itertools.product((1, 33), (1e-36, 3e35, np.inf, np.nan)):
        x = np.random.default_rng(5).standard_normal((rows, 512), dtype=np.float32)
        x[-1, 3] = extreme
        with np.errstate(all="ignore"):
            exact = x.astype(np.float64) @ w.T
        y = computed(x, interleaved, format=f"{name}_x32")
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
        np.testing.assert_allclose(y[finite], exact[finite], rtol=2e-5, atol=1e-3)
    for exponent, rows in itertools.product((-90, -60, 60, 90), (1, 33)):
        x = np.random.default_rng(6).standard_normal((rows, 512)).astype(np.float32) * np.float32(2.0**exponent)
        assert errors(computed(x, interleaved, format=f"{name}_x32"), x, w).max() < BOUNDS["highest"]
    damaged = stored.copy()
    damaged[1::2] = 0xFF  # every scale is NaN
    interleaved = formats.get(f"{name}_x32").store(damaged)
    for rows in (1, 33):
        x = np.random.default_rng(7).standard_normal((rows, 512), dtype=np.float32)
        with np.errstate(all="ignore"):
            y = computed(x, interleaved, format=f"{name}_x32")
        assert errors(y[:, ::2], x, w[::2]).max() < BOUNDS["highest"]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_values(name, target):
    """Of every format, on every target."""
    of = formats.get(f"{name}_x32")
    for blocks in (1, 7, 16):
        stored, interleaved = made(name, 64, blocks * FORMATS[name][0])
        with tp.trace() as log:
            values = tp.dequantize(interleaved, format=of.name)
            found = tp.embedding(np.asarray([[4, 0], [63, 32]]), interleaved, format=of.name)
        assert [call.kernel for call in log] == ["cpu", "cpu"]
        np.testing.assert_array_equal(values, tp.dequantize.generic(stored, format=name))
        np.testing.assert_array_equal(found, values[[[4, 0], [63, 32]]])
        found = tp.embedding.generic(np.asarray([5, 40]), interleaved, format=of.name)
        np.testing.assert_array_equal(found, values[[5, 40]])


@pytest.mark.parametrize("precision", ["highest", "low"])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_products_by_expert(name, precision, kernel):
    rng = np.random.default_rng(7)
    stored, interleaved = (blocks.reshape(5, 64, -1) for blocks in made(name, 5 * 64, 768))
    for shape, chosen in (((1, 1, 768), (1, 4)), ((3, 1, 768), (3, 2)), ((2, 4, 768), (2, 4)), ((40, 768), (40,))):
        x, experts = rng.standard_normal(shape, dtype=np.float32), rng.integers(0, 5, chosen)
        with tp.trace() as log:
            y = tp.grouped_quantized_linear(x, experts, interleaved, format=f"{name}_x32", precision=precision)
        assert [call.kernel for call in log] == ["cpu"]
        for place in np.ndindex(chosen):
            row = np.broadcast_to(x, (*chosen, 768))[place]
            assert errors(y[place], row, decode(name, stored[experts[place]])).max() < BOUNDS[precision]
    x, experts = rng.standard_normal((1, 768), dtype=np.float32), np.asarray([3])
    x[0, 5] = np.inf  # which no integer is
    y = tp.grouped_quantized_linear(x, experts, interleaved, format=f"{name}_x32", precision=precision)
    with np.errstate(all="ignore"):
        exact = x.astype(np.float64) @ decode(name, stored[3]).T
    np.testing.assert_array_equal(y, exact.astype(np.float32))


@pytest.mark.parametrize("library", ["jax", "torch"])
def test_other_libraries_call_the_same_kernel(library):
    support.require(library)
    support.require_provider("cpu")
    _, interleaved = made("q4_k", 64, 512)
    x = np.random.default_rng(8).standard_normal((3, 512), dtype=np.float32)
    expected = tp.quantized_linear(x, interleaved, format="q4_k_x32")
    with support.holding(library, "float32"):
        given = support.there(x, library), support.there(interleaved, library)
        with tp.trace() as log:
            y = tp.quantized_linear(*given, format="q4_k_x32")
    own = tp.quantized_linear.explain(x, interleaved, format="q4_k_x32").kernel
    assert [call.kernel for call in log] == [{"jax": "jax_ffi", "torch": "torch_cpu"}[library] if own == "cpu" else own]
    np.testing.assert_allclose(support.back(y), expected, rtol=2e-5, atol=1e-5)


def test_gradients_in_torch():
    support.require("torch")
    import torch

    stored, interleaved = made("q4_k", 32, 512)
    x, dy = torch.randn(3, 512, requires_grad=True), torch.randn(3, 32)
    tp.quantized_linear(x, torch.from_numpy(interleaved), format="q4_k_x32").backward(dy)
    np.testing.assert_allclose(x.grad.numpy(), dy.double().numpy() @ decode("q4_k", stored), rtol=1e-4, atol=1e-4)


def test_prepared_blocks_are_interleaved(kernel):
    stored, interleaved = made("q5_k", 64, 768)
    x = np.random.default_rng(9).standard_normal((2, 768), dtype=np.float32)
    for precision in ("highest", "low"):
        product = tp.prepare("quantized_linear", weight=stored, format="q5_k", precision=precision)
        assert (product.provider, product.nbytes, product.explain(x).kernel) == ("cpu", stored.nbytes, "cpu")
        np.testing.assert_array_equal(product(x), computed(x, interleaved, format="q5_k_x32", precision=precision))
        np.testing.assert_array_equal(product.plain()["weight"], stored)
    wide = product(x.astype(np.float64))  # which no kernel multiplies
    np.testing.assert_allclose(wide, x.astype(np.float64) @ decode("q5_k", stored).T, rtol=1e-9, atol=1e-9)
    for weight, format, reason in (
        (stored[:40], "q5_k", "multiple of 32"),
        (interleaved, "q5_k_x32", "are interleaved"),
        (made("q2_k", 32, 256)[0], "q2_k", "no kernel"),
    ):
        assert reason in tp.prepare("quantized_linear", weight=weight, format=format).refused["cpu"]


def test_steps_without_python():
    support.require_provider("cpu")
    _, interleaved = made("q4_0", 64, 64)

    def step(ids, x):
        return tp.embedding(ids, interleaved, format="q4_0_x32"), tp.quantized_linear(x, interleaved, format="q4_0_x32")

    kernel = tp.PersistentKernel(step, [np.asarray([0, 1]), np.zeros((1, 64), np.float32)], backend="cpu")
    x = np.random.default_rng(10).standard_normal((1, 64), dtype=np.float32)
    for ids in (np.asarray([33, 5]), np.asarray([63, 0])):
        rows, y = kernel(ids, x)
        np.testing.assert_array_equal(rows, tp.dequantize(interleaved, format="q4_0_x32")[ids])
        np.testing.assert_array_equal(y, tp.quantized_linear(x, interleaved, format="q4_0_x32"))


def test_steps_read_a_copy_of_constant_blocks(kernel):
    stored, interleaved = made("q5_k", 64, 768)
    x = np.random.default_rng(11).standard_normal((1, 768), dtype=np.float32)
    expected = computed(x, interleaved, format="q5_k_x32")
    for repack in (True, False):
        given = stored.copy()
        step = tp.PersistentKernel(
            lambda x, given=given: tp.quantized_linear(x, given, format="q5_k"), [x], backend="cpu", repack=repack
        )
        step(x)
        given[:] = 0  # which only a step without a copy of its own sees
        np.testing.assert_array_equal(step(x), expected if repack else np.zeros_like(expected))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MULTIPLIED)
@pytest.mark.parametrize("seed", range(50))
def test_random_calls(name, seed, kernel):
    """Any bytes, any shape: no crash, and what is finite is right."""
    rng = np.random.default_rng(seed)
    elements, nbytes, _ = FORMATS[name]
    for _ in range(20):
        rows, bands, blocks = (int(n) for n in rng.integers(1, [50, 4, 40]))
        stored = rng.integers(0, 256, (32 * bands, blocks * nbytes), dtype=np.uint8)
        x = rng.standard_normal((rows, blocks * elements)).astype(np.float32)
        precision = str(rng.choice(list(BOUNDS)))
        interleaved = formats.get(f"{name}_x32").store(stored)
        with np.errstate(all="ignore"):
            y = computed(x, interleaved, format=f"{name}_x32", precision=precision)
            w = decode(name, stored)
            exact, magnitude = x.astype(np.float64) @ w.T, np.abs(x) @ np.abs(w).T
        usual = np.isfinite(magnitude) & (magnitude < 1e30)
        assert (np.abs(y[usual] - exact[usual]) <= BOUNDS[precision] * magnitude[usual] + 1e-30).all()
        assert not np.isfinite(y[np.isnan(exact)]).any()
