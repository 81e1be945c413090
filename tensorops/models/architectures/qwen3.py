"""Qwen 3, with and without experts.

Yang et al., "Qwen3 Technical Report", https://arxiv.org/abs/2505.09388
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorops.models.config import ModelConfig

__all__ = ["Qwen3"]


class Qwen3(Decoder):
    """Llama with a norm of every query and key before it rotates."""

    names = ("qwen3", "qwen3moe")
    model_types = ("qwen3", "qwen3_moe")

    @classmethod
    def attention_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        yield from super().attention_weights(c)
        yield Weight("attn_q_norm.weight", (c.head_dim,))
        yield Weight("attn_k_norm.weight", (c.head_dim,))
