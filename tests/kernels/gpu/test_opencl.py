"""The kernels in native/gpu on OpenCL devices: every case, with the geometry of a processor and with that of a GPU.

And what PyOpenCL's users may do with their arrays, queues and contexts, for which `rms_norm` and `add_rms_norm` stand.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import gc
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.testing import REFERENCES, assert_matches
from tensorops.testing.conformance import subjects

row = support.require("pyopencl")

import pyopencl as cl  # noqa: E402
import pyopencl.array as cla  # noqa: E402

from array_api_pyopencl import _devices, _layout  # noqa: E402
from tensorops.kernels.opencl import _drivers, _launch  # noqa: E402

OPERATORS = {operator.__name__: operator for operator in PLANNERS}
DTYPES = ("float32", "float16", "float64")


def some_cases():
    """Return each operator with one geometry of a GPU in one dtype.

    `tests/test_conformance.py` has all of them with a processor's, the emulated GPU runs some cases of each, and there
    are tests of each family.
    """
    for i, name in enumerate(OPERATORS):
        yield name, ("gpu", "gpu-subgroups")[i % 2], DTYPES[i % 3]
    yield next(iter(OPERATORS)), "gpu-subgroups", "float16"  # the first test stands for PoCL, too, which skips it


def assert_computed(name, dtype, choose):
    """Compute the chosen cases; each is a program that drivers for processors compile for seconds."""
    if dtype not in support.dtypes_of("pyopencl"):
        pytest.skip(f"the device holds no {dtype}")
    (subject,) = subjects("opencl", operators=[name], dtypes=[dtype], implementations=["opencl"])
    outcomes = dataclasses.replace(subject, cases=choose(subject.cases), invalid=()).run()
    failed = [f"{outcome.case}: {outcome.message}" for outcome in outcomes if outcome.status == "failed"]
    assert not failed, "\n".join(failed)
    assert any(outcome.status == "passed" for outcome in outcomes)


@pytest.mark.parametrize(("name", "geometry", "dtype"), list(some_cases()), indirect=["geometry"])
def test_some_cases(geometry, name, dtype):
    assert_computed(name, dtype, lambda cases: cases[:1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("geometry", ["processor", "gpu", "gpu-subgroups"], indirect=True)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_case(geometry, name, dtype):
    assert_computed(name, dtype, lambda cases: cases)


# --- what users may do -------------------------------------------------------------------------------------


X = np.linspace(-2.0, 2.0, 60, dtype=np.float32).reshape(3, 20)
W = np.linspace(0.5, 1.5, 20, dtype=np.float32)
EXPECTED = REFERENCES["rms_norm"](X, W)


def ran(function, *args, **options):
    """Return the result of an operator that OpenCL's kernel computed."""
    with tp.trace() as log:
        result = function(*args, **options)
    assert log.kernels == {function.__name__: {"opencl"}}
    return result


def same(result, expected=EXPECTED, dtype="float32"):
    assert_matches(support.back(result), expected, dtype, tolerance=8)


def test_the_launch_is_the_only_one(queue, monkeypatch):
    """Nothing but the kernel is enqueued, for raw arrays and for wrappers, on the long path and on the short one."""
    launched = []

    enqueued = cl.enqueue_nd_range_kernel

    def enqueue(queue, kernel, *args):
        launched.append(kernel.function_name)
        return enqueued(queue, kernel, *args)

    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    _launch.forget_calls()
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", enqueue)
    monkeypatch.setattr(_devices.device_of_queue(queue), "enqueue", functools.partial(enqueue, queue))
    for a, b in ((x, w), (row.xp.asarray(x), row.xp.asarray(w))):
        for _ in range(3):
            launched.clear()
            same(tp.rms_norm(a, b))
            assert launched == ["rms_norm"]


def test_unusual_calls(queue):
    kernel = _launch.kernel_of(tp.rms_norm, PLANNERS[tp.rms_norm])
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    other = cl.CommandQueue(queue.context)
    odd = cla.to_device(queue, X)
    odd.shape = tuple(map(np.int64, odd.shape))
    empty = cla.empty(queue, (0, 20), np.float32)
    for args, expected in (((x, cla.to_device(other, W)), EXPECTED), ((odd, w), EXPECTED), ((empty, w), X[:0])):
        same(kernel(*args), expected)
    for args, kwargs in (
        ((x, w), {"eps": [1]}), ((x,), {"axis": 5}), ((X, w), {}), (([x], w), {}), ((x, w, 1, 2, 3, 4), {}),
        ((x.with_queue(None),), {}),
    ):  # fmt: skip
        assert kernel(*args, **kwargs) is NotImplemented


def test_layouts_that_are_gone_are_not_found_again(queue):
    """Keys hold addresses: whatever has them must stay, or another layout could take its place."""
    host = np.arange(64, dtype=np.float32)
    x = row.xp.asarray(cla.to_device(queue, host))
    for n in range(2, 32):
        layout = _layout.Layout(x._layout.dtype, (n,), (1,), n)  # the only reference, as if forgotten by all others
        y = tp.rms_norm(row.xp.Array(x._buffer, layout, x._device))
        del layout
        same(y, REFERENCES["rms_norm"](host[n : 2 * n]))


WITHOUT = """
import sys
sys.modules["tensorops.kernels.cpu._native"] = None
import warnings
warnings.simplefilter("ignore")  # of the driver's compiler
import array_api_pyopencl as xp
import tensorops as tp

x = xp.ones((3, 20), dtype=xp.float32)
with tp.trace() as log:
    for y in (tp.rms_norm(x), tp.rms_norm(x.cl_array)):
        assert abs(float(xp.sum(xp.asarray(y))) - 60) < 1e-3
assert log.kernels == {"rms_norm": {"opencl"}}
"""


def test_without_a_compiled_module(platform):
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_results_of_raw_arrays_are_pyopencls_own(queue):
    x = cla.to_device(queue, X)
    y = ran(tp.rms_norm, x, cla.to_device(queue, W))
    made = cla.to_device(queue, X)  # by the constructor
    assert vars(y).keys() == vars(made).keys()
    for name in ("shape", "strides", "dtype", "size", "nbytes", "offset", "queue", "context", "ndim"):
        assert getattr(y, name) == getattr(made, name), name
    assert y.flags.c_contiguous
    same((y + x * 2).get(), EXPECTED + 2 * X)
    same(y.reshape(60).get(), EXPECTED.reshape(60))
    same(y[1].copy().get(), EXPECTED[1])
    y.fill(3.0)
    assert (y.get() == 3.0).all()
    assert (x.get() == X).all()


def test_another_queue_waits_for_a_result(queue):
    """PyOpenCL's operations wait for the events of their operands, so results have some."""
    x = cla.to_device(queue, np.tile(X, (4096, 1)))
    y = ran(tp.rms_norm, x)
    assert [event.command_queue for event in y.events] == [queue]
    other = cl.CommandQueue(queue.context)
    same((y.with_queue(other) * 1.0).get()[-3:], REFERENCES["rms_norm"](X))


@pytest.mark.parametrize("results", [1, 2])
def test_events_of_arrays_are_waited_for(queue, results):
    """Of each array, whichever of its events comes last; by the short way to run a plan, and the general one."""
    gates = [cl.UserEvent(queue.context) for _ in range(2)]
    x, w = cla.zeros(queue, X.shape, X.dtype), cla.to_device(queue, np.zeros_like(W))
    run = (lambda: tp.rms_norm(x, w)) if results == 1 else (lambda: tp.add_rms_norm(x, x, w)[0])
    for _ in range(2):
        run()
    queue.finish()
    for gate, array, host in zip(gates, (x, w), (X if results == 1 else X / 2, W), strict=True):
        other = cl.CommandQueue(queue.context)
        array.add_event(cl.enqueue_copy(other, array.base_data, host, is_blocking=False, wait_for=[gate]))
        array.add_event(cl.enqueue_marker(queue))
    y = run()
    for gate in gates:
        gate.set_status(cl.command_execution_status.COMPLETE)
    same(y)


def test_a_result_is_in_a_wrapper_if_an_argument_is(queue):
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    for _ in range(3):
        for a in (x, row.xp.asarray(x)):
            for b in (w, row.xp.asarray(w)):
                y = tp.rms_norm(a, b)
                assert type(y) is (cla.Array if type(a) is type(b) is cla.Array else row.xp.Array)
                same(y)


def test_an_argument_given_twice_does_not_stand_for_two(queue):
    v, w = cla.to_device(queue, W[::-1].copy()), cla.to_device(queue, W)
    for weight, host in ((w, W), (v, W[::-1]), (w, W)):
        same(ran(tp.rms_norm, w, weight), REFERENCES["rms_norm"](W, host))
        same(ran(tp.rms_norm, x=w, weight=weight), REFERENCES["rms_norm"](W, host))


def test_names_and_positions_find_the_same_kernel(queue):
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    for args, options in (
        ((x, w), {}),
        ((x,), {"weight": w}),
        ((), {"weight": w, "x": x}),
        ((x, w, 1e-6), {"axis": 1}),
    ):
        same(ran(tp.rms_norm, *args, **options))
    same(ran(tp.rms_norm, x, None), REFERENCES["rms_norm"](X))
    for axis, flag in ((1, True), (0, False)):  # equal as dict keys
        with pytest.raises(TypeError, match="rms_norm: axis is"):
            tp.rms_norm(x, axis=flag)
        assert tp.rms_norm(x, axis=axis).shape == X.shape


def test_views_are_read_as_they_are(queue):
    host = np.linspace(-3.0, 3.0, 5 * 7 * 24, dtype=np.float32).reshape(5, 7, 24)
    x = row.xp.asarray(host, device=queue)
    w = row.xp.asarray(np.linspace(1, 2, 48, dtype=np.float32), device=queue)
    for index in (np.s_[1:4, ::2, 3:23], np.s_[::-1, :, ::-1], np.s_[:, 1:6, ::3], np.s_[2:2]):
        part = host[index]
        n = part.shape[-1]
        same(
            ran(tp.rms_norm, x[index], w[2 * n - 1 : n - 1 : -1]),
            REFERENCES["rms_norm"](part, w.numpy()[2 * n - 1 : n - 1 : -1]),
        )
    same(ran(tp.rms_norm, x.mT, axis=1), REFERENCES["rms_norm"](host.swapaxes(1, 2), axis=1))


@pytest.mark.parametrize("shape", [(0, 20), (3, 0), (0,), (2, 0, 3)])
def test_arrays_without_elements(queue, shape):
    for x in (cla.zeros(queue, shape, np.float32), row.xp.zeros(shape, dtype=np.float32, device=queue)):
        y = ran(tp.rms_norm, x)
        assert type(y) is type(x)
        assert (y.shape, y.dtype) == (shape, np.float32)
        assert support.back(y).shape == shape


def test_arrays_on_several_queues_of_a_context(queue):
    other = cl.CommandQueue(queue.context)
    w = cla.to_device(other, np.zeros_like(W))
    for k in range(20):
        w = w * 0 + np.float32(k)  # still being computed on its own queue
        y = tp.rms_norm(cla.to_device(queue, X), w)
        assert y.queue == queue
        same(y, REFERENCES["rms_norm"](X, np.full_like(W, k)))
    explanation = tp.rms_norm.explain(cla.to_device(queue, X), w)
    assert explanation.kernel == "opencl"


def test_arrays_of_two_contexts_are_refused_by_their_names(queue):
    context = cl.Context([queue.device])
    elsewhere = cl.CommandQueue(context)
    x, w = cla.to_device(queue, X), cla.to_device(elsewhere, W)
    names = [f"queue {q.int_ptr:#x}" for q in (queue, elsewhere)]
    reason = tp.rms_norm.explain(x, w).refused["opencl"]
    assert "different OpenCL contexts" in reason
    assert all(name in reason for name in names)
    for _ in range(2):
        with pytest.raises(ValueError, match="different OpenCL contexts") as caught:
            tp.rms_norm(x, w)
        assert all(name in str(caught.value) for name in names)
    same(tp.rms_norm(cla.to_device(elsewhere, X), w))


def test_a_queue_without_order_is_refused_in_words(queue):
    context = queue.context
    loose = cl.CommandQueue(context, properties=cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)
    x = cla.to_device(loose, X)
    assert "out of order" in tp.rms_norm.explain(x).refused["opencl"]
    for _ in range(2):
        with pytest.raises(ValueError, match="executes out of order"):
            tp.rms_norm(x)
    with pytest.raises(ValueError, match="has no queue"):
        tp.rms_norm(x.with_queue(None))


# --- devices that lack something -----------------------------------------------------------------------------


@pytest.fixture
def lacking(queue, monkeypatch):
    """A function that takes data types from a user's device."""

    def lacking(*names):
        device = _devices.device_of_queue(queue)
        monkeypatch.setitem(vars(device), "dtypes", frozenset(d for d in device.dtypes if d.name not in names))
        return device

    return lacking


def test_float16_needs_no_arithmetic_in_it(queue, lacking):
    """Devices without cl_khr_fp16 load and store halves nevertheless, and kernels compute in float32."""
    x, w = cla.to_device(queue, X.astype(np.float16)), cla.to_device(queue, W)
    lacking("float16")
    same(ran(tp.rms_norm, x, w), REFERENCES["rms_norm"](X.astype(np.float16), W), "float16")
    with pytest.raises(TypeError, match="has no float16"):
        tp.rms_norm.generic(x, w)


def test_float16_is_copied_without_arithmetic_in_it(queue, lacking):
    """Views are read and copied on devices without cl_khr_fp16 as well, as integers."""
    host = np.arange(60, dtype=np.uint16).view(np.float16).reshape(3, 20)  # subnormals
    x = row.xp.asarray(cla.to_device(queue, host))
    lacking("float16")
    for index in (np.s_[:], np.s_[:, ::3], np.s_[::-1, 4:]):
        view = row.xp.asarray(x[index], copy=True)
        support.assert_identical(x[index].numpy(), host[index])
        support.assert_identical(view.numpy(), host[index])
    with pytest.raises(TypeError, match="has no float16"):
        x + x


def test_float64_needs_a_device_that_computes_in_it(queue, lacking):
    x = cla.to_device(queue, X.astype(np.float64)) if row.xp.float64 in _devices.device_of_queue(queue).dtypes else None
    if x is None:
        pytest.skip("the device has no float64")
    lacking("float64")
    with pytest.raises(TypeError, match="has no float64"):
        tp.rms_norm(x)
    same(ran(tp.rms_norm, cla.to_device(queue, X)), REFERENCES["rms_norm"](X))


def test_what_the_compiler_refuses_the_body_computes(queue, monkeypatch):
    compiled = []
    build = _devices.Device._compile

    def compile_(device, source):
        compiled.append(source)
        return build(device, source)

    broken = "__kernel void rms_norm(__global float *x) { undeclared_name = 1; }"
    _launch.forget_calls()
    monkeypatch.setattr(sources, "program", lambda *_: broken)
    monkeypatch.setattr(_devices.Device, "_compile", compile_)
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    for _ in range(3):
        with tp.trace() as log:
            same(tp.rms_norm(x, w))
        assert log.kernels["rms_norm"] == {"generic"}
        same(tp.rms_norm(x[1:, :], w), EXPECTED[1:])
    assert [source.endswith(broken) for source in compiled].count(True) == 1  # no call tries again, whatever its shapes
    reason = tp.rms_norm.explain(x, w).refused["opencl"]
    assert "undeclared_name" in reason
    assert "\n" not in reason
    with tp.set_backend("opencl", providers=["opencl"]), pytest.raises(tp.KernelRefusedError, match="undeclared_name"):
        tp.rms_norm(x, w)
    monkeypatch.undo()
    _launch.forget_calls()
    same(ran(tp.rms_norm, x, w))


def test_a_driver_is_tried_in_a_process_of_its_own_before_it_compiles_a_kernel(queue, monkeypatch, tmp_path):
    code = {"abort": "import os; os.abort()", "hang": "import time; time.sleep(60)", "lie": "sys.exit('wrong sums')"}
    words = {"abort": "was ended by signal 6", "hang": "gave no answer within 0.5 seconds", "lie": "exited with 1"}
    compiled = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    for trial in words:
        with monkeypatch.context() as patch:
            patch.setattr(_drivers, "_reasons", {})
            patch.setattr(_drivers, "_TRIAL", code[trial])
            patch.setattr(_drivers, "SECONDS", 0.5 if trial == "hang" else 60)
            patch.setattr(_launch, "_step", lambda *args: compiled.append(args))
            _launch.forget_calls()
            with tp.trace() as log:
                same(tp.rms_norm(x, w))
            assert log.kernels["rms_norm"] == {"generic"}
            assert compiled == []
            reason = tp.rms_norm.explain(x, w).refused["opencl"]
            assert words[trial] in reason
            assert "to fix it: " in reason
    _launch.forget_calls()
    monkeypatch.setattr(_drivers, "_reasons", {})
    same(ran(tp.rms_norm, x, w))  # a driver that works
    monkeypatch.setattr(_drivers, "_reasons", {})
    monkeypatch.setattr(_drivers, "_TRIAL", code["abort"])
    assert _drivers.why_not(queue.device) == ""  # it is remembered, and not tried again
    (remembered,) = tmp_path.rglob("opencl-drivers.json")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for damaged in ("[" * 100_000, "3", " " * (_drivers.MOST_BYTES + 1)):
        remembered.write_text(damaged)
        monkeypatch.setattr(_drivers, "_reasons", {})
        assert _drivers.why_not(queue.device) == ""
        assert [queue.device.name.strip()] == [name for _, name, *_ in json.loads(remembered.read_text())]
    _launch.forget_calls()


def test_a_program_that_lists_platforms_before_it_imports_tensorops_is_told_so(tmp_path):
    """Then PoCL computes, though Intel's driver is installed. The trial has the same drivers, and fails."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libintelocl.so").touch()  # installed, unless the real one is
    code = """
import pyopencl as cl
try:
    platforms = cl.get_platforms()
except cl.Error:
    platforms = []
import tensorops
from tensorops.kernels.opencl import _drivers
_drivers._TRIAL = "import pyopencl; print(pyopencl.get_platforms(), file=sys.stderr); sys.exit(7)"
for device in [d for p in platforms if "Portable" in p.name for d in p.get_devices()][:1]:
    print(_drivers.why_not(device))
"""
    done = support.python(code, OCL_ICD_VENDORS="", PYTHONUSERBASE=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    if not done.stdout:
        pytest.skip("there is no PoCL that PyOpenCL finds by itself")
    assert "exited with 7 ([<pyopencl.Platform 'Portable Computing Language'" in done.stdout
    assert (
        "; to fix it: import tensorops before the program first asks PyOpenCL for platforms or a context" in done.stdout
    )
    assert "or set OCL_ICD_VENDORS=/" in done.stdout
    assert "libintelocl.so: Intel's driver, which is installed, then computes" in done.stdout


def test_compilers_have_no_warnings(queue, monkeypatch):
    """Drivers such as PoCL print them to standard error, where users wonder about them."""
    logs = []

    def compile_(device, source):
        program = cl.Program(device.context, source)
        program.build(device.build_options, devices=[device.cl_device], cache_dir=False)  # compiled, not found
        logs.append(program.get_build_info(device.cl_device, cl.program_build_info.LOG))
        return program

    monkeypatch.setattr(_devices, "_programs", {})
    monkeypatch.setattr(_devices.Device, "_compile", compile_)
    _launch.forget_calls()
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)  # Intel's driver says that it is done
        for function in (tp.rms_norm, tp.rms_norm.generic):
            same(function(x, w))
        for function in (tp.softmax, tp.gelu, tp.log_softmax, lambda x: tp.sample(x, temperature=0)):
            function(cla.to_device(queue, np.zeros((3, 64), np.float32)))
    assert len(logs) > 5
    # The specification asks for pragmas of extensions; `HINT` keeps Intel's compiler from vectorizing once more.
    meant = ("does not require pragma", "Kernel can't be vectorized")
    said = [line for log in logs for line in log.splitlines() if "warning" in line]
    assert [line for line in said if not any(words in line for words in meant)] == []


# --- memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [1, 2])
def test_running_out_of_memory_leaks_nothing(queue, monkeypatch, fails):
    """The first or the second array of the result cannot be allocated."""
    x = cla.to_device(queue, X)
    device = _devices.device_of_queue(queue)
    tp.add_rms_norm(x, x)
    gc.collect()
    before = device.pool.active_bytes
    asked = []
    with pytest.raises(MemoryError) as caught:
        device.allocate(2**62)
    error = caught.value.__cause__  # PyOpenCL's own

    class Full:
        """A pool with no memory left."""

        def __init__(self, pool):
            self.pool = pool

        def __getattr__(self, name):
            return getattr(self.pool, name)

        def allocate(self, nbytes):
            asked.append(nbytes)
            if len(asked) == fails:
                raise error
            return self.pool.allocate(nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(device, "pool", Full(device.pool))
        with pytest.raises(MemoryError, match=r"cannot allocate \d+ bytes"):
            tp.add_rms_norm(x, x)
    assert len(asked) == fails
    error.__traceback__ = None  # which holds the frames that it passed
    gc.collect()
    assert device.pool.active_bytes == before
    same(tp.add_rms_norm(x, x)[1], 2 * X)


def test_calls_hold_no_memory(queue):
    x, w = cla.to_device(queue, X), cla.to_device(queue, W)
    device = _devices.device_of_queue(queue)
    tp.rms_norm(x, w)
    queue.finish()
    gc.collect()
    before = device.pool.active_bytes
    for _ in range(100):
        tp.rms_norm(x, w)
    assert device.pool.active_bytes == before


# --- threads, processes, programs on disk --------------------------------------------------------------------


def test_threads_that_call_at_once(queue):
    """Each with arrays of its own: arguments that another thread sets must not reach this one's launch."""
    hosts = [X + np.float32(k) for k in range(4)]
    arrays = [cla.to_device(queue, host) for host in hosts]
    start = threading.Barrier(len(hosts))

    def work(x):
        start.wait()
        return [tp.rms_norm(x) for _ in range(200)]

    with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
        for host, results in zip(hosts, pool.map(work, arrays), strict=True):
            expected = REFERENCES["rms_norm"](host)
            for y in results:
                same(y, expected)


FORKED = """
import os, sys, threading, warnings
import numpy as np
import array_api_pyopencl as xp
import tensorops as tp
warnings.simplefilter("ignore")  # later Pythons warn of fork with threads; what is tested is that it works all the same

x = xp.ones((3, 20), dtype=xp.float32)
assert float(xp.sum(tp.rms_norm(x))) > 59
held, go = threading.Event(), threading.Event()

def hold():
    with x.device.lock:
        held.set()
        go.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:  # its copy of the lock is held by a thread that it has not; drivers themselves may wait for theirs
    os._exit(0 if x.device.lock.acquire(timeout=10) else 1)
go.set()
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_of_fork_waits_for_no_thread_of_its_parent(platform):
    done = support.python(FORKED)
    assert done.stdout.strip() == "0", done.stderr


CACHED = """
import numpy as np, pyopencl.array as cla, pyopencl as cl
import array_api_pyopencl as xp
import tensorops as tp
y = tp.rms_norm(xp.ones((3, 20), dtype=xp.float32))
print(tp.rms_norm.explain(y).kernel)
"""


def test_programs_are_kept_on_disk(queue, tmp_path):
    from pyopencl.characterize import has_src_build_cache

    if has_src_build_cache(queue.device):
        pytest.skip("the driver itself keeps programs, so PyOpenCL does not")

    def run():
        done = support.python(CACHED, XDG_CACHE_HOME=str(tmp_path), PYOPENCL_NO_CACHE="0")
        assert done.stdout.strip() == "opencl", done.stderr
        return {path: path.stat().st_mtime_ns for path in Path(tmp_path).rglob("*") if path.name == "binary"}

    first = run()
    assert first
    assert run() == first
