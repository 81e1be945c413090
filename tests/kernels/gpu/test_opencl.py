"""The kernels in native/gpu on OpenCL devices: every case, with the geometry of a processor and with that of a GPU."""

from __future__ import annotations

import dataclasses

import pytest

import support
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.testing.conformance import subjects

OPERATORS = {operator.__name__: operator for operator in PLANNERS}


@pytest.mark.dimensions
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_case(geometry, name, dtype):
    if dtype not in support.dtypes_of("pyopencl"):
        pytest.skip(f"the device holds no {dtype}")
    (subject,) = subjects("opencl", operators=[name], dtypes=[dtype], implementations=["opencl"])
    outcomes = dataclasses.replace(subject, invalid=()).run()
    failed = [f"{outcome.case}: {outcome.message}" for outcome in outcomes if outcome.status == "failed"]
    assert not failed, "\n".join(failed)
    assert any(outcome.status == "passed" for outcome in outcomes)
