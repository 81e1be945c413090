"""Sampling in C++: every SIMD target, length, restriction and layout; what a call does to its generator.

That it is chosen, and agrees with the reference on all cases, is tested in `test_conformance`. Sums are rounded, and so
is a uniform number near the end of a candidate's share: there a neighbour is also right.
"""

import functools
import itertools

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import DTYPES, REFERENCES

_native = support.require_native()
normal = functools.partial(support.normal, scale=2.0)
OPTIONS = {
    "plain": {},
    "cold": {"temperature": 0.3},
    "top_k": {"temperature": 2.0, "top_k": 7},
    "top_p": {"temperature": 1.5, "top_p": 0.9},
    "min_p": {"temperature": 2.0, "min_p": 0.05},
    "everything": {"temperature": 3.0, "top_k": 40, "top_p": 0.8, "min_p": 0.02},
}
SLACK = 2e-6


def assert_drawn(logits, uniforms, **options):
    """Assert that every index is that of the reference, for numbers that differ by rounding."""
    chosen = _native.sample(logits, **options, rng=uniforms)
    assert chosen is not NotImplemented
    assert (chosen.dtype, chosen.shape) == (np.intp, logits.shape[:-1])
    top_p = options.get("top_p")
    numbers = [np.clip(uniforms.astype(np.float64) + sign * SLACK, 0, 1 - 2**-53) for sign in (-1, 0, 1)]
    shares = [top_p] if top_p is None else [top_p - SLACK, top_p, top_p + SLACK]
    right = [
        REFERENCES["sample"](logits, **(options | {"top_p": share}), rng=number)
        for number, share in itertools.product(numbers, shares)
    ]
    assert np.all(np.any(np.stack(right) == chosen, axis=0)), (chosen, right)
    return chosen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_length_to_beyond_a_block(target, name, dtype, rng):
    for n in [*range(1, 70), 127, 128, 129, 1023, 1024, 1025, 2100]:
        assert_drawn(normal(rng, 3, n, dtype=dtype), rng.random(3), **OPTIONS[name])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 5.0])
def test_a_vocabulary(target, name, dtype, scale, rng):
    """Flat and steep distributions, whose histograms differ."""
    assert_drawn(normal(rng, 2, 32003, dtype=dtype, scale=scale), np.array([0.1, 0.77], np.float32), **OPTIONS[name])


@pytest.mark.parametrize("top_k", [1, 2, 50, 511, 512, 1000, 4095, 4096, 2**62])
def test_every_size_of_top_k(target, top_k, rng):
    logits = normal(rng, 3, 4096)
    assert_drawn(logits, rng.random(3), top_k=top_k, temperature=4.0)
    order = np.argsort(-logits, axis=-1)
    last = order[:, min(top_k, 4096) - 1]
    only = np.full_like(logits, -np.inf)
    np.put_along_axis(only, order[:, : min(top_k, 4096)], 0.0, axis=-1)
    reached = _native.sample(only, top_k=top_k, rng=np.full(3, 1 - 2**-24, np.float32))
    assert np.all(np.take_along_axis(only, reached[:, None], axis=-1) == 0.0)
    assert np.all(reached == np.max(order[:, : min(top_k, 4096)], axis=-1))
    assert np.all(np.take_along_axis(only, last[:, None], axis=-1) == 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_of_the_smallest_kept_are_kept(target, dtype, rng):
    """Few values, all of which the dtypes hold: equal ones stay or go together."""
    logits = (rng.integers(0, 6, (4, 3000)) / 2).astype(DTYPES[dtype])
    for u in (0.0, 0.013, 0.5, 0.93, 1 - 2**-24):
        uniforms = np.full(4, u, np.float32)
        for options in ({"top_k": 2}, {"top_k": 700}, {"top_p": 0.1}, {"top_p": 0.6}, {"top_k": 900, "top_p": 0.7}):
            assert_drawn(logits, uniforms, **options)


def test_logits_whose_quotients_are_equal_are_kept_together(target):
    """The distance to the largest is rounded: those of 0 and 1 to 2^25 are the same, in float32."""
    logits = np.zeros((1, 200), np.float32) - 2**25
    logits[0, 9], logits[0, 50], logits[0, 120] = 2.0**25, 0.0, 1.0
    assert (logits[0, 50] - logits[0, 9]) == (logits[0, 120] - logits[0, 9])
    for top_k, temperature in ((2, 2.0**24), (3, 2.0**24), (2, 1e30), (5, 3e38)):
        for u in (0.201, 0.551, 0.701, 0.851, 0.901, 0.999):
            uniforms = np.array([u], np.float32)
            options = {"top_k": top_k, "temperature": temperature}
            expected = tp.sample.generic(logits, **options, rng=uniforms)
            assert _native.sample(logits, **options, rng=uniforms) == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ends_of_the_uniform_numbers(target, dtype, rng):
    for n in (5, 40, 3000):
        logits = normal(rng, 3, n, dtype=dtype)
        logits[:, :2] = logits[:, -2:] = -np.inf
        for options in ({}, {"top_k": n - 1}, {"top_p": 0.9999}, {"min_p": 0.0}):
            np.testing.assert_array_equal(_native.sample(logits, **options, rng=np.zeros(3)) >= 2, True)
            np.testing.assert_array_equal(_native.sample(logits, **options, rng=np.full(3, 1 - 2**-53)) < n - 2, True)
        assert np.all(_native.sample(logits, rng=np.zeros(3)) == 2)
        assert np.all(_native.sample(logits, min_p=1.0, rng=np.full(3, 0.5)) == np.argmax(logits, axis=-1))
        for beyond in (-0.5, 1.0, 7.0, np.nan, np.inf, -np.inf):  # no index out of bounds
            chosen = _native.sample(logits, top_k=3, top_p=0.5, rng=np.full(3, beyond))
            assert np.all((chosen >= 0) & (chosen < n))


# ------------------------------------------------------------------------------------------------ temperature 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_temperature_0_is_argmax(target, dtype, rng):
    for n in [*range(1, 70), 1023, 1024, 1025, 5000]:
        logits = normal(rng, 4, n, dtype=dtype)
        logits[1] = np.round(logits[1])  # equals
        logits[3, n // 2] = np.inf
        np.testing.assert_array_equal(_native.sample(logits, temperature=0.0), np.argmax(logits, axis=-1))
        zeros = np.zeros((2, n), DTYPES[dtype])
        zeros[0, ::2] = -0.0
        np.testing.assert_array_equal(_native.sample(zeros, temperature=0.0), 0)


# ------------------------------------------------------------------------------------------- what is not a number


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_rows_that_are_not_finite(target, name, dtype, rng):
    """Logits of +inf share the probability, whatever the options; a row without a candidate is left to the body."""
    options = OPTIONS[name]
    for n in (3, 33, 1500):
        logits = normal(rng, 4, n, dtype=dtype)
        logits[0, n - 1] = np.inf
        logits[1, 1:] = -np.inf
        logits[2, :-1] = -np.inf
        logits[3, [0, n // 2, n - 1]] = np.inf
        for u, third in ((0.1, 0), (0.6, n // 2), (0.9, n - 1)):
            chosen = _native.sample(logits, **options, rng=np.full(4, u))
            np.testing.assert_array_equal(chosen, [n - 1, 0, n - 1, third])
        for place in (0, n // 2, n - 1):
            wrong = logits.copy()
            wrong[2, place] = np.nan
            assert _native.sample(wrong, **options, rng=np.full(4, 0.5)) is NotImplemented
            assert _native.sample(wrong, temperature=0.0) is NotImplemented
        logits[1] = -np.inf
        assert _native.sample(logits, **options, rng=np.full(4, 0.5)) is NotImplemented
        assert _native.sample(logits, temperature=0.0) is NotImplemented


def test_extreme_logits(target):
    largest = float(np.finfo(np.float32).max)
    logits = np.array([[-largest, largest, 0.0, largest], [1e-45, 0.0, -1e-45, 0.0]], np.float32)
    for options in ({}, {"top_k": 2}, {"top_k": 3, "top_p": 0.9}, {"temperature": 1e-30}, {"temperature": 1e30}):
        for u in (0.2, 0.7):
            uniforms = np.full(2, u, np.float32)
            expected = tp.sample.generic(logits, **options, rng=uniforms)
            np.testing.assert_array_equal(_native.sample(logits, **options, rng=uniforms), expected)


# ------------------------------------------------------------------------------------------------------ layouts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["plain", "top_k", "top_p"])
def test_the_layout_makes_no_difference(target, name, dtype, rng):
    room = normal(rng, 5, 4, 131, dtype=dtype)
    for index in (np.s_[:, :, 1:], np.s_[::2, 1:, :65], np.s_[::-1, ::-1], np.s_[1, :, 3:4], np.s_[0, 0]):
        logits = room[index]
        uniforms = rng.random(logits.shape[:-1])
        chosen = _native.sample(logits, **OPTIONS[name], rng=uniforms)
        np.testing.assert_array_equal(chosen, _native.sample(logits.copy(), **OPTIONS[name], rng=uniforms))
    shared = np.broadcast_to(room[0, 0], (6, 131))
    uniforms = rng.random(6).astype(DTYPES[dtype])
    np.testing.assert_array_equal(
        _native.sample(shared, rng=uniforms), _native.sample(shared.copy(), rng=uniforms.astype(np.float64))
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_over_threads(target, name, rng):
    logits, uniforms = normal(rng, 64, 20001), rng.random(64)
    together = _native.sample(logits, **OPTIONS[name], rng=uniforms)
    alone = [_native.sample(x, **OPTIONS[name], rng=np.asarray(u)) for x, u in zip(logits, uniforms, strict=True)]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(_native.sample(logits, temperature=0.0), np.argmax(logits, axis=-1))


# --------------------------------------------------------------------------------------------------- generators


@pytest.mark.parametrize("shape", [(9,), (3, 9), (2, 3, 9)])
def test_a_generator_gives_what_it_gives_the_body(shape, rng):
    logits = normal(rng, *shape)
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    for options in OPTIONS.values():
        with tp.trace() as log:
            chosen = tp.sample(logits, **options, rng=ours)
        assert [(r.operator, r.kernel) for r in log] == [("sample", "cpu")]
        expected = tp.sample.generic(logits, **options, rng=theirs)
        np.testing.assert_array_equal(chosen, expected)
        assert type(chosen) is type(expected)
        assert chosen.dtype == expected.dtype
        assert ours.bit_generator.state == theirs.bit_generator.state
    for temperature in (0.0, 0):
        chosen = tp.sample(logits, temperature=temperature, rng=ours)
        assert type(chosen) is type(tp.sample.generic(logits, temperature=temperature))
        assert ours.bit_generator.state == theirs.bit_generator.state


def test_what_is_refused_draws_no_numbers(rng):
    logits = normal(rng, 3, 8)[:, ::2]
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    assert _native.sample(logits, rng=ours) is NotImplemented
    assert _native.sample_supports(logits.copy(), rng=ours) is None
    assert ours.bit_generator.state == theirs.bit_generator.state
    np.testing.assert_array_equal(tp.sample(logits, rng=ours), tp.sample.generic(logits.copy(), rng=theirs))
    assert ours.bit_generator.state == theirs.bit_generator.state


X, U = np.ones((2, 4), np.float32), np.ones(2, np.float32) / 2


@pytest.mark.parametrize(
    ("logits", "options", "reason"),
    [
        (X.tolist(), {}, "logits is not a numpy.ndarray"),
        (X.astype(np.int32), {}, "logits has a dtype without a kernel"),
        (np.array(1.0), {}, "logits has 0 dimensions"),
        (X[:0], {}, "logits is empty"),
        (X[:, :0], {}, "logits is empty"),
        (X[:, ::2], {}, "the last axis of logits is not contiguous"),
        (X, {"temperature": -1.0}, "temperature is not 0 or more"),
        (X, {"temperature": np.nan}, "temperature is not 0 or more"),
        (X, {"temperature": np.inf}, "temperature is not 0 or more"),
        (X, {"temperature": 1e-60}, "temperature is beyond the range of float32"),
        (X, {"temperature": 1e60}, "temperature is beyond the range of float32"),
        (X, {"temperature": 10**400}, "temperature is not 0 or more"),
        (X, {"temperature": np.ones(())}, "temperature is not 0 or more"),
        (X, {"top_k": 0}, "top_k is not an integer of at least 1"),
        (X, {"top_k": -(2**70)}, "top_k is not an integer of at least 1"),
        (X, {"top_k": True}, "top_k is not an integer of at least 1"),
        (X, {"top_k": 2.0}, "top_k is not an integer of at least 1"),
        (X, {"top_p": 0.0}, "top_p is not within 0 … 1"),
        (X, {"top_p": 1.5}, "top_p is not within 0 … 1"),
        (X, {"top_p": 1e-60}, "top_p is beyond the range of float32"),
        (X, {"min_p": -0.1}, "min_p is not within 0 … 1"),
        (X, {"min_p": np.nan}, "min_p is not within 0 … 1"),
        (X, {"min_p": "0"}, "min_p is not within 0 … 1"),
        (X, {"rng": None}, "rng is missing"),
        (X, {"rng": [0.5, 0.5]}, "rng is not a numpy.ndarray"),
        (X, {"rng": U.astype(np.int32)}, "rng has a dtype without a kernel"),
        (X, {"rng": U[:1]}, "rng does not have one element for each row of logits"),
        (X, {"rng": U[:, None]}, "rng does not have one element for each row of logits"),
        (X, {"rng": np.ones(4)[::2]}, "rng is not contiguous"),
        (X, {"rng": "0", "temperature": 0}, "rng is neither a numpy.random.Generator nor a numpy.ndarray"),
    ],
)
def test_what_is_refused_has_a_reason(logits, options, reason):
    options = {"rng": U} | options
    assert _native.sample_supports(logits, **options) == reason
    assert _native.sample(logits, **options) is NotImplemented
