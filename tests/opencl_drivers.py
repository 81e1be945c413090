"""The OpenCL drivers under test, Intel's from PyPI and PoCL, and which of them can compute here."""

from __future__ import annotations

import dataclasses
import functools

import pytest


@dataclasses.dataclass(frozen=True)
class Platform:
    """A driver: its first device's name in `PYOPENCL_CTX`, its name, and why it cannot compute, if so."""

    choice: str
    name: str
    reason: str
    is_further: bool = False  # than the first that can compute

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

    from tensorops.kernels.opencl import _drivers

    found = [(i, platform, platform.get_devices()) for i, platform in enumerate(cl.get_platforms())]
    working = [(f"{i}:0", platform.name.strip(), devices[0]) for i, platform, devices in found if devices]
    listed: list[Platform] = []
    for choice, name, device in working:
        reason = _why_not_arrays(device) or _drivers.why_not(device)
        listed.append(Platform(choice, name, reason, not reason and any(not p.reason for p in listed)))
    return tuple(listed)


def _why_not_arrays(device: object) -> str:
    import array_api_pyopencl as xp

    try:
        total = float(xp.sum(xp.exp(xp.zeros(7, dtype=xp.float32, device=device))))
    except Exception as error:  # such as PoCL's on a processor that its compiler does not know
        lines = [line for line in str(error).splitlines() if line.strip()]
        return next((line for line in lines if line.startswith("error")), lines[0])
    return "" if total == 7.0 else f"the sum of seven ones is {total}"
