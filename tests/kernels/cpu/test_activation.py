"""Activations in C++: every SIMD target, length, alignment and layout, and the vector functions they use."""

import math

import numpy as np
import pytest

import support
from support import HALVES, bits
from tensorops.ops import activation
from tensorops.testing import DTYPES, REFERENCES, assert_matches, ulp_error

_native = support.require_native()

from tensorops.kernels.cpu import table  # noqa: E402

GATED = ("swiglu", "geglu", "reglu")
ROWWISE = ("softmax", "log_softmax", "logsumexp")
COMPILED = (operator for operator in table.OPERATORS if operator.__module__ == activation.__name__)
UNARY = tuple(operator.__name__ for operator in COMPILED if operator.__name__ not in (*GATED, *ROWWISE))
OPERATORS = (*UNARY, *GATED, *ROWWISE)
TOLERANCE = {"softmax": 32, "log_softmax": 32, "logsumexp": 16}


def inputs(operator, shape, dtype, rng):
    return tuple((2 * rng.standard_normal(shape)).astype(DTYPES[dtype]) for _ in range(2 if operator in GATED else 1))


def assert_right(operator, y, args, dtype, **options):
    expected = REFERENCES[operator](*args, **options)
    tolerance = 2 if dtype in HALVES else TOLERANCE.get(operator, 8)
    if operator in ("gelu", "geglu") and dtype == "float64":
        tolerance = 128  # of the reference: its erfc magnifies the rounding of x / sqrt(2)
    axis = {"logsumexp": None, "hard_sigmoid": None, "log_softmax": -1}.get(operator, ())
    assert_matches(y, expected, dtype, tolerance=tolerance, scale_axis=axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_length_to_beyond_two_blocks(target, operator, dtype, rng):
    """Row-wise kernels take four vectors of at most 16 elements at a time."""
    for n in [*range(1, 2 * 4 * 16 + 20), 4096 + 17, 16385, 70001]:
        args = inputs(operator, (2, n), dtype, rng)
        assert_right(operator, getattr(_native, operator)(*args), args, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_layout_makes_no_difference(target, operator, dtype, rng):
    function = getattr(_native, operator)
    room = inputs(operator, (5, 4, 131), dtype, rng)
    for index in (np.s_[:, :, 1:], np.s_[::2, 1:, :65], np.s_[::-1, ::-1], np.s_[1, :, 3:4], np.s_[0, 0]):
        args = tuple(x[index] for x in room)
        y = function(*args)
        assert y is not NotImplemented
        np.testing.assert_array_equal(bits(y), bits(function(*(x.copy() for x in args))))
    mixed = tuple(x[:, 1:, :] if i else x[:, :3, :].copy() for i, x in enumerate(room))
    y = function(*mixed)
    np.testing.assert_array_equal(bits(y), bits(function(*(x.copy() for x in mixed))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_large_results_are_the_same_bits(target, operator, dtype, rng):
    """Results of this size are computed by several threads and written past the caches, the last ones are not whole."""
    size = DTYPES[dtype].itemsize
    for columns in (4096, 4095):
        rows = 9 * 2**20 // (columns * size)
        args = tuple(np.resize(x, (rows, columns)) for x in inputs(operator, (37, columns), dtype, rng))
        y = getattr(_native, operator)(*args)
        few = [0, 1, rows // 2, rows - 1]
        for row in few:
            alone = getattr(_native, operator)(*(x[row : row + 1] for x in args))
            np.testing.assert_array_equal(bits(y[row : row + 1]), bits(alone))


NO_AXES = "axis names no axes of x"
NO_SUCH_RESULT = "dtype is neither the dtype of x nor, for half types, float32"


@pytest.mark.parametrize(
    ("operator", "args", "options", "reason"),
    [
        ("silu", (np.float32(1),), {}, "x is not an array"),
        ("silu", (np.ones(3, np.int32),), {}, "x has a dtype without a kernel"),
        ("silu", (np.ones(3, ">f4"),), {}, "x is in foreign byte order"),
        ("swiglu", (np.ones(3), np.ones(3, np.float32)), {}, "gate and up differ in dtype"),
        ("swiglu", (np.ones(3), np.ones((1, 3))), {}, "gate and up differ in shape"),
        ("gelu", (np.ones(3),), {"approximate": "fast"}, "approximate is neither 'none' nor 'tanh'"),
        ("elu", (np.ones(3),), {"alpha": np.nan}, "alpha is not a finite number"),
        ("elu", (np.ones(3),), {"alpha": "1"}, "alpha is not a finite number"),
        ("leaky_relu", (np.ones(3),), {"negative_slope": np.inf}, "negative_slope is not a finite number"),
        ("quick_gelu", (np.ones(3),), {"alpha": True}, "alpha is not a finite number"),
        ("hard_sigmoid", (np.ones(3),), {"alpha": None}, "alpha is not a finite number"),
        ("hard_sigmoid", (np.ones(3),), {"beta": 10**400}, "beta is not a finite number"),
        ("reglu", (np.ones(3), np.ones(4)), {}, "gate and up differ in shape"),
        ("softmax", (np.ones((2, 3)),), {"axis": 2}, NO_AXES),
        ("softmax", (np.ones((2, 3, 4)),), {"axis": (2, 2)}, NO_AXES),
        ("softmax", (np.ones((2, 3)),), {"axis": (0, 1, 2)}, NO_AXES),
        ("softmax", (np.ones((2, 3)),), {"axis": ()}, NO_AXES),
        ("softmax", (np.ones((2, 3)),), {"axis": (-1, "0")}, NO_AXES),
        ("softmax", (np.ones((2, 3, 4)),), {"axis": (0, 2)}, "the axes of x are not one run of memory"),
        ("softmax", (np.ones((2, 6, 4))[:, ::2],), {"axis": (1, 2)}, "the axes of x are not one run of memory"),
        ("softmax", (np.ones(3),), {"dtype": np.float32}, NO_SUCH_RESULT),
        ("softmax", (np.ones(3, np.float32),), {"dtype": np.dtype(np.float16)}, NO_SUCH_RESULT),
        ("log_softmax", (np.ones(3, np.float16),), {"dtype": np.dtype(">f4")}, NO_SUCH_RESULT),
        ("logsumexp", (np.ones(3, np.float16),), {"dtype": "float32"}, NO_SUCH_RESULT),
        ("logsumexp", (np.ones((2, 3, 0)),), {"axis": (1, 2)}, "an axis of x along which it reduces is empty"),
        ("softmax", (np.ones((2, 3)),), {"axis": True}, NO_AXES),
        ("softmax", (np.ones((2, 3)),), {"axis": 2**70}, NO_AXES),
        ("softmax", (np.ones((2, 3)),), {"where": np.ones((2, 3), bool)}, "where is given"),
        ("logsumexp", (np.ones((2, 0)),), {}, "an axis of x along which it reduces is empty"),
    ],
)
def test_what_is_refused_has_a_reason(operator, args, options, reason):
    assert getattr(_native, f"{operator}_supports")(*args, **options) == reason
    assert getattr(_native, operator)(*args, **options) is NotImplemented


@pytest.mark.parametrize("axis", [-1, 1, (-1,), (1,)])
def test_every_way_to_name_the_last_axis(axis, rng):
    (x,) = inputs("softmax", (3, 5), "float64", rng)
    for operator in ROWWISE:
        y = getattr(_native, operator)(x, axis=axis)
        assert_right(operator, y, (x,), "float64", axis=axis)
    kept = _native.logsumexp(x, axis=axis, keepdims=True)
    assert kept.shape == (3, 1)
    np.testing.assert_array_equal(kept[:, 0], _native.logsumexp(x, axis=axis))


@pytest.mark.parametrize("operator", ROWWISE)
def test_the_last_axes_are_one_row(target, operator, rng):
    """In any order, and beside outer axes of any layout."""
    function = getattr(_native, operator)
    (x,) = inputs(operator, (3, 4, 5, 7), "float32", rng)
    for room, axes in (
        (x, (-1, -2)),
        (x, (2, 3, 1)),
        (x, (0, 1, 2, 3)),
        (x[::2, ::-1], (3, 2)),
        (x[:, :, 2:3], (2, 3)),
        (np.swapaxes(x, 0, 1), (2, 3)),
    ):
        outer = x.ndim - len(axes)
        flat = np.ascontiguousarray(room).reshape(*room.shape[:outer], -1)
        expected = function(flat)
        y = function(room, axis=axes)
        assert y.shape == (room.shape[:outer] if operator == "logsumexp" else room.shape)
        np.testing.assert_array_equal(bits(y).ravel(), bits(expected).ravel())
        if operator == "logsumexp":
            kept = function(room, axis=axes, keepdims=True)
            assert kept.shape == (*room.shape[:outer], *[1] * len(axes))
            np.testing.assert_array_equal(bits(kept).ravel(), bits(expected).ravel())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("operator", ROWWISE)
def test_half_types_with_float32_results_are_not_rounded(target, operator, dtype, rng):
    """The bits are those for the numbers as float32, of every length, in rows that are written past the caches."""
    function = getattr(_native, operator)
    for shape in [*((2, n) for n in [*range(1, 40), 300, 16385, 70001]), (2**21 // 4096 + 3, 4096)]:
        (x,) = inputs(operator, shape, dtype, rng)
        for float32 in (np.float32, np.dtype(np.float32)):
            y = function(x, dtype=float32)
            assert y.dtype == np.float32
            np.testing.assert_array_equal(bits(y), bits(function(x.astype(np.float32))))
        np.testing.assert_array_equal(bits(function(x, dtype=DTYPES[dtype])), bits(function(x)))
        np.testing.assert_array_equal(bits(function(x, dtype=DTYPES[dtype].type)), bits(function(x)))


def test_gelu_in_float64_does_not_magnify_rounding(target):
    """Values of x Φ(x) from a series with 50 digits."""
    expected = {
        -1.0: -0.15865525393145705,
        -7.5: -2.393168754683172e-13,
        -12.25: -1.0289750177950936e-33,
        -30.5: -3.973960635193133e-203,
        3.0: 2.99595030590511,
    }
    for x, value in expected.items():
        assert math.isclose(_native.gelu(np.array([x]))[0], value, rel_tol=1e-15)


# --- the vector functions: every float of some binades, samples of the others -----------------------------


def floats(low, high, step=1):
    """Return every step-th float32 from low to high, of one sign."""
    first, last = sorted(int(np.float32(v).view(np.uint32)) for v in (low, high))
    return np.arange(first, last, step, dtype=np.uint32).view(np.float32)


def sigmoid(x):
    return np.where(x >= 0, 1, np.exp(np.minimum(x, 0))) / (1 + np.exp(-np.abs(x)))


def units(actual, expected):
    """Return the largest error in units of the last place of what is expected, of which eps times it is up to two."""
    return np.max(np.abs(actual - expected) / np.ldexp(1.0, np.frexp(expected)[1] - 24))


def normal_cdf(x):
    return 0.5 * np.vectorize(math.erfc)(x / -math.sqrt(2.0))


def bound(target, looked_up, fused, plain):
    """Return the bound of an error: AVX-512 looks up functions, SSE cannot fuse products with sums."""
    return looked_up if target.startswith("v4") else plain if target == "v2" else fused


# Every number of a binade takes a second.
BINADES = [(1, 2, 31), (-1, -2, 31), *(pytest.param(x, 2 * x, 1, marks=pytest.mark.exhaustive) for x in (1, -1))]
SPANS = [*BINADES, (1e-6, 1, 997), (-1e-6, -1, 997), (2, 100, 997), (-2, -100, 997)]


@pytest.mark.parametrize(("low", "high", "step"), SPANS)
def test_sigmoid_is_exact_to_a_few_units(target, low, high, step):
    x = floats(low, high, step)
    y = _native.sigmoid(x)
    normal = sigmoid(x.astype(np.float64)) > 2e-38
    assert units(y[normal], sigmoid(x[normal].astype(np.float64))) <= bound(target, 2, 2.5, 2.5)


@pytest.mark.parametrize(("low", "high", "step"), SPANS)
def test_exp_and_log1p_are_exact_to_two_units(target, low, high, step):
    """softplus(x) - x for x ≥ 0 and softplus(x) below are log(1 + exp(x)) by themselves; large and small alike."""
    x = floats(low, high, step)
    wide = x.astype(np.float64)
    expected = np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide)))
    normal = expected > 2e-38
    assert ulp_error(_native.softplus(x)[normal], expected[normal], "float32") <= 2


@pytest.mark.parametrize(
    ("low", "high", "step"),
    [*BINADES, (1e-6, 1, 997), (-1e-6, -1, 997), (2, 8, 101), (-2, -8, 101), (-8, -12.5, 101)],
)
def test_gelu_is_exact_to_a_few_units(target, low, high, step):
    """It is x times the normal distribution function, whose lower tail magnifies the rounding of x²."""
    x = floats(low, high, step)
    wide = x.astype(np.float64)
    assert ulp_error(_native.gelu(x), wide * normal_cdf(wide), "float32") <= bound(target, 2, 3, 4)


@pytest.mark.parametrize(("low", "high", "step"), SPANS)
def test_silu_is_exact_to_two_units(target, low, high, step):
    x = floats(low, high, step)
    wide = x.astype(np.float64)
    normal = sigmoid(wide) > 2e-38
    assert ulp_error(_native.silu(x)[normal], (wide * sigmoid(wide))[normal], "float32") <= 2


@pytest.mark.parametrize(("low", "high", "step"), [*BINADES[1::2], (-1e-38, -1, 997), (-2, -100, 997)])
def test_elu_is_exact_to_one_unit_also_near_zero(target, low, high, step):
    x = floats(low, high, step)
    expected = np.expm1(x.astype(np.float64))
    assert ulp_error(_native.elu(x), expected, "float32") <= 1
    assert ulp_error(_native.elu(x, alpha=0.3), 0.3 * expected, "float32") <= 2


def test_elu_keeps_subnormal_numbers(target):
    x = -np.ldexp(np.arange(1, 400, dtype=np.float32), -149)
    np.testing.assert_array_equal(bits(_native.elu(x)), bits(x))
    np.testing.assert_array_equal(bits(_native.leaky_relu(x, negative_slope=1)), bits(x))


@pytest.mark.parametrize(("low", "high", "step"), SPANS)
def test_mish_is_exact_to_three_units(target, low, high, step):
    x = floats(low, high, step)
    wide = x.astype(np.float64)
    expected = wide * np.tanh(np.log1p(np.exp(wide)))
    normal = sigmoid(wide) > 2e-38
    assert ulp_error(_native.mish(x)[normal], expected[normal], "float32") <= 3


def test_parameters_reach_every_lane_in_every_dtype(target):
    """Arrays of more than a vector, in dtypes that hold both results exactly."""
    for name, dtype in DTYPES.items():
        x = np.resize(np.array([-2.0, -1.0, 4.0]), (2, 37)).astype(dtype)
        wide = x.astype(np.float64)
        np.testing.assert_array_equal(_native.leaky_relu(x, negative_slope=0.25), np.where(wide > 0, wide, wide / 4))
        y = _native.hard_sigmoid(x, alpha=0.125, beta=0.75)
        np.testing.assert_array_equal(y.astype(np.float64), np.clip(wide / 8 + 0.75, 0, 1))
        assert_right("elu", _native.elu(x, alpha=-3), (x,), name, alpha=-3)
        assert_right("quick_gelu", _native.quick_gelu(x, alpha=0.5), (x,), name, alpha=0.5)


def test_exponentials_that_are_too_small_for_a_normal_number_are_not_lost(target):
    """Sigmoids and softmax weights of every size down to the least float32, correct to that."""
    x = np.linspace(-104.5, -86, 4001, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    least = 2.0**-149
    for operator in ("sigmoid", "softplus"):
        error = np.abs(getattr(_native, operator)(x) - expected)
        assert np.max(error / np.maximum(expected * 2**-22, least)) <= 1
    rows = np.stack([np.zeros_like(x), x], axis=-1)
    weights = _native.softmax(rows)[:, 1]
    assert np.max(np.abs(weights - expected) / np.maximum(expected * 2**-22, least)) <= 1


def test_zeros_keep_their_sign_and_infinities_their_meaning(target):
    zeros = np.array([-0.0, 0.0], np.float32)
    for operator in ("elu", "selu", "leaky_relu", "hard_swish"):
        np.testing.assert_array_equal(bits(getattr(_native, operator)(zeros)), bits(zeros))
    for operator in ("silu", "gelu", "quick_gelu", "mish", "hard_swish"):
        np.testing.assert_array_equal(bits(getattr(_native, operator)(zeros)), bits(zeros))
        large = np.array([-np.inf, np.inf, -1e30, 1e30, 3e38, np.nan], np.float32)
        expected = np.array([np.nan, np.inf, 0, 1e30, 3e38, np.nan], np.float32)
        np.testing.assert_array_equal(getattr(_native, operator)(large), expected)
    lowest = np.full((2, 5), -np.inf, np.float32)
    lowest[1, 2] = np.nan
    np.testing.assert_array_equal(_native.logsumexp(lowest), np.array([-np.inf, np.nan], np.float32))


def test_gelu_is_exact_on_both_sides_of_every_change_of_polynomial(target):
    """Near 0 |x| chooses among segments of 3/16, from 5.9 on of 9/32."""
    near = [3 / 16 * (k + 0.5) for k in range(32)]
    far = [5.75 + 9 / 32 * (k + 0.5) for k in range(32)]
    around = (np.array(near + far)[:, None] + np.linspace(-1e-5, 1e-5, 201)).ravel()
    around = around[around < 12.5].astype(np.float32)
    for x in (around, -around):
        wide = x.astype(np.float64)
        expected = wide * normal_cdf(wide)
        assert ulp_error(_native.gelu(x), expected, "float32") <= bound(target, 2, 3, 4)


# --- rounding to half types -------------------------------------------------------------------------------


def every_half(dtype):
    return np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])


def widened(x):
    with np.errstate(invalid="ignore"):  # signalling NaN
        return x.astype(np.float32)


@pytest.mark.parametrize("operator", UNARY)
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_rounded_correctly(target, dtype, operator):
    """All 65536, subnormal ones included: first side by side, then among numbers of usual size."""
    every = every_half(dtype)
    every = every[np.isfinite(widened(every))]
    expected = REFERENCES[operator](every)
    few = every[:: every.size // 1000]
    mixed = np.ones((few.size, 37), few.dtype)  # two vectors of 16 and a rest
    mixed[np.arange(few.size), np.arange(few.size) % 37] = few
    for x, of_x in ((every, expected), (mixed, REFERENCES[operator](mixed))):
        assert ulp_error(getattr(_native, operator)(x), of_x, dtype) <= 0.501


@pytest.mark.parametrize("dtype", HALVES)
def test_relu_keeps_the_bits_of_every_half_that_is_not_negative(target, dtype):
    every = every_half(dtype)
    expected = np.where(widened(every) <= 0, 0, every.view(np.uint16))  # NaN of either sign stays
    for start in (0, 1, 1000):  # other places in vectors, and a rest
        y = _native.relu(every[start:])
        np.testing.assert_array_equal(y.view(np.uint16), expected[start:])


def test_nan_stays_nan_in_half_types(target):
    for dtype in HALVES:
        x = every_half(dtype)
        x = x[np.isnan(widened(x))]
        for operator in UNARY:
            assert np.isnan(widened(getattr(_native, operator)(x))).all()
