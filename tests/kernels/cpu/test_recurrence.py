"""Layers with a state in C++: every SIMD target, length and layout, threads, and what is refused.

That they are chosen, and agree with the reference on all cases, is tested in `test_conformance`.
"""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()
normal = support.normal


def rule(rng, tokens=4, *, batch=1, key_heads=1, heads=2, key_dim=8, value_dim=8, dtype="float32", gates="float32"):
    q, k = rng.standard_normal((2, batch, key_heads, tokens, key_dim))
    k /= np.maximum(np.linalg.norm(k, axis=-1, keepdims=True), 1e-30)
    v = rng.standard_normal((batch, heads, tokens, value_dim))
    g, beta = -rng.exponential(0.3, (batch, heads, tokens)), rng.random((batch, heads, tokens))
    state = rng.standard_normal((batch, heads, key_dim, value_dim))
    wide = "float64" if dtype == "float64" else "float32"
    made = [a.astype(DTYPES[dtype]) for a in (q, k, v)]
    return (*made, *(a.astype(DTYPES[gates]) for a in (g, beta))), {"state": state.astype(wide)}


def matches(name, args, options, tolerance=16):
    """Assert that the kernel of a call gives the reference's results, and return them."""
    found = getattr(_native, name)(*args, **options)
    assert found is not NotImplemented, getattr(_native, f"{name}_supports")(*args, **options)
    for y, expected in zip(found, REFERENCES[name](*args, **options), strict=True):
        dtype = y.dtype.name
        assert_matches(y, expected, dtype, tolerance=2 if dtype in support.HALVES else tolerance, scale_axis=(-2, -1))
    return found


# ------------------------------------------------------------------------------------------------ causal_conv1d


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_to_beyond_a_piece(target, dtype, rng):
    for n in [*range(1, 40), 63, 64, 65, 127, 129, 1023, 1024, 1025, 2049]:
        for width in (1, 2, 4, 5):
            x, weight = normal(rng, 1, 3, n, dtype=dtype), normal(rng, n, width, dtype=dtype)
            state = normal(rng, 1, width - 1, n, dtype=dtype)
            matches("causal_conv1d", (x, weight, None, state), {"activation": "silu" if n % 2 else None})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 4, 200])
def test_tokens_to_beyond_a_piece(target, width, dtype, rng):
    for tokens in (0, 1, 2, 3, 4, 5, 63, 64, 65, 130):
        parameters = "float64" if dtype == "float64" else "float32"
        weight, bias = normal(rng, 5, width, dtype=parameters), normal(rng, 5, dtype=parameters)
        matches("causal_conv1d", (normal(rng, 2, tokens, 5, dtype=dtype), weight, bias), {}, tolerance=32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layout_of_a_sequence_makes_no_difference(target, dtype, rng):
    room, weight = normal(rng, 4, 12, 40, dtype=dtype), normal(rng, 33, 4, dtype=dtype)
    states = normal(rng, 4, 6, 40, dtype=dtype)
    for index in (np.s_[:, :, 1:34], np.s_[::2, ::3, :33], np.s_[::-1, ::-1, 7:], np.s_[:0, :, 7:], np.s_[:, :0, 7:]):
        x = room[index]
        state = states[: len(x), ::2, 3:36]
        found = matches("causal_conv1d", (x, weight, None, state), {})
        for y, same in zip(found, _native.causal_conv1d(x.copy(), weight, None, state.copy()), strict=True):
            support.assert_identical(y, same)
    shared = np.broadcast_to(room[:, :1, 7:], (4, 9, 33))
    matches("causal_conv1d", (shared, weight), {})


def test_pieces_over_threads(target, rng):
    x, weight, state = normal(rng, 3, 150, 2100), normal(rng, 2100, 4), normal(rng, 3, 3, 2100)
    together = matches("causal_conv1d", (x, weight, None, state), {"activation": "silu"})
    before = _native.use_one_thread(True)
    try:
        alone = _native.causal_conv1d(x, weight, None, state, activation="silu")
    finally:
        _native.use_one_thread(before)
    for y, same in zip(together, alone, strict=True):
        support.assert_identical(y, same)


X, W = np.ones((2, 5, 4), np.float32), np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("args", "options", "reason"),
    [
        ((X.tolist(), W), {}, "x is not a numpy.ndarray"),
        ((X[0], W), {}, "x does not have 3 dimensions"),
        ((X.astype(int), W), {}, "x has a dtype without a kernel"),
        ((np.ones((2, 5, 8), np.float32)[:, :, ::2], W), {}, "the last axis of x is not contiguous"),
        ((X, W[:, None]), {}, "weight does not have 2 dimensions"),
        ((X, W[:3]), {}, "weight does not have one filter for each channel"),
        ((X, W[:, :0]), {}, "weight has no elements for a channel"),
        ((X, np.ones((3, 4), np.float32).T), {}, "weight is not contiguous"),
        ((X, W.astype(float)), {}, "weight has dtype float64, and x a narrower one"),
        ((X, W, np.ones(4)), {}, "bias has dtype float64, and x a narrower one"),
        ((X, W, np.ones(3, np.float32)), {}, "bias does not have one element for each channel"),
        ((X, W, np.ones(8, np.float32)[::2]), {}, "bias is not contiguous"),
        ((X, W, None, X), {}, "state has another shape than the other arrays need"),
        ((X, W, None, X[:, :2].astype(np.float16)), {}, "state has another dtype than x"),
        ((X, W, None, np.ones((2, 2, 8), np.float32)[:, :, ::2]), {}, "the last axis of state is not contiguous"),
        ((X, W), {"activation": "gelu"}, "activation is neither 'silu' nor 'swish'"),
        ((X, W), {"activation": True}, "activation is neither 'silu' nor 'swish'"),
    ],
)
def test_what_the_convolution_refuses_has_a_reason(args, options, reason):
    assert _native.causal_conv1d_supports(*args, **options) == reason
    assert _native.causal_conv1d(*args, **options) is NotImplemented


# --------------------------------------------------------------------------------------------- gated_delta_rule


@pytest.mark.parametrize("dtype", DTYPES)
def test_features_to_beyond_a_strip(target, dtype, rng):
    for n in [*range(1, 36), 63, 64, 65, 127, 128, 129, 300]:
        for tokens in (1, 3):
            matches("gated_delta_rule", *rule(rng, tokens, key_dim=5, value_dim=n, dtype=dtype))
            matches("gated_delta_rule", *rule(rng, tokens, key_dim=n, value_dim=5, dtype=dtype))


@pytest.mark.parametrize("gates", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_of_every_dtype(target, dtype, gates, rng):
    if gates == "float64" and dtype != "float64":
        pytest.skip("computed in float64, by the body")
    matches("gated_delta_rule", *rule(rng, 6, dtype=dtype, gates=gates, key_heads=2, heads=6))


@pytest.mark.parametrize("dtype", [*support.HALVES, "float32"])
def test_a_state_of_every_narrow_dtype(target, dtype, rng):
    for value_dim in (5, 64, 70):
        for tokens in (0, 1, 3):
            args, options = rule(rng, tokens, value_dim=value_dim, dtype="bfloat16")
            matches("gated_delta_rule", args, {"state": options["state"].astype(DTYPES[dtype])})
            matches("gated_delta_rule", args, {})


def test_the_layout_of_heads_makes_no_difference(target, rng):
    """Tokens before heads, every other one, backwards, a state among others, and gates that are the same for all."""
    args, options = rule(rng, 6, batch=2, key_heads=2, heads=4, key_dim=17, value_dim=33)
    expected = matches("gated_delta_rule", args, options)
    transposed = [np.swapaxes(np.ascontiguousarray(np.swapaxes(a, 1, 2)), 1, 2) for a in args]
    room = np.zeros((2, 4, 34, 40), np.float32)
    room[:, :, ::2, 3:36] = options["state"]
    for found in (
        _native.gated_delta_rule(*transposed, state=room[:, :, ::2, 3:36]),
        _native.gated_delta_rule(*(np.flip(np.flip(a, 2).copy(), 2) for a in args), **options),
        _native.gated_delta_rule(*(np.repeat(a, 2, axis=1)[:, ::2] for a in args), **options),
    ):
        for y, e in zip(found, expected, strict=True):
            support.assert_identical(y, e)
    shared = (*args[:3], *[np.broadcast_to(np.float32(-0.5), (2, 4, 6))] * 2)
    matches("gated_delta_rule", shared, options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strips_over_threads(target, dtype, rng):
    args, options = rule(rng, 9, batch=2, key_heads=3, heads=6, key_dim=64, value_dim=129, dtype=dtype)
    together = matches("gated_delta_rule", args, options)
    before = _native.use_one_thread(True)
    try:
        alone = _native.gated_delta_rule(*args, **options)
    finally:
        _native.use_one_thread(before)
    for y, same in zip(together, alone, strict=True):
        support.assert_identical(y, same)


def test_a_number_that_is_not_finite_stays_in_its_column_and_head(target, rng):
    args, options = rule(rng, 5, heads=3, value_dim=40)
    expected, _ = _native.gated_delta_rule(*args, **options)
    args[2][0, 1, 2, 7] = np.inf
    y, state = _native.gated_delta_rule(*args, **options)
    changed = np.zeros(y.shape, bool)
    changed[0, 1, 2:, 7] = True
    assert not np.isfinite(y[changed]).any()
    np.testing.assert_array_equal(y[~changed], expected[~changed])
    assert not np.isfinite(state[0, 1, :, 7]).any()


def test_the_kernel_runs_wherever_there_is_one(rng):
    args, options = rule(rng, 3)
    x, weight = normal(rng, 2, 3, 5), normal(rng, 5, 4)
    for library, kernel in (("numpy", "cpu"), ("torch", "torch_cpu"), ("jax", "jax_ffi")):
        if not support.why_not(library):
            there, more, sequence = support.there((args, options, (x, weight)), library)
            with tp.trace() as log:
                tp.gated_delta_rule(*there, **more)
                tp.causal_conv1d(*sequence)
            assert [(r.operator, r.kernel) for r in log] == [("gated_delta_rule", kernel), ("causal_conv1d", kernel)]


Q, V, G = np.ones((2, 2, 5, 4), np.float32), np.ones((2, 4, 5, 3), np.float32), np.ones((2, 4, 5), np.float32)
S = np.ones((2, 4, 4, 3), np.float32)


@pytest.mark.parametrize(
    ("args", "options", "reason"),
    [
        ((Q.tolist(), Q, V, G, G), {}, "q is not a numpy.ndarray"),
        ((Q[0], Q, V, G, G), {}, "q does not have 4 dimensions"),
        ((Q, Q, V[0], G, G), {}, "v does not have 4 dimensions"),
        ((Q, Q.astype(np.float16), V, G, G), {}, "k has another dtype than q"),
        ((Q, Q, V.astype(np.float16), G, G), {}, "v has another dtype than q"),
        ((Q, Q[:, :1], V, G, G), {}, "k has another shape than q"),
        ((Q, Q, V[:1], G, G), {}, "v has other sequences or tokens than q"),
        ((Q, Q, V[:, :3], G, G), {}, "the heads of q do not divide those of v"),
        ((Q[:, :0], Q[:, :0], V, G, G), {}, "the heads of q do not divide those of v"),
        ((Q, Q, V, G[:, :2], G), {}, "g has another shape than the other arrays need"),
        ((Q, Q, V, G, G[..., None]), {}, "beta has another shape than the other arrays need"),
        ((Q, Q, V, G.astype(float), G), {}, "g has dtype float64, and v a narrower one"),
        ((np.ones((2, 2, 5, 8), np.float32)[..., ::2], Q, V, G, G), {}, "the last axis of q is not contiguous"),
        ((Q, Q, V, G, G), {"state": S[:1]}, "state has another shape than the other arrays need"),
        (
            (Q, Q, V, G, G),
            {"state": S.swapaxes(2, 3).copy().swapaxes(2, 3)},
            "the last axis of state is not contiguous",
        ),
        (
            (Q, Q, V, G, G),
            {"state": S.astype(float)},
            "one of v and state has dtype float64, and the other a narrower one",
        ),
        ((Q, Q, V, G, G), {"scale": np.inf}, "scale is not a finite number"),
        ((Q, Q, V, G, G), {"scale": "1"}, "scale is not a finite number"),
    ],
)
def test_what_the_rule_refuses_has_a_reason(args, options, reason):
    assert _native.gated_delta_rule_supports(*args, **options) == reason
    assert _native.gated_delta_rule(*args, **options) is NotImplemented
