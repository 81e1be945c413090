"""Attention: the references against closed forms, numbers worked out by hand and other libraries."""

import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from support import close, to_torch
from tensorops.testing import attention as references

inf, nan = np.inf, np.nan


def attend(v, tq=None, **options):
    """Attention of zero queries to values (Tk, Dv), as (Tq, Dv): every key that is seen weighs the same."""
    v = np.asarray(v, dtype=float)[None, None]
    tk = v.shape[2]
    q, k = np.zeros((1, 1, tk if tq is None else tq, 4)), np.ones((1, 1, tk, 4))
    return references.scaled_dot_product_attention(q, k, v, **options)[0, 0]


V = np.array([[1.0], [2.0], [4.0], [8.0]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3.75] * 4),
        ({"is_causal": True}, [1, 3 / 2, 7 / 3, 15 / 4]),
        ({"is_causal": True, "tq": 1}, [15 / 4]),
        ({"is_causal": True, "tq": 2}, [7 / 3, 15 / 4]),
        ({"is_causal": True, "tq": 6}, [0, 0, 1, 3 / 2, 7 / 3, 15 / 4]),
        ({"window": 1}, [1, 2, 4, 8]),
        ({"window": 2}, [3 / 2, 7 / 3, 14 / 3, 6]),
        ({"window": 2, "is_causal": True}, [1, 3 / 2, 3, 6]),
        ({"window": 3, "is_causal": True, "tq": 1}, [14 / 3]),
        ({"window": 1, "tq": 6}, [0, 0, 1, 2, 4, 8]),
        ({"mask": np.array([True, False, True, False])}, [5 / 2] * 4),
        ({"mask": np.eye(4, dtype=bool)}, [1, 2, 4, 8]),
        ({"mask": np.array([[True], [False], [True], [False]])}, [15 / 4, 0, 15 / 4, 0]),
        ({"mask": np.log([1.0, 2.0, 3.0, 4.0])}, [(1 + 4 + 12 + 32) / 10] * 4),
        ({"mask": np.array([0.0, -inf, -inf, 0.0])}, [9 / 2] * 4),
        ({"mask": np.full((4, 4), -inf)}, [0] * 4),
        ({"mask": np.array([True, False, True, True]), "is_causal": True}, [1, 1, 5 / 2, 13 / 3]),
        ({"sinks": [0.0]}, [15 / 5] * 4),
        ({"sinks": [math.log(6)]}, [15 / 10] * 4),
        ({"sinks": [0.0], "is_causal": True, "tq": 5}, [0, 1 / 2, 3 / 3, 7 / 4, 15 / 5]),
    ],
)
def test_attention_to_equal_keys_is_a_mean(options, expected):
    close(attend(V, **options)[:, 0], expected)


def test_attention_scale_and_softcap_by_hand():
    q, k = np.full((1, 1, 1, 4), 0.5), np.array([[[[1.0] * 4, [0.0] * 4]]])  # dot products 2 and 0
    v = np.array([[[[1.0], [0.0]]]])

    def weight(score):
        return [[[[1 / (1 + math.exp(-score))]]]]

    close(references.scaled_dot_product_attention(q, k, v), weight(1.0))
    close(references.scaled_dot_product_attention(q, k, v, scale=3.0), weight(6.0))
    close(references.scaled_dot_product_attention(q, k, v, softcap=0.5), weight(0.5 * math.tanh(2.0)))
    # The cap comes before the mask: an added 5 is not capped.
    y = references.scaled_dot_product_attention(q, k, v, softcap=0.5, mask=np.array([5.0, 0.0]))
    close(y, weight(5 + 0.5 * math.tanh(2.0)))


def test_query_heads_share_key_heads_in_order():
    v = np.arange(2.0).reshape(1, 2, 1, 1) + 10
    y = references.scaled_dot_product_attention(np.ones((1, 6, 1, 3)), np.ones((1, 2, 1, 3)), v)
    assert_array_equal(y.ravel(), [10, 10, 10, 11, 11, 11])


@pytest.mark.parametrize("masked", ["no", "causal", "bool", "float"])
def test_attention_agrees_with_torch(rng, masked):
    torch = pytest.importorskip("torch")
    q = rng.standard_normal((2, 4, 5, 8))
    k, v = rng.standard_normal((2, 2, 5, 8)), rng.standard_normal((2, 2, 5, 6))
    mask = {"bool": rng.random((2, 1, 5, 5)) < 0.7, "float": rng.standard_normal((2, 4, 5, 5))}.get(masked)
    causal = masked == "causal"
    tq, tk, tv, tm = to_torch(torch, q, k, v, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(
        tq, tk, tv, attn_mask=tm, is_causal=causal, enable_gqa=True
    )
    actual = references.scaled_dot_product_attention(q, k, v, mask=mask, is_causal=causal)
    close(actual, expected.numpy(), rtol=1e-11, atol=1e-14)
