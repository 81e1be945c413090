"""The OpenCL drivers here, Intel's from PyPI, PoCL and the system's, and which of them is under test in this process.

Two drivers in one process can end it, and a driver's compiler may abort. So each is tried in a process of its own, and
this process loads only the first that can compute; `test_drivers.py` runs the tests of OpenCL on the others. To be
imported before tensorops, which names a driver if nobody has, and before PyOpenCL.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

VENDORS, KNOWN = "OCL_ICD_VENDORS", "OPENCL_DRIVERS_UNDER_TEST"
SECONDS = 180

_TRIAL = """
import json
import pyopencl as cl
(device, *_), *_ = [p.get_devices() for p in cl.get_platforms()]
print(json.dumps([device.platform.name.strip(), device.name.strip()]), flush=True)
import array_api_pyopencl as xp
total = float(xp.sum(xp.exp(xp.zeros(7, dtype=xp.float32, device=device))))
assert total == 7, f"the sum of seven ones is {total}"
from tensorops.kernels.opencl import _drivers
print(json.dumps(_drivers.why_not(device)))
"""


@dataclasses.dataclass(frozen=True)
class Driver:
    """A driver: its library, its name, that of its first device, and why it cannot compute."""

    library: str
    name: str
    device: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that loads this driver alone, and runs tests on it."""
        return {VENDORS: self.library, KNOWN: json.dumps([dataclasses.astuple(self)])}


def libraries(vendors: str | None) -> list[str]:
    """Return the libraries of drivers that PyOpenCL's loader finds with this value of `OCL_ICD_VENDORS`."""
    from tensorops.libraries.pyopencl import intels_driver

    package = importlib.util.find_spec("pyopencl")
    if package is None or package.origin is None:
        return []
    if vendors and not Path(vendors).is_dir():
        return [vendors]
    # The loader of PyOpenCL's wheels adds the folder in which `pocl-binary-distribution` puts PoCL.
    folders = vendors or "/etc/OpenCL/vendors", Path(package.origin).parent / ".libs"
    named = [file.read_text().strip() for folder in folders for file in sorted(Path(folder).glob("*.icd"))]
    # Without any: what a loader of another kind finds by itself.
    return list(dict.fromkeys(filter(None, [*([] if vendors else [intels_driver()]), *named]))) or [""]


def tried(named: list[str]) -> list[Driver]:
    """Compute with each of these libraries in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", _TRIAL]
    started = [
        subprocess.Popen(
            command, env=os.environ | {VENDORS: library}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for library in named
    ]
    return [_driver(library, process) for library, process in zip(named, started, strict=True)]


def _driver(library: str, process: subprocess.Popen[str]) -> Driver:
    try:
        said, complaints = process.communicate(timeout=SECONDS)
        status = f"was ended by signal {-process.returncode}" if process.returncode < 0 else "failed"
    except subprocess.TimeoutExpired:
        process.kill()
        said, complaints = process.communicate()
        status = f"gave no answer within {SECONDS} seconds"
    facts, *answer = said.splitlines() or [json.dumps([Path(library).name])]
    lines = complaints.strip().splitlines() or ["no output"]
    reason = json.loads(answer[0]) if answer else f"a process that computes with it {status} ({lines[-1]})"
    return Driver(library, *json.loads(facts), reason=reason)


def _found() -> list[Driver]:
    if os.environ.get(KNOWN):
        return [Driver(*row) for row in json.loads(os.environ[KNOWN])]
    given = os.environ.get(VENDORS)
    os.environ.pop("PYOPENCL_CTX", None)  # which is a number among the drivers that a user's programs load
    return sorted(tried(libraries(given)), key=lambda driver: bool(driver.reason))


DRIVERS = _found()
if DRIVERS:
    # For this process, for those that tests start, and for the workers of pytest-xdist, which know the others, too.
    os.environ.update(DRIVERS[0].environment | {KNOWN: json.dumps([dataclasses.astuple(d) for d in DRIVERS])})
