"""Assertions of tensorops.testing: what passes and what does not, to the last unit."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tensorops.testing import DTYPES, assert_matches, ulp_error

inf, nan = np.inf, np.nan
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
