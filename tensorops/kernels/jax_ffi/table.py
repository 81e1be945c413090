"""Operators as foreign functions; see ``native/cpu/bind_xla.cpp`` and ``xla_<family>.cpp``."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorops.kernels.cpu.table  # noqa: F401 - its ImportError says why the compiled module is missing
from tensorops._dtypes import INTEGER
from tensorops._row_axes import RowAxes, given
from tensorops._typing import Array
from tensorops.kernels.jax_ffi._launch import refuse_array, refuse_channels, register
from tensorops.ops import activation, attention, experts, normalization, quantization, sampling, selection


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


def _refuse_attention(arguments: dict[str, Any]) -> str | None:
    dtypes = {"mask": (*_FLOATING, "bool"), "lengths": INTEGER, "page_table": INTEGER}
    for name in ("q", "k", "v", "mask", "sinks", "lengths", "page_table"):
        a = arguments[name]
        if a is not None and (reason := refuse_array(name, a, dtypes.get(name, _FLOATING))):
            return reason
        if a is not None and 0 in a.shape:
            return f"{name} is empty"
    for name in ("q", "v"):
        if arguments[name].shape[3] > _MOST_FEATURES:
            return f"{name} has more than {_MOST_FEATURES} features"
    least, most = _USUAL
    for name in ("scale", "softcap"):
        if arguments[name] and not least <= abs(arguments[name]) <= most:
            return f"{name} is not a usual number"
    return None


def _sample_rows(logits: Array, temperature: float, rng: Any, **_: Any) -> RowAxes:
    every = tuple(range(logits.ndim))
    drawn = given(rng=(rng if temperature > 0 else None, every[:-1]))
    return RowAxes({"logits": every, **drawn}, every[:-1], every[-1:], sharing=1 + len(drawn), indices=(0,))


def _with_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """Draw the uniform numbers that a call needs, as the body does."""
    rng, logits = arguments["rng"], arguments["logits"]
    if arguments["temperature"] == 0:
        return arguments | {"rng": None}
    if not isinstance(rng, np.random.Generator):
        return arguments
    import jax

    drawn = rng.random(logits.shape[:-1], dtype=np.float32)
    device = None if isinstance(logits, jax.core.Tracer) else logits.sharding
    return arguments | {"rng": jax.device_put(drawn, device)}


def _refuse_sample(arguments: dict[str, Any]) -> str | None:
    logits, rng, temperature, top_k = (arguments[name] for name in ("logits", "rng", "temperature", "top_k"))
    if reason := refuse_array("logits", logits):
        return reason
    if 0 in logits.shape:
        return "logits is empty"
    if temperature == 0:
        return None
    if not isinstance(rng, np.random.Generator) and (reason := refuse_array("rng", rng, least=0)):
        return reason
    if top_k is not None and top_k > _MOST_EXACT:
        return f"top_k is more than {_MOST_EXACT}"
    if logits.dtype == np.float64:
        return None
    limits = np.finfo(np.float32)
    if not limits.tiny <= temperature <= limits.max:
        return "temperature is beyond the range of float32"
    return "top_p is beyond the range of float32" if arguments["top_p"] and not np.float32(arguments["top_p"]) else None


_FLOATING = ("float16", "bfloat16", "float32", "float64")
_NARROW = ("float16", "bfloat16", "float32")
_MOST_EXACT = 2**53  # of the integers in float64, in which handlers get options
# As in native/cpu/bind_attention.cpp
_USUAL = (1e-30, 1e30)
_MOST_FEATURES = 16384

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
register(quantization.quantized_linear, attributes=("bits", "group_size"), refuse=_refuse_quantized, mixed=True)
register(selection.top_k, attributes=("largest",))
register(
    attention.scaled_dot_product_attention,
    attributes=("is_causal", "scale", "window", "softcap", "mask", "sinks", "lengths", "page_table"),
    refuse=_refuse_attention,
    batched=True,
    mixed=True,
)
register(
    sampling.sample,
    attributes=("temperature", "top_k", "top_p", "min_p"),
    refuse=_refuse_sample,
    mixed=True,
    correspond=_sample_rows,
    draw=_with_numbers,
)
register(experts.grouped_linear, refuse=_refuse_grouped, mixed=True)
register(experts.grouped_quantized_linear, attributes=("bits", "group_size"), refuse=_refuse_grouped, mixed=True)
