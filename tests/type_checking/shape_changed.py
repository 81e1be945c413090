"""What operators return whose result has a shape of its own: the kind of an array, for each library.

The test puts the type of each library's arrays in place of the one imported here.
"""

from __future__ import annotations

from typing import assert_type

from jax import Array

import tensorops as tp


def reductions(x: Array, targets: Array) -> None:
    assert_type(tp.logsumexp(x), Array)
    assert_type(tp.logsumexp(x, axis=(0, 1), keepdims=True), Array)
    assert_type(tp.logsumexp(x, b=x, return_sign=True), tuple[Array, Array])
    assert_type(tp.cross_entropy(x, targets, reduction="none"), Array)


def dtypes(x: Array) -> None:  # not of every library does a checker know the type of x.dtype
    assert_type(tp.softmax(x, dtype=x.dtype), Array)


def selections(x: Array) -> None:
    values, _ = tp.top_k(x, 2)
    assert_type(values, Array)


def lookups(ids: Array, table: Array) -> None:
    assert_type(tp.embedding(ids, table), Array)


def blocks(x: Array, w: Array) -> None:
    y, key, value = tp.multi_head_attention(x, num_heads=2, q_proj_weight=w, is_causal=True)
    assert_type(y, Array)
    assert_type(tp.multi_head_attention(y, x, num_heads=2, past_key=key, past_value=value)[1], Array)


def recurrences(x: Array, w: Array, gates: Array) -> None:
    y, state = tp.causal_conv1d(x, w, activation="silu")
    assert_type(tp.causal_conv1d(y, w, None, state), tuple[Array, Array])
    assert_type(tp.gated_delta_rule(x, x, x, gates, gates, state=state)[0], Array)


def quantization(w: Array) -> None:
    codes, scales, biases = tp.quantize(w, bits=4, group_size=32)
    assert_type(scales, Array | None)
    assert_type(biases, Array | None)
    assert_type(tp.dequantize(codes, scales, biases), Array)
    assert_type(tp.quantized_linear(w, codes, scales, biases), Array)


def what_every_operator_has(x: Array) -> None:
    assert_type(tp.logsumexp.generic(x, axis=0), Array)
    assert_type(tp.logsumexp.explain(x, axis=0), tp.Explanation)
    assert_type(tp.quantize.explain(x, bits=8, group_size=32), tp.Explanation)
