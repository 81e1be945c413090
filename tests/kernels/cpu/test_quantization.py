"""Quantization in C++: every SIMD target, format, group size and layout gives exactly the generic body's bits.

That the kernels are chosen, and agree with the references on all cases, is tested in `test_conformance`;
`quantized_linear` is in `test_linear`.
"""

import numpy as np
import pytest

import support
import tensorops as tp
from support import normal
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()
FORMATS = {"4": (4, "affine"), "8": (8, "affine"), "8 symmetric": (8, "symmetric")}
# Around the lanes of a vector, 2 … 16; the last ones are longer than a few vectors.
GROUP_SIZES = [*range(1, 40), 48, 62, 64, 96, 128, 130, 514]


def packed(rng, rows, columns, form, group_size, dtype="float32"):
    """Return any bytes with scales and biases, and the options that go with them."""
    bits, mode = FORMATS[form]
    weight = rng.integers(0, 256, (rows, columns * bits // 8), dtype=np.uint8)
    scales = normal(rng, rows, columns // group_size, dtype=dtype)
    biases = normal(rng, rows, columns // group_size, dtype=dtype) if mode == "affine" else None
    return (weight, scales, biases), {"bits": bits, "group_size": group_size, "mode": mode}


def bits_of(a):
    """Return an array's bits; all NaN alike, and both zeros."""
    kind = np.dtype(f"u{a.dtype.itemsize}")
    if a.dtype == np.uint8:
        return a
    plain = np.where(np.isnan(a), np.asarray(np.nan, a.dtype), np.where(a == 0, np.asarray(0, a.dtype), a))
    return np.ascontiguousarray(plain.astype(a.dtype)).view(kind)


def assert_same(actual, expected):
    assert actual is not NotImplemented
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (actual, expected)), strict=True):
        if b is None:
            assert a is None
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(bits_of(a), bits_of(b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_every_size_of_groups_gives_the_bits_of_the_body(target, form, dtype, rng):
    bits, mode = FORMATS[form]
    for group_size in GROUP_SIZES:
        if group_size * bits % 8:
            continue
        for groups in (1, 3, 16, 37):
            options = {"bits": bits, "group_size": group_size, "mode": mode}
            w = normal(rng, 3, groups * group_size, dtype=dtype)
            assert_same(_native.quantize(w, **options), tp.quantize.generic(w, **options))
            parts, options = packed(rng, 3, groups * group_size, form, group_size, dtype)
            assert_same(_native.dequantize(*parts, **options), tp.dequantize.generic(*parts, **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_dequantize_agrees_with_the_reference(target, form, dtype, rng):
    parts, options = packed(rng, 5, 192, form, 32, dtype)
    y = _native.dequantize(*parts, **options)
    assert_matches(y, REFERENCES["dequantize"](*parts, **options), dtype, tolerance=8)


@pytest.mark.parametrize("form", FORMATS)
def test_ties_and_extremes_round_as_the_body_does(target, form, rng):
    """Numbers halfway between levels, subnormal and huge groups, equal and signed zeros."""
    bits, mode = FORMATS[form]
    top = 127 if mode == "symmetric" else 2**bits - 1
    halves = rng.integers(-2 * top, 2 * top + 1, (40, 64)) / 2
    halves[:, 0], halves[:, 32] = top, top
    if mode == "affine":
        halves = np.abs(halves)
        halves[:, 1] = halves[:, 33] = 0
    for dtype in DTYPES:
        limits = {"float16": (2.0**-24, 2.0**8), "float64": (2.0**-1074, 2.0**1000)}
        smallest, large = limits.get(dtype, (2.0**-133, 2.0**118))
        for factor in (1.0, 3.0, 0.1, smallest, large):
            w = (halves * factor).astype(DTYPES[dtype])
            for x in (w, -w):
                options = {"bits": bits, "group_size": 32, "mode": mode}
                assert_same(_native.quantize(x, **options), tp.quantize.generic(x, **options))
    for value in (0.0, -0.0, 0.1, -3e38, 3e38, 1e-45):
        w = np.full((2, 64), value, np.float32)
        w[1, ::2] *= -1
        assert_same(_native.quantize(w, **options), tp.quantize.generic(w, **options))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("group_size", [4, 32, 50])
def test_groups_that_are_not_finite(target, form, group_size, rng):
    """Their integers are 0, their scales infinite or NaN, and no other group notices."""
    bits, mode = FORMATS[form]
    options = {"bits": bits, "group_size": group_size, "mode": mode}
    for dtype in DTYPES:
        for special in ([np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [np.nan, np.inf]):
            for place in range(0, group_size - 1, 3):
                w = normal(rng, 2, 3 * group_size, dtype=dtype)
                w[0, group_size + place : group_size + place + len(special)] = special
                assert_same(_native.quantize(w, **options), tp.quantize.generic(w, **options))
    parts, options = packed(rng, 3, 4 * group_size, form, group_size)
    for parameter in parts[1:]:
        if parameter is not None:
            parameter[:, :3] = np.inf, -np.inf, np.nan
    assert_same(_native.dequantize(*parts, **options), tp.dequantize.generic(*parts, **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_the_layout_makes_no_difference(target, form, dtype, rng):
    bits, mode = FORMATS[form]
    options = {"bits": bits, "group_size": 32, "mode": mode}
    room = normal(rng, 9, 131, dtype=dtype)
    for w in (room[:, 1:129], room[::2, 2:130], room[::-1, 3:131], np.broadcast_to(room[0, :128], (4, 128))):
        assert_same(_native.quantize(w, **options), _native.quantize(w.copy(), **options))
    (weight, scales, biases), options = packed(rng, 9, 256, form, 32, dtype)
    shared = np.broadcast_to(scales[:1, 1:5], (9, 4))
    for rows in (np.s_[::2], np.s_[::-1]):
        half = 32 * bits // 8  # bytes of a group
        parts = [weight[rows, half : 5 * half], scales[rows, 1:5], None if biases is None else biases[rows, 2:6]]
        assert_same(_native.dequantize(*parts, **options), tp.dequantize.generic(*parts, **options))
        parts[1] = shared[rows]
        assert_same(_native.dequantize(*parts, **options), tp.dequantize.generic(*parts, **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("group_size", [32, 24])
def test_large_results_are_the_same_bits(target, form, dtype, group_size, rng):
    """Results of this size are computed by several threads; with whole vectors they are written past the caches."""
    rows = 9 * 2**20 // (1536 * DTYPES[dtype].itemsize)
    parts, options = packed(rng, rows, 1536, form, group_size, dtype)
    w = _native.dequantize(*parts, **options)
    together = _native.quantize(w, **options)
    for row in (0, 1, rows // 2, rows - 1):
        one = np.s_[row : row + 1]
        alone = (None if p is None else p[one] for p in parts)
        assert_same(w[one], _native.dequantize(*alone, **options))
        assert_same(tuple(None if p is None else p[one] for p in together), _native.quantize(w[one], **options))


def test_blocks_have_the_bytes_of_the_body(target, rng):
    """Numbers of every size, on and next to halves of a step, signed zeros, and rows with strides."""
    wide = rng.standard_normal((200, 160)) * 10.0 ** rng.integers(-44, 6, (200, 1))
    halves = rng.integers(-254, 255, (200, 160)) / 2.0
    halves[:, ::32] = 127.0
    near = halves * (1 + rng.integers(-2, 3, halves.shape) * 2.0**-24)
    for w in (wide, halves, near, -0.0 * wide, np.full((3, 32), 8321039.5)):
        w = w.astype(np.float32)
        for x in (w, np.repeat(w, 2, axis=0)[::2], w[::-1, 32:] if w.shape[1] > 32 else w):
            found = _native.quantize(x, format="q8_0")
            assert found is not NotImplemented
            np.testing.assert_array_equal(found[0], tp.quantize.generic(x, format="q8_0")[0])
            assert found[1:] == (None, None)


def test_many_blocks_by_several_threads(rng):
    w = rng.standard_normal((3000, 1024)).astype(np.float32)
    support.same_on_threads((1, 2, 0), lambda: _native.quantize(w, format="q8_0")[0])
    np.testing.assert_array_equal(tp.quantize(w[-5:], format="q8_0")[0], tp.quantize(w, format="q8_0")[0][-5:])


W = np.ones((2, 64), np.float32)
ODD = W * np.where(np.arange(64) == 63, np.nan, 1).astype(np.float32)
BEYOND = "w has a number that is not finite, or too large"
Q, S = np.ones((2, 32), np.uint8), np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    ("args", "options", "reason"),
    [
        ((W.tolist(),), {}, "w is not a numpy.ndarray"),
        ((W.astype(np.int32),), {}, "w has a dtype without a kernel"),
        ((W[0],), {}, "w does not have 2 dimensions"),
        ((W[:0],), {}, "w is empty"),
        ((np.asfortranarray(W),), {}, "the last axis of w is not contiguous"),
        ((W,), {"bits": 2}, "bits is neither 4 nor 8"),
        ((W,), {"mode": "other"}, "mode is neither 'affine' nor 'symmetric'"),
        ((W,), {"mode": "symmetric"}, "mode 'symmetric' has 8 bits"),
        ((W,), {"group_size": 48}, "group_size does not divide a row"),
        ((W,), {"group_size": 0}, "group_size does not divide a row"),
        ((W,), {"group_size": -32}, "group_size does not divide a row"),
        ((W,), {"group_size": 2**62}, "group_size does not divide a row"),
        ((W,), {"group_size": 1}, "group_size does not fill whole bytes"),
        ((W,), {"format": "q4_0"}, "the kernel writes no blocks of format 'q4_0'"),
        ((W.astype(np.float64),), {"format": "q8_0"}, "w does not have dtype float32, whose numbers become blocks"),
        ((W[:, :48],), {"format": "q8_0"}, "the rows of w are not whole blocks"),
        ((W[:, :0],), {"format": "q8_0"}, "w is empty"),
        ((np.asfortranarray(W),), {"format": "q8_0"}, "the last axis of w is not contiguous"),
        ((ODD,), {"format": "q8_0"}, BEYOND),
        ((W * np.float32(-np.inf),), {"format": "q8_0"}, BEYOND),
        ((W * np.float32(8321040),), {"format": "q8_0"}, BEYOND),
    ],
)
def test_quantize_says_what_it_refuses(args, options, reason):
    options = {"bits": 4, "group_size": 32} | options
    assert _native.quantize_supports(*args, **options) == reason
    assert _native.quantize(*args, **options) is NotImplemented


@pytest.mark.parametrize(
    ("args", "options", "reason"),
    [
        ((Q.tolist(), S, S), {}, "weight is not a numpy.ndarray"),
        ((Q.view(np.int8), S, S), {}, "weight does not have dtype uint8"),
        ((Q[0], S, S), {}, "weight does not have 2 dimensions"),
        ((Q[:0], S[:0], S[:0]), {}, "weight is empty"),
        ((np.asfortranarray(Q), S, S), {}, "the last axis of weight is not contiguous"),
        ((Q, S, S), {"bits": 0}, "bits is neither 4 nor 8"),
        ((Q, S, S), {"mode": "other"}, "mode is neither 'affine' nor 'symmetric'"),
        ((Q, S, S), {"mode": "symmetric"}, "mode 'symmetric' has no biases"),
        ((Q, S, None), {}, "biases are missing"),
        ((Q, S.tolist(), S), {}, "scales is not a numpy.ndarray"),
        ((Q, S.astype(">f4"), S), {}, "scales is in foreign byte order"),
        ((Q, S[:1], S), {}, "scales has shape (1, 2), not (2, 2)"),
        ((Q, S, S[:, :1]), {}, "biases has shape (2, 1), not (2, 2)"),
        ((Q, np.asfortranarray(S), S), {}, "the last axis of scales is not contiguous"),
        ((Q, S, S.astype(np.float64)), {}, "biases has another dtype than scales"),
        ((Q, S, S), {"group_size": 65}, "group_size does not divide a row"),
        ((Q, S, S), {"group_size": -(2**62)}, "group_size does not divide a row"),
    ],
)
def test_dequantize_says_what_it_refuses(args, options, reason):
    assert _native.dequantize_supports(*args, **options) == reason
    assert _native.dequantize(*args, **options) is NotImplemented


@pytest.mark.parametrize("options", [{"bits": True}, {"bits": 4.0}, {"group_size": 2**70}, {"mode": None}])
def test_options_of_other_kinds_get_the_operators_own_answer(options):
    options = {"bits": 4, "group_size": 32} | options
    for call in (tp.quantize, tp.quantize.generic):
        with pytest.raises((TypeError, ValueError), match="quantize: "):
            call(W, **options)
