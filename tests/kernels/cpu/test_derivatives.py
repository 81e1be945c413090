"""Compiled vector-Jacobian products on NumPy's arrays: every length, target and dtype, views, and what is refused.

In float64 they are those of the bodies, which tests of torch and JAX confirm; here others are compared with that.
"""

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
    return [a.astype(DTYPES[dtype]) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in tree]


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
