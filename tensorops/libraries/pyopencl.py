"""PyOpenCL: transfers, and the device that it chooses; OpenCL has no memory statistics and waits by queue."""

from __future__ import annotations

import copy
import gc
import os
import site
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorops._files import cache_folder, write_atomically
from tensorops._messages import describe_error
from tensorops.libraries._arrays import bfloat16
from tensorops.libraries._options import TEXT, ConfigurationError, DeviceConfig, option
from tensorops.libraries._rows import ON_EVERY_CHANGE, Backend, Library
from tensorops.libraries._runtime import Change, DeviceFacts, MemoryStats, Runtime
from tensorops.typing import Array

if TYPE_CHECKING:
    import numpy as np


def _to_numpy(x: Array) -> np.ndarray[Any, Any]:
    import array_api_pyopencl as xp

    return xp.asarray(x).numpy()


def _from_numpy(a: np.ndarray[Any, Any], device: Any) -> Array:
    import array_api_pyopencl as xp

    if a.dtype == bfloat16():
        raise TypeError("pyopencl holds no bfloat16")
    return xp.asarray(a, device=device).cl_array


def _device(x: Array) -> Any:
    # What is created while a wrapper's calls are only recorded does not depend on them.
    return x.queue if hasattr(x, "queue") else x.device.origin


def _wait(arrays: list[Any]) -> None:
    # The runtime searches all objects for queues, which takes longer than most operators.
    for array in arrays:
        array.queue.finish()


def _unwrapped(x: Array) -> Array:
    """Return what PyOpenCL's own operations take: elements side by side, and not a small part of a large buffer."""
    layout, size = x._layout, getattr(x._buffer, "size", 0)
    held = layout.contiguous and size <= max(2 * layout.nbytes, 4096)
    return (x if held else copy.copy(x)).cl_array


LIBRARY = Library(
    name="pyopencl",
    packages=("pyopencl", "array_api_pyopencl"),
    array_type="pyopencl.array:Array",
    wrapper="array_api_pyopencl:Array",
    unwrapped=_unwrapped,
    standard="array_api_pyopencl",
    to_numpy=_to_numpy,
    from_numpy=_from_numpy,
    runtime="tensorops.libraries.pyopencl:PyopenclRuntime",
    device=_device,
    wait=_wait,
    sums_in_order=True,
    extra="opencl",
)


@dataclass(frozen=True)
class OpenCLConfig(DeviceConfig):
    """Options of PyOpenCL.

    Parameters
    ----------
    device : str, optional
        ``"PLATFORM"`` or ``"PLATFORM:DEVICE"``, each a number from 0 or part of a name. PyOpenCL chooses this device
        where a program does not name one, as with ``PYOPENCL_CTX``.

    Raises
    ------
    TypeError, ValueError
        If a value is not valid; the message names it and what is expected.

    Examples
    --------
    >>> from tensorops import OpenCLConfig
    >>> OpenCLConfig(device="0:0").device
    '0:0'
    """

    device: str | None = option(TEXT)


BACKENDS = (
    Backend(
        "opencl",
        LIBRARY,
        "PyOpenCL arrays",
        aliases=("pyopencl",),
        suits=("rocm", "opencl"),
        options=OpenCLConfig,
        remedy="install the OpenCL driver of your device; one for processors: "
        "pip install intel-opencl-rt intel-cmplr-lib-rt on x86-64, pip install pocl-binary-distribution on others",
        tested=ON_EVERY_CHANGE,
    ),
)

# ------------------------------------------------------------------------------------------ Intel's driver

INTELS_PACKAGES = "pip install intel-opencl-rt intel-cmplr-lib-rt"
_INTELS_DRIVER = "libintelocl.so"


def intels_driver() -> str:
    """Return the path of the driver for processors that pip installs, or an empty string."""
    for folder in filter(None, (sys.prefix, site.USER_BASE)):
        path = os.path.join(folder, "lib", _INTELS_DRIVER)  # noqa: PTH118 - on every import
        if os.path.exists(path):  # noqa: PTH110
            return path
    return ""


def _show_intels_driver() -> str:
    """Let OpenCL's loader find that driver; the package names it by a path of the machine that it was built on.

    Returns what `OCL_ICD_VENDORS` was set to, or an empty string.

    When a program first asks for OpenCL's platforms, the loader loads the driver that is named, or those of a folder
    with a file for each. Given a folder, PyOpenCL's also loads PoCL next to itself, with which Intel's ends the process
    on some processors; so it gets one only where the system has drivers. A program that names its drivers keeps these.
    """
    if sys.platform != "linux" or os.environ.get(_DRIVERS) or not (driver := intels_driver()):
        return ""
    from hashlib import sha256
    from pathlib import Path

    try:
        files = {path.name: path.read_text() for path in sorted(Path("/etc/OpenCL/vendors").glob("*.icd"))}
        if any(_INTELS_DRIVER in content for content in files.values()):
            return ""
        if not files:
            os.environ[_DRIVERS] = driver
            return driver
        files["intel-opencl-rt.icd"] = f"{driver}\n"
        folder = cache_folder() / "opencl-vendors" / sha256(repr(files).encode()).hexdigest()[:16]
        for name, content in files.items():
            if not (folder / name).exists():
                write_atomically(folder / name, content)
    except (OSError, ValueError):  # no place for the folder, or no text
        return ""
    os.environ[_DRIVERS] = str(folder)
    return str(folder)


_DRIVERS = "OCL_ICD_VENDORS"
SHOWN = _show_intels_driver()
"""What tensorops set `OCL_ICD_VENDORS` to. The loader reads it when a program first asks PyOpenCL for platforms."""

# ------------------------------------------------------------------------------------------- device and memory

_VARIABLE = "PYOPENCL_CTX"


class PyopenclRuntime(Runtime):
    """The device that PyOpenCL chooses by default: ``PYOPENCL_CTX``, else the first.

    `synchronize` finishes the queues of all live arrays: PyOpenCL keeps no list of its queues. OpenCL does not report
    how much memory is in use.
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
        # By type(x), because isinstance reads __class__, and some proxies then load their target.
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
    except Exception:  # a platform without devices raises an error
        return []


def _indices_of(cl: Any, wanted: str) -> str:
    """Return ``"platform:device"`` in numbers for a user's text, in which each is an index or part of a name."""
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
