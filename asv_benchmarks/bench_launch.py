"""What a call of a GPU kernel costs in Python besides the launch itself: `rms_norm` on 64 elements.

    python -m asv_benchmarks.bench_launch [SECONDS]

prints the same, timed alternately in one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tensorops
from tensorops import _providers
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels._gpu.plans import Device

from .shims import Task, in_turns

LAUNCH = "launch"
SHAPE = (1, 64)


# --------------------------------------------------------------------------------------------------- OpenCL


def opencl() -> Task:
    """Return ways to compute it with PyOpenCL: as users call it, and as nothing but a launch of the same kernel.

    PyOpenCL's own arrays have events, and are made by a constructor; a launch on them has to mind both.
    """
    try:
        import pyopencl as cl
        import pyopencl.array as cla

        import array_api_pyopencl as xp
        from array_api_pyopencl import _launch
        from tensorops.kernels._gpu import sources
        from tensorops.kernels._gpu.plans import Operand
        from tensorops.kernels.opencl._launch import facts_of
    except ImportError as error:
        raise NotImplementedError(str(error)) from None
    if not xp.devices():
        raise NotImplementedError("there is no OpenCL device")
    device = xp.default_device()
    queue = device.queue
    host = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(SHAPE)
    x, w = cla.to_device(queue, host), cla.to_device(queue, np.ones(64, np.float32))
    wrapped = (xp.asarray(x), xp.asarray(w))
    queue.finish()
    arrays = {"x": Operand("float32", SHAPE, (64, 1)), "weight": Operand("float32", (64,), (1,))}
    plan = PLANNERS[tensorops.rms_norm](facts_of(device), **arrays, eps=1e-6, axis=1, weight_offset=0.0)
    (planned,) = plan.launches
    text = sources.program(planned.source, tuple(planned.defines.items()), "opencl.h")
    numbers = [None if isinstance(argument, str) else argument for argument in planned.arguments]
    size = ((planned.groups * planned.block,), (planned.block,))
    ready = _launch.launch(device, text, planned.kernel, numbers, *size)
    at = dict(zip([name for name in planned.arguments if isinstance(name, str)], ready.buffers, strict=True))

    def launch() -> Any:
        made = device.pool.allocate(host.nbytes)
        ready.set_buffers((at["x"], x.base_data, at["weight"], w.base_data, at["y"], made))
        cl.enqueue_nd_range_kernel(queue, ready.kernel, *size)
        return made

    def launch_on_arrays() -> Any:
        y = cla.Array(queue, SHAPE, np.float32, allocator=device.pool)
        ready.set_buffers((at["x"], x.base_data, at["weight"], w.base_data, at["y"], y.base_data))
        y.add_event(cl.enqueue_nd_range_kernel(queue, ready.kernel, *size, wait_for=x.events + w.events))
        return y

    made = np.empty_like(host)
    cl.enqueue_copy(queue, made, launch())
    for y in (tensorops.rms_norm(x, w), launch_on_arrays()):
        np.testing.assert_allclose(y.get(), made, rtol=1e-5)
    ways = {
        LAUNCH: launch,
        "wrappers": partial(tensorops.rms_norm, *wrapped),
        "launch, pyopencl.array": launch_on_arrays,
        "pyopencl.array": partial(tensorops.rms_norm, x, w),
        "PyOpenCL's own x + x": lambda: x + x,
    }
    return Task(ways, queue.finish)


# ----------------------------------------------------------------------------------------------------- CUDA
#
# Without a GPU: a function that does nothing takes the place of the driver's. Arrays are in host memory, so the time to
# allocate them is not that of a GPU; it is the same in all ways.


@functools.cache
def cuda_torch() -> Task:
    """Return ways to launch it on torch's tensors, which say for the rest of the process that they are on a GPU."""
    try:
        import torch
    except ImportError as error:
        raise NotImplementedError(str(error)) from None
    from tensorops.kernels.cuda import _arrays

    # Functions of torch that take as long as those whose place they take.
    tensor: Any = torch.Tensor
    tensor.is_cuda, tensor.is_cpu, tensor.get_device = tensor.is_cpu, tensor.is_cuda, tensor.storage_offset
    tensors: Any = _arrays.arrays_of(torch.Tensor)
    tensors.current, tensors.stream = torch._C._len_torch_dispatch_stack, (7000).__add__
    there = tensors.maker
    tensors.maker = lambda *args: partial(there(*args), device="cpu")
    _without_a_gpu()
    x, w = torch.ones(SHAPE), torch.ones(64)
    make = partial(torch.empty_strided, SHAPE, (64, 1), dtype=torch.float32, device="cpu")
    return Task(_ways(x, w, make, tensor.data_ptr, tensors.stream), lambda: None)


@functools.cache
def cuda_cupy() -> Task:
    """Return ways to launch it on objects that have what the launcher reads of CuPy's arrays."""

    class Memory:
        __slots__ = ("device_id", "ptr")

        def __init__(self, ptr: int) -> None:
            self.ptr, self.device_id = ptr, 0

    class Array:
        __slots__ = ("data", "dtype", "ndim", "shape", "strides")

        def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
            self.data, self.dtype, self.shape, self.ndim = Memory(4096), dtype, shape, len(shape)
            self.strides = (256, 4)[-len(shape) :]

    Array.__module__, Array.__qualname__, Array.__name__ = "cupy", "ndarray", "ndarray"
    stream = types.SimpleNamespace(ptr=7000)
    cuda = types.SimpleNamespace(
        get_current_stream=lambda: stream, runtime=types.SimpleNamespace(getDevice=lambda: 0), Device=None
    )
    module: Any = types.ModuleType("cupy")
    module.cuda, module.ndarray, module.empty, module.asarray = cuda, Array, Array, None
    sys.modules["cupy"] = module
    from tensorops.kernels.cuda import _arrays

    arrays: Any = _arrays.arrays_of(Array)
    _without_a_gpu()
    x, w = Array(SHAPE, np.dtype(np.float32)), Array((64,), np.dtype(np.float32))
    make = partial(Array, SHAPE, np.dtype(np.float32))
    return Task(_ways(x, w, make, lambda a: a.data.ptr, arrays.stream), lambda: None)


@functools.cache
def _without_a_gpu() -> None:
    """Let the provider `cuda` plan for a GPU of this description, load nothing, and launch nothing."""
    from tensorops.kernels.cuda import _driver, _launch

    facts = Device(kind="gpu", units=132, lanes=32, local_bytes=49152, max_block=1024, float64=True)
    _driver.library = lambda: types.SimpleNamespace(cuLaunchKernelEx=_nothing())  # type: ignore[assignment]
    _driver.device = lambda index: types.SimpleNamespace(facts=facts)  # type: ignore[assignment]
    _launch._kernel = lambda *_: ctypes.c_void_p(1)  # type: ignore[assignment]
    with contextlib.suppress(ImportError):  # there is no driver
        import tensorops.kernels.cuda.table
    if "cuda" not in tensorops.rms_norm.kernels:
        _launch.register(tensorops.rms_norm, PLANNERS[tensorops.rms_norm])
    _providers._reasons["cuda"] = ""


def _nothing() -> Any:
    """Return a function of C that takes what `cuLaunchKernelEx` takes, does nothing and returns 0.

    It tells whether two threads are the same, of which it is given no two equal ones.
    """
    return ctypes.CDLL(None).pthread_equal


def _ways(
    x: Any, w: Any, make: Callable[[], Any], pointer: Callable[[Any], int], stream: Callable[[int], int]
) -> dict[str, Callable[[], Any]]:
    memory = bytearray(32)
    write, at = struct.Struct("4Q").pack_into, ctypes.byref(ctypes.c_char.from_buffer(memory))
    function, parameters, enqueue = ctypes.c_void_p(1), (ctypes.c_void_p * 16)(), _nothing()

    def launch() -> Any:
        y = make()
        write(memory, 0, stream(0), pointer(x), pointer(w), pointer(y))
        enqueue(at, function, parameters, None)
        return y

    with tensorops.trace() as log:
        tensorops.rms_norm(x, w)
    assert log.kernels == {"rms_norm": {"cuda"}}
    return {LAUNCH: launch, "operator": partial(tensorops.rms_norm, x, w)}


# -------------------------------------------------------------------------------------------------- the times

TASKS = {"PyOpenCL": opencl, "torch, no GPU": cuda_torch, "like CuPy, no GPU": cuda_cupy}


class Launch:
    """The operator, compared with the bare launch."""

    params = (
        [
            *[("PyOpenCL", way) for way in (LAUNCH, "wrappers", "launch, pyopencl.array", "pyopencl.array")],
            *[(name, way) for name in ("torch, no GPU", "like CuPy, no GPU") for way in (LAUNCH, "operator")],
        ],
    )
    param_names = ("way",)

    def setup(self, pair):
        name, way = pair
        made = TASKS[name]()
        self.call, self.finish = made.ways[way], made.finish
        self.call()

    def time_call(self, pair):
        self.call()

    def teardown(self, pair):
        if hasattr(self, "finish"):
            self.finish()


def main(seconds: float) -> None:
    """Print the least time of each way, its difference from the bare launch, and the ratio."""
    for name, task in TASKS.items():
        try:
            times = in_turns(task(), seconds, 100, waits=False)
        except NotImplementedError as error:
            print(f"{name}: {error}")  # noqa: T201
            continue
        print(name)  # noqa: T201
        for way, t in times.items():
            beside = t.least - times[LAUNCH].least, t.least / times[LAUNCH].least
            more = f"{beside[0] * 1e6:+8.2f}   x{beside[1]:5.2f}" if way != LAUNCH else ""
            print(f"  {way:24} {t.least * 1e6:8.2f} µs {more}")  # noqa: T201


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 3.0)
