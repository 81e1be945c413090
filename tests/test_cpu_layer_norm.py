"""layer_norm in C++: how a row's moments are found, on every SIMD target.

That it is chosen, and agrees with the reference on all cases, is tested in `test_conformance`.
"""

from __future__ import annotations

import numpy as np
import pytest

import support
from tensorops import _providers
from tensorops.testing import DTYPES, REFERENCES, assert_matches

WHY_NOT = _providers.load("cpu")
if WHY_NOT:
    TARGETS = []
else:
    from tensorops.kernels.cpu import _native

    TARGETS = _native.targets()

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"cpu: {WHY_NOT}")


@pytest.fixture(params=TARGETS)
def target(request):
    """Every target that this machine can run, one after another."""
    in_use = _native.target()
    _native.use_target(request.param)
    yield request.param
    _native.use_target(in_use)


def assert_right(x, weight, bias, dtype):
    y = _native.layer_norm(x, weight, bias)
    assert y is not NotImplemented
    expected = REFERENCES["layer_norm"](x, weight, bias)
    assert_matches(y, expected, dtype, tolerance=2 if dtype in support.HALVES else 16, scale_axis=-1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_length_to_beyond_two_blocks(target, dtype, rng):
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
