"""Which operators OpenCL kernels compute: all that there are plans for."""

from __future__ import annotations

from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels.opencl._launch import register

for _operator, _planner in PLANNERS.items():
    register(_operator, _planner)
