"""The planner of each operator: it takes a `Device` and the operator's canonical arguments, with metadata for arrays."""

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
    normalization.add_rms_norm: plan_normalization.add_rms_norm,
    normalization.layer_norm: plan_normalization.layer_norm,
    normalization.group_norm: plan_normalization.group_norm,
    normalization.instance_norm: plan_normalization.instance_norm,
    normalization.l2_norm: plan_normalization.l2_norm,
}
