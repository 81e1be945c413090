"""Positional encodings: the references against closed forms, numbers worked out by hand and other libraries."""

import math

import numpy as np
from numpy.testing import assert_array_equal

from support import close
from tensorops.testing import positional as references


def test_rope_turns_a_quarter():
    x = np.array([[[[1.0, 2.0, 3.0, 4.0]]]])
    quarter = [math.pi / 2]
    turned = references.rope(x, quarter, freqs=[1.0, 0.0])
    close(turned, [[[[-3.0, 2.0, 1.0, 4.0]]]])  # (1, 3) turns, (2, 4) stays
    turned = references.rope(x, quarter, freqs=[1.0, 0.0], interleaved=True)
    close(turned, [[[[-2.0, 1.0, 3.0, 4.0]]]])  # (1, 2) turns, (3, 4) stays


def test_rope_is_a_complex_multiplication(rng):
    x, positions = rng.standard_normal((2, 3, 5, 8)), np.array([0, 1, 2, 7, -3])
    turn = np.exp(1j * positions[:, None] * np.array([1.0, 0.1, 0.01, 0.001]))  # 10000 ** (-2 i / 8)
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    expected = np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
    close(references.rope(x, positions, interleaved=True), expected, atol=1e-14)
    z = (x[..., :4] + 1j * x[..., 4:]) * turn
    close(references.rope(x, positions), np.concatenate([z.real, z.imag], axis=-1), atol=1e-14)


def test_rope_scores_depend_on_the_distance_alone(rng):
    q, k = rng.standard_normal((2, 1, 1, 1, 16))

    def score(m, n):
        return np.sum(references.rope(q, [m]) * references.rope(k, [n]))

    close(score(5, 3), score(1002, 1000), rtol=1e-10)
    assert abs(score(5, 3) - score(5, 4)) > 1e-3


def test_rope_leaves_features_beyond_dims(rng):
    x = rng.standard_normal((1, 2, 5, 9))
    for interleaved in (False, True):
        y = references.rope(x, np.arange(5), dims=4, base=100.0, interleaved=interleaved)
        assert_array_equal(y[..., 4:], x[..., 4:])
        alone = references.rope(x[..., :4], np.arange(5), freqs=[1.0, 0.1], interleaved=interleaved)
        close(y[..., :4], alone, rtol=1e-13)


def test_rope_takes_positions_per_batch(rng):
    x, positions = rng.standard_normal((2, 3, 4, 6)), np.array([[0, 1, 2, 3], [9, 5, 1, 0]])
    y = references.rope(x, positions)
    assert_array_equal(y[0, :, 0], x[0, :, 0])
    assert_array_equal(y[1, :, 3], x[1, :, 3])
    for b in range(2):
        for h in range(3):
            assert_array_equal(y[b, h], references.rope(x[b, h][None], positions[b])[0])
