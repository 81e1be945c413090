"""The Llama network from its definition: no cache, no tensorops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorops.models import LlamaConfig


def float64_logits(
    config: LlamaConfig,
    weights: Mapping[str, np.ndarray],
    ids: list[int],
    factors: np.ndarray | None = None,
    growth: float = 1.0,
) -> np.ndarray:
    """Evaluate the network on a whole text at once, in float64 and from its definition."""
    w = {name.removesuffix(".weight"): np.asarray(array, np.float64) for name, array in weights.items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.eps) * weight

    def rotate(x: np.ndarray) -> np.ndarray:
        turned = x.copy()
        for position in range(len(ids)):
            for pair in range(config.head_dim // 2):
                angle = position * config.rope_base ** (-2 * pair / config.head_dim)
                angle /= 1.0 if factors is None else factors[pair]
                a, b = x[position, :, 2 * pair].copy(), x[position, :, 2 * pair + 1].copy()
                turned[position, :, 2 * pair] = a * np.cos(angle) - b * np.sin(angle)
                turned[position, :, 2 * pair + 1] = a * np.sin(angle) + b * np.cos(angle)
        return growth * turned

    x = w["token_embd"][ids]
    for i in range(config.blocks):
        block = {name.removeprefix(f"blk.{i}."): array for name, array in w.items()}
        h = norm(x, block["attn_norm"])
        q = rotate((h @ block["attn_q"].T).reshape(len(ids), config.heads, config.head_dim))
        k = rotate((h @ block["attn_k"].T).reshape(len(ids), config.kv_heads, config.head_dim))
        v = (h @ block["attn_v"].T).reshape(len(ids), config.kv_heads, config.head_dim)
        y = np.zeros_like(q)
        for head in range(config.heads):
            shared = head // (config.heads // config.kv_heads)
            for t in range(len(ids)):
                scores = k[: t + 1, shared] @ q[t, head] / np.sqrt(config.head_dim)
                p = np.exp(scores - scores.max())
                y[t, head] = (p / p.sum()) @ v[: t + 1, shared]
        x = x + y.reshape(len(ids), -1) @ block["attn_output"].T
        h = norm(x, block["ffn_norm"])
        gate = h @ block["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ block["ffn_up"].T)) @ block["ffn_down"].T
    return norm(x, w["output_norm"]) @ w.get("output", w["token_embd"]).T
