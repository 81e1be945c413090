"""Long rows, and numbers at the ends of the range: bodies on every library, C++ kernels on every SIMD target.

The error of a sum over a row does not grow with the row's length. In a plain sum, the rounding errors of the rows here
all have the same direction: random numbers would hide them.
"""

import functools

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.libraries import LIBRARIES
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.NATIVE
LONG = [1 << 16, 1_000_003]
FLOATS = ["float32", "float64"]


@pytest.fixture(params=LIBRARIES)
def library(request):
    support.require(request.param)
    return request.param


def equal(n, dtype, first=1.2):
    """Return a row of equal elements, but for the first."""
    x = np.full((1, n), 1.1, DTYPES[dtype])
    x[0, 0] = first
    return x


def kernel(name, *args, **kwargs):
    y = getattr(_native, name)(*args, **kwargs)
    assert y is not NotImplemented
    return y


def body(library, name, *args, **kwargs):
    return support.back(getattr(tp, name).generic(*support.there(args, library), **kwargs))


@pytest.fixture(params=[*support.TARGETS, *LIBRARIES])
def compute(request, dtype):
    """Kernels on every target, then bodies on every library: functions of an operator's name and its arguments."""
    if request.param in support.TARGETS:
        with support.using_target(request.param):
            yield kernel
        return
    support.require(request.param)
    if dtype not in support.dtypes_of(request.param):
        pytest.skip(f"{request.param} holds no {dtype}")
    with support.holding(request.param, dtype):
        yield functools.partial(body, request.param)


# --- long rows ---------------------------------------------------------------------------------------

# Subtracting the mean of nearly equal elements magnifies its rounding error by what they are beside their deviation.
# Bodies round the mean to the dtype; kernels have it in double.
MEAN_ERROR = 16  # units of the last place


def assert_centred(y, expected, x):
    """Assert that `layer_norm` was given a mean that is as exact as promised, however long the row."""
    magnified = MEAN_ERROR * np.finfo(x.dtype).eps * np.max(np.abs(x)) / np.std(x, dtype=np.float64)
    np.testing.assert_allclose(y, expected, rtol=magnified, atol=magnified)


ROW_OPERATORS = [
    pytest.param("rms_norm", {"eps": 0.0}, 4, id="rms_norm"),
    pytest.param("layer_norm", {"eps": 0.0}, 16, id="layer_norm"),
    pytest.param("l2_norm", {}, 4, id="l2_norm"),
    pytest.param("softmax", {}, 8, id="softmax"),
    pytest.param("log_softmax", {}, 2, id="log_softmax"),
    pytest.param("logsumexp", {}, 2, id="logsumexp"),
]


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "options", "tolerance"), ROW_OPERATORS)
def test_kernels_on_long_rows(target, name, options, tolerance, dtype, n):
    x = equal(n, dtype)
    y = kernel(name, x, **options)
    assert_matches(y, REFERENCES[name](x, **options), dtype, tolerance=tolerance)
    assert getattr(tp, name).explain(x, **options).kernel == "cpu"


@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("dtype", FLOATS)
def test_add_rms_norm_on_long_rows(target, dtype, n):
    x, residual = equal(n, dtype), equal(n, dtype, first=1.3)
    y, total = kernel("add_rms_norm", x, residual, eps=0.0)
    np.testing.assert_array_equal(total, x + residual)
    assert_matches(y, REFERENCES["rms_norm"](total, eps=0.0), dtype, tolerance=4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_rows_that_are_done_again_may_be_long(target, scale, dtype):
    """Squares of such float32 leave the range, as those of float64 do when the scale is raised to the eighth power."""
    x = equal(1_000_003, "float64") * (scale if dtype == "float32" else scale**8)
    x = x.astype(dtype)
    for name, tolerance in (
        ("rms_norm", 4),
        ("l2_norm", 4),
        ("layer_norm", 128),
    ):  # a mean eleven times the largest difference
        y = kernel(name, x, eps=0.0)
        assert_matches(y, REFERENCES[name](x, eps=0.0), dtype, tolerance=tolerance)


@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", ["float32"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.5])
def test_cross_entropy_of_many_classes_and_rows(compute, label_smoothing, dtype):
    n = 1_000_003
    for logits, targets in (
        (equal(n, dtype), np.asarray([1])),
        (np.broadcast_to(np.float32([[0.1, 0.4]]), (n, 2)), np.zeros(n, np.int32)),
    ):
        y = compute("cross_entropy", logits, targets, label_smoothing=label_smoothing)
        expected = REFERENCES["cross_entropy"](logits, targets, label_smoothing=label_smoothing)
        assert_matches(y, expected, dtype, tolerance=2 if compute is kernel else 32)


@pytest.mark.parametrize(("rows", "weight_dtype"), [(1, "float32"), (2, "float32"), (2, "float16"), (9, "bfloat16")])
@pytest.mark.parametrize("n", LONG)
def test_linear_on_long_rows(target, rows, weight_dtype, n):
    x, weight = np.full((rows, n), 1.1, np.float32), np.full((5, n), 0.7, DTYPES[weight_dtype])
    y = kernel("linear", x, weight)
    assert_matches(y, REFERENCES["linear"](x, weight), "float32", tolerance=64)


@pytest.mark.parametrize("rows", [1, 3, 60])
@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_quantized_linear_on_long_rows(target, bits, mode, rows):
    n, group_size = 1 << 18, 64
    x = np.full((rows, n), 1.1, np.float32)
    weight = np.full((3, n * bits // 8), 0x55, np.uint8)
    scales = np.full((3, n // group_size), 0.7, np.float32)
    biases = np.full_like(scales, 0.3) if mode == "affine" else None
    options = {"bits": bits, "group_size": group_size}
    y = kernel("quantized_linear", x, weight, scales, biases, **options)
    expected = REFERENCES["quantized_linear"](x, weight, scales, biases, **options)
    assert_matches(y, expected, "float32", tolerance=16)


@pytest.mark.costly(4)
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize(("name", "options", "tolerance"), ROW_OPERATORS)
def test_bodies_on_long_rows(library, name, options, tolerance, n, axis):
    """Some libraries add one element after another, along some axes or along all."""
    x = equal(n, "float32")
    if axis == 0:
        x = np.ascontiguousarray(np.concatenate((x, x)).T)
    y = body(library, name, x, axis=axis, **options)
    expected = REFERENCES[name](x, axis=axis, **options)
    if name == "layer_norm":
        assert_centred(y, expected, equal(n, "float32"))
    else:
        assert_matches(y, expected, "float32", tolerance=2 * tolerance, scale_axis=None)


@pytest.mark.costly
def test_bodies_on_long_rows_of_two_axes(library):
    x = np.reshape(equal(1 << 20, "float32"), (1, 1 << 14, 1 << 6))
    y = body(library, "layer_norm", x, axis=(1, 2), eps=0.0)
    expected = REFERENCES["layer_norm"](x, axis=(1, 2), eps=0.0)
    assert_centred(y, expected, x)


@pytest.mark.costly(2)
def test_bodies_find_a_large_mean_of_long_rows(library, rng):
    x = (1000 + rng.standard_normal((1, 1_000_003))).astype(np.float32)
    y = body(library, "layer_norm", x)
    # A mean is known to some units of the last place, of which each is 6e-5 of the standard deviation.
    np.testing.assert_allclose(y, REFERENCES["layer_norm"](x), rtol=0, atol=1e-3)


# --- the ends of the range ---------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-33, 1e-35, 1e-37])
@pytest.mark.parametrize("rows", [1, 3, 60])
@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_quantized_linear_with_tiny_scales(target, bits, mode, rows, scale, rng):
    """The product of such a scale with that of x in fixed point is below the normal numbers."""
    x = rng.standard_normal((rows, 256)).astype(np.float32)
    weight = rng.integers(0, 256, (7, 256 * bits // 8), dtype=np.uint8)
    scales = (scale * rng.uniform(1, 2, (7, 8))).astype(np.float32)
    biases = np.zeros_like(scales) if mode == "affine" else None
    options = {"bits": bits, "group_size": 32}
    y = kernel("quantized_linear", x, weight, scales, biases, **options)
    expected = REFERENCES["quantized_linear"](x, weight, scales, biases, **options)
    sizes = REFERENCES["dequantize"](weight, scales, biases, **options)
    allowed = 16 * np.finfo(np.float32).eps * (np.abs(x.astype(np.float64)) @ np.abs(sizes).T)
    assert (np.abs(y - expected) <= allowed).all()


@pytest.mark.parametrize("rows", [1, 3, 60])
@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_quantized_linear_with_scales_of_the_whole_range(target, bits, mode, rows, rng):
    """Huge and tiny outputs are side by side; the integers times such a scale would overflow."""
    x = (1e-3 * rng.standard_normal((rows, 256))).astype(np.float32)
    weight = rng.integers(0, 256, (7, 256 * bits // 8), dtype=np.uint8)
    sizes = np.asarray([1e35, 1e-31, 1e33, 1, 1e28, 1e-20, 1e25])[:, None]
    scales = (sizes * rng.uniform(1, 2, (7, 8))).astype(np.float32)
    biases = (scales * rng.uniform(-2, 2, (7, 8))).astype(np.float32) if mode == "affine" else None
    options = {"bits": bits, "group_size": 32}
    y = kernel("quantized_linear", x, weight, scales, biases, **options)
    expected = REFERENCES["quantized_linear"](x, weight, scales, biases, **options)
    weights = REFERENCES["dequantize"](weight, scales, biases, **options)
    spread = np.abs(weights).sum(axis=-1) + (0 if biases is None else 256 * np.abs(biases).max(axis=-1))
    allowed = 16 * np.finfo(np.float32).eps * np.abs(x).max() * spread
    assert np.isfinite(expected).all()
    assert (np.abs(y - expected) <= allowed).all()


def extreme_groups(dtype):
    """Return groups from the least to the largest number, and from 0, and with other numbers among them."""
    largest = float(np.finfo(np.float64).max) if dtype == "float64" else tp._dtypes._LARGEST[dtype]
    parts = [[-1, 1], [0, 1], [-1, 0], [0.3, 1], [-1, 0.7], [-0.9, 0.99], [0.997, 1], [1, 1], [-0.5, 0.5]]
    shares = [np.linspace(*ends, 32) for ends in parts]
    return (np.asarray(shares) * largest).astype(DTYPES[dtype])


FORMATS = [(4, "affine"), (8, "affine"), (8, "symmetric")]


def assert_near_groups(w, restored, bits, mode):
    """Assert that a group differs by no more than half a step, and what rounding scale, bias and element adds."""
    assert restored.dtype == w.dtype
    wide, y = w.astype(np.longdouble), restored.astype(np.longdouble)
    assert np.isfinite(y).all()
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(w.dtype.name) or np.finfo(w.dtype).eps
    largest = np.abs(wide).max(axis=-1, keepdims=True)
    extent = largest / 127 if mode == "symmetric" else np.ptp(wide, axis=-1, keepdims=True) / (2**bits - 1)
    assert (np.abs(y - wide) <= extent / 2 + 6 * eps * largest).all()


@pytest.mark.costly(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("bits", "mode"), FORMATS)
def test_groups_of_the_whole_range_are_restored(compute, bits, mode, dtype):
    w, options = extreme_groups(dtype), {"bits": bits, "group_size": 32, "mode": mode}
    quantized = compute("quantize", w, **options)
    restored = compute("dequantize", *quantized, **options)
    assert_near_groups(w, restored, bits, mode)
    if compute is kernel:
        bodies = tp.quantize.generic(w, **options)
        for ours, theirs in zip(quantized, bodies, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(restored, tp.dequantize.generic(*bodies, **options))


def test_an_element_that_is_too_large_is_infinite(target):
    weight, one = np.asarray([[0, 1, 2, 3]], np.uint8), np.ones((1, 1), np.float32)
    for call in (_native.dequantize, tp.dequantize.generic):
        w = call(weight, 3e38 * one, -one, bits=8, group_size=4)
        np.testing.assert_array_equal(w, np.float32([[-1, 3e38, np.inf, np.inf]]))
        w = call(weight, 3e38 * one, -3e38 * one, bits=8, group_size=4)
        np.testing.assert_array_equal(w, np.float32([[-3e38, 0, 3e38, np.inf]]))


def large_logits(dtype):
    """Return logits near the largest number, targets whose losses have a finite mean, and that mean."""
    largest = float(np.finfo(dtype).max)
    logits = np.asarray([[0.9, -0.9, 0.0], [0.5, 0.5, 0.0], [-0.9, 0.9, 0.9], [0.0, 0.9, -0.9], [0.3, 0.0, -1.0]])
    losses = np.asarray([1.8, 0, 0, 0, 1.3])  # beside which logarithms vanish
    return (logits * largest).astype(dtype), np.asarray([1, 0, 1, 1, 2]), losses.mean() * largest


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_mean_of_large_losses_is_finite(compute, dtype):
    logits, targets, mean = large_logits(dtype)
    np.testing.assert_allclose(compute("cross_entropy", logits, targets), mean, rtol=1e-6)
    losses = compute("cross_entropy", logits, targets, reduction="none")
    np.testing.assert_array_equal(np.isinf(losses), [True, False, False, False, True])
    assert compute("cross_entropy", logits, targets, reduction="sum") == np.inf
    smoothed = compute("cross_entropy", logits, targets, label_smoothing=0.5)
    np.testing.assert_allclose(smoothed, mean_of_smoothed(logits, targets), rtol=1e-5)


def mean_of_smoothed(logits, targets):
    """Return the mean of smoothed losses, half of them to all classes, where no logarithm matters."""
    x = logits.astype(np.longdouble) / 1024
    above = np.take_along_axis(x, targets[:, None], axis=-1)[:, 0] / 2 + x.mean(axis=-1) / 2
    return (np.mean(x.max(axis=-1) - above) * 1024).astype(np.float64)


@pytest.mark.costly(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "l2_norm"])
@pytest.mark.parametrize("eps", [1e-60, 1e-300, 5e-324])
def test_an_eps_may_be_smaller_than_float32_holds(compute, eps, name, dtype):
    x = rows_beside_a_tiny_eps(name, dtype)
    expected = REFERENCES[name](x, eps=eps)
    assert not np.isnan(expected).any()
    assert_matches(compute(name, x, eps=eps), expected, dtype, tolerance=16)


def rows_beside_a_tiny_eps(name, dtype):
    """Return zeros, equal elements for `layer_norm`, and small numbers whose mean square may be as small as `eps`."""
    x = np.zeros((4, 9), DTYPES[dtype])
    x[1] = 3.0
    x[2] = np.linspace(-1, 1, 9)
    x[3] = 1e-30 * np.linspace(-1, 1, 9) if dtype != "float16" else 0.0
    return x
