"""Activations and softmax in native/gpu: vector functions against float64, every layout, and pieces of any length."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import support
from tensorops.kernels._gpu import activation, softmax
from tensorops.kernels._gpu.plans import Device, Operand, Plan, contiguous_strides
from tensorops.kernels.opencl import _launch
from tensorops.ops import activation as operators
from tensorops.testing import REFERENCES, assert_matches

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def x_normal_cdf(x):
    return 0.5 * x * _erfc(x / -math.sqrt(2))


# The largest errors that math.h states, in units of the last place, and the range for which it does
STATED = {
    "exp_of": (np.exp, 1.0, -87.0, 88.7),
    "exp_of_negative": (np.exp, 1.0, -87.0, 0.0),
    "expm1_of_negative": (np.expm1, 1.5, -18.0, 0.0),
    "log1p_unit": (np.log1p, 1.1, 0.0, 1.0),
    "tanh_of": (np.tanh, 1.75, -12.0, 12.0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.5, -87.0, 20.0),
    "gelu": (x_normal_cdf, 5.0, -12.5, 6.0),
}
UNARY = ("relu_squared", "silu", "gelu", "hard_sigmoid", "elu")
GATED = ("swiglu", "reglu")


class Unchecked:
    """An operator without checks, for a planner of a function that is none."""

    __name__ = "function"
    parameters = ("x",)

    def canonical(self, x):
        return {"x": x}

    def apply(self, planner, arguments):
        return planner(**arguments)


def run(planner, x):
    """Run a plan for an array on a device, as the OpenCL provider does."""
    return support.back(_launch.kernel_of(Unchecked(), planner)(x))


def there(x):
    return support.on_opencl(x)


def numbers(rng, least, most, count):
    """Return float32 of each sign within the limits, as many of each power of two."""
    size = np.exp2(-rng.integers(0, 13, count)) * (1 + rng.random(count)) / 2
    return np.where((rng.random(count) < 0.5) & (least < 0), least * size, most * size).astype(np.float32)


@pytest.mark.parametrize("function", STATED)
def test_vector_functions_have_the_stated_error(geometry, function, rng):
    reference, bound, least, most = STATED[function]
    x = numbers(rng, least, most, 2**17)
    expected = reference(x.astype(np.float64))
    error = np.abs(run(activation.planner(function), there(x)) - expected)
    worst = int(np.argmax(error / np.spacing(np.abs(expected.astype(np.float32)))))
    assert error[worst] <= bound * np.spacing(np.abs(np.float32(expected[worst]))), (x[worst], expected[worst])


@pytest.mark.parametrize(
    ("function", "values"),
    [
        ("exp_of", [(-np.inf, 0), (-110, 0), (-104, 0), (0, 1), (88.8, np.inf), (1e30, np.inf), (np.inf, np.inf)]),
        ("exp_of_negative", [(-np.inf, 0), (-1e30, 0), (-104, 0), (-100, np.exp(-100.0)), (-0.0, 1)]),
        ("expm1_of_negative", [(-np.inf, -1), (-1e30, -1), (-1e-30, -1e-30), (0, 0)]),
        ("log1p_unit", [(0, 0), (1e-30, 1e-30), (1, math.log(2))]),
        ("tanh_of", [(-np.inf, -1), (-1e30, -1), (1e-30, 1e-30), (0, 0), (30, 1), (np.inf, 1)]),
        ("sigmoid", [(-np.inf, 0), (-110, 0), (0, 0.5), (31, 1), (1e30, 1), (np.inf, 1)]),
        ("gelu", [(-np.inf, np.nan), (-20, 0), (0, 0), (1e30, 1e30), (np.inf, np.inf)]),
    ],
)
def test_vector_functions_beyond_their_range(geometry, function, values):
    """A lane does not depend on its neighbours, and NaN stays NaN."""
    x = np.array([at for at, _ in values] + [np.nan], np.float32)
    expected = np.array([value for _, value in values] + [np.nan])
    assert_matches(run(activation.planner(function), there(x)), expected, "float32", tolerance=2, scale_axis=())


def assert_computed(name, args, kwargs=None, *, taken=True):
    """Assert that an operator is right for arrays on an OpenCL device, and computed there by one launch."""
    kwargs = kwargs or {}
    operator = getattr(operators, name)
    arrays, options = there(args), there(kwargs)
    assert operator.explain(*arrays, **options).kernel == ("opencl" if taken else "generic")
    expected = REFERENCES[name](*args, **kwargs)
    axis = {"gelu": None, "hard_sigmoid": None, "log_softmax": -1, "logsumexp": None}.get(name, ())
    tolerance = 32 if name in ("softmax", "log_softmax", "logsumexp") else 8
    y = support.back(operator(*arrays, **options))
    assert_matches(y, expected, str(args[0].dtype), tolerance=tolerance, scale_axis=axis)


def layouts(xp, room):
    """Yield views of a three-dimensional array: dense in C order or not, with offsets, steps and reversed axes."""
    for index in (
        np.s_[:],
        np.s_[1:],
        np.s_[:, :, 1:],
        np.s_[::2, 1:, :65],
        np.s_[:, ::3, ::2],
        np.s_[::-1, ::-1, ::-1],
        np.s_[1, :, 3:4],
        np.s_[0, 0, ::2],
        np.s_[0, 0, 5],
        np.s_[:, 2:2],
    ):
        yield room[index]
    yield xp.permute_dims(room, (2, 0, 1))


@pytest.mark.costly(2)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", [*UNARY, *GATED])
def test_the_layout_makes_no_difference(geometry, name, dtype, rng):
    xp = support.require("pyopencl").xp
    support.on_opencl_held(dtype)
    operator = getattr(operators, name)
    rooms = [there(rng.standard_normal((5, 8, 131)).astype(dtype)) for _ in range(2 if name in GATED else 1)]
    for views in zip(*(layouts(xp, room) for room in rooms), strict=True):
        assert operator.explain(*views).kernel == "opencl"
        copies = [there(np.ascontiguousarray(support.back(view))) for view in views]
        np.testing.assert_array_equal(support.back(operator(*views)), support.back(operator(*copies)))
    gate_up = rooms[0]
    if name in GATED:  # both from one array, as from a fused projection
        half = gate_up.shape[-1] // 2
        args = gate_up[..., :half], gate_up[..., half : 2 * half]
        apart = tuple(np.ascontiguousarray(support.back(a)) for a in args)
        assert_computed(name, apart)
        np.testing.assert_array_equal(support.back(operator(*args)), support.back(operator(*map(there, apart))))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 4095, 4096, 4097, 8 * 1024 + 3, 70001, 2**20 + 5])
@pytest.mark.parametrize("step", [1, 2])
def test_every_element_of_pieces_of_any_length(geometry, length, step, rng):
    x = there(rng.standard_normal(length * step).astype(np.float32))[::step]
    assert_computed("silu", (support.back(x),))
    np.testing.assert_array_equal(support.back(operators.relu(x)), np.maximum(support.back(x), 0))


def device_of(kind, units, max_block=1024):
    return Device(kind=kind, units=units, lanes=32, local_bytes=2**16, max_block=max_block, float64=True)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_pieces_cover_rows_of_any_shape(kind, itemsize):
    """Every vector is in exactly one piece, and numbers of elements fit 32 bits."""
    lengths = (1, 3, 64, 65, 4095, 4096, 4097, 65537, 2**20 + 1, 2**31 - 2**16 - 1)
    for units in (1, 2, 132):
        for rows in (1, 2, 7, 4096, 2**20, 2**31, 2**40):
            for length in lengths:
                if rows * length > 2**42:  # no device has so many elements
                    continue
                g, span = activation.elements_geometry(device_of(kind, units), rows, length, itemsize)
                assert span == (g.kept or span // (g.threads * g.vec)) * g.threads * g.vec
                pieces = (length - 1) // span + 1
                assert (pieces - 1) * span < length <= pieces * span < 2**31
                assert pieces == 1 or rows * pieces < 2**32
                in_block = g.each * g.rows
                assert rows * pieces <= g.groups * in_block < rows * pieces + in_block
                assert g.block <= 1024


def test_softmax_of_long_rows_of_equal_and_of_small_terms(geometry, rng):
    """Whatever the length, the sum has few rounding errors; the largest term may be the last."""
    for n in (4099, 2**20):
        x = np.stack([np.full(n, 3.0), np.linspace(-20, 20, n), rng.standard_normal(n)]).astype(np.float32)
        for name in ("softmax", "log_softmax", "logsumexp"):
            assert_computed(name, (x,))


@pytest.mark.costly
@pytest.mark.parametrize("n", [300, 5, 40000])
def test_where_of_any_layout(geometry, n, rng):
    x = rng.standard_normal((2, 3, n)).astype(np.float32)
    mask = rng.random((2, 3, n)) < 0.5
    mask[1, 1] = False
    for where in (
        mask,
        mask[:, :1],
        mask[0, 0],
        mask[..., :1],
        mask[:, :, ::-1],
        np.array(True),
        mask[..., :0].any(-1)[..., None],
    ):
        for name in ("softmax", "log_softmax"):
            assert_computed(name, (x,), {"where": where})


@pytest.mark.costly
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_rows_across_memory(geometry, name, rng):
    """Each lane has a row of its own, whatever is in the others: special values, and none at all."""
    for shape, axis in (((300, 67), 0), ((3, 20, 33), 1), ((2, 3, 5, 40), (1, 2))):
        x = rng.standard_normal(shape).astype(np.float32) * 3
        special = x.copy()
        special[..., 0, 2], special[..., 0, 3], special[..., 0, 4] = np.nan, np.inf, -np.inf
        special[..., 5] = -np.inf
        for values in (x, special):
            assert_computed(name, (values,), {"axis": axis})
            if name == "logsumexp":
                continue
            mask = rng.random(shape) < 0.6
            mask[..., 7] = False
            for where in (mask, mask[..., :1], mask[:1]):
                shown = np.where(where, values, 0)  # the body's NaN would spread to what is left out
                assert_computed(name, (np.where(np.isfinite(shown), values, 1),), {"axis": axis, "where": where})


def test_results_of_another_dtype_are_computed_in_the_wider(geometry, rng):
    x = rng.standard_normal((7, 1001)) * 3
    for given, wanted in (
        ("float16", "float32"),
        ("float32", "float64"),
        ("float64", "float32"),
        ("float32", "float16"),
    ):
        held = x.astype(given)
        for name in ("softmax", "log_softmax", "logsumexp"):
            y = support.back(getattr(operators, name)(there(held), dtype=np.dtype(wanted)))
            half = {"float16": 2}.get(wanted, 32)
            axis = {"softmax": ()}.get(name, -1 if name == "log_softmax" else None)
            assert_matches(y, REFERENCES[name](held), wanted, tolerance=half, scale_axis=axis)


def without_float64(device):
    return dataclasses.replace(device, float64=False)


def operand(*shape, dtype="float32"):
    return Operand(dtype, shape, contiguous_strides(shape))


def logsumexp(device, x, **options):
    defaults = {"axis": 1, "keepdims": False, "where": None, "b": None, "return_sign": False, "dtype": None}
    return softmax.logsumexp(device, x, **(defaults | options))


@pytest.mark.parametrize(
    ("planned", "reason"),
    [
        (lambda d: activation.planner("silu")(d, operand(2**31)), "rows have 2147483648 elements, more than 2**31"),
        (lambda d: activation.planner("silu")(d, operand(3, dtype="int32")), "x has dtype int32"),
        (lambda d: activation.planner("silu")(without_float64(d), operand(3, dtype="float64")), "x has dtype float64"),
        (lambda d: softmax.softmax(d, operand(3, 4, 5), axis=(0, 2), where=None, dtype=None), "cannot be joined"),
        (lambda d: logsumexp(d, operand(2, 2**31)), "more than 2**31"),
        (lambda d: logsumexp(d, operand(2, 3), return_sign=True), "where, b or return_sign is given"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_what_is_refused_has_a_reason(kind, planned, reason):
    assert reason in planned(device_of(kind, 4))


def test_rows_with_far_elements_are_computed_while_they_are_few():
    for rows, few in ((32, True), (4096, False)):
        transposed = Operand("float32", (rows, 512), (1, rows))
        plan = softmax.softmax(device_of("gpu", 4), transposed, axis=-1, where=None, dtype=None)
        assert isinstance(plan, Plan) if few else "adjacent" in plan


def test_more_than_2_to_the_31_elements_are_rows():
    for kind in ("cpu", "gpu"):
        plan = activation.gated("silu")(device_of(kind, 4), operand(2**20, 4096), operand(2**20, 4096))
        assert isinstance(plan, Plan)
        (launch,) = plan.launches
        assert {type(argument) for argument in launch.arguments if not isinstance(argument, str)} == {
            np.int32,
            np.int64,
            np.float32,
        }
