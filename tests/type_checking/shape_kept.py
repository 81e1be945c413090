"""What operators return whose result has the rank of their first array: its very type, for each library.

The test puts the type of each library's arrays in place of the one imported here.
"""

from __future__ import annotations

from typing import assert_type

from jax import Array

import tensorops as tp


def activations(x: Array, where: Array) -> None:
    assert_type(tp.silu(x), Array)
    assert_type(tp.sigmoid(x), Array)
    assert_type(tp.relu(x), Array)
    assert_type(tp.softplus(x), Array)
    assert_type(tp.gelu(x), Array)
    assert_type(tp.gelu(x, approximate="tanh"), Array)
    assert_type(tp.quick_gelu(x, alpha=1.0), Array)
    assert_type(tp.mish(x), Array)
    assert_type(tp.hard_sigmoid(x, alpha=0.2, beta=0.5), Array)
    assert_type(tp.hard_swish(x), Array)
    assert_type(tp.elu(x, alpha=1), Array)
    assert_type(tp.selu(x), Array)
    assert_type(tp.leaky_relu(x, negative_slope=0.1), Array)
    assert_type(tp.reglu(x, x), Array)
    assert_type(tp.swiglu(x, x), Array)
    assert_type(tp.geglu(gate=x, up=x), Array)
    assert_type(tp.softmax(x), Array)
    assert_type(tp.softmax(x, axis=(0, 1), where=where), Array)
    assert_type(tp.log_softmax(x, axis=0, where=None), Array)


def norms(x: Array, w: Array) -> None:
    assert_type(tp.rms_norm(x), Array)
    assert_type(tp.rms_norm(x, w, 1e-5, axis=-1, weight_offset=1.0), Array)
    assert_type(tp.add_rms_norm(x, x, w), tuple[Array, Array])
    assert_type(tp.add_layer_norm(x, x, w, w), tuple[Array, Array])
    assert_type(tp.layer_norm(x, weight=w, bias=w, axis=(-2, -1)), Array)


def maps(x: Array, w: Array, scales: Array) -> None:
    assert_type(tp.linear(x, w), Array)
    assert_type(tp.gated_linear_unit(x, w, w, activation="geglu"), Array)
    assert_type(tp.linear_activation(x, w, activation="gelu"), Array)
    assert_type(tp.quantized_linear(x, w, scales, scales, bits=8), Array)
    assert_type(tp.rope(x, w, dims=2), Array)
    assert_type(tp.rope(x, cos=w, sin=w, attention_factor=1.5), Array)
    assert_type(tp.scaled_dot_product_attention(x, x, x, mask=w, is_causal=True), Array)


def what_every_operator_has(x: Array, w: Array) -> None:
    assert_type(tp.rms_norm.generic(x, w, axis=0), Array)
    assert_type(tp.add_rms_norm.generic(x, x), tuple[Array, Array])
    assert_type(tp.rms_norm.explain(x, w, axis=0), tp.Explanation)
    assert_type(tp.rms_norm.explain(x).refused, dict[str, str])
    assert_type(list(tp.rms_norm.kernels), list[str])
    assert_type(tp.rms_norm.kernels["cpu"].declines, bool)


def through_functions(layers: list[tuple[Array, Array]], x: Array) -> Array:
    for w, bias in layers:
        x = tp.silu(tp.linear(tp.rms_norm(x), w, bias))
    y, residual = tp.add_rms_norm(x, x)
    return tp.softmax(y if y.shape else residual)
