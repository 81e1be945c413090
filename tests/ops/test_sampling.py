"""Sampling: the references against closed forms, numbers worked out by hand and other libraries."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

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
