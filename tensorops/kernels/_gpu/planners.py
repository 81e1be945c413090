"""The planner of each operator: it takes a `Device` and canonical arguments, with metadata for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tensorops._operator import Operator
from tensorops.kernels._gpu import normalization as plan_normalization
from tensorops.kernels._gpu.plans import Plan
from tensorops.ops import normalization

Planner: TypeAlias = Callable[..., Plan | str]

PLANNERS: dict[Operator[..., Any], Planner] = {
    normalization.rms_norm: plan_normalization.rms_norm,
}
