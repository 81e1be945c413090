"""A library's own functions for arrays of every library, annotated by `tensorops.typing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, assert_type

from jax import Array

import tensorops as tp
from tensorops.typing import ArrayInput, ArrayNamespace, ArrayObject, ArrayT

FeaturesT = TypeVar("FeaturesT", bound=ArrayObject)


def block(x: ArrayT, weight: ArrayT) -> ArrayT:
    xp = tp.get_namespace(x)
    return x + tp.silu(tp.rms_norm(x, weight)) * xp.sqrt(xp.abs(x))


def arithmetic(x: ArrayT, y: ArrayT) -> ArrayT:
    z = -((2 * x - 1 / y) ** 2) // 3 % 2
    z += abs(z) / x.shape[-1]
    return (1 - z @ y)[..., 1:] * x[0]


@tp.array_agnostic
def standardize(x: ArrayT, *, axis: int = -1, eps: float = 0.0) -> ArrayT:
    xp = tp.get_namespace(x)
    centred = x - xp.mean(x, axis=axis, keepdims=True)
    return tp.rms_norm(centred, eps=eps, axis=axis)


def scaled(xp: ArrayNamespace[FeaturesT], x: FeaturesT, mask: ArrayInput | None = None) -> FeaturesT:
    """Use a type variable of one's own."""
    steps = xp.arange(x.shape[-1], dtype=x.dtype, device=tp.device(x))
    return xp.where(x > 0, x * steps, 0.0) if mask is None else xp.where(mask, x, steps)


def log_probabilities(x: FeaturesT, ids: ArrayInput) -> FeaturesT:
    shifted = x - tp.logsumexp(x, axis=-1, keepdims=True)
    chosen: FeaturesT = tp.embedding(shifted, ids)  # of the kind of its weight
    return scaled(tp.get_namespace(x), chosen)


def residual(x: ArrayT, update: ArrayT, weight: ArrayInput) -> tuple[ArrayT, ArrayT]:
    total, normed = tp.add_rms_norm(x, update, weight, eps=1e-5)
    return total, normed


@dataclass
class Layer(Generic[ArrayT]):
    weight: ArrayT
    up: ArrayT
    down: ArrayT
    bias: ArrayT | None = None

    def __call__(self, x: ArrayT) -> ArrayT:
        h = tp.linear(tp.layer_norm(x, self.weight), self.up, self.bias)
        return x + tp.linear(tp.swiglu(h, h), self.down)


def network(layers: Sequence[Layer[ArrayT]], heads: Mapping[str, ArrayT], x: ArrayT) -> ArrayT:
    xp = tp.get_namespace(x)
    for layer in layers:
        x = layer(x)
    batch, tokens, features = x.shape
    q, k, v = (xp.reshape(tp.linear(x, heads[name]), (batch, tokens, 4, features // 4)) for name in "qkv")
    y = tp.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5)
    return xp.reshape(xp.permute_dims(y, (0, 2, 1, 3)), x.shape)


def ends(x: ArrayT, function: Callable[[ArrayT], ArrayT]) -> ArrayT:
    xp = tp.get_namespace(x)
    best = xp.argmax(x, axis=-1)
    half: ArrayT = xp.astype(function(x), xp.float16)
    return xp.take(half, best, axis=0) / xp.pi


def largest(x: ArrayObject) -> float:
    return float(tp.get_namespace(x).max(x))


def calls(x: Array, w: Array, layers: list[Layer[Array]]) -> None:
    assert_type(block(x, w), Array)
    assert_type(arithmetic(x, w), Array)
    assert_type(standardize(x, axis=0), Array)
    assert_type(scaled(tp.get_namespace(x), x, x), Array)
    assert_type(log_probabilities(x, w), Array)
    assert_type(residual(x, x, w), tuple[Array, Array])
    assert_type(Layer(w, w, w)(x), Array)
    assert_type(network(layers, {"q": w, "k": w, "v": w}, x), Array)
    assert_type(ends(x, tp.silu), Array)
    assert_type(tp.get_namespace(x), ArrayNamespace[Array])
    assert_type(tp.get_namespace(), ArrayNamespace[Any])
    assert_type(tp.to_backend({"w": [w]}, "numpy"), dict[str, list[Array]])
    assert tp.validate(block, x, w, dtypes=["float32"]).ok
    block("x", w)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    block([x], w)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    standardize(x, epsilon=1.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
