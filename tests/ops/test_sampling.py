"""Sampling: the references against closed forms, numbers worked out by hand and other libraries."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from tensorops.libraries import has_host_values
from tensorops.testing import sampling as references

inf, nan = np.inf, np.nan


FOUR = np.log([0.1, 0.4, 0.3, 0.2])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # the uniforms are 0.05, 0.15, 0.45, 0.55, 0.75, 0.85, 0.95
        ({}, [0, 1, 1, 2, 2, 3, 3]),
        ({"temperature": 0.0}, [1] * 7),
        ({"temperature": 0.5}, [1, 1, 1, 1, 2, 2, 3]),  # squares: cumulative 1/30 17/30 26/30 1
        ({"top_k": 1}, [1] * 7),
        ({"top_k": 2}, [1, 1, 1, 1, 2, 2, 2]),  # 4/7
        ({"top_k": 9}, [0, 1, 1, 2, 2, 3, 3]),
        ({"top_p": 0.35}, [1] * 7),
        ({"top_p": 0.45}, [1, 1, 1, 1, 2, 2, 2]),
        ({"top_p": 0.85}, [1, 1, 2, 2, 2, 3, 3]),  # 4/9 7/9
        ({"top_p": 1.0}, [0, 1, 1, 2, 2, 3, 3]),
        ({"min_p": 0.6}, [1, 1, 1, 1, 2, 2, 2]),
        ({"min_p": 1.0}, [1] * 7),
        ({"top_k": 3, "top_p": 0.7}, [1, 1, 1, 1, 2, 2, 2]),  # 0.7 of what top_k left: 4/9, 7/9
        ({"top_k": 3, "top_p": 0.79, "min_p": 0.6}, [1, 1, 1, 1, 2, 2, 2]),
    ],
)
def test_sample_by_hand(options, expected):
    uniforms = np.array([0.05, 0.15, 0.45, 0.55, 0.75, 0.85, 0.95])
    drawn = references.sample(np.tile(FOUR, (7, 1)), rng=uniforms, **options)
    assert drawn.dtype == np.int64
    assert_array_equal(drawn, expected)


def test_sample_keeps_ties():
    logits = np.tile([0.0, 1.0, 1.0, 1.0, -1.0], (3, 1))
    uniforms = [0.1, 0.5, 0.9]
    for options in ({"top_k": 1}, {"top_k": 2}, {"top_p": 0.01}, {"min_p": 1.0}):
        assert_array_equal(references.sample(logits, rng=uniforms, **options), [1, 2, 3])
    assert_array_equal(references.sample(logits, temperature=0.0, rng=uniforms), [1, 1, 1])


def test_sample_has_the_distribution_of_the_logits():
    n = 1000
    drawn = references.sample(np.tile(FOUR, (n, 1)), rng=(np.arange(n) + 0.5) / n)
    assert_array_equal(np.bincount(drawn), [100, 400, 300, 200])


def test_sample_never_draws_a_forbidden_token():
    last = np.nextafter(1.0, 0.0)
    assert references.sample([0.0, 1.0, -inf], rng=last) == 1
    assert references.sample([-inf, 1.0, 0.5], rng=0.0) == 1


SEEDS = {
    "int": 7,
    "numpy_int": np.int64(7),
    "ints": [7],
    "sequence": np.random.SeedSequence(7),
    "bits": np.random.PCG64,
    "generator": np.random.default_rng,
    "generator_subclass": lambda seed: type("Own", (np.random.Generator,), {})(np.random.PCG64(seed)),
}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
def test_seeds_draw_what_numpys_generator_draws(library, seed):
    logits = np.random.default_rng(3).standard_normal((5, 40)).astype(np.float32)
    expected = references.sample(logits, rng=np.random.default_rng(7).random(5, dtype=np.float32))
    there = support.there(logits, library.name)
    for _ in range(2):  # a seed is not a generator that goes on, and the second call goes a shorter way
        given = seed(7) if callable(seed) else seed
        assert_array_equal(support.back(tp.sample(there, rng=given)), expected)
    assert_array_equal(support.back(tp.sample(there, temperature=0.0, rng=given)), logits.argmax(axis=-1))


@pytest.mark.parametrize(
    ("rng", "error", "words"),
    [
        (-1, ValueError, "sample: rng is -1, which is not a seed"),
        (True, TypeError, "sample: rng is True, expected a seed"),
        (0.5, TypeError, "sample: rng is 0.5, expected a seed"),
        ("7", TypeError, "sample: rng is '7', expected a seed"),
        ([1.5], TypeError, "sample: rng is .1.5., which is not a seed"),
        (None, ValueError, "sample: rng is missing; pass a seed"),
    ],
)
def test_what_is_no_seed_is_refused(library, rng, error, words):
    with pytest.raises(error, match=words):
        tp.sample(support.there(np.ones((2, 3), np.float32), library.name), rng=rng)


def test_rare_candidates_are_drawn_as_often_as_they_are_likely(library):
    """The tail's weights are less than half of what separates 1 from the next float32."""
    tail = 131_071
    logits = np.concatenate([[0.0], np.full(tail, np.log(5e-8))]).astype(np.float32)
    likely = tail * 5e-8 / (1 + tail * 5e-8)
    uniform = ((np.arange(8) + 0.5) / 8 * 0.9 + 0.05).astype(np.float32)  # positions in the tail
    drawn = np.stack([1 - likely * (1 - uniform), uniform * (1 - likely) * 0.99]).astype(np.float32)
    rows = [library.from_numpy(a, None) for a in (np.broadcast_to(logits, (2, 8, tail + 1)).copy(), drawn)]
    for run in (tp.sample, tp.sample.generic):
        found = library.to_numpy(run(rows[0], rng=rows[1]))
        assert (found[1] == 0).all()
        np.testing.assert_allclose(found[0], 1 + uniform * tail, rtol=0, atol=0.02 * tail)


def test_top_p_keeps_what_reaches_it_among_rare_candidates(library):
    """A third of 131,072 whose weights differ slightly."""
    n = 131_072
    logits = (np.linspace(0, -1e-3, n)).astype(np.float32)
    shares = np.exp(np.sort(logits.astype(np.float64))[::-1])
    kept = np.searchsorted(np.cumsum(shares) / shares.sum(), 1 / 3) + 1
    x, last = (library.from_numpy(a, None) for a in (logits[None], np.asarray([1 - 2.0**-24], np.float32)))
    for run in (tp.sample, tp.sample.generic):
        found = int(library.to_numpy(run(x, top_p=1 / 3, rng=last))[0])
        np.testing.assert_allclose(found, kept, rtol=0.01)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}], ids=str)
@pytest.mark.parametrize(("row", "words"), [([1.0, nan, inf], "NaN"), ([-inf] * 3, "nothing but -inf")])
def test_rows_without_a_candidate_are_refused_where_values_are_known(library, options, row, words):
    logits, rng = (library.from_numpy(np.asarray(a, np.float32), None) for a in ([[0.0, 1.0, 2.0], row], [0.5, 0.5]))
    for run in (tp.sample, tp.sample.generic):
        if has_host_values(logits):
            with pytest.raises(ValueError, match=f"sample: a row of logits has {words}, so no candidate"):
                run(logits, **options, rng=rng)
        else:
            chosen = library.to_numpy(run(logits, **options, rng=rng))
            assert chosen[0] in (1, 2)
            assert 0 <= chosen[1] < 3
