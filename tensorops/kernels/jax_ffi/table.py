"""Operators as foreign functions; see ``native/cpu/bind_xla.cpp`` and ``xla_<family>.cpp``."""

from __future__ import annotations

import tensorops.kernels.cpu.table  # noqa: F401 - its ImportError says why the compiled module is missing
from tensorops.kernels.jax_ffi import _refusals
from tensorops.kernels.jax_ffi._launch import refuse_channels, register
from tensorops.ops import (
    activation,
    attention,
    experts,
    linear,
    loss,
    normalization,
    positional,
    quantization,
    sampling,
    selection,
)

# `kernels.cpu.handlers` tells how calls are written. What XLA itself computes as fast as a copy is not among them:
# relu, relu_squared, leaky_relu, hard_sigmoid, hard_swish and reglu.
for _operator in (
    activation.sigmoid,
    activation.silu,
    activation.softplus,
    activation.gelu,
    activation.quick_gelu,
    activation.mish,
    activation.elu,
    activation.selu,
    activation.swiglu,
    activation.geglu,
    normalization.rms_norm,
    normalization.add_rms_norm,
    normalization.layer_norm,
    normalization.l2_norm,
    selection.top_k,
):
    register(_operator)
for _operator in (activation.softmax, activation.log_softmax, activation.logsumexp):
    register(_operator, several_axes=True)
register(normalization.group_norm, refuse=refuse_channels, batched=True)
register(normalization.instance_norm, refuse=refuse_channels, batched=True)
register(experts.grouped_linear, refuse=_refusals.refuse_grouped)
register(experts.grouped_quantized_linear, refuse=_refusals.refuse_grouped)
register(quantization.quantized_linear, refuse=_refusals.refuse_quantized)
register(linear.linear, refuse=_refusals.refuse_linear, most_rows=_refusals.most_rows_of_linear)
register(loss.cross_entropy, refuse=_refusals.refuse_loss, rows=_refusals.rows_of_loss)
register(positional.rope, refuse=_refusals.refuse_rotation)
register(attention.scaled_dot_product_attention, refuse=_refusals.refuse_attention, batched=True)
register(sampling.sample, refuse=_refusals.refuse_sample, draw=_refusals.with_numbers)
