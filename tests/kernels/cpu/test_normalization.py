"""Norms in C++: every SIMD target, every length and alignment, rounding, threads and fork."""

import concurrent.futures
import multiprocessing
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import support
import tensorops as tp
from support import HALVES, normal
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()
KIB, MIB = 1024, 1024 * 1024
# Weights may be float32 beside half types.
WEIGHT_DTYPES = [
    pytest.param(x, w, id=f"{x}-{w}") for x in DTYPES for w in DTYPES if w == x or (w == "float32" and x in HALVES)
]


def tolerance_of(dtype):
    return 2 if dtype in HALVES else 16


def at_offset(a, offset):
    """Return a copy of an array whose first byte is `offset` bytes after a cache line."""
    room = np.zeros(a.nbytes + 64 + offset, np.uint8)
    start = -room.ctypes.data % 64 + offset
    moved = room[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    moved[...] = a
    assert moved.ctypes.data % 64 == offset % 64
    return moved


# --- targets, lengths, alignment, strides ------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "weight_dtype"), WEIGHT_DTYPES)
def test_every_length_to_beyond_two_blocks(target, dtype, weight_dtype, rng):
    """Blocks are four vectors of at most 16 elements, so that all tails occur after no, one and two blocks."""
    for n in range(1, 2 * 4 * 16 + 20):
        x, w = normal(rng, 2, n, dtype=dtype), normal(rng, n, dtype=weight_dtype)
        for weight in (w, None):
            y = _native.rms_norm(x, weight, 1e-5)
            expected = REFERENCES["rms_norm"](x, weight, 1e-5)
            assert_matches(y, expected, dtype, tolerance=tolerance_of(dtype), scale_axis=())


@pytest.mark.parametrize(("dtype", "weight_dtype"), WEIGHT_DTYPES)
def test_alignment_makes_no_difference(target, dtype, weight_dtype, rng):
    for n in (1, 5, 16, 33, 64, 131):
        x, w = normal(rng, 3, n, dtype=dtype), normal(rng, n, dtype=weight_dtype)
        expected = _native.rms_norm(x, w)
        for offset in (1, 2, 3, 4, 8, 12, 17, 32, 63):
            y = _native.rms_norm(at_offset(x, offset), at_offset(w, 64 - offset))
            support.assert_identical(y, expected)


OUTER_VIEWS = {
    "every_other": lambda a: a[:, ::2],
    "reversed": lambda a: a[::-1],
    "all_reversed": lambda a: a[::-1, ::-1, ::-1],
    "inner": lambda a: a[1:, 1:-1, 2:],
    "columns": lambda a: a[..., 3:-4],
    "one_column": lambda a: a[..., 5:6],
    "transposed": lambda a: a.transpose(2, 0, 1, 3),
    "transposed_back": lambda a: a.transpose(1, 0, 2, 3)[::-2],
    "three_axes": lambda a: a[1, ::-2],
    "two_axes": lambda a: a[1, 2, ::-3],
    "one_row": lambda a: a[0, 3, 1],
    "size_one": lambda a: a[:1, :, 2:3],
    "new_axes": lambda a: a[:, None, ::2, None],
    "repeated": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "repeated_all": lambda a: np.broadcast_to(a[0, 0, 0], (4, 3, a.shape[-1])),
    "repeated_between": lambda a: np.broadcast_to(a[:, None, ::2], (3, 6, 3, 5, a.shape[-1])),
    "overlapping": lambda a: np.lib.stride_tricks.sliding_window_view(a[0, 0, 0], 7),
    "diagonal": lambda a: np.moveaxis(np.diagonal(a, axis1=0, axis2=1), -1, 0),
    "empty": lambda a: a[:, 2:2],
    "no_elements": lambda a: a[..., :0],
}


@pytest.mark.parametrize("view", OUTER_VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_outer_axes_may_have_any_strides(target, dtype, view, rng):
    whole = normal(rng, 3, 6, 5, 37, dtype=dtype)
    x = OUTER_VIEWS[view](whole)
    copy = np.ascontiguousarray(x)
    assert x.size == 0 or np.may_share_memory(x, whole)
    assert _native.rms_norm_supports(x) is None
    y = _native.rms_norm(x)
    assert y.shape == x.shape
    assert y.flags.c_contiguous
    support.assert_identical(y, _native.rms_norm(copy))
    assert_matches(y, REFERENCES["rms_norm"](copy), dtype, tolerance=tolerance_of(dtype), scale_axis=())
    assert tp.rms_norm.explain(x).kernel == "cpu"


def test_a_row_does_not_depend_on_its_neighbours(target, rng):
    x = normal(rng, 9, 50, dtype="float32")
    x[2, 7], x[4, 0], x[6] = np.nan, np.inf, 1e30
    y = _native.rms_norm(x)
    for i in range(9):
        support.assert_identical(y[i], _native.rms_norm(x[i]))
    assert np.isnan(y[2]).all()
    assert np.isfinite(y[[0, 1, 3, 5, 6, 7, 8]]).all()


# --- rounding ----------------------------------------------------------------------------------------


def patterns(dtype):
    """All 65536 values of a half type."""
    return np.arange(1 << 16, dtype=np.uint16).view(DTYPES[dtype])


def scale_by(weight, dtype):
    """Return `weight` rounded to a half type by the kernel: rows of ones have the root mean square 1."""
    ones = np.ones(weight.shape, DTYPES[dtype])
    return _native.rms_norm(ones, weight, 0.0)


def assert_rounded(actual, wide):
    """Assert that `actual` is `wide` rounded to nearest, ties to even, as NumPy and ml_dtypes round.

    NaN may be any NaN, and the sign of a zero is free.
    """
    with np.errstate(all="ignore"):
        expected = wide.astype(actual.dtype).astype(np.float64)
    np.testing.assert_array_equal(float64(actual), expected)


def float64(a):
    with np.errstate(invalid="ignore"):  # ml_dtypes sees something invalid in converting a NaN
        return a.astype(np.float64)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_stored_as_itself(target, dtype):
    halves = patterns(dtype)
    with np.errstate(invalid="ignore"):
        wide = float64(halves).astype(np.float32)
    y = scale_by(wide, dtype)
    np.testing.assert_array_equal(float64(y), float64(halves))


@pytest.mark.parametrize("dtype", HALVES)
def test_ties_round_to_even_and_their_neighbours_away(target, dtype):
    halves = patterns(dtype)
    finite = np.sort(float64(halves))
    finite = finite[np.isfinite(finite)]
    ties = ((finite[:-1] + finite[1:]) / 2).astype(np.float32)
    np.testing.assert_array_equal(ties.astype(np.float64), (finite[:-1] + finite[1:]) / 2)
    for values in (ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))):
        assert_rounded(scale_by(values, dtype), values)
    # Beyond the largest: half a step further is the tie with infinity.
    largest = float(finite[-1])
    tie = np.float32(largest + (largest - float(finite[-2])) / 2)
    beyond = np.array([tie, -tie, np.nextafter(tie, np.float32(0)), np.float32(3e38)], np.float32)
    assert_rounded(scale_by(beyond, dtype), beyond)
    assert np.isinf(scale_by(beyond, dtype)[:2].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_in_the_tail_of_a_row(target, dtype, rng):
    """Rows shorter than a vector go another way."""
    exponents = rng.integers(-30, 20, (400, 3))
    values = np.ldexp(rng.standard_normal((400, 3)), exponents).astype(np.float32)
    for row in values:
        assert_rounded(scale_by(row, dtype), row)


@pytest.mark.parametrize("extreme", [False, True], ids=["usual", "careful"])
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_loaded_as_itself(target, dtype, extreme):
    """An eps that dominates makes the factor a power of two; a row beyond float32's squares is computed again."""
    halves = patterns(dtype)
    wide = float64(halves)
    # The largest square, divided by eps, must vanish beside 1, and the product must not be subnormal.
    power = 60 if extreme else 45
    usable = np.isfinite(wide) & ((np.abs(wide) < 2.0 ** (power - 27)) & (np.abs(wide) > 2.0 ** (power - 126)))
    usable = usable | (wide == 0)
    x = halves[usable]
    y = _native.rms_norm(x, np.full(x.shape, 2.0**power, np.float32), 2.0 ** (2 * power))
    np.testing.assert_array_equal(float64(y), float64(x))
    assert x.size > 20000


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_alone(target, dtype):
    x = np.array([[np.nan], [np.inf], [-np.inf], [0.0], [-0.0]], DTYPES[dtype])
    y = _native.rms_norm(x).astype(np.float64)
    assert np.isnan(y[:3]).all()
    np.testing.assert_array_equal(y[3:], 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_keep_their_sign(target, dtype):
    for length in range(1, 70):
        x = np.full((1, length), -0.0, DTYPES[dtype])
        assert np.signbit(_native.rms_norm(x)).all(), length


@pytest.mark.parametrize("eps", [-1e-6, np.nan, np.inf, "1"])
def test_an_eps_without_meaning_gets_the_same_error_with_and_without_the_kernel(eps):
    x = np.ones((2, 8), np.float32)
    tp.rms_norm(x)  # from here on the kernel is asked first
    for call in (tp.rms_norm, tp.rms_norm.generic):
        with pytest.raises((TypeError, ValueError), match=r"^rms_norm: eps is .*, expected "):
            call(x, None, eps)
    with pytest.raises(TypeError, match=r"^rms_norm: axis is True, expected an integer"):
        tp.rms_norm(x, axis=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_whole_range_of_the_dtype(target, dtype, rng):
    """Rows whose elements are near every power of two that the dtype holds."""
    info = ml_dtypes.finfo(DTYPES[dtype])
    exponents = np.arange(int(info.minexp), int(info.maxexp))[:, None]
    rows = np.ldexp(1.0 + rng.random((len(exponents), 21)), exponents - 1) * rng.choice([-1, 1], 21)
    x = rows.astype(DTYPES[dtype])
    for eps in (0.0, 1e-6):
        expected = REFERENCES["rms_norm"](x, None, eps)
        y = _native.rms_norm(x, None, eps)
        assert_matches(y, expected, dtype, tolerance=tolerance_of(dtype), scale_axis=())


# --- what it takes, and what it declines -------------------------------------------------------------


class Subclass(np.ndarray):
    """An array to NumPy, and not one to the kernel."""


def odd_arrays():
    return st.sampled_from(
        [
            1.0,
            [1.0, 2.0],
            "x",
            np.float32(1.0),
            np.zeros((2, 3), np.float32).view(Subclass),
            np.zeros((2, 3), ">f4"),
            np.zeros((2, 3), np.int64),
            np.zeros((2, 3), bool),
            np.zeros((2, 3), complex),
            np.zeros((2, 3), object),
            np.asarray(1.0),
            np.zeros((0,), np.float64),
            np.zeros((3, 0), np.float16),
        ]
    )


def arrays():
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    dtypes = st.sampled_from(list(DTYPES.values()))
    plain = st.builds(lambda shape, dtype: np.ones(shape, dtype), shapes, dtypes)
    turned = plain.map(np.transpose)
    sliced = plain.filter(lambda a: a.ndim > 0).map(lambda a: np.repeat(a, 2, axis=-1)[..., ::2])
    rows = plain.filter(lambda a: a.ndim > 1).map(lambda a: a[::-1])
    return plain | turned | sliced | rows


@given(
    x=arrays() | odd_arrays(),
    weight=st.sampled_from(["fits", None]) | arrays() | odd_arrays(),
    axis=st.sampled_from([-1, -1, 0, 1, 2, 3, -2, 7]),
)
def test_it_declines_exactly_what_it_does_not_support(x, weight, axis):
    if isinstance(weight, str) and weight == "fits":
        weight = np.ones(np.shape(x)[-1:], getattr(x, "dtype", None))
    reason = _native.rms_norm_supports(x, weight, axis=axis)
    y = _native.rms_norm(x, weight, axis=axis)
    assert (reason is None) == (y is not NotImplemented)
    if reason is None:
        assert type(y) is np.ndarray
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
    else:
        assert isinstance(reason, str)
        assert re.match(r"(x|weight|axis|the last axis of x) ", reason)


def test_the_signature_is_that_of_the_operator():
    x, w = np.ones((2, 4)), np.ones(4)
    by_name = _native.rms_norm(x=x, weight=w, eps=0.5, axis=1, weight_offset=1.0)
    support.assert_identical(by_name, _native.rms_norm(x, w, 0.5, axis=1, weight_offset=1.0))
    np.testing.assert_allclose(by_name, 2 / 1.5**0.5)
    for call in (_native.rms_norm, _native.rms_norm_supports):
        with pytest.raises(TypeError):
            call(x, w, 0.5, -1)
    for options in ({"eps": "small"}, {"axis": 1.5}, {"axis": np.array(1)}, {"weight_offset": None}):
        (name,) = options
        assert _native.rms_norm_supports(x, **options).startswith(name)
        assert _native.rms_norm(x, **options) is NotImplemented


# --- large results: threads, stores past the caches --------------------------------------------------


@pytest.mark.parametrize(("dtype", "weight_dtype"), WEIGHT_DTYPES)
def test_large_results_are_those_of_their_rows(target, dtype, weight_dtype, rng):
    """From 8 MiB on, results are written past the caches; rows go to several threads long before."""
    columns = 4096
    rows = 8 * MIB // (columns * DTYPES[dtype].itemsize) + 3
    row = normal(rng, 16, columns, dtype=dtype)
    x, w = np.resize(row, (rows, columns)), normal(rng, columns, dtype=weight_dtype)
    expected = np.concatenate([_native.rms_norm(r[None], w) for r in row])
    y = _native.rms_norm(x, w)
    assert y.nbytes >= 8 * MIB
    support.assert_identical(y, np.resize(expected, (rows, columns)))
    # A length that leaves rows unaligned must not be streamed.
    x, w = x[:, : columns - 1], w[: columns - 1]
    expected = np.concatenate([_native.rms_norm(r[None, : columns - 1], w) for r in row])
    support.assert_identical(_native.rms_norm(x, w), np.resize(expected, (rows, columns - 1)))


def test_large_results_of_extreme_rows(target, rng):
    """Rows that are computed again are not streamed while their neighbours are."""
    x = np.tile(normal(rng, 8, 2048, dtype="float32"), (140, 1))
    x[5::7] *= np.float32(1e30)
    x[3::11, 9] = np.nan
    y = _native.rms_norm(x)
    assert y.nbytes >= 8 * MIB
    for i in range(0, len(x), 13):
        support.assert_identical(y[i], _native.rms_norm(x[i]))
    assert_matches(y[:50], REFERENCES["rms_norm"](x[:50]), "float32", tolerance=16, scale_axis=())


def test_many_threads_at_once(rng):
    x = normal(rng, 64, 8192, dtype="float32")
    w = normal(rng, 8192, dtype="float32")
    expected = _native.rms_norm(x, w)

    def work(seed):
        order = np.random.default_rng(seed).permutation(len(x))
        return all(
            np.array_equal(tp.rms_norm(x[order] if i % 2 else x, w), expected[order] if i % 2 else expected)
            for i in range(12)
        )

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(16), timeout=120))


FORK = """
import multiprocessing
import os
import warnings
import numpy as np
import tensorops as tp
from tensorops.kernels.cpu import _native, table

_native.use_processors(0)  # else there are no more threads than processors
# Later Pythons warn of fork with threads; what is tested is that it works all the same.
warnings.simplefilter("ignore", DeprecationWarning)
x = np.random.default_rng(0).standard_normal((512, 4096)).astype(np.float32)
assert tp.rms_norm.explain(x).kernel == "cpu"
expected = tp.rms_norm(x)  # 8 MiB on four threads


def work(connection):
    right = np.array_equal(tp.rms_norm(x), expected)
    threads = len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 4
    connection.send((right, threads))


context = multiprocessing.get_context("fork")
for _ in range(3):
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(sender,))
    child.start()
    print(receiver.poll(60) and receiver.recv(), flush=True)
    child.join(60)
    print(child.exitcode, flush=True)
    child.kill()
    assert np.array_equal(tp.rms_norm(x), expected)
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_child_of_fork_computes_on_as_many_threads_as_its_parent():
    result = support.python(FORK, OMP_NUM_THREADS="4")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["(True, 4)", "0"] * 3


# --- layer_norm --------------------------------------------------------------------------------------


def assert_right(x, weight, bias, dtype):
    y = _native.layer_norm(x, weight, bias)
    assert y is not NotImplemented
    expected = REFERENCES["layer_norm"](x, weight, bias)
    assert_matches(y, expected, dtype, tolerance=2 if dtype in HALVES else 16, scale_axis=-1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm_of_every_length(target, dtype, rng):
    for n in [*range(1, 300), 1023, 1024, 4097]:
        x, weight, bias = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((2, n), n, n))
        assert_right(x, weight, bias, dtype)


@pytest.mark.parametrize("shift", [0.5, 2, 30, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_may_begin_far_from_its_mean(target, dtype, shift, rng):
    """Sums are taken about the mean of a row's first elements, or, if that was not near enough, of all of them."""
    for n in (100, 255, 256, 257, 1000, 4096):
        for few in (1, 16, 64):
            x = rng.standard_normal((3, n))
            x[:, :few] += shift
            x[1] *= -1
            x = x.astype(DTYPES[dtype])
            assert_right(x, None, None, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_large_mean_hurts_no_more_than_its_own_rounding(target, dtype, rng):
    """Squares of the elements themselves would have no digits left for the variance."""
    x = (rng.standard_normal((5, 1000)) + 1e4).astype(dtype)
    expected = REFERENCES["layer_norm"](x)
    unit = np.finfo(x.dtype).eps * np.abs(x).max() / x.astype(np.float64).std(axis=-1).min()
    np.testing.assert_allclose(_native.layer_norm(x), expected, rtol=0, atol=2 * unit)
