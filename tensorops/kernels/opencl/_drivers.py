"""Whether a driver's compiler takes our kernels: it compiles the first one in a process of its own.

PoCL 3 ends the process on some processors with AVX-512 (``LLVM ERROR``), or never returns. A driver that passed is
remembered in the user's cache folder, by its version.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
import threading
from typing import Any

from tensorops._files import cache_folder, read_regular, write_atomically
from tensorops.backends.probing import end_elsewhere
from tensorops.libraries.pyopencl import INTELS_PACKAGES, SHOWN, intels_driver

SECONDS = 60.0
"""How long the trial may take: PoCL's compiler takes seconds."""

MOST_BYTES = 1 << 20
"""An upper bound of the remembered drivers, 64 of which take a hundredth."""

_TRIAL = "from tensorops.kernels.opencl import _drivers; _drivers.compute(*arguments)"
_EARLY = "import os; os.environ.pop('OCL_ICD_VENDORS'); import pyopencl; pyopencl.get_platforms(); "
_reasons: dict[tuple[str, ...], str] = {}
_trying = threading.Lock()


def why_not(device: Any) -> str:
    """Return why the driver of a device of PyOpenCL cannot compute our kernels, or an empty string."""
    key = _key(device)
    found = _reasons.get(key)
    if found is None:
        with _trying:
            found = _reasons.get(key)
            if found is None:
                passed = cache_folder() / "opencl-drivers.json"
                known = _read(passed)
                early = asked_early()
                found = "" if list(key) in known else try_driver(*key[:2], early=early)
                found += f"; to fix it: {remedy(key[0], early=early)}" if found else ""
                if not found and list(key) not in known:
                    _write(passed, [*known, list(key)])
                _reasons[key] = found
    return found


def _key(device: Any) -> tuple[str, ...]:
    import tensorops

    driver, facts = device.platform, (device.driver_version.strip(), tensorops.__version__)
    return driver.name.strip(), device.name.strip(), driver.version.strip(), *facts


def asked_early() -> bool:
    """Return whether this program asked PyOpenCL for platforms before tensorops told the loader of Intel's driver."""
    import pyopencl as cl

    return bool(SHOWN) and all(each.name.strip() != "Intel(R) OpenCL" for each in cl.get_platforms())


def try_driver(driver: str, device: str, *, early: bool = False) -> str:
    """Compute with a kernel on a device, both named, in a process of its own; return how that failed.

    `early` is what `asked_early` returns in the process that has the device: the trial then loads the same drivers.
    """
    end = end_elsewhere(_EARLY + _TRIAL if early else _TRIAL, driver, device, seconds=SECONDS)
    return f"a process that computes by OpenCL with {driver} {end}" if end else ""


def remedy(driver: str, *, early: bool = False) -> str:
    """Return what helps where a driver's compiler fails; for `early`, see `try_driver`."""
    if early:
        return (
            "import tensorops before the program first asks PyOpenCL for platforms or a context, or set "
            f"OCL_ICD_VENDORS={intels_driver()}: Intel's driver, which is installed, then computes"
        )
    if "Intel" in driver and importlib.util.find_spec("pocl_binary_distribution"):
        return "pip uninstall pocl-binary-distribution, with which Intel's driver fails on some processors"
    if "Portable" not in driver or platform.machine() not in ("x86_64", "AMD64"):
        return f"update {driver}"
    if intels_driver():
        return "use Intel's driver, which is installed: pip uninstall pocl-binary-distribution"
    return f"use Intel's driver, which runs on processors of any maker: {INTELS_PACKAGES}"


def compute(driver: str, name: str) -> None:
    """Compute with a kernel on a device, in the separate process."""
    import numpy as np
    import pyopencl as cl
    import pyopencl.array as cla

    import tensorops

    listed = [device for each in cl.get_platforms() if each.name.strip() == driver for device in each.get_devices()]
    device = next((device for device in listed if device.name.strip() == name), None)
    if device is None:  # such as a part of one, which no program finds by name
        return
    _reasons[_key(device)] = ""  # this is the trial
    context = cl.Context([device])  # which a queue of Intel's does not keep alive
    queue = cl.CommandQueue(context)
    x = cla.to_device(queue, np.ones((3, 7), np.float32))
    total = float(tensorops.rms_norm(x).get().sum())
    if abs(total - 21) > 1e-3:
        sys.exit(f"rms_norm of ones gave {total} instead of 21")


def _read(path: Any) -> list[list[str]]:
    try:
        known = json.loads(read_regular(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []  # written anew, whatever it is
    return known if isinstance(known, list) else []


def _write(path: Any, known: list[list[str]]) -> None:
    try:
        write_atomically(path, json.dumps(known[-64:]))
    except OSError:
        return  # it is tried again by the next program
