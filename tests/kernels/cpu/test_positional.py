"""Rotary position embedding in C++: every SIMD target, layout of positions and of x, and dtype."""

import numpy as np
import pytest

import support
from support import normal
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()

TABLE = np.ones((6, 4))


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


def test_angles_of_every_quadrant_near_and_far(target, rng):
    """Up to 2^20 the kernel's own cosines, which one angle beyond it in a vector leaves to the C library."""
    positions = np.concatenate([np.arange(-9, 9) * np.pi / 4, [2.0**20, 2.0**20 + 1, -(2.0**21), 3e9, 1e15]])
    x = normal(rng, 2, len(positions), 24)
    for freqs in (np.ones(12), np.linspace(0, 1, 12)):
        y = _native.rope(x, positions, freqs=freqs)
        assert_rotated(y, x, positions, "float32", freqs=freqs)


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
    y = support.same_on_threads((1, 0), lambda: _native.rope(x, positions))
    assert_rotated(y, x, positions, "float32")


def tables(rng, *shape, dtype="float32"):
    """Return numbers that are not the cosine and sine of one angle, so a mistake in one of them shows."""
    return {"cos": normal(rng, *shape, dtype=dtype), "sin": normal(rng, *shape, dtype=dtype)}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_every_dtype(target, dtype, interleaved, rng):
    positions = np.asarray([12, 0, 3, 3, 7])
    for of_tables in DTYPES:
        for features in [*range(2, 70, 2), 256]:
            x = normal(rng, 3, 5, features, dtype=dtype)
            dims = features // 4 * 2 or 2
            for factor in (1.0, 1.25):
                options = {"interleaved": interleaved, "dims": dims, "attention_factor": factor}
                options |= tables(rng, 13, dims // 2, dtype=of_tables)
                assert_rotated(_native.rope(x, positions, **options), x, positions, dtype, **options)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint64"])
def test_rows_of_tables_by_integers_of_any_kind(kind, rng):
    x, positions = normal(rng, 2, 6, 8), np.asarray([0, 5, 2, 100, 7, 1]).astype(kind)
    options = tables(rng, 101, 4)
    assert_rotated(_native.rope(x, positions, **options), x, positions, "float32", **options)


def test_rows_of_tables_for_each_batch(target, rng):
    x, options = normal(rng, 2, 3, 4, 5, 8), tables(rng, 9, 4)
    for shape in ((5,), (1,), (1, 5), (3, 5), (3, 1), (2, 3, 5), (2, 1, 5), (1, 3, 1), (1, 1, 1)):
        positions = rng.integers(0, 9, shape)
        full = np.broadcast_to(positions, (*np.broadcast_shapes((2, 3), shape[:-1]), 5))
        assert_rotated(_native.rope(x, positions, **options), x, full, "float32", **options)
        gathered = {name: table[positions] for name, table in options.items()}
        assert_rotated(_native.rope(x, **gathered), x, full, "float32", **options)


def test_the_layout_of_tables_makes_no_difference(target, rng):
    x, positions = normal(rng, 2, 3, 5, 8), np.asarray([4, 0, 1, 5, 2])
    room = normal(rng, 20, 40)
    for cos, sin in (
        (room[:6, :4], room[6:12, 5:9]),
        (room[::-2, 3:7], room[::2, 3:7]),
        (np.broadcast_to(room[:1, :4], (6, 4)), room[:6, 4:8]),
    ):
        y = _native.rope(x, positions, cos=cos, sin=sin)
        assert_rotated(y, x, positions, "float32", cos=cos, sin=sin)
        assert_rotated(_native.rope(x, cos=cos[:5], sin=sin[:5]), x, None, "float32", cos=cos[:5], sin=sin[:5])


def test_a_factor_without_tables(target, rng):
    x, positions = normal(rng, 2, 5, 9), np.arange(5)
    for factor in (0.5, 1.1386294361119891, 7):
        options = {"attention_factor": factor, "dims": 6}
        assert_rotated(_native.rope(x, positions, **options), x, positions, "float32", **options)


def test_no_row_outside_the_tables_is_read(rng):
    """The tables lie between rows of NaN, which would show in a result."""
    x, room = normal(rng, 1, 3, 8), np.full((30, 4), np.nan, np.float32)
    room[10:20] = 1.0
    cos = sin = room[10:20]
    assert np.isfinite(_native.rope(x, np.asarray([9, 0, 5]), cos=cos, sin=sin)).all()
    for wrong in (-1, 10, -(2**63), 2**63 - 1, 2**53 + 1):
        positions = np.asarray([0, wrong, 5])
        assert _native.rope(x, positions, cos=cos, sin=sin) is NotImplemented
        assert _native.rope_supports(x, positions, cos=cos, sin=sin) == "a position is outside the tables"
    assert _native.rope(x, np.asarray([0, 2**64 - 1, 5], np.uint64), cos=cos, sin=sin) is NotImplemented
    assert _native.rope(x, np.zeros(3, int), cos=cos[:0], sin=sin[:0]) is NotImplemented


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (lambda x, p: (x[0], p), {}, "x has fewer than 3 dimensions"),
        (lambda x, p: (x[:0], p), {}, "x is empty"),
        (lambda x, p: (x.astype(np.int32), p), {}, "x has a dtype without a kernel"),
        (lambda x, p: (x[..., ::2], p), {}, "the last axis of x is not contiguous"),
        (lambda x, p: (x, p.tolist()), {}, "positions is not a numpy.ndarray"),
        (lambda x, p: (x, p > 1), {}, "positions has a dtype without a kernel"),
        (lambda x, p: (x, p.astype(np.complex64)), {}, "positions has a dtype without a kernel"),
        (lambda x, p: (x, p.astype(">i8")), {}, "positions is in foreign byte order"),
        (lambda x, p: (x, p[None]), {}, "positions has another number of dimensions than x wants"),
        (lambda x, p: (x, np.asarray(3)), {}, "positions has another number of dimensions than x wants"),
        (lambda x, p: (x, p[:3]), {}, "positions does not broadcast to x"),
        (lambda x, p: (x, p[:0]), {}, "positions does not broadcast to x"),
        (lambda x, p: (x, p), {"dims": 3}, "dims is not an even number of features of x"),
        (lambda x, p: (x, p), {"dims": 0}, "dims is not an even number of features of x"),
        (lambda x, p: (x, p), {"dims": 10}, "dims is not an even number of features of x"),
        (lambda x, p: (x, p), {"dims": 2**70}, "dims is not an even number of features of x"),
        (lambda x, p: (x, p), {"dims": -2}, "dims is not an even number of features of x"),
        (lambda x, p: (x[..., :7], p), {}, "dims is not an even number of features of x"),
        (lambda x, p: (x, p), {"freqs": np.ones(3)}, "freqs does not have one element for each pair"),
        (lambda x, p: (x, p), {"freqs": np.ones(4, int)}, "freqs has a dtype without a kernel"),
        (lambda x, p: (x,), {}, "positions is not an array"),
        (lambda x, p: (x, p), {"attention_factor": 0.0}, "attention_factor is not a positive number"),
        (lambda x, p: (x, p), {"attention_factor": np.inf}, "attention_factor is not a finite number"),
        (lambda x, p: (x, p), {"attention_factor": "1"}, "attention_factor is not a finite number"),
        (lambda x, p: (x, p), {"cos": TABLE}, "only one of cos and sin is given"),
        (lambda x, p: (x, p), {"sin": TABLE}, "only one of cos and sin is given"),
        (lambda x, p: (x, p), {"cos": TABLE, "sin": TABLE, "freqs": np.ones(4)}, "freqs and tables are given"),
        (lambda x, p: (x, p), {"cos": TABLE, "sin": TABLE, "base": 500.0}, "base and tables are given"),
        (lambda x, p: (x, p), {"cos": TABLE, "sin": TABLE.astype("f4")}, "cos and sin have different dtypes"),
        (lambda x, p: (x, p), {"cos": TABLE, "sin": TABLE[1:]}, "cos and sin have different shapes"),
        (lambda x, p: (x, p), {"cos": TABLE[0], "sin": TABLE[0]}, "cos does not have one column for each pair"),
        (lambda x, p: (x, p), {"cos": TABLE[:, :3], "sin": TABLE[:, :3]}, "cos does not have one column for each pair"),
        (lambda x, p: (x, p), {"cos": TABLE[None], "sin": TABLE[None]}, "cos does not have 2 dimensions"),
        (lambda x, p: (x, p), {"cos": TABLE, "sin": TABLE.T.copy().T}, "the last axis of cos or sin is not contiguous"),
        (lambda x, p: (x, p * 1.0), {"cos": TABLE, "sin": TABLE}, "positions has a dtype that is not an integer"),
        (lambda x, p: (x, p[:3]), {"cos": TABLE, "sin": TABLE}, "positions does not broadcast to x"),
        (lambda x, p: (x,), {"cos": TABLE, "sin": TABLE}, "cos does not broadcast to x"),
        (
            lambda x, p: (x,),
            {"cos": TABLE[None], "sin": TABLE[None]},
            "cos has another number of dimensions than x wants",
        ),
    ],
)
def test_it_says_what_it_refuses(change, options, reason, rng):
    args = change(normal(rng, 2, 5, 8), np.arange(5))
    assert _native.rope_supports(*args, **options) == reason
    assert _native.rope(*args, **options) is NotImplemented
