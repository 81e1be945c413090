"""OLMo 2 and 3.

OLMo Team, "2 OLMo 2 Furious", https://arxiv.org/abs/2501.00656
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["OLMo2"]

Array = Any


class OLMo2(Decoder):
    """Norms after each layer only, and of all queries and all keys of a token; OLMo 3 has windows in 3 of 4 blocks."""

    names = ("olmo2",)
    model_types = ("olmo2", "olmo3")
    normalizes_heads_together = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        base = fields.number(f"{name}.rope.freq_base", 10000.0)  # with windows, never scaled
        return {"local_rope_base": fields.number(f"{name}.rope.freq_base_swa", base), **fields.windows(name, 4)}

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield from cls.attention_weights(c)
        yield Weight("attn_q_norm.weight", (c.heads * c.head_dim,), 0)
        yield Weight("attn_k_norm.weight", (c.kv_heads * c.head_dim,), 0)
        yield Weight("post_attention_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)
        yield Weight("post_ffw_norm.weight", (c.dim,))

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        x = x if added is None else x + added
        x = x + layer.normalize(layer.attention(x), "post_attention_norm")
        return x, layer.normalize(layer.feed_forward(x), "post_ffw_norm")
