"""The oracles against closed forms, numbers worked out by hand and other libraries; cases; assertions.

Nothing here may compare an oracle with itself: every expected value comes from somewhere else.
"""

import ast
import decimal
import inspect
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import tensorops
from tensorops._operator import OPERATORS
from tensorops.testing import (
    BENCHMARK_SHAPES,
    CASES,
    DTYPES,
    INVALID,
    REFERENCES,
    assert_matches,
    cases,
    cast,
    ulp_error,
)
from tensorops.testing.workloads import WORKLOADS

ROOT = Path(tensorops.__file__).parent
references = SimpleNamespace(**REFERENCES)

inf, nan = np.inf, np.nan
EVERY_CASE = [pytest.param(case, id=str(case)) for group in CASES.values() for case in group]


def close(actual, expected, rtol=1e-14, atol=1e-300):
    assert_allclose(actual, expected, rtol=rtol, atol=atol)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def to_torch(torch, *arrays):
    return [None if x is None else torch.from_numpy(np.array(x)) for x in arrays]


# --- normalisation -----------------------------------------------------------------------------------


def test_rms_norm_by_hand():
    x = [[3.0, 4.0], [-6.0, 8.0]]  # mean squares 12.5 and 50
    close(references.rms_norm(x, eps=0.0), [[3 / 12.5**0.5, 4 / 12.5**0.5], [-6 / 50**0.5, 8 / 50**0.5]])
    close(references.rms_norm(x, [2.0, -1.0], 3.5), [[6 / 4, -4 / 4], [-12 / 53.5**0.5, -8 / 53.5**0.5]])
    close(
        references.rms_norm(x, [1.0, -2.0], 3.5, weight_offset=1.0),
        [[6 / 4, -4 / 4], [-12 / 53.5**0.5, -8 / 53.5**0.5]],
    )
    close(references.rms_norm([[0.0, 0.0]]), [[0.0, 0.0]])


def test_rms_norm_takes_any_axis(rng):
    x, weight = rng.standard_normal((2, 5, 3)), rng.standard_normal(5)
    expected = np.empty_like(x)
    for i in range(2):
        for j in range(3):
            column = x[i, :, j]
            expected[i, :, j] = column / math.sqrt(math.fsum(column**2) / 5 + 1e-6) * weight
    close(references.rms_norm(x, weight, axis=1), expected)
    close(references.rms_norm(x, weight, axis=-2), expected)


@pytest.mark.parametrize("size", [1e30, 1e200, 1e300])
def test_norms_of_huge_values_do_not_overflow(size):
    close(references.rms_norm(np.array([3.0, 4.0]) * size), [3 / 12.5**0.5, 4 / 12.5**0.5])
    close(references.layer_norm(np.array([1.0, 2.0, 3.0]) * size), [-(1.5**0.5), 0.0, 1.5**0.5], atol=1e-14)


def test_norms_of_tiny_values_do_not_underflow():
    close(references.rms_norm([3e-200, 4e-200], eps=0.0), [3 / 12.5**0.5, 4 / 12.5**0.5])
    close(references.rms_norm([3e-200, 4e-200], eps=1e-6), [3e-197, 4e-197])


def test_add_rms_norm_by_hand():
    y, residual = references.add_rms_norm([[1.0, 1.0]], [[2.0, 3.0]], [1.0, 2.0], 0.0)
    assert_array_equal(residual, [[3.0, 4.0]])
    close(y, [[3 / 12.5**0.5, 8 / 12.5**0.5]])


def test_layer_norm_by_hand():
    x = [[1.0, 2.0, 3.0]]  # population variance 2/3
    root = math.sqrt(1.5)
    close(references.layer_norm(x, eps=0.0), [[-root, 0.0, root]], atol=1e-16)
    close(references.layer_norm(x, [2, 2, 4], [1, 1, 1], 0.0), [[1 - 2 * root, 1, 1 + 4 * root]])
    close(references.layer_norm(x, None, [1, 1, 1], 1 / 3), [[0.0, 1.0, 2.0]], atol=1e-15)


def test_layer_norm_over_several_axes_is_that_of_the_flattened_axes(rng):
    x, weight, bias = (
        rng.standard_normal((2, 3, 4, 5)),
        rng.standard_normal((3, 5)),
        rng.standard_normal((3, 5)),
    )
    flat = references.layer_norm(np.moveaxis(x, 2, 1).reshape(2, 4, 15), weight.ravel(), bias.ravel())
    expected = np.moveaxis(flat.reshape(2, 4, 3, 5), 1, 2)
    for axis in [(1, 3), (3, 1), (-1, 1), (-3, -1)]:
        close(references.layer_norm(x, weight, bias, axis=axis), expected)


@pytest.mark.parametrize("axis", [-1, (-2, -1)])
def test_norms_agree_with_torch(rng, axis):
    torch = pytest.importorskip("torch")
    shape = (5,) if axis == -1 else (4, 5)
    x, weight, bias = rng.standard_normal((3, 4, 5)), rng.standard_normal(shape), rng.standard_normal(shape)
    functional = torch.nn.functional
    tx, tw, tb = to_torch(torch, x, weight, bias)
    expected = functional.layer_norm(tx, shape, tw, tb, 1e-5).numpy()
    close(references.layer_norm(x, weight, bias, axis=axis), expected, rtol=1e-12)
    if axis == -1:
        close(references.rms_norm(x, weight), functional.rms_norm(tx, shape, tw, 1e-6).numpy(), rtol=1e-12)


# --- activation --------------------------------------------------------------------------------------

POINTS = [-700.0, -80.0, -20.0, -3.5, -1.0, -1e-9, 0.0, 1e-9, 0.1, 1.0, 2.5, 20.0, 80.0, 700.0]


def exactly(function, x):
    """Evaluate a function of a `Decimal` with 400 digits, enough for every cancellation here."""
    with decimal.localcontext(prec=400):
        return float(function(decimal.Decimal(x)))


@pytest.mark.parametrize("x", POINTS)
def test_logistic_functions_have_full_precision(x):
    close(references.sigmoid(x), exactly(lambda t: 1 / (1 + (-t).exp()), x), rtol=4e-16)
    close(references.silu(x), exactly(lambda t: t / (1 + (-t).exp()), x), rtol=4e-16)
    close(references.softplus(x), exactly(lambda t: (1 + t.exp()).ln(), x), rtol=4e-16)


@pytest.mark.parametrize("x", [-6.0, -1.0, -0.25, 0.0, 0.5, 3.0])
def test_gelu_tanh_has_full_precision(x):
    def gelu_tanh(t):
        pi = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        u = (2 / pi).sqrt() * (t + decimal.Decimal("0.044715") * t**3)
        return t / 2 * (1 + ((2 * u).exp() - 1) / ((2 * u).exp() + 1))

    close(references.gelu(x, approximate="tanh"), exactly(gelu_tanh, x), rtol=2e-14)


def test_gelu_at_tabulated_points():
    # The normal distribution function at 0, 1, 2, -1 and -10.
    phi = [
        0.5,
        0.841344746068542948585,
        0.977249868051820792800,
        0.158655253931457051415,
        7.61985302416052606597e-24,
    ]
    x = np.array([0.0, 1.0, 2.0, -1.0, -10.0])
    close(references.gelu(x), x * phi, rtol=1e-13)
    close(references.geglu(x, [1.0, 2.0, 3.0, 4.0, 5.0]), x * phi * [1, 2, 3, 4, 5], rtol=1e-13)


def test_gelu_is_odd_up_to_the_identity(rng):
    x = rng.standard_normal(100) * 4
    for approximate in ("none", "tanh"):
        y, mirrored = (references.gelu(s * x, approximate=approximate) for s in (1, -1))
        close(y - mirrored, x, rtol=1e-13)


def test_gelu_refuses_an_unknown_approximation():
    with pytest.raises(ValueError, match="approximate is 'fast'"):
        references.gelu([1.0], approximate="fast")


def test_relu_and_swiglu_by_hand():
    assert_array_equal(references.relu([-2.0, -0.0, 0.0, 3.0, nan]), [0.0, 0.0, 0.0, 3.0, nan])
    close(references.swiglu([0.0, math.log(3)], [5.0, -2.0]), [0.0, -1.5 * math.log(3)])


@pytest.mark.parametrize("name", ["sigmoid", "silu", "relu", "softplus", "gelu"])
def test_activations_agree_with_torch(rng, name):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal(200) * 5
    function = getattr(torch.nn.functional, name)
    close(REFERENCES[name](x), function(torch.from_numpy(x)).numpy(), rtol=1e-11, atol=1e-15)
    if name == "gelu":
        expected = function(torch.from_numpy(x), approximate="tanh").numpy()
        close(references.gelu(x, approximate="tanh"), expected, rtol=1e-11, atol=1e-15)


# --- softmax and its relatives -----------------------------------------------------------------------


def test_softmax_by_hand():
    x = np.log([[1.0, 2.0, 3.0], [4.0, 4.0, 8.0]])
    p = np.array([[1 / 6, 2 / 6, 3 / 6], [1 / 4, 1 / 4, 1 / 2]])
    close(references.softmax(x), p)
    close(references.log_softmax(x), np.log(p))
    close(references.logsumexp(x), np.log([6.0, 16.0]))
    close(references.softmax(x, axis=0), [[1 / 5, 1 / 3, 3 / 11], [4 / 5, 2 / 3, 8 / 11]])
    close(references.logsumexp(x, axis=0, keepdims=True), np.log([[5.0, 6.0, 11.0]]))


def test_softmax_ignores_a_shift_however_large():
    for shift in (1e4, -1e4):
        close(references.softmax(np.array([0.0, 1.0]) + shift), [1 / (1 + math.e), math.e / (1 + math.e)])
    assert_array_equal(references.softmax([1e308, -1e308]), [1.0, 0.0])
    assert_array_equal(references.log_softmax([1e308, 0.0]), [0.0, -1e308])
    close(references.logsumexp([1000.0] * 4), 1000 + math.log(4))


def test_softmax_where_leaves_masked_entries_out():
    x = np.log([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    where = np.array([[True, False, True], [False, False, False]])
    close(references.softmax(x, where=where), [[1 / 4, 0, 3 / 4], [0, 0, 0]])
    close(references.log_softmax(x, where=where), [[math.log(1 / 4), -inf, math.log(3 / 4)], [-inf] * 3])
    close(references.softmax(x, where=[False, True, True])[0], [0, 2 / 5, 3 / 5])
    close(references.softmax([nan, 1.0, inf, 1.0], where=[False, True, False, True]), [0, 0.5, 0, 0.5])


def test_softmax_agrees_with_torch(rng):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((3, 4, 5)) * 10
    for axis in (0, 1, -1):
        t = torch.from_numpy(x)
        close(references.softmax(x, axis=axis), torch.softmax(t, axis).numpy(), rtol=1e-13)
        close(references.log_softmax(x, axis=axis), torch.log_softmax(t, axis).numpy(), atol=1e-14)
        close(references.logsumexp(x, axis=axis), torch.logsumexp(t, axis).numpy(), rtol=1e-13)


# --- IEEE specials -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("silu", [inf, -inf, nan, -1e4], [inf, nan, nan, 0.0]),
        ("sigmoid", [inf, -inf, nan, -1e4], [1.0, 0.0, nan, 0.0]),
        ("relu", [inf, -inf, nan, -1e4], [inf, 0.0, nan, 0.0]),
        ("softplus", [inf, -inf, nan, -1e4, 1e4], [inf, 0.0, nan, 0.0, 1e4]),
        ("gelu", [inf, -inf, nan, -1e4, 1e4], [inf, nan, nan, 0.0, 1e4]),
        ("softmax", [[0.0, -inf], [0.0, inf], [-inf, -inf]], [[1, 0], [nan] * 2, [nan] * 2]),
        ("softmax", [[0.0, nan]], [[nan, nan]]),
        ("log_softmax", [[0.0, -inf], [0.0, inf], [-inf, -inf]], [[0, -inf], [nan] * 2, [nan] * 2]),
        ("logsumexp", [[0.0, -inf], [0.0, inf], [-inf, -inf]], [0, inf, -inf]),
        ("logsumexp", [[0.0, nan], [inf, nan]], [nan, nan]),
        ("rms_norm", [[1.0, inf, -inf], [1.0, nan, 1.0]], [[0, nan, nan], [nan] * 3]),
        ("layer_norm", [[1.0, inf, 2.0], [1.0, nan, 1.0]], [[nan] * 3, [nan] * 3]),
    ],
)  # fmt: skip
def test_special_values(name, x, expected):
    assert_array_equal(REFERENCES[name](x), expected)


def test_gelu_tanh_of_special_values():
    assert_array_equal(
        references.gelu([inf, -inf, nan, 1e200, -1e200], approximate="tanh"), [inf, nan, nan, 1e200, 0.0]
    )


# --- positions ---------------------------------------------------------------------------------------


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


# --- attention ---------------------------------------------------------------------------------------


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


# --- linear, embedding, quantization -----------------------------------------------------------------


def test_linear_and_embedding_by_hand():
    weight = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert_array_equal(references.linear([1.0, -1.0], weight), [-1.0, -1.0, -1.0])
    assert_array_equal(references.linear([[1.0, 0.5]], weight, [10.0, 20.0, 30.0]), [[12.0, 25.0, 38.0]])
    assert_array_equal(references.embedding([[2, 0]], weight), [[[5.0, 6.0], [1.0, 2.0]]])


def test_affine_quantization_by_hand():
    w = np.array([[-1.0, -1.0 + 3.4, 5.0, 14.0, 7.0, 7.0, 7.0, 7.0]])
    packed, scales, biases = references.quantize(w, bits=4, group_size=4)
    assert packed.dtype == np.uint8
    assert_array_equal(packed, [[3 << 4 | 0, 15 << 4 | 6, 0, 0]])  # codes 0 3 6 15, low nibble first
    assert_array_equal(scales, [[1.0, 0.0]])
    assert_array_equal(biases, [[-1.0, 7.0]])
    assert_array_equal(
        references.dequantize(packed, scales, biases, bits=4, group_size=4), [[-1, 2, 5, 14, 7, 7, 7, 7]]
    )
    packed, scales, biases = references.quantize([[0.0, 1.5, 2.5, 255.0]], bits=8, group_size=4)
    assert_array_equal(packed, [[0, 2, 2, 255]])  # ties to even
    assert_array_equal([scales, biases], [[[1.0]], [[0.0]]])


def test_symmetric_quantization_by_hand():
    w = [[-254.0, 127.0, 1.0, 3.0, 0.0, 0.0, 0.0, 0.0]]
    packed, scales, biases = references.quantize(w, bits=8, group_size=4, mode="symmetric")
    assert biases is None
    assert packed.dtype == np.uint8
    assert_array_equal(packed, [[256 - 127, 64, 0, 2, 0, 0, 0, 0]])  # -127 63.5 0.5 1.5, ties to even
    assert_array_equal(scales, [[2.0, 0.0]])
    for mode in ("affine", "symmetric"):
        decoded = references.dequantize(packed, scales, bits=8, group_size=4, mode=mode)
        assert_array_equal(decoded, [[-254.0, 128.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (8, "symmetric")])
def test_quantization_is_within_half_a_step(rng, bits, mode):
    w = rng.standard_normal((5, 96))
    packed, scales, biases = references.quantize(w, bits=bits, group_size=32, mode=mode)
    assert packed.shape == (5, 96 * bits // 8)
    decoded = references.dequantize(packed, scales, biases, bits=bits, group_size=32, mode=mode)
    steps = np.abs(decoded - w) / np.repeat(scales, 32, axis=1)
    assert steps.max() <= 0.5 + 1e-12
    assert steps.max() > 0.4  # 480 weights: finer steps than promised would show here
    x = rng.standard_normal((3, 96))
    y = references.quantized_linear(x, packed, scales, biases, bits=bits, group_size=32)
    close(y, np.einsum("bi,oi->bo", x, decoded), rtol=1e-11)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_packing_is_that_of_mlx(rng, bits):
    mx = pytest.importorskip("mlx.core")
    w = rng.standard_normal((7, 64)).astype(np.float32)
    packed, scales, biases = references.quantize(w, bits=bits, group_size=32)
    words = mx.array(packed.view(np.uint32))
    parameters = [mx.array(p.astype(np.float32)) for p in (scales, biases)]
    decoded = np.array(mx.dequantize(words, *parameters, group_size=32, bits=bits))
    close(decoded, references.dequantize(packed, scales, biases, bits=bits), rtol=0, atol=1e-6)


def test_quantization_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="bits=8"):
        references.quantize(np.ones((1, 32)), bits=4, group_size=32, mode="symmetric")
    with pytest.raises(ValueError, match="bits is 3"):
        references.quantize(np.ones((1, 32)), bits=3, group_size=32)
    with pytest.raises(ValueError, match="mode is 'other'"):
        references.quantize(np.ones((1, 32)), bits=4, group_size=32, mode="other")
    with pytest.raises(ValueError, match="biases is None"):
        references.dequantize(np.ones((1, 16), dtype=np.uint8), np.ones((1, 1)))
    with pytest.raises(ValueError, match="biases are given"):
        references.dequantize(np.ones((1, 32), dtype=np.uint8), [[1.0]], [[1.0]], bits=8, mode="symmetric")


# --- loss and sampling -------------------------------------------------------------------------------

LOGITS = np.log([[1.0, 1.0, 2.0], [3.0, 1.0, 4.0], [1.0, 1.0, 1.0]])


def test_cross_entropy_by_hand():
    losses = [math.log(2), math.log(8), math.log(3)]
    targets = [2, 1, 0]
    close(references.cross_entropy(LOGITS, targets, reduction="none"), losses)
    close(references.cross_entropy(LOGITS, targets, reduction="sum"), sum(losses))
    close(references.cross_entropy(LOGITS, targets), sum(losses) / 3)
    close(references.cross_entropy(LOGITS, [2, -100, 0]), (losses[0] + losses[2]) / 2)
    close(references.cross_entropy(LOGITS, targets, ignore_index=1, reduction="none"), [losses[0], 0, losses[2]])
    smoothed = 0.7 * math.log(2) + 0.3 * (math.log(4) + math.log(4) + math.log(2)) / 3
    close(references.cross_entropy(LOGITS[0], 2, label_smoothing=0.3), smoothed)


def test_cross_entropy_where_nothing_counts():
    assert np.isnan(references.cross_entropy(LOGITS, [-100] * 3))
    assert references.cross_entropy(LOGITS, [-100] * 3, reduction="sum") == 0.0
    assert_array_equal(references.cross_entropy([[nan, 0.0]], [-100], reduction="none"), [0.0])


def test_cross_entropy_of_forbidden_classes():
    logits = [[-inf, 0.0, 0.0]]
    close(references.cross_entropy(logits, [1]), math.log(2))
    assert references.cross_entropy(logits, [0]) == inf


def test_cross_entropy_refuses_an_unknown_reduction():
    with pytest.raises(ValueError, match="reduction is 'max'"):
        references.cross_entropy(LOGITS, [0, 0, 0], reduction="max")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_agrees_with_torch(rng, reduction, smoothing):
    torch = pytest.importorskip("torch")
    logits, targets = rng.standard_normal((6, 9)), np.array([0, 8, -100, 3, 4, -100])
    tl, tt = to_torch(torch, logits, targets)
    expected = torch.nn.functional.cross_entropy(tl, tt, reduction=reduction, label_smoothing=smoothing)
    actual = references.cross_entropy(logits, targets, reduction=reduction, label_smoothing=smoothing)
    close(actual, expected.numpy(), rtol=1e-12)


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


# --- independence ------------------------------------------------------------------------------------


# What the files of the families are made of: they import the standard library, NumPy and each other.
FREE = ("assertions", "entries", "values", *(path.stem for path in (ROOT / "ops").glob("[a-z]*.py")))


@pytest.mark.parametrize("file", FREE)
def test_references_share_no_code_with_operators(file):
    tree = ast.parse((ROOT / "testing" / f"{file}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    ours = {f"tensorops.testing.{name}" for name in FREE}
    assert imported - ours <= {*sys.stdlib_module_names, "collections.abc", "ml_dtypes", "numpy", "numpy.typing"}


def test_every_operator_has_a_reference_cases_refusals_and_a_workload():
    for table in (REFERENCES, CASES, INVALID, WORKLOADS):
        assert set(table) == set(OPERATORS)
        assert all(table.values())


def test_an_operator_is_described_in_the_file_of_its_family():
    for name, operator in OPERATORS.items():
        family = operator.__module__.rpartition(".")[2]
        assert REFERENCES[name].__module__ == f"tensorops.testing.{family}"


def test_cases_names_the_operators_it_knows():
    assert cases("silu") is CASES["silu"]
    with pytest.raises(ValueError, match="'sillu'; there are cases for silu, sigmoid"):
        cases("sillu")


def test_benchmark_shapes():
    assert BENCHMARK_SHAPES == ((1, 64), (1, 4096), (16, 4096), (128, 4096), (2048, 4096), (8192, 4096))


# --- cases -------------------------------------------------------------------------------------------


def arrays(args, kwargs):
    named = {**dict(enumerate(args)), **kwargs}
    return {name: value for name, value in named.items() if isinstance(value, np.ndarray)}


def results(case, dtype_name="float64"):
    """Return the arrays that the reference makes of a case."""
    args, kwargs = case.build(dtype_name=dtype_name)
    result = REFERENCES[case.operator](*args, **kwargs)
    return [r for r in (result if isinstance(result, tuple) else (result,)) if r is not None]


@pytest.mark.parametrize("operator", OPERATORS)
def test_names_are_unique(operator):
    for group in (CASES[operator], INVALID[operator]):
        names = [case.name for case in group]
        assert len(set(names)) == len(names) >= 2
        assert {case.operator for case in group} == {operator}


@pytest.mark.parametrize("case", EVERY_CASE)
def test_a_case_is_deterministic_small_and_tagged(case):
    first, again = arrays(*case.build(seed=3)), arrays(*case.build(seed=3))
    assert first.keys() == again.keys()
    for name, x in first.items():
        assert_array_equal(x, again[name])
        assert x.size <= 20_000
        assert x.dtype in (np.float64, np.int64, np.int32, np.int8, np.uint8, np.bool_)
        if name != "mask" and not np.isfinite(x).all():
            assert "special" in case.tags
    assert ("empty" in case.tags) == any(x.size == 0 for x in first.values())


def test_seeds_and_cases_differ():
    typical, other = cases("rms_norm")[0], cases("layer_norm")[0]
    x = typical.build()[0][0]
    assert not np.array_equal(x, typical.build(seed=1)[0][0])
    assert not np.array_equal(x, other.build()[0][0])


@pytest.mark.parametrize("case", EVERY_CASE)
def test_arguments_are_within_the_range_of_every_dtype(case):
    wide = arrays(*case.build())
    assert case.dtypes
    for dtype_name in case.dtypes:
        for name, x in arrays(*case.build(dtype_name=dtype_name)).items():
            if wide[name].dtype == np.float64 and name not in case.uncast:
                assert x.dtype == DTYPES[dtype_name]
                assert_array_equal(np.isfinite(x), np.isfinite(wide[name]))
                assert_array_equal(x == 0, wide[name] == 0)
            else:
                assert x.dtype == wide[name].dtype


@pytest.mark.parametrize("case", EVERY_CASE)
def test_the_reference_runs_on_every_case(case):
    signature = inspect.signature(REFERENCES[case.operator])
    args, kwargs = case.build()
    signature.bind(*args, **kwargs)
    for result in results(case):
        assert isinstance(result, np.ndarray)
        assert result.dtype in (np.float64, np.uint8, np.int64)
        masked_logarithms = case.operator == "log_softmax" and "where" in kwargs
        if "special" not in case.tags and not masked_logarithms:
            assert np.isfinite(result).all()


@pytest.mark.parametrize("case", EVERY_CASE)
def test_a_case_accepts_the_rounded_reference_and_refuses_a_wrong_one(case):
    for dtype_name in case.dtypes:
        eps = float(ml_dtypes.finfo(DTYPES[dtype_name]).eps)
        tolerance = case.tolerance_for(dtype_name)
        for expected in results(case, dtype_name):
            name = dtype_name if expected.dtype == np.float64 else expected.dtype.name

            def check(actual, expected=expected, name=name, tolerance=tolerance):
                assert_matches(actual, expected, name, tolerance=tolerance, scale_axis=case.scale_axis)

            with np.errstate(over="ignore"):
                rounded = expected.astype(DTYPES.get(name, expected.dtype))
            check(rounded)
            if expected.size == 0:
                continue
            wrong = rounded.copy()
            finite = np.where(np.isfinite(rounded.astype(np.float64)), np.abs(rounded), 0).astype(np.float64)
            worst = np.unravel_index(np.argmax(finite), finite.shape)
            if name not in DTYPES:
                wrong[worst] ^= 1
            elif finite[worst] == 0:
                wrong[worst] = 1.0 if not np.isfinite(rounded[worst]) else 0.5
            else:
                wrong[worst] *= 1 - 3 * (tolerance + 1) * eps
            with pytest.raises(AssertionError, match="differ"):
                check(wrong)


def near(value, by):
    return [value * (1 - by), value * (1 + by)]


@pytest.mark.parametrize("case", cases("sample"), ids=str)
def test_rounding_cannot_move_a_sample(case):
    """The uniforms and thresholds are far from where the index changes: float32 draws what float64 does."""
    (logits,), options = case.build()
    expected = references.sample(logits, **options)
    for dtype_name in case.dtypes:
        assert_array_equal(cast(logits, dtype_name).astype(np.float64), logits)
    for option in {"rng", "top_p", "min_p", "temperature"} & options.keys():
        for moved in near(options[option], 1e-4):
            if option in ("top_p", "min_p"):
                moved = min(moved, 1.0)
            assert_array_equal(references.sample(logits, **{**options, option: moved}), expected)


@pytest.mark.parametrize("case", cases("quantize"), ids=str)
def test_rounding_cannot_move_a_code(case):
    args, kwargs = case.build()
    codes = references.quantize(*args, **kwargs)[0]
    for dtype_name in case.dtypes:
        assert_array_equal(references.quantize(*case.build(dtype_name=dtype_name)[0], **kwargs)[0], codes)


def test_cast_reaches_into_containers_and_leaves_the_rest():
    ids, half = np.array([1]), np.array([1.0], dtype=np.float16)
    value = {"a": (np.array([1.5]), [ids, half, None]), "eps": 1e-6}
    result = cast(value, "bfloat16")
    assert result["a"][0].dtype == ml_dtypes.bfloat16
    assert result["a"][1][0] is ids
    assert result["a"][1][1] is half
    assert result["a"][1][2] is None
    assert result["eps"] == 1e-6
    assert value["a"][0].dtype == np.float64


@pytest.mark.parametrize("case", [case for group in INVALID.values() for case in group], ids=str)
def test_refusals_name_an_argument(case):
    case.build("float32")
    assert case.exception in (ValueError, TypeError)
    parsed = re.match(r"\^(\w+): \(?([\w|]+)\)?", case.message)
    assert parsed is not None
    assert parsed[1] == case.operator
    assert set(parsed[2].split("|")) <= set(inspect.signature(REFERENCES[case.operator]).parameters)
    example = f"{case.operator}: {parsed[2].split('|')[0]} has 7 elements, but axis -1 of x has 8"
    assert re.search(case.message, example)
    assert not re.search(case.message, example.replace(f": {parsed[2].split('|')[0]} ", ": other "))


# --- assertions --------------------------------------------------------------------------------------

EPS = 2.0**-23


def f32(*values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ([1 + 3 * EPS], [1.0], r"1 of 1 elements differ \(tolerance 2 eps"),
        ([1.0, 2.0, 5.0], [1.0, 2.0, 3.0], r"worst at \(2,\): actual 5\.0, expected 3\.0"),
        ([[1.0]], [1.0], r"shape is \(1, 1\), expected \(1,\)"),
        ([nan], [1.0], "actual nan, expected 1.0"),
        ([1.0], [nan], "actual 1.0, expected nan"),
        ([inf], [1.0], "actual inf, expected 1.0"),
        ([1.0], [inf], "actual 1.0, expected inf"),
        ([-inf], [inf], "actual -inf, expected inf"),
        ([inf], [nan], "actual inf, expected nan"),
        ([3.4e38], [1e39], "actual 3.39.*e.38, expected 1e.39"),
        ([-inf], [1e39], "actual -inf, expected 1e.39"),
        ([3e-38], [0.0], "differ"),
        ([1e-37], [0.0], "differ"),
        ([1e-30, inf], [2e-30, 1e300], r"1 of 2 elements differ"),
    ],
)
def test_assert_matches_fails(actual, expected, message):
    with pytest.raises(AssertionError, match=message):
        assert_matches(np.array(actual, dtype=np.float32), np.array(expected), "float32", tolerance=2)


def test_assert_matches_fails_on_a_wrong_dtype():
    with pytest.raises(AssertionError, match="dtype is float64, expected float32"):
        assert_matches(np.array([1.0]), np.array([1.0]), "float32", tolerance=2)
    with pytest.raises(AssertionError, match="dtype is float32, expected bfloat16"):
        assert_matches(f32(1.0), np.array([1.0]), "bfloat16", tolerance=2)


def test_assert_matches_reports_units_and_what_was_allowed():
    with pytest.raises(AssertionError) as raised:
        assert_matches(f32(8.0, 1 + 64 * EPS), np.array([8.0, 1.0]), "float32", tolerance=2)
    assert str(raised.value).splitlines() == [
        "1 of 2 elements differ (tolerance 2 eps, eps = 1.19e-07)",
        "worst at (1,): actual 1.0000076293945312, expected 1.0",
        "off by 7.63e-06 = 64 ULP, allowed 1.91e-06",
    ]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1 + 2 * EPS], [1.0]),
        ([nan, inf, -inf], [nan, inf, -inf]),
        ([inf, -inf], [1e39, -1e39]),
        ([0.0, -0.0], [-0.0, 0.0]),
        ([0.0], [1e-38]),
        ([0.0], [1.1754944e-38]),
        ([1e-38], [0.0]),
        ([0.0], [1e-300]),
        ([1.0 + 60 * EPS, 32.0], [1.0, 32.0]),  # the neighbour sets the scale
        ([], []),
    ],
)
def test_assert_matches_passes(actual, expected):
    assert_matches(np.array(actual, dtype=np.float32), np.array(expected), "float32", tolerance=2)


def test_scale_axis_says_which_neighbours_count():
    expected = np.array([[1.0, 32.0], [1.0, 1.0]])
    off = 60 * EPS
    first, second = f32([1 + off, 32.0], [1.0, 1.0]), f32([1.0, 32.0], [1.0, 1.0 + off])
    third = f32([1.0, 32.0], [1.0 + off, 1.0])

    def passes(actual, scale_axis):
        try:
            assert_matches(actual, expected, "float32", tolerance=2, scale_axis=scale_axis)
        except AssertionError:
            return False
        return True

    assert [passes(first, axis) for axis in (-1, 0, (), None)] == [True, False, False, True]
    assert [passes(second, axis) for axis in (-1, 0, (), None)] == [False, True, False, True]
    assert [passes(third, axis) for axis in (-1, 0, (0, 1), None)] == [False, False, True, True]


def test_integers_are_compared_exactly():
    assert_matches(np.array([1, 2], dtype=np.uint8), np.array([1, 2]), "uint8", tolerance=100)
    with pytest.raises(AssertionError, match=r"worst at \(1,\): actual 3, expected 2"):
        assert_matches(np.array([1, 3], dtype=np.uint8), np.array([1, 2]), "uint8", tolerance=100)


def test_ulp_error_by_hand():
    assert ulp_error(f32(1 + 3 * EPS, 2.0), np.array([1.0, 2.0]), "float32") == 3.0
    assert ulp_error(f32(4 + 4 * EPS), np.array([4.0]), "float32") == 1.0
    assert ulp_error(np.array([1.0 + 2**-7]), np.array([1.0]), "bfloat16") == 1.0
    assert ulp_error(np.array([1.0 + 2**-10]), np.array([1.0]), "float16") == 1.0
    assert ulp_error(np.array([1.0 + 2**-52]), np.array([1.0]), "float64") == 1.0
    assert ulp_error(f32(2.0**-126 * EPS), np.array([0.0]), "float32") == 1.0
    assert ulp_error(f32(nan, inf, inf), np.array([nan, inf, 1e39]), "float32") == 0.0
    assert ulp_error(f32(), np.array([]), "float32") == 0.0
    for actual, expected in [(nan, 1.0), (1.0, nan), (inf, -inf), (3e38, 1e39), (inf, 1.0)]:
        assert ulp_error(f32(actual), np.array([expected]), "float32") == inf


def test_ulp_error_refuses_shapes_and_names():
    with pytest.raises(ValueError, match=r"actual has shape \(1,\), but expected has \(2,\)"):
        ulp_error(f32(1.0), np.ones(2), "float32")
    with pytest.raises(ValueError, match="'int8', expected one of float16, bfloat16, float32, float64"):
        ulp_error(f32(1.0), np.ones(1), "int8")


@given(st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(list(DTYPES)))
def test_rounding_is_within_half_a_unit_and_two_steps_are_not(value, dtype_name):
    dtype = DTYPES[dtype_name]
    expected = np.array([value])
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype)
    assert_matches(rounded, expected, dtype_name, tolerance=0.5)
    assert ulp_error(rounded, expected, dtype_name) <= 0.5
    tiny = float(ml_dtypes.finfo(dtype).smallest_normal)
    if np.isfinite(rounded[0]) and abs(float(rounded[0])) > 4 * tiny:
        toward_zero = np.nextafter(np.nextafter(rounded, dtype.type(0)), dtype.type(0))
        with pytest.raises(AssertionError, match="differ"):
            assert_matches(toward_zero, expected, dtype_name, tolerance=0.5)
