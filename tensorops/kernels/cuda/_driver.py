"""NVIDIA's driver through ctypes: devices, modules and launches.

CuPy and torch both compute in the primary context of a device. What is loaded there serves both, and neither has an
interface of its own for it that the other could use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Iterator
from typing import Any

from tensorops.kernels._gpu import plans

_INVALID_CONTEXT = 201  # the calling thread has not used the device yet
_ANY_CAPTURE = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
# Of CUdevice_attribute
_MAX_BLOCK, _LOCAL_BYTES, _UNITS, _MAJOR, _MINOR = 1, 8, 16, 75, 76
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
        """Load a cubin and return one of its kernels, which may be launched with so many bytes of local memory.

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


def packed(arguments: tuple[str | plans.Number, ...]) -> tuple[bytes, list[int], list[str]]:
    """Return arguments in memory, each aligned to its size, with their offsets, and the names of arrays among them.

    The pointers of arrays are zero.
    """
    data, offsets = bytearray(), []
    for argument in arguments:
        value = bytes(8) if isinstance(argument, str) else argument.tobytes()
        data += bytes(-len(data) % len(value))
        offsets.append(len(data))
        data += value
    return bytes(data), offsets, [argument for argument in arguments if isinstance(argument, str)]


class Step:
    """One launch, ready but for the pointers of its arrays: `slots` says where in a list these are, by name."""

    def __init__(
        self,
        where: Device,
        function: ctypes.c_void_p,
        launch: plans.Launch,
        slots: dict[str, int],
        dynamic_bytes: int = 0,
    ) -> None:
        data, offsets, names = packed(launch.arguments)
        self._values = ctypes.create_string_buffer(data, -(-len(data) // 8) * 8)
        self._words = memoryview(self._values).cast("B").cast("Q")
        start = ctypes.addressof(self._values)
        self._parameters = (ctypes.c_void_p * len(offsets))(*[start + offset for offset in offsets])
        pointers = [offset // 8 for offset, a in zip(offsets, launch.arguments, strict=True) if isinstance(a, str)]
        self._slots = tuple(zip(pointers, (slots[name] for name in names), strict=True))
        self._config = _Config((launch.groups, 1, 1), (launch.block, 1, 1), dynamic_bytes)
        self._at_config = ctypes.byref(self._config)
        self._function, self._device, self._launch = function, where, library().cuLaunchKernelEx
        self._lock = threading.Lock()

    def __call__(self, stream: int, pointers: list[int]) -> None:
        """Enqueue the launch; the driver copies the arguments."""
        with self._lock:
            for at, slot in self._slots:
                self._words[at] = pointers[slot]
            self._config.stream = stream
            status = self._launch(self._at_config, self._function, self._parameters, None)
            if status == _INVALID_CONTEXT:
                self._device.enter()
                status = self._launch(self._at_config, self._function, self._parameters, None)
        if status:
            check(status)
