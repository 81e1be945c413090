"""Which operators CUDA kernels compute: all that there are plans for."""

from __future__ import annotations

from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels.cuda import _driver
from tensorops.kernels.cuda._launch import register

_driver.library()  # without NVIDIA's driver there are no such arrays

for _operator, _planner in PLANNERS.items():
    register(_operator, _planner)
