"""Norms on OpenCL devices: rows of every length, of any stride, at the ends of the range and past the caches."""

from __future__ import annotations

import numpy as np
import pytest

import support
import tensorops as tp
from support import HALVES, normal
from tensorops.kernels._gpu import sources
from tensorops.kernels.opencl import _launch
from tensorops.testing import REFERENCES, assert_matches

DTYPES = ["float16", "float32", "float64"]


@pytest.fixture
def put(geometry):
    """Return NumPy arrays on the device, with strides if they have them."""
    xp = support.require("pyopencl").xp

    def onto(a):
        if a is None or a.flags.c_contiguous:
            return None if a is None else xp.asarray(support.on_opencl(a))
        order = sorted(range(a.ndim), key=lambda axis: -abs(a.strides[axis]))
        return xp.permute_dims(support.on_opencl(np.ascontiguousarray(a.transpose(order))), tuple(np.argsort(order)))

    return onto


def result(operator, *args, **kwargs):
    assert operator.explain(*args, **kwargs).kernel == "opencl"
    return operator(*args, **kwargs)


def tolerance_of(dtype):
    return 2 if dtype in HALVES else 16


def each(y):
    return y if isinstance(y, tuple) else (y,)


def check(put, name, arrays, *options, scale_axis=-1, **kwargs):
    """Compare a norm of arrays, of which some may be None, with the reference in float64."""
    dtype = arrays[0].dtype.name
    support.on_opencl_held(dtype)
    expected = REFERENCES[name](*arrays, *options, **kwargs)
    actual = result(getattr(tp, name), *map(put, arrays), *options, **kwargs)
    for y, right in zip(each(actual), each(expected), strict=True):
        assert_matches(np.asarray(y), right, dtype, tolerance=tolerance_of(dtype), scale_axis=scale_axis)
    return actual


def parameters(rng, n, dtype):
    return normal(rng, n, dtype=dtype), normal(rng, n, dtype=dtype)


@pytest.mark.costly(2)
@pytest.mark.dimensions
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 1), (70, 5), (33, 64), (9, 130), (3, 1024), (5, 4099), (3, 9001)], ids=str)
def test_rows_of_every_length(put, shape, dtype, rng):
    """In registers or read again, with and without a ragged end; more rows than fit the last block."""
    n = shape[-1]
    x, residual = normal(rng, *shape, dtype=dtype), normal(rng, *shape, dtype=dtype)
    weight, bias = parameters(rng, n, dtype)
    check(put, "rms_norm", (x, weight), 1e-5, weight_offset=0.5)
    check(put, "add_rms_norm", (x, residual, weight))
    check(put, "layer_norm", (x, weight, bias))
    check(put, "l2_norm", (x,))


@pytest.mark.parametrize("span", [1, 2, 3, 8, 15, 16, 17, 64, 300])
def test_channels_of_every_length(put, span, rng):
    """Channels begin anywhere in a vector, and several may share one."""
    x = normal(rng, 2, 12, span)
    weight, bias = parameters(rng, 12, "float32")
    for groups in (1, 3, 12):
        expected = REFERENCES["group_norm"](x, groups, weight, bias)
        y = result(tp.group_norm, put(x), groups, put(weight), put(bias))
        assert_matches(np.asarray(y), expected, "float32", tolerance=16, scale_axis=(1, 2))
    check(put, "instance_norm", (x, weight, bias))


@pytest.mark.parametrize("shape", [(4, 6, 5, 7), (4, 1, 9), (3, 20)], ids=str)
def test_channels_may_be_last(put, shape, rng):
    x = normal(rng, *shape)
    weight, bias = parameters(rng, shape[-1], "float32")
    along = tuple(range(1, len(shape) - 1))
    check(put, "instance_norm", (x, weight, bias), channel_axis=-1, scale_axis=along)


def test_groups_of_channels_that_are_apart_are_refused(put, rng):
    x = put(normal(rng, 2, 3, 4))
    explained = tp.group_norm.explain(x, 2, channel_axis=-1)
    assert explained.kernel == "generic"
    assert "the channels of a group are not next to each other" in explained.refused["opencl"]
    assert tp.group_norm.explain(x, 4, channel_axis=-1).kernel == "opencl"


@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_axis_may_be_anywhere_and_arrays_in_any_order(put, dtype, rng):
    x = normal(rng, 6, 100, 5, dtype=dtype)
    weight, bias = parameters(rng, 100, dtype)
    check(put, "rms_norm", (x, weight), axis=1, scale_axis=())
    check(put, "l2_norm", (x,), axis=0, scale_axis=())
    check(put, "layer_norm", (x, weight, bias), axis=1, scale_axis=1)
    turned = x.transpose(2, 0, 1)
    check(put, "rms_norm", (turned, weight), scale_axis=())
    check(put, "add_rms_norm", (turned, np.ascontiguousarray(turned), weight), scale_axis=())
    check(put, "layer_norm", (x, *(normal(rng, 100, 5, dtype=dtype) for _ in range(2))), axis=(1, 2), scale_axis=(1, 2))
    check(put, "l2_norm", (x,), axis=(0, 1, 2), scale_axis=())


@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 300, 70), (3, 100, 64), (5, 1000, 17)], ids=str)
def test_rows_across_memory(put, monkeypatch, shape, dtype, rng):
    """Each lane of a thread has a row; the last vector may be less than filled, and rows need not be alike."""
    support.on_opencl_held(dtype)
    asked = set()
    _launch.forget_calls()
    monkeypatch.setattr(sources, "program", _noting(sources.program, asked, "WIDTH"))
    axis, n = len(shape) - 2, shape[-2]
    x, residual = normal(rng, *shape, dtype=dtype), normal(rng, *shape, dtype=dtype)
    weight, bias = parameters(rng, n, dtype)
    check(put, "rms_norm", (x, weight), axis=axis, weight_offset=0.5, scale_axis=axis)
    check(put, "add_rms_norm", (x, residual, weight), axis=axis, scale_axis=axis)
    check(put, "l2_norm", (x,), axis=axis, scale_axis=axis)
    check(put, "layer_norm", (x, weight, bias), axis=axis, scale_axis=axis)
    of_channels = parameters(rng, shape[-1], dtype)
    check(put, "instance_norm", (x, *of_channels), channel_axis=-1, scale_axis=axis)
    assert asked
    assert None not in asked


def test_extreme_rows_across_memory(put, rng):
    x = normal(rng, 100, 90)
    x[:, ::5] *= np.float32(1e30)
    x[:, 1::7] *= np.float32(1e-30)
    x[:, 11] = 0
    x[:, 12] = np.float32(3e38)
    x[:9, 13] += 1000
    x[:, 14] += 100
    x[3, 40], x[5, 89] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        for name in ("rms_norm", "layer_norm", "l2_norm"):
            for eps in (1e-6, 1e-60):
                check(put, name, (x,), eps=eps, axis=0, scale_axis=0)


def test_rows_far_apart_are_left_to_the_body_on_a_processor(put, geometry):
    x = put(np.zeros((300, 800), "float32"))
    explained = tp.rms_norm.explain(x[:, ::20], axis=0)
    assert explained.kernel == "opencl"
    wide = put(np.zeros((300, 32 * 300), "float32"))[:, ::32]
    explained = tp.rms_norm.explain(wide)
    assert explained.kernel == ("generic" if geometry.kind == "cpu" else "opencl")
    if geometry.kind == "cpu":
        assert "far apart in memory" in explained.refused["opencl"]
    assert tp.rms_norm.explain(wide[:100]).kernel == "opencl"


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_parameters_may_be_float32(put, dtype, rng):
    support.on_opencl_held(dtype)
    x = normal(rng, 5, 200, dtype=dtype)
    weight, bias = parameters(rng, 200, "float32")
    check(put, "rms_norm", (x, weight))
    check(put, "layer_norm", (x, weight, bias))
    check(put, "layer_norm", (x, weight.astype(dtype), bias))


def test_wider_parameters_are_left_to_the_body(put, rng):
    support.on_opencl_held("float64")
    x, weight = put(normal(rng, 5, 20)), put(normal(rng, 20, dtype="float64"))
    assert tp.rms_norm.explain(x, weight).refused["opencl"] == "weight has dtype float64, and x a narrower one"


@pytest.mark.parametrize("n", [40, 1000, 9001])
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "l2_norm"])
def test_extreme_rows_beside_usual_ones(put, name, n, rng):
    """Rows of one block need not take the same path, and those of eps alone are as good as others."""
    x = normal(rng, 21, n)
    x[::5] *= np.float32(1e30)
    x[1::7] *= np.float32(1e-30)
    x[11] = 0
    x[12, :] = np.float32(3e38)
    for eps in (1e-6, 1e-60, 0.0) if name == "l2_norm" else (1e-6, 1e-60):
        check(put, name, (x,), eps=eps)


def test_nan_and_infinity_stay_in_their_rows(put, rng):
    x = normal(rng, 40, 100)
    x[3, 5], x[7, 99], x[20, 0] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        check(put, "rms_norm", (x,))
        check(put, "layer_norm", (x,))
        check(put, "l2_norm", (x,))


@pytest.mark.parametrize("shift", [0.5, 30, 1000])
def test_a_row_may_begin_far_from_its_mean(put, shift, rng):
    for n in (100, 4099, 9001):
        x = rng.standard_normal((6, n))
        x[:, : min(50, n // 20)] += shift
        x[1] *= -1
        x[2] += 100
        check(put, "layer_norm", (x.astype("float32"),))


def test_a_large_mean_hurts_no_more_than_its_own_rounding(put, rng):
    for n in (1000, 9001):
        x = (rng.standard_normal((5, n)) + 1e4).astype("float32")
        unit = np.finfo(x.dtype).eps * np.abs(x).max() / x.astype(np.float64).std(axis=-1).min()
        y = np.asarray(result(tp.layer_norm, put(x)))
        np.testing.assert_allclose(y, REFERENCES["layer_norm"](x), rtol=0, atol=2 * unit)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("n", [4096, 4100])
def test_results_larger_than_the_caches(put, geometry, n, dtype, rng, monkeypatch):
    """A processor writes them past its caches, but not from addresses that its stores do not take."""
    if geometry.kind == "gpu":
        pytest.skip("only a processor has such stores")
    asked = set()
    _launch.forget_calls()
    monkeypatch.setattr(sources, "program", _noting(sources.program, asked, "STREAM"))
    x = normal(rng, 9 * 2**20 // (n * np.dtype(dtype).itemsize), n, dtype=dtype)
    weight, bias = parameters(rng, n, dtype)
    check(put, "add_rms_norm", (x, x[::-1].copy(), weight))
    check(put, "layer_norm", (x, weight, bias))
    assert asked == {1}


def _noting(program, asked, macro):
    def noting(source, defines, *preludes):
        asked.add(dict(defines).get(macro))
        return program(source, defines, *preludes)

    return noting


def test_nothing_is_computed_of_nothing(put):
    for shape in ((0, 5), (5, 0)):
        x = put(np.zeros(shape, "float32"))
        for operator in (tp.rms_norm, tp.layer_norm, tp.l2_norm):
            assert result(operator, x).shape == shape
        assert [y.shape for y in result(tp.add_rms_norm, x, x)] == [shape, shape]
    assert result(tp.group_norm, put(np.zeros((0, 4, 3), "float32")), 2).shape == (0, 4, 3)
