"""The planner of each operator: it takes a `Device` and the operator's canonical arguments, with metadata for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tensorops._operator import Operator
from tensorops.kernels._gpu import attention as plan_attention
from tensorops.kernels._gpu import normalization as plan_normalization
from tensorops.kernels._gpu.plans import Plan
from tensorops.ops import attention, normalization

Planner: TypeAlias = Callable[..., Plan | str]

PLANNERS: dict[Operator[..., Any], Planner] = {
    attention.scaled_dot_product_attention: plan_attention.scaled_dot_product_attention,
    normalization.rms_norm: plan_normalization.rms_norm,
}
