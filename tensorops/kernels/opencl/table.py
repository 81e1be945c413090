"""Which operators OpenCL kernels compute: all that there are plans for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorops._operator import Operator
from tensorops.kernels._gpu.planners import PLANNERS, Planner


def _register(operator: Operator[..., Any], planner: Planner) -> None:
    """Register an operator's kernel, which imports PyOpenCL with the first array."""

    @functools.cache
    def load() -> Callable[..., Any]:
        from tensorops.kernels.opencl._launch import kernel_of

        return kernel_of(operator, planner)

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        return load()(*args, **kwargs)

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        from tensorops.kernels.opencl._launch import why_not

        return why_not(operator, planner, args, kwargs)

    operator.kernel("opencl", supports=supports, checks=True, wrappers=True, load=load)(kernel)


for _operator, _planner in PLANNERS.items():
    _register(_operator, _planner)
