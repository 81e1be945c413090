"""NVIDIA's driver through ctypes: devices, modules and launches.

CuPy and torch both compute in the primary context of a device. What is loaded there serves both, and neither has an
interface of its own for it that the other could use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from tensorops.kernels._gpu import plans

_INVALID_CONTEXT = 201  # the calling thread has not used the device yet
_ANY_CAPTURE = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
# Of CUdevice_attribute
_MAX_BLOCK, _LOCAL_BYTES, _UNITS, _MAJOR, _MINOR = 1, 8, 16, 75, 76
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_MOST_LOCAL_BYTES = 97
_REGISTERS, _DYNAMIC_BYTES = 4, 8  # of CUfunction_attribute
_LOCAL_BYTES_OF_EVERY_LAUNCH = 48 << 10  # more must be asked for


class CudaError(RuntimeError):
    """The driver has reported an error."""


@functools.cache
def library() -> Any:
    """Return the driver; this does not start it.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise ImportError("NVIDIA's driver, libcuda.so.1, is not installed (Linux only)") from None


def check(status: int) -> None:
    """Raise `CudaError` for the status that a function of the driver has returned, unless it is success."""
    if status:
        text = ctypes.c_char_p()
        library().cuGetErrorString(status, ctypes.byref(text))
        raise CudaError(f"CUDA error {status}: {(text.value or b'unknown').decode()}")


def version() -> int:
    """Return the major version of CUDA that the driver supports."""
    number = ctypes.c_int()
    check(library().cuDriverGetVersion(ctypes.byref(number)))
    return number.value // 1000


class Device:
    """A GPU: what plans must know of it, and what has been loaded there."""

    def __init__(self, index: int) -> None:
        check(library().cuInit(0))
        handle = ctypes.c_int()
        check(library().cuDeviceGet(ctypes.byref(handle), index))
        self._context = ctypes.c_void_p()
        check(library().cuDevicePrimaryCtxRetain(ctypes.byref(self._context), handle))

        def attribute(which: int) -> int:
            value = ctypes.c_int()
            check(library().cuDeviceGetAttribute(ctypes.byref(value), which, handle))
            return value.value

        self._held: dict[bytes, int] = {}
        self.capability = 10 * attribute(_MAJOR) + attribute(_MINOR)
        self.architecture = f"sm_{self.capability}"
        self.most_local_bytes = attribute(_MOST_LOCAL_BYTES)
        self.facts = plans.Device(
            kind="gpu",
            units=attribute(_UNITS),
            lanes=32,
            local_bytes=attribute(_LOCAL_BYTES),
            max_block=attribute(_MAX_BLOCK),
            float64=True,
        )

    def load(self, image: bytes, kernel: str, dynamic_bytes: int = 0) -> ctypes.c_void_p:
        """Load a cubin and return one of its kernels, which may be launched with that many bytes of local memory.

        It stays loaded until the process ends.
        """
        module, function, registers = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        with self._ready_to_load():
            check(library().cuModuleLoadData(ctypes.byref(module), image))
            check(library().cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
            # Otherwise the driver might load it at the first launch only, which may be captured in a graph.
            check(library().cuFuncGetAttribute(ctypes.byref(registers), _REGISTERS, function))
            if dynamic_bytes > _LOCAL_BYTES_OF_EVERY_LAUNCH:
                check(library().cuFuncSetAttribute(function, _DYNAMIC_BYTES, dynamic_bytes))
        return function

    def hold(self, data: bytes) -> int:
        """Return the address of these bytes in the device's memory, where they stay until the process ends.

        They are copied on a stream of their own: others may be captured.
        """
        if data not in self._held:
            address, stream = ctypes.c_uint64(), ctypes.c_void_p()
            with self._ready_to_load():
                check(library().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(len(data))))
                check(library().cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING))
                check(library().cuMemcpyHtoDAsync_v2(address, data, ctypes.c_size_t(len(data)), stream))
                check(library().cuStreamSynchronize(stream))
                check(library().cuStreamDestroy_v2(stream))
            self._held[data] = address.value
        return self._held[data]

    @contextlib.contextmanager
    def _ready_to_load(self) -> Iterator[None]:
        """Make the device's context current, and let a thread that captures a stream load modules."""
        mode, previous = ctypes.c_int(_ANY_CAPTURE), ctypes.c_void_p()
        check(library().cuCtxPushCurrent_v2(self._context))
        try:
            check(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
            try:
                yield
            finally:
                check(library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
        finally:
            check(library().cuCtxPopCurrent_v2(ctypes.byref(previous)))

    def enter(self) -> None:
        """Make the device's context that of the calling thread."""
        check(library().cuCtxSetCurrent(self._context))


@functools.cache
def device(index: int) -> Device:
    """Return a GPU by its index; this starts it."""
    return Device(index)


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


Argument: TypeAlias = str | int | plans.Number
"""The name of an array whose address a call has, the address of one that is always the same, or a number."""


def packed(numbers: Iterable[int | plans.Number]) -> tuple[bytes, list[int]]:
    """Return numbers in memory, each aligned to its size, with their offsets; an `int` is an address."""
    data, offsets = bytearray(), []
    for number in numbers:
        value = (np.uint64(number) if isinstance(number, int) else number).tobytes()
        data += bytes(-len(data) % len(value))
        offsets.append(len(data))
        data += value
    return bytes(data), offsets


class Step:
    """One launch, ready but for the addresses of its arrays: `slots` says where in a list these are, by name.

    Its memory has the configuration, the list of addresses, and the numbers among the arguments.
    """

    def __init__(
        self,
        where: Device,
        function: ctypes.c_void_p,
        groups: int,
        block: int,
        arguments: tuple[Argument, ...],
        slots: dict[str, int],
        dynamic_bytes: int = 0,
    ) -> None:
        data, offsets = packed(a for a in arguments if not isinstance(a, str))
        addresses = ctypes.sizeof(_Config)
        numbers = addresses + 8 * len(slots)
        self._memory = bytearray(numbers) + data
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        places = iter(offsets)
        at = [start + (addresses + 8 * slots[a] if isinstance(a, str) else numbers + next(places)) for a in arguments]
        self._parameters = (ctypes.c_void_p * len(at))(*at)
        config = _Config.from_buffer(self._memory)
        config.grid[:], config.block[:], config.shared_bytes = (groups, 1, 1), (block, 1, 1), dynamic_bytes
        self.enqueue = self._enqueuer(where, function, ctypes.byref(config), len(slots))

    def _enqueuer(
        self, where: Device, function: ctypes.c_void_p, config: Any, count: int
    ) -> Callable[[int, list[int]], None]:
        """Return what enqueues the launch on a stream, with the addresses of all arrays; the driver copies both."""
        # The stream, what comes after it in the configuration, and the addresses are written as one.
        at = _Config.stream.offset
        write = struct.Struct(f"{(ctypes.sizeof(_Config) - at) // 8 + count}Q").pack_into
        memory, parameters, launch, lock = self._memory, self._parameters, library().cuLaunchKernelEx, threading.Lock()

        def enqueue(stream: int, pointers: list[int]) -> None:
            lock.acquire()  # `with` takes twice as long
            try:
                write(memory, at, stream, 0, 0, *pointers)
                status = launch(config, function, parameters, None)
                if status == _INVALID_CONTEXT:
                    where.enter()
                    status = launch(config, function, parameters, None)
            finally:
                lock.release()
            if status:
                check(status)

        return enqueue
