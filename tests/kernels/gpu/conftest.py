"""Fixtures: OpenCL devices as what they are, and as GPUs, whose kernels and geometry a processor computes as well."""

from __future__ import annotations

import dataclasses

import pytest

import support

# A GPU's programs take drivers for processors seconds to compile. In the short run, `test_every_case` shows that each
# operator is right with them, and the emulated GPU.
GPU = [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("gpu", "gpu-subgroups")]


@pytest.fixture(params=["processor", *GPU])
def geometry(request, platform, monkeypatch):
    """The default OpenCL device with a processor's launch geometry, and with a GPU's, without and with subgroups."""
    support.require_provider("opencl")
    from tensorops.kernels.opencl import _launch

    facts = _launch.facts_of(support.require("pyopencl").xp.default_device())
    if request.param == "processor":
        yield facts
        return
    if "PoCL 3.0" in support.require("pyopencl").xp.default_device().cl_device.platform.version:
        # Oclgrind and the emulated GPU run the same programs without a report.
        pytest.skip(f"{platform}: PoCL 3.0 corrupts its memory in some kernels of several work-items a row")
    lanes = facts.lanes if request.param == "gpu-subgroups" else 0
    if request.param == "gpu-subgroups" and not lanes:
        pytest.skip(f"{platform}: has no subgroups of a fixed size")
    facts = dataclasses.replace(facts, kind="gpu", lanes=lanes, max_block=256)
    monkeypatch.setattr(_launch, "facts_of", lambda device: facts)
    _launch.forget_calls()
    yield facts
    _launch.forget_calls()
