"""The planner of each operator: it takes a `Device` and the operator's canonical arguments, with metadata for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tensorops._operator import Operator
from tensorops.kernels._gpu import linear as plan_linear
from tensorops.kernels._gpu import normalization as plan_normalization
from tensorops.kernels._gpu import quantization as plan_quantization
from tensorops.kernels._gpu.plans import Plan
from tensorops.ops import linear, normalization, quantization

Planner: TypeAlias = Callable[..., Plan | str]

PLANNERS: dict[Operator[..., Any], Planner] = {
    linear.linear: plan_linear.linear,
    normalization.rms_norm: plan_normalization.rms_norm,
    quantization.quantize: plan_quantization.quantize,
    quantization.dequantize: plan_quantization.dequantize,
    quantization.quantized_linear: plan_quantization.quantized_linear,
}
