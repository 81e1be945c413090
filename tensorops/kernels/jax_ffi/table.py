"""Operators as foreign functions; see ``native/cpu/bind_xla.cpp`` and ``xla_<family>.cpp``."""

from __future__ import annotations

from typing import Any

import tensorops.kernels.cpu.table  # noqa: F401 - its ImportError says why the compiled module is missing
from tensorops.kernels.jax_ffi._launch import refuse_array, refuse_channels, register
from tensorops.ops import activation, experts, normalization, quantization, selection


def _refuse_quantized(arguments: dict[str, Any]) -> str | None:
    x, weight, scales, biases = (arguments[name] for name in ("x", "weight", "scales", "biases"))
    for name, a, dtypes in (("x", x, _NARROW), ("weight", weight, ("uint8",)), ("scales", scales, _NARROW)):
        if reason := refuse_array(name, a, dtypes):
            return reason
    if biases is not None and biases.dtype != scales.dtype:
        return "biases has another dtype than scales"
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


def _refuse_grouped(arguments: dict[str, Any]) -> str | None:
    integers = {"experts": ("int32", "int64"), "weight": ("uint8",) if "scales" in arguments else _NARROW}
    for name in ("x", "experts", "weight", "bias", "scales", "biases"):
        a = arguments.get(name)
        if a is not None and (reason := refuse_array(name, a, integers.get(name, _NARROW))):
            return reason
    if arguments.get("biases") is not None and arguments["biases"].dtype != arguments["scales"].dtype:
        return "biases has another dtype than scales"
    empty = 0 in (*arguments["x"].shape, *arguments["experts"].shape, *arguments["weight"].shape)
    return "x, experts or weight is empty" if empty else None


_NARROW = ("float16", "bfloat16", "float32")

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
register(activation.gelu, handler=lambda options: "gelu" if options["approximate"] == "none" else "gelu_tanh")
for _operator in (activation.quick_gelu, activation.elu):
    register(_operator, attributes=("alpha",))
register(normalization.rms_norm, attributes=("eps", "weight_offset"))
register(normalization.add_rms_norm, attributes=("eps",))
register(normalization.layer_norm, attributes=("eps",))
register(normalization.group_norm, attributes=("eps", "num_groups"), refuse=refuse_channels, batched=True)
register(normalization.instance_norm, attributes=("eps",), refuse=refuse_channels, batched=True)
register(normalization.l2_norm, attributes=("eps",))
register(quantization.quantized_linear, attributes=("bits", "group_size"), refuse=_refuse_quantized)
register(selection.top_k, attributes=("largest",))
register(experts.grouped_linear, refuse=_refuse_grouped)
register(experts.grouped_quantized_linear, attributes=("bits", "group_size"), refuse=_refuse_grouped)
