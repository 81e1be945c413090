"""DLPack: OpenCL memory that the host can access is shared as host memory, all other is only copied on request.

The host can access the memory of CPU devices and fine-grained shared virtual memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl

from array_api_pyopencl._devices import Device

CPU = 1
OPENCL = 4


def _is_host_memory(x: Any) -> bool:
    if x.device.is_cpu:
        return True
    fine = cl.device_svm_capabilities.FINE_GRAIN_BUFFER
    return is_svm(x._buffer) and bool(x.device.cl_device.svm_capabilities & fine)


def is_svm(buffer: Any) -> bool:
    """Return whether memory is an SVM allocation, which an array of `pyopencl.array` may have, rather than a buffer."""
    return not isinstance(buffer, cl.MemoryObjectHolder)


def device_of(x: Any) -> tuple[int, int]:
    """Return DLPack's name of the device: a CPU device's buffers are host memory."""
    return (CPU, 0) if _is_host_memory(x) else (OPENCL, _ordinal(x.device))


def _ordinal(device: Device) -> int:
    found: list[cl.Device] = device.cl_device.platform.get_devices()
    return found.index(device.cl_device)


def export(x: Any, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
    """Return the capsule, after waiting for the values."""
    if stream is not None:
        raise ValueError("__dlpack__ does not accept a stream: the values are computed when it returns")
    where = device_of(x) if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if where[0] != CPU:
        raise BufferError(
            "OpenCL memory cannot be exported by DLPack: request a copy in host memory, dl_device=(1, 0), "
            "or use the pyopencl.array.Array that the property cl_array returns"
        )
    shared = _is_host_memory(x)
    if copy is False and not shared:
        raise BufferError("copy=False, but the memory of this OpenCL device is not host memory")
    host = host_view(x) if shared and not copy else x.numpy()
    return host.__dlpack__() if max_version is None else host.__dlpack__(max_version=max_version)


class _Mapped:
    """Memory that the host can access; it keeps the mapped buffer alive."""

    def __init__(self, mapped: np.ndarray[Any, Any], kept: Any) -> None:
        self.__array_interface__ = mapped.__array_interface__
        self._kept = (mapped, kept)


def host_view(x: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array that shares the memory of `x`, after waiting for its values."""
    layout = x._layout
    if layout.size == 0:
        return np.empty(layout.shape, layout.dtype)
    start, stop = layout.low * layout.itemsize, (layout.high + 1) * layout.itemsize
    if is_svm(x._buffer):
        mapping = x._buffer.map_rw(x._device.queue)
        mapped, kept = mapping.array[start:stop], mapping
    else:
        flags = cl.map_flags.READ | cl.map_flags.WRITE
        mapped, _ = cl.enqueue_map_buffer(x._device.queue, x._buffer, flags, start, (stop - start,), np.uint8)
        kept = x._buffer
    flat = np.asarray(_Mapped(mapped, kept)).view(layout.dtype)
    strides = tuple(s * layout.itemsize for s in layout.strides)
    return np.lib.stride_tricks.as_strided(flat[layout.offset - layout.low :], layout.shape, strides)


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Return any object with ``__dlpack__`` as a NumPy array in host memory."""
    try:
        return np.from_dlpack(x) if x.__dlpack_device__()[0] == CPU else np.from_dlpack(x, device="cpu")
    except RuntimeError as error:
        raise TypeError(f"an array cannot be made of {type(x).__name__}: {error}") from None
