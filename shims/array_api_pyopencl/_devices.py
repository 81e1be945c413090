"""Devices: an OpenCL device with the context and the in-order queue on which its arrays live."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, NoReturn

import numpy as np
import pyopencl as cl
from pyopencl.tools import ImmediateAllocator, MemoryPool

from array_api_pyopencl import _dtypes
from array_api_pyopencl._dtypes import DType

_MAX_QUEUES = 64
LARGE = 1 << 20  # bytes; before allocating a larger buffer, check how much the pool holds
_MAX_PROGRAMS = 256  # a driver for processors takes 4 MB for each
# Before every program: clang warns of functions that return longer vectors than its registers; all are inlined.
_PRELUDE = """#ifdef __clang__
#pragma clang diagnostic ignored "-Wpsabi"
#endif
"""
_POCL_FAILED = (
    "PoCL's compiler refuses processors that are newer than itself, such as Zen 4 and 5; Intel's driver runs on those "
    "of any maker: pip install intel-opencl-rt intel-cmplr-lib-rt. To use it, import tensorops before the program "
    "first asks PyOpenCL for platforms or a context, or set OCL_ICD_VENDORS to the path of libintelocl.so"
)
_programs: dict[tuple[Any, Any, str], Any] = {}
_compiling = threading.Lock()  # warnings are silenced for the whole process
_found = threading.RLock()  # two threads must not make two contexts for one device, or two devices for one queue


class Device:
    """The place where arrays live and are computed: a command queue with its context and OpenCL device.

    Two devices are equal if their queues are. `array_api_pyopencl.__array_namespace_info__().devices()` has one for
    each OpenCL device found; use ``Device(queue)`` for your own queue.

    Raises
    ------
    ValueError
        If the queue executes out of order: only the queue orders the computations here. Also if its context is gone,
        which some drivers' queues do not keep alive.
    """

    __slots__ = ("__dict__", "_queue", "cl_device", "context", "enqueue", "lock", "plans", "pool", "queue")

    records = False
    """Whether calls are only recorded: by a subclass, which then stands for an equal device."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        if queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
            raise ValueError("the command queue executes out of order; array_api_pyopencl needs an in-order queue")
        self._queue = self.queue = queue
        self.enqueue: Callable[..., Any] = partial(cl.enqueue_nd_range_kernel, queue)
        try:
            self.context = queue.context
        except cl.LogicError as error:
            raise ValueError(
                "the context of the command queue is gone, because this OpenCL driver's queues do not keep it alive; "
                "keep a reference to the pyopencl.Context as long as you use the queue"
            ) from error
        self.cl_device = queue.device
        self.pool = MemoryPool(ImmediateAllocator(queue))
        self.plans: dict[Any, Any] = {}  # see `_launch`
        self.lock = threading.Lock()  # arguments are set and a kernel enqueued as one step

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self._queue == other._queue

    def __hash__(self) -> int:
        return hash(self._queue)

    def __repr__(self) -> str:
        return f"Device({self.cl_device.name.strip()!r}, queue {self._queue.int_ptr:#x})"

    @cached_property
    def dtypes(self) -> frozenset[DType]:
        """The data types that the device can compute with."""
        extensions = set(self.cl_device.extensions.split())
        missing: set[DType] = set()
        if "cl_khr_fp64" not in extensions and not self.cl_device.double_fp_config:
            missing |= {_dtypes.float64, _dtypes.complex128}
        if "cl_khr_fp16" not in extensions:
            missing.add(_dtypes.float16)
        return frozenset(_dtypes.C_TYPES) - missing

    @property
    def default_float(self) -> DType:
        """The type of Python floats: float64 where the device has it."""
        return _dtypes.float64 if _dtypes.float64 in self.dtypes else _dtypes.float32

    @property
    def default_complex(self) -> DType:
        """The type of Python complex numbers: complex128 where the device has it."""
        return _dtypes.complex_of(self.default_float)

    @property
    def origin(self) -> Device:
        """The device that this one stands for: itself, unless it `records`."""
        return self

    def as_dtype(self, dtype: Any) -> DType:
        """Return a caller's argument as a data type; Python's number types mean the device's default types.

        Raises
        ------
        TypeError
            If it is not one of the standard's types in native byte order.
        """
        if dtype is float:
            return self.default_float
        return self.default_complex if dtype is complex else _dtypes.as_dtype(dtype)

    @cached_property
    def is_cpu(self) -> bool:
        """Whether work-items are faster with consecutive elements than with interleaved ones."""
        return bool(self.cl_device.type & cl.device_type.CPU)

    @cached_property
    def work_group(self) -> int:
        """The number of work-items in a group of a one-dimensional launch."""
        return int(min(256, self.cl_device.max_work_group_size))

    @cached_property
    def most_held(self) -> int:
        """The number of unused bytes that the pool may hold: the pool itself has no limit."""
        return int(self.cl_device.global_mem_size) // 4

    @cached_property
    def parallelism(self) -> int:
        """The number of work-items that are enough to keep the device busy."""
        units = int(self.cl_device.max_compute_units)
        return units * 16 if self.is_cpu else units * 2048

    @cached_property
    def build_options(self) -> list[str]:
        """The options of every program: divisions and roots are rounded correctly where the device supports it."""
        config = self.cl_device.single_fp_config
        exact = config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        return ["-cl-fp32-correctly-rounded-divide-sqrt"] if exact else []

    def require(self, dtype: DType) -> DType:
        """Return `dtype`.

        Raises
        ------
        TypeError
            If the device cannot compute with it.
        """
        if dtype not in self.dtypes:
            raise TypeError(f"the OpenCL device {self.cl_device.name.strip()!r} has no {dtype.name}")
        return dtype

    def require_stored(self, dtype: DType) -> DType:
        """Return `dtype`; unlike `require`, accept float16, which every device can load and store.

        Raises
        ------
        TypeError
            If the device has no such elements.
        """
        return dtype if dtype == _dtypes.float16 else self.require(dtype)

    def allocate(self, nbytes: int) -> Any:
        """Return a buffer of at least one byte, from this queue's pool.

        Raises
        ------
        MemoryError
            If the device has no such buffer left.
        """
        try:
            if nbytes > LARGE and self.pool.managed_bytes - self.pool.active_bytes > self.most_held:
                self.pool.free_held()
            return self.pool.allocate(nbytes or 1)
        except cl.Error as error:
            self.report(nbytes, error)

    def report(self, nbytes: int, error: cl.Error) -> NoReturn:
        """Raise what the pool has raised, or Python's own error if the device has no such buffer left."""
        if error.code not in _OUT_OF_MEMORY:
            raise error
        raise MemoryError(
            f"the OpenCL device {self.cl_device.name.strip()!r} cannot allocate {nbytes} bytes"
        ) from error

    def program(self, source: str) -> Any:
        """Return the compiled program of `source`; compiled once for a context and device, even if that fails.

        PyOpenCL keeps programs on disk as well, so that another process need not compile them.
        """
        key = (self.context, self.cl_device, source)
        found = _programs.get(key)
        if found is None:
            with _compiling:
                found = _programs.get(key)
                if found is None:
                    try:
                        found = self._compile(_PRELUDE + source)
                    except cl.Error as error:  # no later attempt would end otherwise
                        found = error
                        if "BUILD_PROGRAM_FAILURE" in str(error) and "Portable" in self.cl_device.platform.name:
                            error.add_note(_POCL_FAILED)
                    if len(_programs) >= _MAX_PROGRAMS:
                        _programs.clear()
                        self.plans.clear()  # which hold their kernels, and these their programs
                    _programs[key] = found
        if isinstance(found, cl.Error):
            raise found.with_traceback(None)
        return found

    def _compile(self, source: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)  # remarks on generated code; errors are raised
            return cl.Program(self.context, source).build(self.build_options, devices=[self.cl_device])

    def kernel(self, source: str, name: str) -> Any:
        """Return a new kernel object of a function in the program of `source`."""
        return cl.Kernel(self.program(source), name)

    def before_write(self, buffer: Any) -> None:
        """Do what is due before an existing array in this buffer is assigned to: nothing."""

    def read(self, buffer: Any, start: int, count: int, dtype: DType) -> np.ndarray[Any, Any]:
        """Return `count` elements from the element `start` on, after waiting for them."""
        host = np.empty(count, dtype)
        if count:
            cl.enqueue_copy(self.queue, host, buffer, src_offset=start * dtype.itemsize)
        return host

    def write(self, host: np.ndarray[Any, Any]) -> Any:
        """Return a new buffer with the values of a contiguous NumPy array."""
        buffer = self.allocate(host.nbytes)
        if host.nbytes:
            cl.enqueue_copy(self.queue, buffer, host)
        return buffer

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
        """Return a new buffer of uniform float32 numbers in [0, 1)."""
        return self.write(np.asarray(generator.random(shape, dtype=np.float32)))

    def synchronize(self) -> None:
        """Wait until everything that was enqueued has been computed."""
        self.queue.finish()


_OUT_OF_MEMORY = {
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.INVALID_BUFFER_SIZE,
}

_by_queue: dict[Any, Device] = {}


def _renew_locks() -> None:
    """Replace, in a child of fork, locks that another thread may have held: none would release them."""
    global _compiling, _found
    _compiling, _found = threading.Lock(), threading.RLock()
    for device in _by_queue.values():
        device.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def device_of_queue(queue: cl.CommandQueue) -> Device:
    """Return the device that represents `queue`; the same object while it is among the last ones used."""
    found = _by_queue.get(queue)
    if found is None:
        with _found:
            if len(_by_queue) >= _MAX_QUEUES:
                _by_queue.pop(next(iter(_by_queue)))
            found = _by_queue.setdefault(queue, Device(queue))
    return found


def known() -> tuple[Device, ...]:
    """Return the devices that stand for the queues used last."""
    return tuple(_by_queue.values())


def devices() -> tuple[Device, ...]:
    """Return one device for each OpenCL device found, each with its own context and queue."""
    with _found:
        return _find_devices()


@cache
def _find_devices() -> tuple[Device, ...]:
    found = [device for platform in _platforms() for device in platform.get_devices()]
    # Intel's queues do not keep their context alive: keep the contexts here until each device holds its own.
    contexts = [cl.Context([device]) for device in found]
    return tuple(device_of_queue(cl.CommandQueue(context)) for context in contexts)


def _platforms() -> list[Any]:
    try:
        return list(cl.get_platforms())
    except cl.LogicError:  # the loader found no driver
        return []


def default_device() -> Device:
    """Return the device that PyOpenCL chooses: the one that ``PYOPENCL_CTX`` names, else the first.

    Raises
    ------
    RuntimeError
        If there is no OpenCL device.
    """
    return _default_device(os.environ.get("PYOPENCL_CTX", ""))


@cache
def _default_device(choice: str) -> Device:
    found = devices()
    if not found:
        raise RuntimeError("no OpenCL device was found; pip install pocl-binary-distribution provides one for CPUs")
    if not choice:
        return found[0]
    chosen = cl.choose_devices(interactive=False)[0]
    return next(d for d in found if d.cl_device == chosen)


def as_device(device: Any) -> Device:
    """Return the device that a ``device=`` argument names: ``None``, a `Device`, a queue, or a `pyopencl.Device`.

    Raises
    ------
    TypeError
        If it is anything else.
    ValueError
        If it is an OpenCL device that is not on this machine.
    """
    if device is None:
        return default_device()
    if isinstance(device, Device):
        return device
    if isinstance(device, cl.CommandQueue):
        return device_of_queue(device)
    if isinstance(device, cl.Device):
        for found in devices():
            if found.cl_device == device:
                return found
        raise ValueError(f"{device!r} is not among the OpenCL devices found")
    raise TypeError(f"device is {device!r}, expected a device of array_api_pyopencl, a pyopencl queue or device")
