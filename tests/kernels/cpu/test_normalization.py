"""Norms in C++: every SIMD target, every length and alignment, rounding, threads and fork."""

import multiprocessing
import re
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st
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


# --- groups of channels ------------------------------------------------------------------------------


def assert_right_groups(x, groups, weight, bias, dtype):
    y = _native.group_norm(x, groups, weight, bias)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    expected = REFERENCES["group_norm"](x, groups, weight, bias)
    every = tuple(range(1, x.ndim))
    assert_matches(y, expected, dtype, tolerance=2 if dtype in HALVES else 16, scale_axis=every)
    return y


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_of_every_length(target, dtype, rng):
    """Channels begin anywhere in a vector, and several may share one."""
    for span in [*range(1, 70), 95, 96, 127, 128, 129, 300]:
        x, w, b = (normal(rng, *shape, dtype=dtype) for shape in ((2, 6, span), (6,), (6,)))
        assert_right_groups(x, 2, w, b, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_of_every_dtype_beside_every_other(target, dtype, rng):
    """Those of float64 beside a narrower x are left to the body, which computes in float64."""
    x = normal(rng, 3, 8, 5, dtype=dtype)
    for first in DTYPES:
        for second in DTYPES:
            of_channels = [normal(rng, 8, dtype=d) for d in (first, second)]
            of_rows = [normal(rng, 5, dtype=d) for d in (first, second)]
            if "float64" in (first, second) and dtype != "float64":
                wide = "weight" if first == "float64" else "bias"
                said = f"{wide} has dtype float64, and x a narrower one"
                assert _native.layer_norm_supports(x, *of_rows) == said
                assert _native.group_norm_supports(x, 2, *of_channels) == said
                assert _native.group_norm(x, 2, *of_channels) is NotImplemented
                continue
            assert_right_groups(x, 2, *of_channels, dtype)
            assert_right(x, *of_rows, dtype)
            expected = REFERENCES["rms_norm"](x, of_rows[0])
            for y in (_native.rms_norm(x, of_rows[0]), _native.add_rms_norm(x, np.zeros_like(x), of_rows[0])[0]):
                assert y.dtype == x.dtype
                assert_matches(y, expected, dtype, tolerance=tolerance_of(dtype), scale_axis=())


def test_a_parameter_that_is_widened_is_released(rng):
    x, w = normal(rng, 2, 4096), normal(rng, 4096, dtype="float16")
    count = sys.getrefcount(w)
    for _ in range(100):
        _native.rms_norm(x, w), _native.layer_norm(x, w, w)
    assert sys.getrefcount(w) == count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_may_have_any_stride(target, dtype, rng):
    whole = normal(rng, 6, 9, 4, 5, dtype=dtype)
    for x in (whole[::2], whole[::-1], np.broadcast_to(whole[:1], whole.shape), whole[:, 1:-2], whole[2:3]):
        assert _native.group_norm_supports(x, 3) is None
        support.assert_identical(_native.group_norm(x, 3), _native.group_norm(x.copy(), 3))
        assert_right_groups(x, 3, None, None, dtype)
    for x in (whole[:, ::2], whole[..., 1:], np.moveaxis(whole, 1, -1)):
        assert _native.instance_norm_supports(x) == "x is not contiguous from its second axis on"
        assert _native.instance_norm(x) is NotImplemented


# Those that are shared by threads, in pieces with and without a rest, and the same with channels that pieces divide.
LONG_GROUPS = [(1, 1, (1, 1, 200_003)), (1, 1, (1, 3, 65_536)), (1, 2, (1, 4, 70_001)), (2, 1, (2, 40_000, 7))]


@pytest.mark.parametrize(("batch", "groups", "shape"), LONG_GROUPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_groups_are_shared_by_threads_without_a_trace(target, dtype, batch, groups, shape, rng):
    x, w, b = (normal(rng, *s, dtype=dtype) for s in (shape, shape[1:2], shape[1:2]))
    support.same_on_threads((1, 2, 3, 7), lambda: _native.group_norm(x, groups, w, b))
    assert_right_groups(x, groups, w, b, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_long_group_of_equal_elements(target, dtype):
    """Plain sums of a million equal numbers are off in their third digit."""
    x = np.full((1, 4, 250_001), 1.1, dtype)
    x[0, 0, 0] = 1.2
    expected = REFERENCES["group_norm"](x, 1, eps=0.0)
    # The mean is known to some units of the last place, of which each counts as much as x beside its deviation.
    unit = np.finfo(x.dtype).eps * 1.2 / x.std(dtype=np.float64)
    np.testing.assert_allclose(_native.group_norm(x, 1, eps=0.0), expected, rtol=4 * unit, atol=4 * unit)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("span", [96, 98, 7], ids=str)
def test_large_results_of_channels_are_those_of_their_elements(target, dtype, span, rng):
    """From 8 MiB on, results are written past the caches, also where channels begin within a line of the cache."""
    channels = 192
    batch = 8 * MIB // (channels * span * DTYPES[dtype].itemsize) + 1
    few = normal(rng, 8, channels, span, dtype=dtype)
    x, w, b = np.resize(few, (batch, channels, span)), normal(rng, channels), normal(rng, channels, dtype=dtype)
    y = _native.group_norm(x, 6, w, b)
    assert y.nbytes >= 8 * MIB
    expected = np.concatenate([_native.group_norm(e[None], 6, w, b) for e in few])
    support.assert_identical(y, np.resize(expected, x.shape))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_groups_that_are_done_again_keep_their_channels(target, scale, rng):
    for shape in ((2, 6, 5), (2, 6, 1), (1, 2, 100_000)):
        x = normal(rng, *shape, dtype="float32") * np.float32(scale)
        w, b = normal(rng, shape[1]), normal(rng, shape[1])
        expected = REFERENCES["group_norm"](x, 2, w, b, 0.0)
        every = tuple(range(1, x.ndim))
        y = _native.group_norm(x, 2, w, b, 0.0)
        assert_matches(y, expected, "float32", tolerance=16, scale_axis=every)


# --- l2_norm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_l2_norm_of_every_length(target, dtype, rng):
    for n in [*range(1, 150), 1023, 1024, 4097]:
        x = normal(rng, 2, n, dtype=dtype)
        for eps in (0.0, 1e-12, 10.0):
            expected = REFERENCES["l2_norm"](x, eps)
            assert_matches(_native.l2_norm(x, eps), expected, dtype, tolerance=tolerance_of(dtype), scale_axis=())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-300, 1e30])
def test_l2_norm_of_nothing_and_of_the_ends_of_the_range(target, dtype, eps):
    info = ml_dtypes.finfo(DTYPES[dtype])
    x = np.zeros((4, 5), DTYPES[dtype])
    x[1], x[2], x[3, 1] = info.max, info.smallest_subnormal, info.tiny
    expected = REFERENCES["l2_norm"](x, eps)
    assert np.isfinite(expected).all()
    y = _native.l2_norm(x, eps)
    np.testing.assert_array_equal(y[0], x[0])
    assert_matches(y, expected, dtype, tolerance=tolerance_of(dtype), scale_axis=())
