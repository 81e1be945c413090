"""The planner of each operator: it takes a `Device` and the operator's canonical arguments, with metadata for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tensorops._operator import Operator
from tensorops.kernels._gpu import embedding as plan_embedding
from tensorops.kernels._gpu import loss as plan_loss
from tensorops.kernels._gpu import normalization as plan_normalization
from tensorops.kernels._gpu import positional as plan_positional
from tensorops.kernels._gpu import sampling as plan_sampling
from tensorops.kernels._gpu import selection as plan_selection
from tensorops.kernels._gpu.plans import Plan
from tensorops.ops import linear, loss, normalization, positional, sampling, selection

Planner: TypeAlias = Callable[..., Plan | str]

PLANNERS: dict[Operator[..., Any], Planner] = {
    linear.embedding: plan_embedding.embedding,
    loss.cross_entropy: plan_loss.cross_entropy,
    normalization.rms_norm: plan_normalization.rms_norm,
    positional.rope: plan_positional.rope,
    sampling.sample: plan_sampling.sample,
    selection.top_k: plan_selection.top_k,
}
