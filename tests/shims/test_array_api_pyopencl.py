"""The Array API over PyOpenCL: the standard's requirements compared with NumPy, and OpenCL specifics."""

import functools
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

cl = pytest.importorskip("pyopencl", exc_type=ImportError)
cla = pytest.importorskip("pyopencl.array")

import array_api_pyopencl as xp  # noqa: E402
import opencl_drivers  # noqa: E402
import support  # noqa: E402
import tensorops  # noqa: E402
from array_api_pyopencl import _layout, _reductions, _sorting_functions  # noqa: E402

if not xp.devices():
    pytest.skip("no OpenCL device was found", allow_module_level=True)

DTYPES = list(xp.__array_namespace_info__().dtypes().values())
# Each kernel is compiled for each type, which takes most of the time here: few types, where all are alike.
SOME = [np.dtype(n) for n in ("int8", "float32", "complex64")]
FLOATS = [d for d in DTYPES if d.kind == "f"]
COMPLEX = [d for d in DTYPES if d.kind == "c"]


def values(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype.kind == "c" else real).astype(dtype)


def assert_equal(x, expected, rtol=0.0):
    expected = np.asarray(expected)
    assert isinstance(x, xp.Array)
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(x.numpy(), expected, rtol=rtol, atol=rtol)


pytestmark = pytest.mark.usefixtures("platform")


# ------------------------------------------------------------------------------------------- pyopencl.array


def test_several_results_are_a_tuple(queue):
    """As the standard says from 2025.12 on, of devices as well."""
    a, b = (xp.asarray(values(shape, "float32"), device=queue) for shape in ((2, 2), (2,)))
    for arrays, count in (
        (xp.broadcast_arrays(a, b), 2),
        (xp.meshgrid(b, b, b), 3),
        (xp.unstack(a), 2),
        (xp.nonzero(a), 2),
    ):
        assert type(arrays) is tuple
        assert [type(array) for array in arrays] == [xp.Array] * count
    assert type(xp.__array_namespace_info__().devices()) is tuple


def test_a_raw_array_is_shared_and_comes_back(queue):
    raw = cla.to_device(queue, values((3, 4), "float32"))
    x = xp.asarray(raw)
    assert x.cl_array.base_data is raw.base_data
    assert x.device.queue == queue
    x[1, :] = 5.0
    assert (raw.get()[1] == 5.0).all()
    y = (x * 2.0 + x).cl_array
    assert type(y) is cla.Array
    assert y.queue == queue
    np.testing.assert_array_equal(y.get(), raw.get() * np.float32(2) + raw.get())


def test_a_slice_of_a_raw_array_keeps_its_offset_and_strides(queue):
    host = values((6, 8), "int32")
    raw = cla.to_device(queue, host)
    x = xp.asarray(raw[2:, 1:5])
    assert x.offset == raw[2:, 1:5].offset
    assert_equal(x + 1, host[2:, 1:5] + 1)
    assert_equal(xp.asarray(x.cl_array) + 1, host[2:, 1:5] + 1)


def test_views_are_found_again_by_indices_of_the_same_kinds(queue):
    """What was found once for an index must not answer for another one that is equal as a key of a dict."""
    host = values((4, 6), "float32")
    x = xp.asarray(host, device=queue)
    for _ in range(2):
        for key in (
            1,
            -1,
            np.s_[1:],
            np.s_[1:3, ::-2],
            np.s_[..., 2],
            np.s_[None, 1, :],
            (),
            np.s_[:, 1:1],
            np.s_[1, 1],
        ):
            assert_equal(x[key], host[key])
        for key in (True, np.s_[1, True]):
            with pytest.raises(IndexError):
                x[key]
        for key in (np.s_[1.0:], np.s_[1.0:3, ::-2]):
            with pytest.raises(TypeError):
                x[key]
        with pytest.raises(IndexError, match="out of bounds"):
            x[4]
        x[1:3, ::-2] = 0.0
        assert_equal(x[1:3, ::-2], np.zeros((2, 3), np.float32))
        x[1:3, ::-2] = xp.asarray(host[1:3, ::-2].copy(), device=queue)
        assert_equal(x, host)


def test_functions_and_operators_take_raw_arrays(queue):
    host = values((3, 4), "float32") + np.float32(1)
    raw, x = cla.to_device(queue, host), xp.asarray(cla.to_device(queue, host))
    for y, expected in (
        (xp.add(raw, raw), host + host),
        (xp.add(raw, 2.0), host + np.float32(2)),
        (xp.negative(raw), -host),
        (xp.where(x > 1.0, raw, x), host),
        (xp.sum(raw, axis=0), host.sum(0)),
        (xp.argmax(raw, axis=1), host.argmax(1)),
        (xp.reshape(raw, (4, 3)) @ raw, host.reshape(4, 3) @ host),
        (xp.concat([raw, x]), np.concatenate([host, host])),
        (xp.sort(raw, axis=0), np.sort(host, axis=0)),
        (xp.take(raw, cla.to_device(queue, np.array([2, 0])), axis=1), host[:, [2, 0]]),
        (xp.astype(raw, xp.int32), host.astype(np.int32)),
        (xp.zeros_like(raw), np.zeros_like(host)),
        (x + raw, host + host),
        (raw + x, host + host),
        (xp.linalg.svdvals(raw), np.linalg.svd(host, compute_uv=False)),
    ):
        assert_equal(y, expected, 1e-5)
        assert y.device.queue == queue
    assert xp.reshape(raw, (12,)).cl_array.base_data is raw.base_data
    x += raw
    x[0, :] = raw[1]
    assert_equal(x, np.concatenate([host[1:2], 2 * host[1:]]))


def _functions():
    chapters = {"": xp, "linalg.": xp.linalg, "fft.": xp.fft}
    found = {f"{prefix}{n}": f for prefix, c in chapters.items() for n, f in vars(c).items() if not n.startswith("_")}
    return {name: f for name, f in found.items() if inspect.isfunction(f) and f.__module__.startswith(xp.__name__)}


def test_no_function_takes_arrays_of_other_libraries():
    refused = []
    for name, function in _functions().items():
        parameters = inspect.signature(function).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind != p.KEYWORD_ONLY]
        first = needed[0].name if needed else ""
        if first not in ("x", "x1", "arrays", "condition") or name == "from_dlpack":
            continue
        for other in (np.eye(3), [[1.0, 2.0]]):
            given = [other if p.name in ("x", "x1", "x2", "condition") else 1 for p in needed]
            if first == "arrays":
                given = [other, other] if needed[0].kind == inspect.Parameter.VAR_POSITIONAL else [(other, other)]
            with pytest.raises(TypeError, match=r"expected an array of array_api_pyopencl|none of the arguments is an"):
                function(*given)
        refused.append(name)
    assert len(refused) > 150


def test_every_function_says_what_it_does():
    for name, function in _functions().items():
        first = (function.__doc__ or "").partition("\n")[0]
        assert first[:1].isupper(), name
        assert first.endswith("."), name


def test_results_of_views_come_back_as_views(queue):
    host = values((4, 6), "float32")
    x = xp.asarray(cla.to_device(queue, host))
    back = x.T[1:, ::2].cl_array
    assert back.base_data is x.cl_array.base_data
    assert_equal(xp.asarray(back) * 1.0, host.T[1:, ::2])


def test_empty_and_zero_dimensional_raw_arrays(queue):
    assert xp.asarray(cla.zeros(queue, (0, 3), np.float32)).shape == (0, 3)
    assert float(xp.asarray(cla.to_device(queue, np.float32(3).reshape(())))) == 3.0
    assert xp.zeros((0, 3)).cl_array.shape == (0, 3)
    assert xp.sum(xp.asarray(2.5)).cl_array.get() == 2.5


def test_a_raw_array_without_a_queue_is_refused(queue):
    raw = cla.zeros(queue, 3, np.float32).with_queue(None)
    with pytest.raises(ValueError, match="has no queue"):
        xp.asarray(raw)


def test_two_queues_of_one_context(queue):
    other = cl.CommandQueue(queue.context)
    host = values(1 << 16, "float32")
    x, y = (xp.asarray(cla.to_device(q, host)) for q in (queue, other))
    for _ in range(5):
        y = y + 1.0
        z = x + y
        assert z.device.queue == queue
        assert_equal(z, host + y.numpy())


def test_two_contexts_do_not_mix(queue):
    x = xp.ones(3)
    y = xp.ones(3, device=queue)
    for function in (xp.add, xp.matmul, lambda a, b: xp.concat([a, b]), lambda a, b: xp.where(a > 0, a, b)):
        with pytest.raises(ValueError, match=r"different OpenCL contexts.*to_device"):
            function(x, y)
    assert_equal(x + y.to_device(x.device), np.full(3, 2.0))


def test_each_platform_has_its_device(platform):
    found = xp.__array_namespace_info__().devices()
    assert [d.cl_device for d in found] == [d for p in cl.get_platforms() for d in p.get_devices()]
    assert len({d.context for d in found}) == len(found)
    assert xp.default_device().cl_device.platform.name.strip() == platform.name
    assert xp.ones(3).device.cl_device == xp.default_device().cl_device


def test_contexts_are_held_until_a_device_holds_them(monkeypatch):
    """Whatever the driver does: Intel's queues do not keep their context alive."""
    from array_api_pyopencl import _devices

    made, gone = [], []

    class Context(cl.Context):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(id(self))

        def __del__(self):
            gone.append(id(self))

    def device_of_queue(queue):
        assert made
        assert not gone
        return _devices.Device(queue)

    monkeypatch.setattr(cl, "Context", Context)
    monkeypatch.setattr(_devices, "device_of_queue", device_of_queue)
    for device in _devices._find_devices.__wrapped__():
        assert device.context.devices == [device.cl_device]


def test_a_queue_whose_context_is_gone_says_so():
    queue = cl.CommandQueue(cl.Context([xp.default_device().cl_device]))
    try:
        held = queue.context
    except cl.LogicError:  # as Intel's driver answers
        with pytest.raises(ValueError, match=r"context of the command queue is gone.*keep a reference to the pyopencl"):
            xp.ones(2, device=queue)
    else:
        assert xp.ones(2, device=queue).device.context == held


POCL = "Portable Computing Language"


def test_several_devices():
    """In a process of its own; PoCL can be told to show the processor twice."""
    pocl = next((driver for driver in opencl_drivers.DRIVERS if driver.name == POCL and not driver.reason), None)
    if pocl is None:
        pytest.skip("only PoCL shows one device twice")
    kind = pocl.device.partition("-")[0]
    environment = pocl.environment | {"POCL_DEVICES": f"{kind} {kind}", "PYOPENCL_CTX": "Portable:1"}
    code = """
import array_api_pyopencl as xp
first, second = xp.__array_namespace_info__().devices()
assert first != second and first.context != second.context
assert xp.default_device() is second
assert xp.ones(3).device is second and xp.ones(3, device=first).device is first
x, y = xp.arange(3, device=first), xp.arange(3)
assert xp.zeros_like(x).device is first and (x + 1).device is first and xp.asarray(x, device=second).device is second
assert (x.to_device(second) + y).numpy().tolist() == [0, 2, 4]
assert (xp.from_dlpack(x, device=second) + y).numpy().tolist() == [0, 2, 4]
try:
    x + y
except ValueError as error:
    assert "different OpenCL contexts" in str(error)
else:
    raise AssertionError("mixed")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_out_of_order_queue_is_refused(queue):
    mode = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    with pytest.raises(ValueError, match="out of order"):
        xp.ones(3, device=cl.CommandQueue(queue.context, properties=mode))


def test_devices_are_named_in_several_ways(queue):
    device = xp.default_device()
    assert device in xp.__array_namespace_info__().devices()
    assert xp.ones(2, device=device.cl_device).device == device
    assert xp.ones(2, device=queue).device == xp.Device(queue)
    assert xp.ones(2, device=queue).device != device
    with pytest.raises(TypeError, match="device is 'gpu'"):
        xp.ones(2, device="gpu")


def test_no_memory_left_is_a_memory_error(queue):
    limit = queue.device.max_mem_alloc_size
    with pytest.raises(MemoryError, match="cannot allocate"):
        xp.empty(limit, dtype=xp.float32, device=queue)


def test_memory_that_nobody_uses_is_given_back(queue):
    device = xp.Device(queue)
    device.most_held = 16 << 20
    for megabytes in range(2, 30, 2):  # sizes for none of which the pool has a buffer yet
        x = xp.ones((megabytes << 18,), dtype=xp.float32, device=device)
        assert device.pool.active_bytes >= x.nbytes
        assert device.pool.managed_bytes <= 2 * x.nbytes + device.most_held
        del x
        assert device.pool.active_bytes == 0


def test_calls_leave_nothing_behind(queue):
    device = xp.Device(queue)
    x = xp.ones((64,), device=device)
    y = x + x * 2.0
    plans, held = len(device.plans), device.pool.managed_bytes
    for _ in range(1000):
        y = x + x * 2.0
    assert (len(device.plans), device.pool.active_blocks) == (plans, 2)
    assert device.pool.managed_bytes <= held + 2 * y.nbytes  # sizes are rounded up
    assert_equal(y, np.full(64, 3.0))


def test_a_device_without_double_precision(queue, monkeypatch):
    device = xp.Device(queue)
    device.__dict__["dtypes"] = frozenset(np.dtype(n) for n in ("bool", "int32", "int64", "float32", "complex64"))
    info = xp.__array_namespace_info__()
    assert "float64" not in info.dtypes(device=device)
    assert info.default_dtypes(device=device)["real floating"] == xp.float32
    assert xp.zeros(2, device=device).dtype == xp.float32
    assert xp.asarray([1.5, 2.5], device=device).dtype == xp.float32
    assert xp.zeros(2, dtype=float, device=device).dtype == xp.float32
    assert xp.full(2, 1, dtype=complex, device=device).dtype == xp.complex64
    assert_equal(xp.asarray([1, 2], device=device) / xp.asarray([3, 0], device=device), np.float32([1 / 3, np.inf]))
    for make in (
        lambda: xp.zeros(2, dtype=xp.float64, device=device),
        lambda: xp.asarray(np.zeros(2), device=device),
        lambda: xp.astype(xp.zeros(2, device=device), xp.float64),
        lambda: xp.asarray([1j], dtype=xp.complex128, device=device),
    ):
        with pytest.raises(TypeError, match=r"OpenCL device .* has no (float64|complex128)"):
            make()


@pytest.mark.parametrize(
    ("extensions", "double_fp_config", "missing"),
    [
        ("cl_khr_fp64 cl_khr_fp16", 63, set()),
        ("cl_khr_fp64", 63, {"float16"}),
        ("cl_khr_fp16", 0, {"float64", "complex128"}),
        ("cl_khr_global_int32_base_atomics", 0, {"float16", "float64", "complex128"}),
    ],
)
def test_data_types_follow_the_extensions(queue, extensions, double_fp_config, missing):
    device = xp.Device(queue)
    device.cl_device = SimpleNamespace(extensions=extensions, double_fp_config=double_fp_config, name="fake")
    info = xp.__array_namespace_info__()
    standard = set(info.dtypes()) | {"float64", "complex128"}
    assert set(info.dtypes(device=device)) == standard - missing
    for name in ("float16", "float64", "complex128"):
        if name in missing:
            with pytest.raises(TypeError, match=f"'fake' has no {name}"):
                device.require(np.dtype(name))
        else:
            assert device.require(np.dtype(name)) == name


def test_numbers_of_programs_do_not_grow_with_shapes(queue):
    from array_api_pyopencl import _devices

    device = xp.Device(queue)
    (xp.ones((3, 5), device=device) + xp.ones((5,), device=device)).numpy()
    before = len(_devices._programs)
    for n in range(6, 20):
        (xp.ones((3, n), device=device) + xp.ones((n,), device=device)).numpy()
    assert len(_devices._programs) == before


def test_threads_share_plans():
    x = xp.asarray(values(1000, "float32"))
    expected = x.numpy() * np.float32(3) + x.numpy()

    def work(_):
        for _ in range(50):
            np.testing.assert_array_equal((x * 3.0 + x).numpy(), expected)

    support.in_threads(work, range(4))


def test_threads_share_what_is_found_and_compiled(monkeypatch):
    """All at once ask for devices, for queues' devices and for a kernel that no one has compiled."""
    from array_api_pyopencl import _devices

    context = cl.Context([xp.devices()[0].cl_device])
    queues = [cl.CommandQueue(context) for _ in range(3)]
    compiled = []
    compile_ = _devices.Device._compile
    monkeypatch.setattr(_devices.Device, "_compile", lambda self, text: compiled.append(text) or compile_(self, text))
    platforms = _devices._platforms
    monkeypatch.setattr(_devices, "_platforms", lambda: time.sleep(0.05) or platforms())  # so that others come
    monkeypatch.setattr(_devices, "_find_devices", functools.cache(_devices._find_devices.__wrapped__))
    barrier = threading.Barrier(8)
    found, results = [], []

    def work(_):
        barrier.wait()
        found.append(xp.devices())
        results.extend(xp.asinh(xp.full(5, 2.0, dtype=xp.float32, device=q)).numpy().tolist() for q in queues)

    support.in_threads(work, range(barrier.parties))
    assert all(f is found[0] for f in found)
    assert len(found) == barrier.parties
    assert results == [[pytest.approx(np.arcsinh(2.0), rel=1e-6)] * 5] * (len(queues) * barrier.parties)
    assert len(compiled) == len(set(compiled)) == 2


@pytest.mark.parametrize("name", ["Portable Computing Language", "Another OpenCL"])
def test_a_failure_of_pocls_compiler_names_what_helps(name):
    """As on processors that are newer than it."""
    from array_api_pyopencl import _devices

    class OnDriver:
        platform = SimpleNamespace(name=name)

    class Refusing(_devices.Device):
        def _compile(self, source):
            raise cl.RuntimeError("clBuildProgram failed: BUILD_PROGRAM_FAILURE - error: unknown target CPU 'znver5'")

    device = Refusing(xp.devices()[0].queue)
    device.cl_device = OnDriver()
    for _ in range(2):  # the second one is remembered
        with pytest.raises(cl.RuntimeError, match="znver5") as caught:
            device.program("__kernel void nothing() {}")
    said = " ".join(getattr(caught.value, "__notes__", ()))
    assert ("import tensorops before the program first asks PyOpenCL for platforms" in said) == (name[0] == "P")
    assert said.count("OCL_ICD_VENDORS") == (name[0] == "P")


def test_a_trace_shows_what_is_computed_on_the_host():
    x = xp.asarray([[2.0, 0.0], [0.0, 4.0]])
    with tensorops.trace() as log:
        xp.linalg.inv(x)
        xp.fft.fft(x, n=1)
        xp.linalg.eigh(x)
        xp.linalg.matrix_norm(x), xp.sum(x @ x), xp.sort(x)
    assert {r.kernel for r in log} == {"host"}
    assert [r.operator for r in log] == ["linalg.inv", "fft.fft", "linalg.eigh"]
    assert {r.operator for r in log} < set(xp.host_functions)
    moved = "pyopencl → numpy 32 bytes; numpy → pyopencl 32 bytes"
    assert str(log[1]) == f"fft.fft: host on pyopencl, float64(2, 2) [{moved}]"
    assert [t.nbytes for t in log[2].transfers] == [32, 16, 32]
    xp.linalg.inv(x)
    assert len(log) == 3


def test_host_functions_are_all_those_that_say_so():
    said = {
        f"{chapter.__name__.rpartition('.')[2]}.{name}"
        for chapter in (xp.linalg, xp.fft)
        for name in chapter.__all__
        if "on the host" in (getattr(chapter, name).__doc__ or "")
    }
    assert said == set(xp.host_functions)


# ------------------------------------------------------------------------------------------------- DLPack


def test_dlpack_shares_the_memory_of_a_cpu_device():
    x = xp.asarray(values((3, 4), "float32"))
    if x.__dlpack_device__()[0] != 1:
        with pytest.raises(BufferError, match="cannot be exported"):
            x.__dlpack__()
        return
    host = np.from_dlpack(x.T)
    expected = x.numpy().T
    del x
    gc.collect()
    xp.zeros((3, 4), dtype=xp.float32).numpy()  # would take the memory, were it not kept
    np.testing.assert_array_equal(host, expected)
    y = xp.ones(3)
    np.from_dlpack(y)[1] = 7.0
    assert_equal(y, [1.0, 7.0, 1.0])
    copied = np.from_dlpack(y, copy=True)
    copied[0] = 9.0
    assert float(y[0]) == 1.0


def test_dlpack_of_memory_that_the_host_does_not_see(monkeypatch):
    from array_api_pyopencl import _dlpack

    monkeypatch.setattr(_dlpack, "_is_host_memory", lambda x: False)
    x = xp.asarray([1.0, 2.0])
    assert x.__dlpack_device__()[0] == 4
    with pytest.raises(BufferError, match=r"dl_device=\(1, 0\)"):
        x.__dlpack__()
    with pytest.raises(BufferError, match="copy=False"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    np.testing.assert_array_equal(np.from_dlpack(x, device="cpu"), [1.0, 2.0])


def test_shared_virtual_memory(queue):
    if not queue.device.svm_capabilities & cl.device_svm_capabilities.COARSE_GRAIN_BUFFER:
        pytest.skip("the device has no shared virtual memory")
    from pyopencl.tools import SVMAllocator

    host = values((4, 5), "float32")
    allocator = SVMAllocator(queue.context, flags=cl.svm_mem_flags.READ_WRITE, queue=queue)
    raw = cla.to_device(queue, host, allocator=allocator)
    x = xp.asarray(raw)
    assert x.cl_array.base_data is raw.base_data
    assert_equal(x + 1.0, host + np.float32(1))
    assert_equal(x[1:], host[1:])
    x[:, 1] = 2.0
    host[:, 1] = 2.0
    np.testing.assert_array_equal(raw.get(), host)
    assert_equal(x.to_device(xp.default_device()), host)
    if x.__dlpack_device__()[0] == 1:
        np.from_dlpack(x[1:, ::2])[0] = 9.0
        host[1, ::2] = 9.0
        assert_equal(x, host)


def test_from_dlpack():
    host = values((2, 3), "int16")
    assert_equal(xp.from_dlpack(host), host)
    with pytest.raises(BufferError, match="copy=False"):
        xp.from_dlpack(host, copy=False)
    x = xp.asarray(host)
    assert xp.from_dlpack(x) is x


# ----------------------------------------------------------------------------------------- views and layouts


@pytest.mark.parametrize(
    "key",
    [
        np.s_[1],
        np.s_[-1, ::-1],
        np.s_[:, None, 2],
        np.s_[..., ::-2],
        np.s_[1:1],
        np.s_[::2, 1:, 3:0:-1],
        np.s_[5:2:-1],
        (),
    ],
    ids=repr,
)
def test_views_share_memory(key):
    host = values((4, 5, 6), "int32")
    x = xp.asarray(host)
    assert_equal(x[key] + 0, host[key] + 0)
    assert x[key].cl_array.base_data is x.cl_array.base_data
    x[key] = 77
    host[key] = 77
    assert_equal(x, host)


def test_functions_that_do_not_copy():
    host = values((4, 1, 6), "float32")
    x = xp.asarray(host)
    for view, expected in (
        (xp.flip(x), np.flip(host)),
        (xp.permute_dims(x, (2, 0, 1)), host.transpose(2, 0, 1)),
        (xp.broadcast_to(x, (2, 4, 5, 6)), np.broadcast_to(host, (2, 4, 5, 6))),
        (xp.squeeze(x, 1), host[:, 0]),
        (xp.reshape(x, (2, 12)), host.reshape(2, 12)),
        (xp.reshape(xp.flip(x), (24,), copy=False), np.flip(host).reshape(24)),
        (xp.linalg.diagonal(x, offset=1), np.diagonal(host, 1, -2, -1)),
        (x.mT, host.swapaxes(-1, -2)),
    ):
        assert view._buffer is x._buffer
        assert_equal(view + 0.0, expected)
    with pytest.raises(ValueError, match="must be copied"):
        xp.reshape(xp.permute_dims(x, (2, 0, 1)), (24,), copy=False)


def test_collapse_merges_what_every_operand_steps_through_alike():
    strides = _layout.contiguous_strides((2, 3, 4))
    assert _layout.collapse((2, 3, 4), strides) == ([24], [[1]])
    assert _layout.collapse((2, 3, 4), strides, (0, 4, 1)) == ([2, 12], [[12, 1], [0, 1]])
    assert _layout.collapse((2, 1, 4), (9, 5, 2)) == ([2, 4], [[9, 2]])
    assert _layout.collapse((), ()) == ([], [[]])


@pytest.mark.parametrize("ndim", [1, 2, 3, 4, 5, 9])
def test_operands_of_many_dimensions(ndim):
    shape = tuple(2 + i % 2 for i in range(ndim))
    a, b = values(shape, "float32", 1), values(shape, "float32", 2)
    x, y = xp.asarray(a), xp.permute_dims(xp.asarray(b.T.copy()), tuple(range(ndim))[::-1])
    assert_equal(x - y, a - b)
    assert_equal(xp.flip(x) * y, np.flip(a) * b)


@pytest.mark.parametrize("shape", [(255, 33), (256, 16), (257, 15), (600, 70)], ids=str)
def test_a_transposed_operand(shape):
    a, b = values(shape, "float32", 1), values(shape[::-1], "float32", 2)
    assert_equal(xp.asarray(a).T + xp.asarray(b), a.T + b)
    assert_equal(xp.asarray(b).T - xp.asarray(a), b.T - a)


@pytest.mark.costly(2)
@pytest.mark.parametrize("shape", [(3, 5, 700), (70, 40, 33), (17, 300, 20), (2, 3, 40, 9), (1, 2, 9000)], ids=str)
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (0, 2, 1), (2, 1, 0)], ids=str)
def test_strided_operands_in_groups_of_every_shape(shape, order):
    order = (*order, *range(3, len(shape)))
    host = values(shape, "int32")
    x = xp.permute_dims(xp.asarray(host), order)
    expected = host.transpose(order)
    assert_equal(x + 1, expected + 1)
    assert_equal(x[..., ::-2] * x[:1, ..., ::-2], expected[..., ::-2] * expected[:1, ..., ::-2])
    row, column = expected[..., :1], expected[:1, :1]
    assert_equal(x * xp.asarray(row.copy()) - xp.asarray(column.copy()), expected * row - column)
    y = xp.zeros(expected.shape, dtype=xp.int32)
    y[:, 1:] = x[:, 1:]
    assert_equal(y[:, 1:], expected[:, 1:])
    assert not xp.any(y[:, 0])


def test_in_place_operators_write_through_views():
    host = values((6, 6), "float32")
    x = xp.asarray(host.copy())
    view = x[1:5, ::2]
    view += 1.0
    view *= x[2:6, 1::2]
    host[1:5, ::2] += np.float32(1)
    host[1:5, ::2] *= host[2:6, 1::2]
    assert_equal(x, host)
    x[1:] += x[:-1]  # reads what it writes
    host[1:] += host[:-1].copy()
    assert_equal(x, host)
    with pytest.raises(ValueError, match="does not broadcast"):
        x[0] += x
    with pytest.raises(TypeError, match="cannot hold"):
        x += xp.ones((6, 6), dtype=xp.float64)


# ---------------------------------------------------------------------------------------------- arithmetic


@pytest.mark.costly
@pytest.mark.parametrize("dtype", [np.dtype(bool), *SOME], ids=str)
def test_arithmetic(dtype):
    a, b = values((3, 7), dtype, 1), values((7,), dtype, 2)
    x, y = xp.asarray(a), xp.asarray(b)
    assert_equal(x == y, a == b)
    assert_equal(xp.where(x == y, x, y), np.where(a == b, a, b))
    if dtype.kind == "b":
        assert_equal(x & y, a & b)
        assert_equal(~x, ~a)
        return
    rtol = 1e-6 if dtype in (np.float32, np.complex64) else 1e-14
    for name in ("add", "subtract", "multiply"):
        assert_equal(getattr(xp, name)(x, y), getattr(np, name)(a, b), rtol)
    assert_equal(x * 2 - 1, a * dtype.type(2) - dtype.type(1), rtol)
    assert_equal(1 - x, dtype.type(1) - a, rtol)
    assert_equal(-x, -a)
    if dtype.kind in "fc":
        assert_equal(x / y, a / b, 10 * rtol)
    if dtype.kind in "iu":
        np.testing.assert_array_equal((x // y).numpy()[:, b != 0], (a[:, b != 0] // b[b != 0]))
        np.testing.assert_array_equal((x % y).numpy()[:, b != 0], (a[:, b != 0] % b[b != 0]))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64"])
def test_integers_never_trap(dtype):
    dtype = np.dtype(dtype)
    limits = np.iinfo(dtype)
    x = xp.asarray(np.array([limits.min, limits.max, 7, 0], dtype))
    zero = xp.zeros(4, dtype=dtype)
    assert_equal(x // zero, np.zeros(4, dtype))
    assert_equal(x % zero, np.zeros(4, dtype))
    assert_equal(x // 0, np.zeros(4, dtype))
    if dtype.kind == "i":
        minus = xp.full(4, -1, dtype=dtype)
        assert_equal(x // minus, np.array([limits.min, -limits.max, -7, 0], dtype))
        assert_equal(x % minus, np.zeros(4, dtype))
        assert_equal(xp.abs(x), np.array([limits.min, limits.max, 7, 0], dtype))
        assert_equal(x >> 100 if limits.bits > 7 else x, np.array([-1, 0, 0, 0], dtype))
        assert_equal(2**minus, np.zeros(4, dtype))
    assert_equal(x << limits.bits, np.zeros(4, dtype))
    assert_equal(x * x, x.numpy() * x.numpy())
    with pytest.raises(OverflowError, match="out of bounds"):
        x + (limits.max + 1)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", [d for d in DTYPES if d.kind in "iu"], ids=str)
def test_floats_beyond_the_range_of_an_integer_become_its_bound(target, source):
    bounds = np.iinfo(target)
    host = np.array([np.nan, np.inf, -np.inf, 2.0**70, -(2.0**70), 2.0**63, 2.0**64, 2.0**31, 300.7, 7.9, -7.9], source)
    # C, and NumPy with it, leaves these conversions undefined: Python's integers say what is to come out
    expected = [0, bounds.max, bounds.min] + [min(max(int(v), bounds.min), bounds.max) for v in host[3:].tolist()]
    assert xp.astype(xp.asarray(host), target).numpy().tolist() == expected


def test_conversions():
    x = xp.asarray([np.nan, np.inf, -np.inf, 300.7, -300.7, -0.5])
    assert_equal(xp.astype(x, xp.int8), np.array([0, 127, -128, 127, -128, 0], np.int8))
    assert_equal(xp.astype(x, xp.bool), np.array([True] * 6))
    assert_equal(xp.astype(xp.asarray([300, -1]), xp.uint8), np.array([44, 255], np.uint8))
    assert_equal(xp.astype(xp.asarray([1.5]), xp.complex64), np.array([1.5], np.complex64))
    with pytest.raises(TypeError, match="real part"):
        xp.astype(xp.asarray([1j]), xp.float64)


@pytest.mark.parametrize(
    "name",
    [
        *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
        *("floor", "ceil", "trunc", "abs", "sign", "reciprocal", "square"),
    ],
)
def test_functions_of_one_array(name):
    a = np.abs(values(100, "float32")) + np.float32(0.1)
    assert_equal(getattr(xp, name)(xp.asarray(a)), getattr(np, name)(a), 3e-6)
    if name in ("exp", "log1p", "tanh", "floor") and xp.float64 in DTYPES:
        a = a.astype(np.float64)
        assert_equal(getattr(xp, name)(xp.asarray(a)), getattr(np, name)(a), 1e-13)


@pytest.mark.costly(4)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, COMPLEX[-1]) for name in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan")),
        *((name, COMPLEX[-1]) for name in ("sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh")),
        *((name, COMPLEX[0]) for name in ("expm1", "tanh", "log1p", "sqrt", "asin", "atanh")),
    ],
    ids=str,
)
def test_functions_of_complex_arrays(name, dtype):
    grid = np.array([-3e3, -30.0, -2.0, -1.0, -0.3, -1e-5, 0.0, 1e-5, 0.3, 0.9, 1.0, 2.0, 30.0, 3e3])
    a = (grid[:, None] + 1j * (grid + 1e-3)[None, :]).astype(dtype)
    if name in ("exp", "expm1", "sinh", "cosh", "sin", "cos"):
        a = a[np.maximum(np.abs(a.real), np.abs(a.imag)) < 80]
    numpy_name = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}.get(name, name.replace("a", "arc", 1))
    function = getattr(np, name if hasattr(np, name) else numpy_name)
    with np.errstate(all="ignore"):
        expected = function(a.astype(np.complex128))
    got = getattr(xp, name)(xp.asarray(a)).numpy()
    assert got.dtype == dtype
    rtol = 2e-5 if dtype == np.complex64 else 1e-11
    np.testing.assert_array_less(np.abs(got - expected), rtol * np.abs(expected) + 1e-30)


def test_promotion():
    x = xp.ones(2, dtype=xp.int16)
    assert (x + xp.ones(2, dtype=xp.uint8)).dtype == xp.int16
    assert (x * 3).dtype == xp.int16
    assert (xp.ones(2, dtype=xp.float32) * 2.5).dtype == xp.float32
    assert (xp.ones(2, dtype=xp.float32) * 2j).dtype == xp.complex64
    for call in (
        lambda: x + 1.5,
        lambda: x + xp.ones(2, dtype=xp.float32),
        lambda: xp.ones(2, dtype=xp.uint64) + xp.ones(2, dtype=xp.int64),
        lambda: xp.ones(2) & 1,
        lambda: xp.ones(2, dtype=xp.bool) + xp.ones(2, dtype=xp.bool),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "1"
    with pytest.raises(ValueError, match=r"\(2,\), \(3,\) do not broadcast"):
        x + xp.ones(3, dtype=xp.int16)


# ------------------------------------------------------------------------------- reductions, scans, sorting

SHAPES = [(5,), (3, 4), (2, 3, 33), (40000,), (3, 20000), (20000, 3), (100, 40), (7, 50, 16)]


@pytest.mark.costly(4)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, shape) for name in ("sum", "argmax") for shape in SHAPES),
        *((name, (2, 3, 33)) for name in ("prod", "max", "min", "any", "all", "argmin", "mean", "std")),
    ],
    ids=str,
)
def test_reductions(name, shape):
    a = values(shape, "float64")
    if name == "prod":
        a = 1 + a * 1e-4
    if name in ("any", "all"):
        a = (a > (3.5 if name == "any" else -3.5)).astype(np.float64)
    x = xp.asarray(a)
    axes = [None, *range(len(shape)), -1]
    if len(shape) > 1 and not name.startswith("arg"):
        axes += [(0, len(shape) - 1), tuple(range(len(shape)))]
    for axis in axes:
        for keepdims in (False, True):
            expected = getattr(np, name)(a, axis=axis, keepdims=keepdims)
            got = getattr(xp, name)(x, axis=axis, keepdims=keepdims)
            assert_equal(got, expected, 1e-10)
    flipped = getattr(xp, name)(xp.flip(x), axis=0)
    assert_equal(flipped, getattr(np, name)(np.flip(a), axis=0), 1e-10)


@pytest.mark.parametrize("dtype", SOME, ids=str)
def test_sums_of_every_type(dtype):
    a = values((33, 70), dtype)
    x = xp.asarray(a)
    for axis in (None, 0, 1):
        expected = np.sum(a, axis=axis, dtype={"i": np.int64, "u": np.uint64}.get(dtype.kind, dtype))
        assert_equal(xp.sum(x, axis=axis), expected, 1e-4 if dtype in (np.float32, np.complex64) else 1e-12)
        assert_equal(xp.count_nonzero(x, axis=axis), np.count_nonzero(a, axis=axis))
        if dtype.kind != "c":
            assert_equal(xp.max(x, axis=axis), np.max(a, axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_rows_around_the_length_of_vectors(dtype):
    for n in (1, 15, 16, 17, 31, 47, 48, 49, 63, 64, 65, 79, 80, 111, 112, 127, 128, 129, 208, 209):
        host = values((3, n + 1), dtype, n)[:, 1:]
        x = xp.asarray(host)
        assert_equal(xp.sum(xp.astype(x, xp.int64), axis=-1), host.astype(np.int64).sum(-1))
        np.testing.assert_allclose(xp.sum(x, axis=-1).numpy(), host.sum(-1, dtype=np.float64), atol=1e-4)
        assert_equal(xp.max(x, axis=-1), host.max(-1))
        assert_equal(xp.min(x, axis=-1), host.min(-1))
        if dtype == "float32":
            np.testing.assert_allclose(xp.std(x, axis=-1).numpy(), host.std(-1, dtype=np.float64), atol=1e-5)


def test_a_reduction_sees_nan():
    a = values((50, 40), "float32")
    a[7, 3] = np.nan
    x = xp.asarray(a)
    for axis in (None, 0, 1):
        assert_equal(xp.max(x, axis=axis), np.max(a, axis=axis))
        assert_equal(xp.min(x, axis=axis), np.min(a, axis=axis))
        assert_equal(xp.argmax(x, axis=axis), np.argmax(a, axis=axis))


def test_reductions_of_nothing():
    x = xp.zeros((0, 3))
    assert_equal(xp.sum(x, axis=0), np.zeros(3))
    assert_equal(xp.prod(x), np.array(1.0))
    assert_equal(xp.all(x), np.array(True))
    assert bool(xp.all(xp.isnan(xp.mean(x, axis=0))))
    assert xp.sum(x, axis=1).shape == (0,)
    for function in (xp.max, xp.min, xp.argmax):
        with pytest.raises(ValueError, match="no elements"):
            function(x)


def test_few_results_are_reduced_in_parts():
    device = xp.default_device()
    assert _reductions._parts(device, 1, 1 << 20) > 1
    assert _reductions._parts(device, 1 << 20, 1 << 20) == 1
    a = values(1 << 18, "float32")
    assert abs(float(xp.sum(xp.asarray(a))) - a.sum(dtype=np.float64)) < 1e-2


@pytest.mark.parametrize("shape", [(5,), (5000,), (4, 3000), (3000, 4), (0,)], ids=str)
def test_scans(shape):
    a = values(shape, "int32")
    x = xp.asarray(a)
    for axis in range(len(shape)):
        assert_equal(xp.cumulative_sum(x, axis=axis), np.cumsum(a, axis=axis, dtype=np.int64))
        with_zero = np.concatenate([np.zeros_like(a.take([], axis)).sum(axis, keepdims=True), a], axis)
        got = xp.cumulative_sum(x, axis=axis, include_initial=True)
        assert_equal(got, np.cumsum(with_zero, axis=axis, dtype=np.int64))
    f = xp.asarray(1 + values(shape, "float64") * 1e-3)
    assert_equal(xp.cumulative_prod(f, axis=0), np.cumprod(f.numpy(), axis=0), 1e-12)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", SOME[:2], ids=str)
@pytest.mark.parametrize("shape", [(1,), (17,), (1000,), (5, 300), (300, 5)], ids=str)
def test_sorting(shape, dtype):
    a = values(shape, dtype)
    x = xp.asarray(a)
    for axis in range(len(shape)):
        assert_equal(xp.sort(x, axis=axis), np.sort(a, axis=axis))
        assert_equal(xp.argsort(x, axis=axis), np.argsort(a, axis=axis, kind="stable"))
        down = xp.argsort(x, axis=axis, descending=True)
        assert_equal(xp.take_along_axis(x, down, axis=axis), np.flip(np.sort(a, axis=axis), axis))
        ties = np.diff(np.take_along_axis(a, down.numpy(), axis), axis=axis) == 0
        assert (np.diff(down.numpy(), axis=axis)[ties] > 0).all()


def test_sorting_in_pieces(monkeypatch):
    a = values(5000, "float32")
    a[::7] = np.nan
    x = xp.asarray(a)
    for piece in (16, 100, 4096):
        monkeypatch.setattr(_sorting_functions, "_piece", lambda device, size, piece=piece: piece)
        assert_equal(xp.sort(x), np.sort(a))


def test_sets_and_searches():
    a = values((30, 40), "int32")
    x = xp.asarray(a)
    expected = np.unique_all(a)
    for got, want in zip(xp.unique_all(x), expected, strict=True):
        assert_equal(got, np.asarray(want, got.dtype))
    assert_equal(xp.isin(x, xp.asarray([1, 5])), np.isin(a, [1, 5]))
    assert [y.numpy().tolist() for y in xp.nonzero(x > 5)] == [y.tolist() for y in np.nonzero(a > 5)]
    s = np.sort(a[0])
    for side in ("left", "right"):
        assert_equal(xp.searchsorted(xp.asarray(s), x, side=side), np.searchsorted(s, a, side=side))
    z = xp.asarray(np.array([2 + 1j, 1 + 2j, 2 + 1j, 1 + 1j]))
    assert_equal(xp.unique_values(z), np.array([1 + 1j, 1 + 2j, 2 + 1j]))


# ------------------------------------------------------------------------------------------------ indexing


def test_integer_arrays():
    host = values((5, 6, 7), "int64")
    x = xp.asarray(host)
    i, j = np.array([[0, -1], [3, 2]]), np.array([1, -6])
    xi, xj = xp.asarray(i), xp.asarray(j, dtype=xp.int8)
    assert_equal(x[xi], host[i])
    assert_equal(x[:, xj], host[:, j])
    assert_equal(x[xi, xj], host[i, j])
    assert_equal(x[xi, :, xj], host[i, :, j])
    assert_equal(x[1:, xj, ::-1], host[1:, j, ::-1])
    assert_equal(x[..., xi, 2], host[..., i, 2])
    assert_equal(x[xi, xj, 3], host[i, j, 3])
    assert_equal(x[None, 3, ..., 2, xj], host[None, 3, ..., 2, j])
    assert_equal(x[:, -1, xj], host[:, -1, j])
    assert_equal(xp.take(x, xp.asarray([4, 0]), axis=1), np.take(host, [4, 0], axis=1))
    k = np.argsort(host, axis=1)[:, :2]
    assert_equal(xp.take_along_axis(x, xp.asarray(k), axis=1), np.take_along_axis(host, k, axis=1))
    x[xi, :, 0] = 5
    host[i, :, 0] = 5
    x[:, xj] = xp.asarray(host[:, j] + 1)
    host[:, j] += 1
    assert_equal(x, host)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint64"])
def test_indices_out_of_bounds(dtype):
    x = xp.zeros((3, 4))
    bad = [3, 200] if dtype == "uint8" else [3, 2**64 - 1] if dtype == "uint64" else [3, -4]
    for k in bad:
        index = xp.asarray(np.array([0, k], dtype))
        with pytest.raises(IndexError, match="length 3"):
            x[index]
        with pytest.raises(IndexError, match="length 3"):
            x[index, :] = 1.0
        with pytest.raises(IndexError, match="length 3"):
            xp.take(x, index, axis=0)
    assert_equal(x, np.zeros((3, 4)))
    for key in (np.s_[3], np.s_[0, -5], np.s_[0, 0, 0], (..., ...), 1.5, True, "a"):
        with pytest.raises(IndexError):
            x[key]


def test_masks():
    host = values((5, 6, 2), "float32")
    x = xp.asarray(host.copy())
    m = host[..., 0] > 0
    mask = xp.asarray(m)
    assert_equal(x[mask], host[m])
    assert_equal(x[x > 0], host[host > 0])
    assert_equal(x[::2][xp.flip(mask)[::2]], host[::2][np.flip(m)[::2]])
    assert_equal(x[xp.asarray(True)], host[True])
    assert x[xp.asarray(False)].shape == (0, 5, 6, 2)
    x[mask] = 0.0
    host[m] = 0.0
    x[x < 0] = xp.sum(xp.ones(3, dtype=xp.float32))
    host[host < 0] = 3.0
    new = values((int(m.sum()), 2), "float32", 5)
    x[mask] = xp.asarray(new)
    host[m] = new
    assert_equal(x, host)
    with pytest.raises(IndexError, match="does not fit"):
        x[xp.asarray([True, False])]


# ---------------------------------------------------------------------------------------------- linear algebra


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "complex64"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3,), (3,)),
        ((4, 3), (3,)),
        ((3,), (3, 5)),
        ((9, 40), (40, 33)),
        ((1, 64), (64, 48)),
        ((2, 1, 5, 4), (3, 4, 20)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
    ],
    ids=str,
)
def test_products(first, second, dtype):
    a, b = values(first, dtype, 1), values(second, dtype, 2)
    rtol = 1e-4 if dtype in ("float32", "complex64") else 1e-12
    assert_equal(xp.asarray(a) @ xp.asarray(b), a @ b, rtol)
    if len(second) > 1:
        transposed = xp.asarray(np.ascontiguousarray(b.swapaxes(-1, -2))).mT
        assert_equal(xp.asarray(a) @ transposed, a @ b, rtol)
    if len(first) > 1:
        transposed = xp.asarray(np.ascontiguousarray(a.swapaxes(-1, -2))).mT
        assert_equal(transposed @ xp.asarray(b), a @ b, rtol)


def test_the_rest_of_linear_algebra():
    a, b = values((4, 5, 6), "float64", 1), values((6, 5, 3), "float64", 2)
    x, y = xp.asarray(a), xp.asarray(b)
    assert_equal(xp.tensordot(x, y, axes=((2, 1), (0, 1))), np.tensordot(a, b, axes=((2, 1), (0, 1))), 1e-12)
    assert_equal(xp.vecdot(x, x, axis=1), (a * a).sum(1), 1e-12)
    z = values((3, 4), "complex128")
    assert_equal(xp.vecdot(xp.asarray(z), xp.asarray(z)), (z.conj() * z).sum(-1), 1e-12)
    s = a[0, :, :5]
    assert_equal(xp.linalg.inv(xp.asarray(s)), np.linalg.inv(s), 1e-10)
    assert_equal(xp.linalg.matrix_power(xp.asarray(s), 5), np.linalg.matrix_power(s, 5), 1e-10)
    assert_equal(xp.fft.fft(x, axis=1), np.fft.fft(a, axis=1), 1e-12)
    with pytest.raises(ValueError, match="inv: Singular"):
        xp.linalg.inv(xp.zeros((2, 2)))
    with pytest.raises(ValueError, match="do not match"):
        x @ y


# ---------------------------------------------------------------------------------------------------- creation


def test_creation():
    assert_equal(xp.arange(3, 20, 4), np.arange(3, 20, 4))
    assert_equal(xp.arange(1.5, -2, -0.5), np.arange(1.5, -2, -0.5))
    assert_equal(xp.linspace(0, 1, 7), np.linspace(0, 1, 7), 1e-15)
    assert_equal(xp.eye(3, 5, k=1), np.eye(3, 5, k=1))
    a = values((2, 4, 5), "int32")
    for k in (-1, 0, 2):
        assert_equal(xp.tril(xp.asarray(a), k=k), np.tril(a, k))
        assert_equal(xp.triu(xp.asarray(a), k=k), np.triu(a, k))
    for got, want in zip(xp.meshgrid(xp.arange(3), xp.arange(2)), np.meshgrid(np.arange(3), np.arange(2)), strict=True):
        assert_equal(got, want)
    assert_equal(xp.full((2, 0), 3), np.full((2, 0), 3))
    assert_equal(xp.asarray([[xp.asarray(1), 2], [3, 4]]), np.array([[1, 2], [3, 4]]))
    assert_equal(xp.asarray(memoryview(b"abc")), np.frombuffer(b"abc", np.uint8))
    assert_equal(xp.asarray(np.arange(6, dtype=">i4").reshape(2, 3).T), np.arange(6, dtype="i4").reshape(2, 3).T)
    with pytest.raises(ValueError, match="copy=False"):
        xp.asarray(np.zeros(3), copy=False)
    with pytest.raises(TypeError, match="cannot be made of object"):
        xp.asarray(object())


EMPTY = np.zeros((0, 3), np.float32)
NO_COLUMNS = np.zeros((2, 0), np.float32)
SCALAR = np.asarray(np.float32(2.0))


@pytest.mark.parametrize("a", [EMPTY, NO_COLUMNS, SCALAR], ids=["empty", "no_columns", "scalar"])
def test_arrays_with_nothing_or_one_element_in_every_chapter(a):
    x, flat, mask = xp.asarray(a), a.reshape(-1), a > 1
    y = xp.reshape(x, (-1,))
    axis = a.ndim - 1
    for got, expected in (
        (xp.empty_like(x) * 0 + 1, np.ones_like(a)),
        (xp.full_like(x, 3.0), np.full_like(a, 3.0)),
        (xp.astype(x, xp.int8), a.astype(np.int8)),
        (xp.exp(x), np.exp(a)),
        (x + x * 2.0, a + a * 2),
        (xp.where(x > 1, x, -x), np.where(a > 1, a, -a)),
        (x[...], a),
        (x[xp.asarray(mask)], a[mask]),
        (y[xp.asarray(np.zeros(0, np.int64))], flat[:0]),
        (xp.take(y, xp.arange(y.size)), flat),
        (xp.reshape(x, (1, *x.shape)), a[None]),
        (xp.concat([y, y]), np.concatenate([flat, flat])),
        (xp.stack([x, x]), np.stack([a, a])),
        (xp.flip(x), np.flip(a)),
        (xp.roll(x, 1), np.roll(a, 1)),
        (xp.repeat(x, 2), np.repeat(a, 2)),
        (xp.tile(x, (2,)), np.tile(a, 2)),
        (xp.broadcast_to(x, (2, *x.shape)), np.broadcast_to(a, (2, *a.shape))),
        (xp.searchsorted(y, x), np.searchsorted(flat, a)),
        (xp.count_nonzero(x), np.asarray(np.count_nonzero(a))),
        (xp.nonzero(y)[0], np.nonzero(flat)[0]),
        (xp.unique_values(x), np.unique(a)),
        (xp.isin(x, x), np.isin(a, a)),
        (xp.sort(y), flat),
        (xp.argsort(y), np.argsort(flat)),
        (xp.sum(x), np.asarray(a.sum())),
        (xp.prod(x), np.asarray(a.prod())),
        (xp.all(x), np.asarray(a.all())),
        (xp.cumulative_sum(y, include_initial=True), np.concatenate([[np.float32(0)], np.cumsum(flat)])),
        (xp.diff(y), np.diff(flat)),
        (xp.vecdot(y, y), np.asarray(flat @ flat)),
        (xp.linalg.outer(y, y), np.outer(flat, flat)),
        (xp.linalg.vector_norm(y), np.asarray(np.linalg.norm(flat))),
        (xp.fft.fftshift(y), np.fft.fftshift(flat)),
        (xp.from_dlpack(np.from_dlpack(x) if x.__dlpack_device__()[0] == 1 else x), a),
        (xp.asarray(x.cl_array), a),
    ):
        assert_equal(got, expected, 1e-6)
    if a.ndim:
        assert_equal(xp.sum(x, axis=axis), a.sum(axis=axis))
        assert_equal(x @ x.mT, a @ a.T)
        assert_equal(x.mT @ x, a.T @ a)
        assert_equal(xp.linalg.svdvals(x), np.linalg.svd(a, compute_uv=False))
    x[...] = 5.0
    assert_equal(x, np.full_like(a, 5.0))


def test_scalars_and_conversions_out():
    assert float(xp.asarray(2.5)) == 2.5
    assert [1, 2, 3][xp.asarray(1)] == 2
    assert bool(xp.asarray(0)) is False
    assert np.asarray(xp.asarray([1, 2])).tolist() == [1, 2]
    assert repr(xp.asarray([1, 2])) == "Array([1, 2], dtype=int64)"
    with pytest.raises(TypeError, match="zero-dimensional"):
        float(xp.ones(1))
    with pytest.raises(TypeError):
        np.ones(3) + xp.ones(3)
