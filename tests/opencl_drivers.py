"""The OpenCL drivers under test, Intel's from PyPI and PoCL, and which of them can compute here."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_SYSTEM = Path("/etc/OpenCL/vendors")


@functools.cache
def show_intel() -> tempfile.TemporaryDirectory[str] | None:
    """Let OpenCL's loader find Intel's runtime if pip installed it, unless the user names the drivers.

    That package gives the loader a path of the machine it was built on, so a folder is made with the right path and
    the system's drivers. PyOpenCL's loader always finds PoCL beside itself.
    """
    if os.environ.get("OCL_ICD_VENDORS"):
        return None
    try:
        files = importlib.metadata.files("intel-opencl-rt") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    driver = next((Path(file.locate()).resolve() for file in files if file.name == "libintelocl.so"), None)
    if driver is None:
        return None
    folder = tempfile.TemporaryDirectory(prefix="opencl-vendors-")  # as long as the process lives
    for known in _SYSTEM.glob("*.icd"):
        shutil.copy(known, folder.name)
    Path(folder.name, "intel-of-pypi.icd").write_text(f"{driver}\n")
    os.environ["OCL_ICD_VENDORS"] = folder.name
    return folder


@dataclasses.dataclass(frozen=True)
class Platform:
    """A driver: its first device's name in `PYOPENCL_CTX`, its name, and why it cannot compute, if so."""

    choice: str
    name: str
    reason: str

    def __str__(self) -> str:
        return self.name

    def require(self) -> None:
        """Skip the test, with the reason, if the device cannot compute."""
        if self.reason:
            pytest.skip(f"{self.name}: {self.reason}")


@functools.cache
def platforms() -> tuple[Platform, ...]:
    """Return the drivers that have a device."""
    import pyopencl as cl

    found = [(i, platform, platform.get_devices()) for i, platform in enumerate(cl.get_platforms())]
    working = [(f"{i}:0", platform.name.strip(), devices[0]) for i, platform, devices in found if devices]
    return tuple(
        Platform(choice, name, _why_not_arrays(device) or _why_not_kernels(choice)) for choice, name, device in working
    )


_KERNEL = """
import array_api_pyopencl as xp, tensorops
print(float(xp.sum(tensorops.rms_norm(xp.ones((3, 7), dtype=xp.float32)))))
"""


def _why_not_kernels(choice: str) -> str:
    """In a process of its own: PoCL's compiler ends the process for some processors with AVX-512."""
    environment = os.environ | {"PYOPENCL_CTX": choice}
    command = [sys.executable, "-c", _KERNEL]
    try:
        child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return "a process that computes rms_norm does not end"
    if child.returncode == 0:
        return "" if abs(float(child.stdout) - 21) < 1e-3 else f"rms_norm of ones gave {child.stdout}"
    lines = child.stderr.strip().splitlines() or [""]
    said = next((line for line in lines if "LLVM ERROR" in line), lines[-1])
    return f"a process that computed rms_norm ended with {child.returncode} ({said})"


def _why_not_arrays(device: object) -> str:
    import array_api_pyopencl as xp

    try:
        total = float(xp.sum(xp.exp(xp.zeros(7, dtype=xp.float32, device=device))))
    except Exception as error:  # such as PoCL's on a processor that its compiler does not know
        lines = [line for line in str(error).splitlines() if line.strip()]
        return next((line for line in lines if line.startswith("error")), lines[0])
    return "" if total == 7.0 else f"the sum of seven ones is {total}"
