"""The planner of each operator: it takes a `Device` and canonical arguments, with metadata for arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from tensorops._operator import Operator
from tensorops.kernels._gpu import (
    activation as plan_activation,
    attention as plan_attention,
    embedding as plan_embedding,
    linear as plan_linear,
    loss as plan_loss,
    normalization as plan_normalization,
    positional as plan_positional,
    quantization as plan_quantization,
    sampling as plan_sampling,
    selection as plan_selection,
    softmax as plan_softmax,
)
from tensorops.kernels._gpu.plans import Plan
from tensorops.ops import (
    activation,
    attention,
    linear,
    loss,
    normalization,
    positional,
    quantization,
    sampling,
    selection,
)

Planner: TypeAlias = Callable[..., Plan | str]

PLANNERS: dict[Operator[..., Any], Planner] = {
    attention.scaled_dot_product_attention: plan_attention.scaled_dot_product_attention,
    normalization.rms_norm: plan_normalization.rms_norm,
    normalization.add_rms_norm: plan_normalization.add_rms_norm,
    normalization.layer_norm: plan_normalization.layer_norm,
    normalization.group_norm: plan_normalization.group_norm,
    normalization.instance_norm: plan_normalization.instance_norm,
    normalization.l2_norm: plan_normalization.l2_norm,
    activation.relu: plan_activation.planner("relu"),
    activation.relu_squared: plan_activation.planner("relu_squared"),
    activation.sigmoid: plan_activation.planner("sigmoid"),
    activation.silu: plan_activation.planner("silu"),
    activation.softplus: plan_activation.planner("softplus"),
    activation.gelu: plan_activation.gelu,
    activation.quick_gelu: plan_activation.planner("quick_gelu"),
    activation.mish: plan_activation.planner("mish"),
    activation.hard_sigmoid: plan_activation.hard_sigmoid,
    activation.hard_swish: plan_activation.planner("hard_swish"),
    activation.elu: plan_activation.planner("elu"),
    activation.selu: plan_activation.planner("selu"),
    activation.leaky_relu: plan_activation.leaky_relu,
    activation.swiglu: plan_activation.gated("silu"),
    activation.geglu: plan_activation.gated("gelu"),
    activation.reglu: plan_activation.gated("relu"),
    activation.softmax: plan_softmax.softmax,
    activation.log_softmax: plan_softmax.log_softmax,
    activation.logsumexp: plan_softmax.logsumexp,
    linear.linear: plan_linear.linear,
    quantization.quantize: plan_quantization.quantize,
    quantization.dequantize: plan_quantization.dequantize,
    quantization.quantized_linear: plan_quantization.quantized_linear,
    linear.embedding: plan_embedding.embedding,
    loss.cross_entropy: plan_loss.cross_entropy,
    positional.rope: plan_positional.rope,
    sampling.sample: plan_sampling.sample,
    selection.top_k: plan_selection.top_k,
}
