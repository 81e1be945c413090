"""Operators as foreign functions; see ``native/xla``.

XLA cannot raise in the middle of a program: the loss of a target that is out of range is NaN, and so are features that
rotate to a row outside the tables; lengths and pages out of range are clamped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorops.kernels.cpu.table  # noqa: F401 - its ImportError says why the compiled module is missing
from tensorops.kernels.jax_ffi._launch import register
from tensorops.ops import (
    activation,
    attention,
    experts,
    linear,
    loss,
    normalization,
    positional,
    quantization,
    recurrence,
    sampling,
    selection,
)


def _most_rows_of_linear(arguments: dict[str, Any]) -> int:
    """Return up to how many rows the kernel is faster than XLA, which widens half types for its product.

    ``docs/kernels-under-libraries.md`` has the measurements.
    """
    return 32 if arguments["x"].dtype == arguments["weight"].dtype == np.float32 else 256


def _rows_of_loss(arguments: dict[str, Any]) -> int:
    """Return how many arrays an axis may be added to: none if the losses of all rows are combined."""
    return 2 if arguments["reduction"] == "none" else 0


def _with_numbers(arguments: dict[str, Any]) -> dict[str, Any]:
    """Draw the uniform numbers that a call needs, as the body does."""
    rng, logits = arguments["rng"], arguments["logits"]
    if arguments["temperature"] == 0:
        return arguments | {"rng": None}
    if not isinstance(rng, np.random.Generator):
        return arguments
    import jax

    drawn = rng.random(logits.shape[:-1], dtype=np.float32)
    # Those for an array that is spread over devices are on none in particular: XLA gives each device what it needs.
    alone = not isinstance(logits, jax.core.Tracer) and len(logits.devices()) == 1
    return arguments | {"rng": jax.device_put(drawn, logits.sharding if alone else None)}


# XLA itself computes these as fast as a copy: relu, relu_squared, leaky_relu, hard_sigmoid, hard_swish and reglu.
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
    activation.softmax,
    activation.log_softmax,
    activation.logsumexp,
    selection.top_k,
    experts.grouped_linear,
    experts.grouped_quantized_linear,
    experts.moe,
    quantization.quantized_linear,
    positional.rope,
):
    register(_operator)
for _batched in (
    normalization.group_norm,
    normalization.instance_norm,
    attention.scaled_dot_product_attention,
    recurrence.causal_conv1d,
    recurrence.gated_delta_rule,
):
    register(_batched, batched=True)
register(linear.linear, most_rows=_most_rows_of_linear)
register(loss.cross_entropy, rows=_rows_of_loss)
register(loss.linear_cross_entropy, rows=lambda _: 0)  # no further rows: its second array is the weight
register(sampling.sample, draw=_with_numbers)
