"""Rotary position embedding in C++: every SIMD target, layout of positions and of x, and dtype."""

import numpy as np
import pytest

import support
from support import normal
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()


def assert_rotated(y, x, positions, dtype, **options):
    assert y.dtype == x.dtype
    expected = REFERENCES["rope"](x, positions, **options)
    assert_matches(y, expected, dtype, tolerance=2 if DTYPES[dtype].itemsize == 2 else 8, scale_axis=-1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_of_features(target, dtype, interleaved, rng):
    # A frequency's rounding counts as often as the position says.
    positions = np.asarray([0, 1, 2, 5, 7] if dtype == "float64" else [0, 1, 7, 8191, 131071])
    for features in [*range(2, 70, 2), 128, 256]:
        for dims in {features, features // 4 * 2 or 2}:
            x = normal(rng, 3, 5, features, dtype=dtype)
            options = {"interleaved": interleaved, "dims": dims}
            assert_rotated(_native.rope(x, positions, **options), x, positions, dtype, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_frequencies_and_base(target, dtype, rng):
    x = normal(rng, 2, 4, 16, dtype=dtype)
    positions = np.asarray([3.5, -2.0, 1.25, 0.0])
    for freqs in (rng.random(8), rng.random(8).astype(np.float32), rng.random(16)[::2].astype(DTYPES["bfloat16"])):
        assert_rotated(_native.rope(x, positions, freqs=freqs), x, positions, dtype, freqs=freqs)
    for base in (2, 500000.0, 0.5):
        assert_rotated(_native.rope(x, positions, base=base), x, positions, dtype, base=base)


@pytest.mark.parametrize(
    "kind", ["int8", "int16", "int32", "int64", "uint8", "uint64", "float16", "float32", "float64", "bfloat16"]
)
def test_positions_of_any_kind(kind, rng):
    x = normal(rng, 2, 6, 8)
    positions = np.asarray([0, 5, 2, 100, 7, 1]).astype(DTYPES.get(kind, kind))
    assert_rotated(_native.rope(x, positions), x, positions.astype(np.float64), "float32")


def test_positions_of_each_batch(target, rng):
    x = normal(rng, 2, 3, 4, 5, 8)
    for shape in ((5,), (1,), (1, 5), (3, 5), (3, 1), (2, 3, 5), (2, 1, 5), (1, 3, 1), (1, 1, 1)):
        positions = rng.integers(0, 1000, shape)
        full = np.broadcast_to(positions, (*np.broadcast_shapes((2, 3), shape[:-1]), 5))
        y = _native.rope(x, positions)
        assert_rotated(y, x, full, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_layout_makes_no_difference(target, dtype, rng):
    room = normal(rng, 2, 6, 4, 40, dtype=dtype)
    for x in (
        room.transpose(0, 2, 1, 3),  # as language models have it
        room[::-1, ::2, ::-1, 3:19],
        np.broadcast_to(room[:, :1, :, :16], (2, 5, 4, 16)),
        room[0, 1:, :, :2],
    ):
        positions = rng.integers(0, 8 if dtype == "float64" else 5000, x.shape[-2])[::-1]
        y = _native.rope(x, positions)
        assert y is not NotImplemented
        np.testing.assert_array_equal(y, _native.rope(x.copy(), positions.copy()))
        assert_rotated(y, x, positions, dtype)


def test_several_threads_give_the_same_bits(target, rng):
    x, positions = normal(rng, 4, 3000, 64), rng.integers(0, 100000, 3000)
    together = _native.rope(x, positions)
    bound = _native.num_threads()
    _native.set_num_threads(1)
    try:
        np.testing.assert_array_equal(_native.rope(x, positions), together)
    finally:
        _native.set_num_threads(bound)
    assert_rotated(together, x, positions, "float32")


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda x, p: (x[0], p), {}, "x has less than 3 dimensions"),
        (lambda x, p: (x[:0], p), {}, "x is empty"),
        (lambda x, p: (x.astype(np.int32), p), {}, "x has a dtype without a kernel"),
        (lambda x, p: (x[..., ::2], p), {}, "the last axis of x is not contiguous"),
        (lambda x, p: (x, p.tolist()), {}, "positions is not a numpy.ndarray"),
        (lambda x, p: (x, p > 1), {}, "positions has a dtype without a kernel"),
        (lambda x, p: (x, p.astype(np.complex64)), {}, "positions has a dtype without a kernel"),
        (lambda x, p: (x, p.astype(">i8")), {}, "positions has a dtype without a kernel"),
        (lambda x, p: (x, p[None]), {}, "positions has another number of dimensions than x wants"),
        (lambda x, p: (x, np.asarray(3)), {}, "positions has another number of dimensions than x wants"),
        (lambda x, p: (x, p[:3]), {}, "positions does not broadcast to x"),
        (lambda x, p: (x, p[:0]), {}, "positions does not broadcast to x"),
        (lambda x, p: (x, p), {"dims": 3}, "dims is no even number of features of x"),
        (lambda x, p: (x, p), {"dims": 0}, "dims is no even number of features of x"),
        (lambda x, p: (x, p), {"dims": 10}, "dims is no even number of features of x"),
        (lambda x, p: (x, p), {"dims": 2**70}, "dims is no even number of features of x"),
        (lambda x, p: (x, p), {"dims": -2}, "dims is no even number of features of x"),
        (lambda x, p: (x[..., :7], p), {}, "dims is no even number of features of x"),
        (lambda x, p: (x, p), {"freqs": np.ones(3)}, "freqs does not have one element for each pair"),
        (lambda x, p: (x, p), {"freqs": np.ones(4, int)}, "freqs has a dtype without a kernel"),
    ],
)
def test_it_says_what_it_refuses(change, options, reason, rng):
    args = change(normal(rng, 2, 5, 8), np.arange(5))
    assert _native.rope_supports(*args, **options) == reason
    assert _native.rope(*args, **options) is NotImplemented
