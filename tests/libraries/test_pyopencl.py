"""Operators on PyOpenCL arrays: where results are stored, and which arrays must not be mixed."""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.benchmarks.measuring import wait_for
from tensorops.testing import REFERENCES, assert_matches

row = support.require("pyopencl")

import pyopencl as cl  # noqa: E402
import pyopencl.array as cla  # noqa: E402

X = np.linspace(-2.0, 2.0, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(0.5, 1.5, 4, dtype=np.float32)
EXPECTED = REFERENCES["rms_norm"](X, W)


pytestmark = pytest.mark.usefixtures("platform")


def same(result, expected=EXPECTED):
    assert_matches(support.back(result), expected, "float32", tolerance=8)


def test_a_raw_array_gives_a_raw_array_on_its_queue(queue):
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    with tp.trace() as log:
        y = tp.rms_norm(x, w)
    assert type(y) is cla.Array
    assert y.queue == queue
    assert (y.shape, y.dtype) == (X.shape, X.dtype)
    same(y)
    np.testing.assert_array_equal(y.get(), support.back(y))
    assert (log[0].kernel, log[0].library, log[0].transfers) == ("opencl", "pyopencl", ())
    np.testing.assert_array_equal(x.get(), X)
    np.testing.assert_array_equal(w.get(), W)


def test_results_can_be_computed_with_as_pyopencl_does(queue):
    x = cla.to_device(queue, X)
    y, residual = tp.add_rms_norm(x, x)
    same((2 * y + residual).get(), 2 * REFERENCES["rms_norm"](2 * X) + 2 * X)


def test_slices_and_transposes_are_taken_as_they_are(queue):
    x = cla.to_device(queue, X)
    same(tp.rms_norm(x[1:, :], cla.to_device(queue, W)), EXPECTED[1:])
    same(tp.rms_norm(x.T, axis=0), REFERENCES["rms_norm"](X).T)
    same(tp.silu(x[:, 1:3]), REFERENCES["silu"](X[:, 1:3]))


def test_wrappers_give_wrappers(queue):
    x, w = (row.xp.asarray(cla.to_device(queue, a)) for a in (X, W))
    for result in (tp.rms_norm(x, w), tp.rms_norm(x, w.cl_array), tp.rms_norm(x.cl_array, w)):
        assert type(result) is row.xp.Array
        assert result.device.queue == queue
        same(result)
    assert type(tp.rms_norm(x.cl_array, w.cl_array)) is cla.Array


def test_functions_of_the_namespace_take_raw_arrays(queue):
    xp, x = row.xp, cla.to_device(queue, X)
    assert tp.get_namespace(x) is xp
    for result, expected in (
        (xp.exp(x), np.exp(X)),
        (xp.sum(x, axis=0), X.sum(0)),
        (xp.concat([x, xp.asarray(x)], axis=1), np.concatenate([X, X], axis=1)),
        (xp.clip(x, min=cla.to_device(queue, W)), np.maximum(X, W)),
        (xp.zeros_like(x), np.zeros_like(X)),
        (xp.astype(x, xp.int32), X.astype(np.int32)),
        (xp.asarray(x) + x, X + X),
        (x + xp.asarray(x), X + X),
        (xp.linalg.matmul(x, xp.asarray(x).T), X @ X.T),
        (xp.fft.fft(xp.astype(x, xp.complex64)), np.fft.fft(X).astype(np.complex64)),
    ):
        assert type(result) is xp.Array
        assert result.device.queue == queue
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)
    grown = xp.asarray(np.ones((3, 4), np.float32), device=queue)
    grown += x
    grown[0, :] = cla.to_device(queue, W)
    np.testing.assert_array_equal(grown.numpy(), np.concatenate([W[None], (X + 1)[1:]]))


def test_several_queues_of_a_context(queue):
    other = cl.CommandQueue(queue.context)
    w = cla.to_device(other, W)
    for _ in range(3):
        w = w * 1.0  # still being computed on its own queue
        y = tp.rms_norm(cla.to_device(queue, X), w)
        assert y.queue == queue
        same(y)
        assert tp.silu(w).queue == other


def test_arrays_of_two_contexts_are_refused(queue):
    context = cl.Context([queue.device])
    elsewhere = cl.CommandQueue(context)
    x, w, up = cla.to_device(queue, X), cla.to_device(elsewhere, W), cla.to_device(elsewhere, X)
    for call in (lambda: tp.rms_norm(x, w), lambda: tp.linear(x, w[None, :]), lambda: tp.swiglu(x, up)):
        with pytest.raises(ValueError, match=r"the arrays are of different OpenCL contexts"):
            call()


def test_explain_names_what_would_run(queue):
    x = cla.to_device(queue, X)
    explanation = tp.rms_norm.explain(x)
    assert (explanation.kernel, explanation.library, explanation.refused) == ("opencl", "pyopencl", {})
    with tp.set_backend("opencl"):
        explanation = tp.rms_norm.explain(X)
    assert (explanation.kernel, explanation.backend) == ("opencl", "opencl")


def test_arrays_come_home_to_their_queue(queue):
    x = cla.to_device(queue, X)
    with tp.set_backend("numpy"):
        y = tp.silu(x)
        z = tp.silu(row.xp.asarray(x))
    assert (type(y), y.queue) == (cla.Array, queue)
    assert (type(z), z.device.queue) == (row.xp.Array, queue)
    same(y, REFERENCES["silu"](X))


def test_other_arrays_meet_an_array_in_its_own_context(queue):
    x = cla.to_device(queue, X)
    with tp.set_backend("opencl"):
        y, z = tp.rms_norm(x, W), tp.rms_norm(X, cla.to_device(queue, W))
    assert (type(y), y.queue) == (cla.Array, queue)
    assert type(z) is np.ndarray
    same(y)
    same(z)


def test_to_backend_takes_arrays_there_and_back():
    x = tp.to_backend(X, "opencl")
    assert type(x) is cla.Array
    assert x.queue == row.xp.default_device().queue
    assert tp.to_backend(x, "opencl") is x
    np.testing.assert_array_equal(tp.to_backend(x, "numpy"), X)
    for dtype in ("bool", "uint8", "int64", "float64", "complex64"):
        a = np.asarray([[0, 1], [1, 0]], dtype=dtype)
        back = tp.to_backend(tp.to_backend(a.T, "opencl"), "numpy")
        assert back.dtype == a.dtype
        np.testing.assert_array_equal(back, a.T)


def test_measured_results_are_waited_for(queue):
    x = cla.to_device(queue, np.ones((1000, 1000), np.float32))
    y = (tp.linear(tp.linear(x, x), x), None)
    last = cl.enqueue_marker(queue)
    wait_for(y)
    assert last.command_execution_status == cl.command_execution_status.COMPLETE


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_the_device_does_not_hold_is_refused(dtype):
    if dtype in {held.name for held in row.xp.default_device().dtypes}:
        pytest.skip(f"the device has {dtype}")
    a = tp.testing.cast(X.astype(np.float64), dtype)
    with pytest.raises(TypeError, match=rf"has no {dtype}|holds no {dtype}"):
        tp.to_backend(a, "opencl")
    with tp.set_backend("opencl"), pytest.raises(TypeError, match=rf"^silu: x: .*no {dtype}"):
        tp.silu(a)


def test_a_user_of_other_arrays_does_not_import_pyopencl():
    done = support.python(
        "import sys, numpy as np, tensorops as tp\n"
        "tp.rms_norm(np.ones((2, 3), dtype=np.float32))\n"
        "tp.set_backend('numpy')\n"
        "print(sorted(m for m in sys.modules if m.startswith(('pyopencl', 'array_api_pyopencl'))))"
    )
    assert done.stdout.strip() == "[]", done.stderr


NO_DRIVER = """
import pyopencl as cl
def get_platforms():  # what the loader answers where it finds no driver
    raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")
cl.get_platforms = get_platforms
import numpy as np, tensorops as tp
print(tp.is_backend_available("opencl"), tp.silu(np.zeros(1)).tolist())
try:
    tp.set_backend("opencl")
except tp.BackendUnavailableError as error:
    print(error)
import array_api_pyopencl as xp
print(xp.devices())
"""


def test_a_machine_without_a_device_is_told_so():
    done = support.python(NO_DRIVER)
    assert done.returncode == 0, done.stderr
    available, message, devices = done.stdout.strip().splitlines()
    assert (available, devices) == ("False [0.0]", "()")
    assert message.startswith("backend 'opencl' is not available: ")
    assert "RuntimeError: no OpenCL device was found" in message
    assert "pocl-binary-distribution" in message
