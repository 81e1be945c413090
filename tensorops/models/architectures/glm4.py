"""GLM-4.

GLM Team, "ChatGLM: A Family of Large Language Models from GLM-130B to GLM-4 All Tools", https://arxiv.org/abs/2406.12793
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorops.models.config import ModelConfig
    from tensorops.models.layer import Layer

__all__ = ["GLM4"]

Array = Any


class GLM4(Decoder):
    """Norms before and after each layer; half of a head rotates, in pairs of neighbours."""

    names = ("glm4",)
    model_types = ("glm4",)
    interleaved = True
    interleaved_in_folders = True
    biases = ("attn_q", "attn_k", "attn_v")
    biases_are_optional = True
    fused = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}  # noqa: RUF012

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield from super().weights(c, block)
        yield Weight("post_attention_norm.weight", (c.dim,))
        yield Weight("post_ffw_norm.weight", (c.dim,))

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h = layer.normalize(layer.attention(h), "post_attention_norm")
        h, x = layer.add_and_normalize(h, x, "ffn_norm")
        return x, layer.normalize(layer.feed_forward(h), "post_ffw_norm")
