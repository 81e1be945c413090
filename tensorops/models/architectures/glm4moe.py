"""GLM-4.5 and 4.6.

GLM Team, "GLM-4.5: Agentic, Reasoning, and Coding (ARC) Foundation Models", https://arxiv.org/abs/2508.06471
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.layer import Layer

__all__ = ["GLM4Moe"]

Array = Any


class GLM4Moe(Decoder):
    """Experts that are chosen by corrected sigmoids, after some blocks without; norms of queries and keys in some."""

    names = ("glm4moe",)
    model_types = ("glm4_moe",)
    folder_names = {"mlp.gate.e_score_correction_bias": "exp_probs_b"}  # noqa: RUF012
    biases = ("attn_q", "attn_k", "attn_v")
    biases_are_optional = True
    scoring = "sigmoid"

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        yield name.replace("exp_probs_b.weight", "exp_probs_b.bias"), tensor

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        yield from cls.attention_weights(c)
        yield Weight("post_attention_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)
        if c.experts:
            yield Weight("exp_probs_b.bias", (c.experts,))

    @classmethod
    def attention_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        yield from super().attention_weights(c)
        yield Weight("attn_q_norm.weight", (c.head_dim,), is_optional=True)
        yield Weight("attn_k_norm.weight", (c.head_dim,), is_optional=True)

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h, x = layer.add_and_normalize(layer.attention(h), x, "post_attention_norm")
        return x, layer.feed_forward(h)
