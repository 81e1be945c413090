"""Which operators Triton's programs compute, for tensors and CuPy arrays in the memory of NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorops.kernels._gpu.plans import Launch, Operand
from tensorops.kernels.cuda import _driver
from tensorops.kernels.cuda._launch import register
from tensorops.kernels.triton.compiling import compiled
from tensorops.kernels.triton.planners import PLANNERS

_driver.library()  # without NVIDIA's driver there are no such arrays

_SCRATCH = (np.int64(0), np.int64(0))
"""The last arguments of what Triton compiles: memory for programs and for their profiles, which these do not use."""

_OLDEST = 80
"""The first compute capability whose tensor cores take bfloat16."""


def _step(device: _driver.Device, launch: Launch, arrays: dict[str, Operand], slots: dict[str, int]) -> _driver.Step:
    if device.capability < _OLDEST:
        raise _driver.CudaError(f"the device has compute capability {device.capability / 10}, 8.0 is needed")
    program = compiled(launch, arrays, device.capability, device.most_local_bytes)
    if isinstance(program, str):
        raise _driver.CudaError(program)
    function = device.load(program.cubin, program.function, program.local_bytes)
    return _driver.Step(
        device, function, replace(launch, arguments=launch.arguments + _SCRATCH), slots, program.local_bytes
    )


for _operator, _planner in PLANNERS.items():
    register(_operator, _planner, "triton", _step)
