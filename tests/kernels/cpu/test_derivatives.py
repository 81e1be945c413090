"""Compiled vector-Jacobian products on NumPy's arrays: every length, target and dtype, views, and what is refused.

In float64 they are those of the bodies, which tests of torch and JAX confirm; here others are compared with that. Where
products leave the range of a dtype, and at kinks, expected values are written out.
"""

from fractions import Fraction

import numpy as np
import pytest

import support
from differentiable import DIFFERENTIABLE
from tensorops.kernels.cpu.derivatives import derivative_of
from tensorops.testing import DTYPES

native = support.require_native()
NAMES = [name.removesuffix("_vjp") for name in native.operators() if name.endswith("_vjp")]
OTHERS = {"group_norm", "instance_norm", "rope", "scaled_dot_product_attention", "cross_entropy", "logsumexp"}
OF_ROWS = [name for name in NAMES if name not in OTHERS]
BOUNDS = {"float64": 1e-13, "float32": 4e-6, "float16": 4e-3, "bfloat16": 3e-2}


def arguments(name, shape):
    """Return float64 arrays for the positional parameters of a vector-Jacobian product, and options."""
    rng = np.random.default_rng(5)
    x, row = rng.standard_normal(shape), rng.standard_normal(shape[-1])
    if name == "group_norm":
        x = rng.standard_normal((2, 4, shape[-1]))
        return [x, 2, x[0, :, 0].copy(), x[1, :, 0].copy(), x[::-1]], {}
    if name == "instance_norm":
        x = rng.standard_normal((2, 3, shape[-1]))
        return [x, x[0, :, 0].copy(), x[1, :, 0].copy(), x[::-1]], {}
    if name == "cross_entropy":
        return [x, np.arange(shape[0]) % shape[1], np.abs(row), rng.standard_normal(shape[0])], {
            "reduction": "none",
            "label_smoothing": 0.1,
            "z_loss": 0.1,
        }
    if name == "rope":
        return [rng.standard_normal((2, 3, 2 * shape[-1])), np.arange(3)], {}
    if name == "scaled_dot_product_attention":
        q, k, v, dy = (rng.standard_normal((1, heads, n, shape[-1])) for heads, n in ((4, 5), (2, 9), (2, 9), (4, 5)))
        return [q, k, v, dy], {"is_causal": True, "window": 4, "softcap": 3.0, "sinks": row[:1].repeat(4)}
    return {
        "rms_norm": [x, row, x[::-1]],
        "add_rms_norm": [x, row, x[::-1], x + 1],
        "layer_norm": [x, row, row, x[::-1]],
        "add_layer_norm": [x, row, row, x[::-1], x + 1],
        "swiglu": [x, x + 1, x[::-1]],
        "geglu": [x, x + 1, x[::-1]],
        "reglu": [x, x + 1, x[::-1]],
        "logsumexp": [x, x[:, 0].copy()],
    }.get(name, [x, x[::-1]]), {}


def rounded(tree, dtype):
    return [a.astype(DTYPES[dtype]) if isinstance(a, np.ndarray) and a.dtype.kind in "fV" else a for a in tree]


def results(name, args, options):
    found = getattr(native, f"{name}_vjp")(*args, **options)
    assert found is not NotImplemented, getattr(native, f"{name}_vjp_supports")(*args, **options)
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", NAMES)
def test_every_length(name, target):
    for n in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 130, 1029):
        args, options = arguments(name, (3, n))
        kept = {k: v for k, v in options.items() if not isinstance(v, np.ndarray)}
        for dtype in DTYPES:
            given = rounded(args, dtype)
            more = {k: v.astype(DTYPES[dtype]) for k, v in options.items() if isinstance(v, np.ndarray)}
            wide = [a if isinstance(a, int) or a.dtype.kind == "i" else a.astype(np.float64) for a in given]
            expected = results(name, wide, kept | {k: v.astype(np.float64) for k, v in more.items()})
            found = results(name, given, kept | more)
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.dtype == DTYPES[dtype]
                assert ours.shape == theirs.shape
                # Of one or two elements, only rounding is left, over a divisor of down to √eps, which is 1 / 316.
                scale = max(np.abs(theirs).max(), 316 if n < 3 else 1)
                assert np.abs(ours.astype(np.float64) - theirs).max() <= BOUNDS[dtype] * scale, (n, dtype)


@pytest.mark.parametrize("name", OF_ROWS)
def test_views_and_arrays_without_elements(name):
    args, options = arguments(name, (6, 20))
    every_other = [a[::2, 2:15] if np.ndim(a) == 2 else a[2:15] if isinstance(a, np.ndarray) else a for a in args]
    whole = [np.ascontiguousarray(a) if isinstance(a, np.ndarray) else a for a in every_other]
    for ours, theirs in zip(results(name, every_other, options), results(name, whole, options), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    empty = [a[:0] if np.ndim(a) == 2 else a for a in args]
    for ours, like in zip(results(name, empty, options), results(name, args, options), strict=True):
        assert ours.shape == ((0, 20) if like.ndim == 2 else like.shape)
        assert not ours.any()


@pytest.mark.parametrize("name", NAMES)
def test_cotangents_of_another_shape_or_dtype_are_refused(name):
    args, options = arguments(name, (3, 8))
    place = derivative_of(name).parameters.index("dy")
    refuses = getattr(native, f"{name}_vjp_supports")
    assert refuses(*args, **options) is None
    if name != "rope":  # it has nothing else to compare with
        other = args[place].astype(np.float32)
        assert "dtype" in refuses(*args[:place], other, *args[place + 1 :], **options)
        other = np.concatenate([args[place], args[place]])
        assert "shape" in refuses(*args[:place], other, *args[place + 1 :], **options)
    assert "is not an array" in refuses(*args[:place], 1.0, *args[place + 1 :], **options)


def test_each_is_of_an_operator_and_has_gradients_of_its_parameters():
    tested = {name.partition("-")[0] for name in DIFFERENTIABLE}
    for name in NAMES:
        assert name in tested
        assert derivative_of(name).provided


@pytest.mark.parametrize(
    ("name", "options", "slope"),
    [
        ("relu", {}, 0.0),
        ("leaky_relu", {"negative_slope": 0.25}, 0.25),
        ("elu", {"alpha": 0.5}, 0.5),
        ("selu", {}, 1.6732632423543772 * 1.0507009873554805),
    ],
)
def test_slopes_at_kinks(target, name, options, slope):
    """They are those from below, as those of the bodies and of torch."""
    zeros, ones = np.asarray([0.0, -0.0] * 9, np.float32), np.ones(18, np.float32)
    found = getattr(native, f"{name}_vjp")(zeros, ones, **options)
    np.testing.assert_allclose(found, np.full(18, slope), rtol=1e-7)


# Slopes and values at 0, whose kinks are numbers of every dtype
LINES = [(1 / 6, 0.5), (0.2, 0.5), (0.1, 0.6), (0.4, 0.2), (1 / 3, 0.5), (1 / 49, 0.5), (-0.2, 0.3), (1 / 2560, 0.5)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("alpha", "beta"), LINES)
def test_hard_sigmoid_is_flat_at_both_kinks_and_rises_between_them(target, dtype, alpha, beta):
    zero, one = -beta / alpha, (1 - beta) / alpha
    x = np.asarray([zero, one, 2 * zero - one, 2 * one - zero, 0.9 * zero + 0.1 * one, 0.1 * zero + 0.9 * one] * 3)
    x = x.astype(DTYPES[dtype])
    (found,) = results("hard_sigmoid", [x, np.full_like(x, 2)], {"alpha": alpha, "beta": beta})
    np.testing.assert_allclose(found.astype(np.float64), [0, 0, 0, 0, 2 * alpha, 2 * alpha] * 3, rtol=BOUNDS[dtype])


CONSTANT = {
    "relu": (-1.0, 0.0),
    "relu_squared": (-1.0, 0.0),
    "hard_sigmoid": (-3.5, 0.0, 4.0, 0.0),
    "hard_swish": (-3.5, 0.0, 4.0, np.inf),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONSTANT)
def test_no_cotangent_has_a_gradient_where_a_function_is_constant(target, name, dtype):
    x, expected = np.asarray(CONSTANT[name]).reshape(-1, 2).repeat(9, axis=0).T
    x = x.astype(DTYPES[dtype])
    (found,) = results(name, [x, np.full_like(x, np.inf)], {})
    np.testing.assert_array_equal(found.astype(np.float64), expected)


def test_the_slope_of_a_square_may_leave_the_range_alone(target):
    x = np.asarray([3e38] * 17, np.float32)
    (found,) = results("relu_squared", [x, np.full_like(x, 1e-3)], {})
    np.testing.assert_allclose(found, np.full(17, 6e35), rtol=1e-6)


@pytest.mark.parametrize("name", ["reglu", "swiglu", "geglu"])
@pytest.mark.parametrize(("dy", "up"), [(2.0, 3e38), (-3e38, 1e5), (3e38, -2.0)])
def test_gates_close_where_cotangents_times_up_leave_the_range(target, name, dy, up):
    gate = np.asarray([-200.0, -90.0, -40.0, -1e4] * 5, np.float32)
    arrays = [gate, np.full_like(gate, up), np.full_like(gate, dy)]
    found, _ = results(name, arrays, {})
    expected, _ = results(name, [a.astype(np.float64) for a in arrays], {})
    expected = np.where(np.abs(expected) < 1e-30 * abs(dy * up), 0, expected)  # the slope is below float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-30 * abs(dy * up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [3, 40])
def test_logsumexp_beside_infinities(target, dtype, n):
    """As a quotient of exponentials: infinity over infinity is NaN, anything else over it is 0."""
    x = np.arange(4 * n, dtype=np.float64).reshape(4, n) % 5
    x[1:, 1] = np.inf
    x[2, 0] = np.inf
    x[3, 2] = np.nan
    with np.errstate(invalid="ignore"):
        e = np.exp(x)
        expected = 2 * e / e.sum(axis=-1, keepdims=True)
    given = x.astype(DTYPES[dtype])
    (found,) = results("logsumexp", [given, np.full(4, 2, DTYPES[dtype])], {})
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=BOUNDS[dtype], atol=1e-7)


def attention_gradients(q, k, v, dy, *, scale, softcap=None, mask=None, is_causal=False, sinks=None):
    """Return the gradients in float64, by their formulas; products of queries and keys are exact."""
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, group, axis=1) for x in (k, v))
    exact, bounded = np.vectorize(Fraction), np.vectorize(lambda s: float(min(max(s, -1e307), 1e307)))
    s = bounded(exact(scale) * (exact(q) @ np.swapaxes(exact(keys), 2, 3)))
    slope = 1.0
    if softcap:
        slope, s = 1 - np.tanh(s / softcap) ** 2, softcap * np.tanh(s / softcap)
    if is_causal:
        s = np.where(np.tri(*s.shape[2:], s.shape[3] - s.shape[2], dtype=bool), s, -np.inf)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    z = np.full(s.shape[1], -np.inf) if sinks is None else sinks
    largest = np.maximum(s.max(axis=-1, keepdims=True), z[:, None, None])
    e = np.exp(s - largest)
    p = e / (e.sum(axis=-1, keepdims=True) + np.exp(z[:, None, None] - largest))
    dp = dy @ np.swapaxes(values, 2, 3)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * slope * scale
    dk, dv = np.swapaxes(ds, 2, 3) @ q, np.swapaxes(p, 2, 3) @ dy
    return ds @ keys, *(x.reshape(*x.shape[:1], -1, group, *x.shape[2:]).sum(axis=2) for x in (dk, dv))


RANGES = {
    "plain": {},
    "causal": {"is_causal": True},
    "softcap": {"softcap": 2.0},
    "mask": {"mask": np.arange(30).reshape(5, 6) % 4 != 1},
    "bias": {"mask": np.linspace(-1, 1, 30).reshape(5, 6)},
    "sinks": {"sinks": np.asarray([0.5, -1.0, 0.0, 2.0])},
    "scale": {"scale": 64.0},
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("options", RANGES.values(), ids=RANGES)
def test_attention_where_products_leave_the_range(target, options, dtype):
    """Queries of 1e20 meet keys of ±1e20 in two features and zeros, beside usual rows and keys."""
    rng = np.random.default_rng(3)
    q, dy = rng.standard_normal((2, 2, 4, 5, 19))
    k, v = rng.standard_normal((2, 2, 2, 6, 19))
    large, largest = (1e160, 1e307) if dtype == "float64" else (1e20, 1e38)
    options = {"scale": 19**-0.5} | options
    q /= options["scale"] * 19**0.5
    q[..., 0], k[..., 0] = np.abs(q[..., 0]), 0
    q[:, :, ::2, :2], k[..., 1] = large, 0
    k[0, :, 1::2, 0] = -large  # these have no weight
    k[0, :, 5, :2] = large, -4 * large  # this has none either, though the first product is positive
    k[1, 0, 4, 0] = large  # this has all of it
    q[1, :2, 1, 0] = largest  # for which it does, too; with a scale above 1, that leaves the range as well
    arrays = rounded([q, k, v, dy], dtype)
    given = dict(zip(options, rounded(options.values(), dtype), strict=True))
    wide = dict(zip(options, rounded(given.values(), "float64"), strict=True))
    expected = attention_gradients(*(a.astype(np.float64) for a in arrays), **wide)
    for ours, theirs in zip(results("scaled_dot_product_attention", arrays, given), expected, strict=True):
        error = np.abs(ours.astype(np.float64) - theirs).max(axis=(0, 1, 2))  # of each feature
        scale = np.abs(theirs).max(axis=(0, 1, 2))
        assert (error <= 2 * BOUNDS[dtype] * np.maximum(scale, options["scale"])).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_attention_to_keys_that_are_hidden_or_not_finite(target, dtype):
    """Products that leave the range have no effect where they do not count, and infinite keys are nobody's overflow."""
    rng = np.random.default_rng(4)
    q, k, v, dy = rng.standard_normal((4, 1, 2, 3, 8)).astype(dtype)
    large = 1e308 if dtype == "float64" else 1e38
    q[0, 0], k[0, :, 2] = large, np.where(np.arange(8) % 2, -large, large)  # their product is infinity less infinity
    mask = np.asarray([True, True, False])
    options = {"softcap": 2.0, "scale": 8.0}
    found = results("scaled_dot_product_attention", [q, k, v, dy], {"mask": mask} | options)
    visible = [q, k[:, :, :2].copy(), v[:, :, :2].copy(), dy]
    for ours, theirs in zip(found, results("scaled_dot_product_attention", visible, options), strict=True):
        assert np.isfinite(theirs).all()
        np.testing.assert_array_equal(ours[:, :, : theirs.shape[2]], theirs)
        assert not ours[:, :, theirs.shape[2] :].any()
    k[0, 1, 0] = np.inf
    dq, _, _ = results("scaled_dot_product_attention", [q, k, v, dy], {"scale": 8.0})
    assert np.isnan(dq[0, 1]).any()
    mask = np.zeros((3, 3), bool)
    for gradient in results("scaled_dot_product_attention", [q, np.abs(q), v, dy], {"scale": 8.0, "mask": mask}):
        assert not gradient.any()
