"""PyOpenCL: OpenCL counts no memory in use, and waits by queue."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any

from tensorops.backends.devices import ConfigurationError, DeviceConfig, OpenCLConfig
from tensorops.backends.registry import describe_error
from tensorops.backends.runtimes._base import Change, DeviceFacts, MemoryStats, Runtime

_VARIABLE = "PYOPENCL_CTX"


class PyopenclRuntime(Runtime):
    """The device that PyOpenCL chooses where nobody names one: ``PYOPENCL_CTX``, else the first.

    `synchronize` finishes the queues of all arrays that are alive: PyOpenCL keeps no list of its queues. OpenCL does
    not tell how much memory is in use.
    """

    def do_facts(self) -> DeviceFacts:
        import pyopencl as cl

        device = _chosen(cl)
        dtypes = ["float32", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
        extensions = device.extensions.split()
        if "cl_khr_fp64" in extensions:
            dtypes.insert(1, "float64")
        if "cl_khr_fp16" in extensions:
            dtypes.insert(0, "float16")
        return DeviceFacts(
            compute_units=device.max_compute_units,
            max_memory=device.global_mem_size,
            max_shared_memory=device.local_mem_size,
            device_count=sum(len(_devices(platform)) for platform in cl.get_platforms()),
            device_name=device.name.strip(),
            dtypes=tuple(dtypes),
            versions={
                "pyopencl": cl.VERSION_TEXT,
                "opencl": device.version.strip(),
                "driver": device.driver_version.strip(),
            },
        )

    def do_synchronize(self) -> None:
        import pyopencl.array as cla

        shim = sys.modules.get("array_api_pyopencl")
        wrapper = () if shim is None else shim.Array
        # By type(x), as isinstance asks objects for their __class__, and some proxies then load what they stand for.
        arrays = [x for x in gc.get_objects() if issubclass(type(x), (cla.Array, wrapper))]
        queues = {x.device.queue if issubclass(type(x), wrapper) else x.queue for x in arrays}
        for queue in queues - {None}:
            queue.finish()

    def do_memory_stats(self) -> MemoryStats:
        import pyopencl as cl

        device = _chosen(cl)
        return MemoryStats(self.name, device.name.strip(), total=device.global_mem_size)

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        import pyopencl as cl

        assert isinstance(config, OpenCLConfig)

        def write(value: str) -> None:
            if value:
                os.environ[_VARIABLE] = value
            else:
                os.environ.pop(_VARIABLE, None)

        value = None if config.device is None else _indices_of(cl, config.device)
        return (Change(_VARIABLE, lambda: os.environ.get(_VARIABLE, ""), write, value),)


def _chosen(cl: Any) -> Any:
    return cl.choose_devices(interactive=False)[0]


def _devices(platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except Exception:  # a platform without devices says so with an error
        return []


def _indices_of(cl: Any, wanted: str) -> str:
    """Return ``"platform:device"`` in numbers for what the user wrote, each an index or part of a name."""
    try:
        platforms = list(cl.get_platforms())
    except Exception as error:
        raise ConfigurationError(f"OpenCL lists no platform: {describe_error(error)}") from error
    first, _, second = wanted.partition(":")
    for p, platform in enumerate(platforms):
        for d, device in enumerate(_devices(platform)):
            if _means(first, p, platform.name) and (not second or _means(second, d, device.name)):
                return f"{p}:{d}"
    listed = "; ".join(
        f"{p}:{d} is {device.name.strip()} of {platform.name.strip()}"
        for p, platform in enumerate(platforms)
        for d, device in enumerate(_devices(platform))
    )
    raise ConfigurationError(f"OpenCL has no device {wanted!r}; there are: {listed or 'none'}")


def _means(wanted: str, index: int, name: str) -> bool:
    return int(wanted) == index if wanted.isascii() and wanted.isdigit() else wanted.strip().lower() in name.lower()
