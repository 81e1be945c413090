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

# What XLA itself computes as fast as a copy is not among them: relu, relu_squared, leaky_relu, hard_sigmoid, hard_swish
# and reglu.
for _operator in (
    activation.sigmoid,
    activation.silu,
    activation.softplus,
    activation.mish,
    activation.selu,
    activation.swiglu,
    activation.geglu,
):
    register(_operator)
for _operator in (activation.softmax, activation.log_softmax, activation.logsumexp):
    register(_operator, several_axes=True)
register(activation.gelu, handler=lambda given: "gelu" if given["approximate"] == "none" else "gelu_tanh")
for _operator in (activation.quick_gelu, activation.elu):
    register(_operator, attributes=("alpha",))
register(normalization.rms_norm, attributes=("eps", "weight_offset"))
register(normalization.add_rms_norm, attributes=("eps",))
register(normalization.layer_norm, attributes=("eps",))
register(normalization.group_norm, attributes=("eps", "num_groups"), refuse=refuse_channels, batched=True)
register(normalization.instance_norm, attributes=("eps",), refuse=refuse_channels, batched=True)
register(normalization.l2_norm, attributes=("eps",))
register(
    quantization.quantized_linear, attributes=("bits", "group_size"), refuse=_refusals.refuse_quantized, mixed=True
)
register(selection.top_k, attributes=("largest",))
register(experts.grouped_linear, refuse=_refusals.refuse_grouped, mixed=True)
register(
    experts.grouped_quantized_linear, attributes=("bits", "group_size"), refuse=_refusals.refuse_grouped, mixed=True
)
register(linear.linear, refuse=_refusals.refuse_linear, most_rows=_refusals.most_rows_of_linear, mixed=True)
register(
    loss.cross_entropy,
    handler=_refusals.loss_handler,
    attributes=("ignore_index", "label_smoothing", "z_loss"),
    refuse=_refusals.refuse_loss,
    rows=_refusals.rows_of_loss,
    mixed=True,
)
register(
    positional.rope,
    handler=_refusals.rotation_handler,
    attributes=("base", "interleaved", "dims", "attention_factor"),
    refuse=_refusals.refuse_rotation,
    mixed=True,
)
register(
    attention.scaled_dot_product_attention,
    attributes=("is_causal", "scale", "window", "softcap", "mask", "sinks", "lengths", "page_table"),
    refuse=_refusals.refuse_attention,
    batched=True,
    mixed=True,
)
register(
    sampling.sample,
    attributes=("temperature", "top_k", "top_p", "min_p"),
    refuse=_refusals.refuse_sample,
    mixed=True,
    correspond=_refusals.rows_of_sample,
    draw=_refusals.with_numbers,
)
