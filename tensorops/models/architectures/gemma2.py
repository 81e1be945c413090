"""Gemma 2.

Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", https://arxiv.org/abs/2408.00118
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["Gemma2"]

Array = Any


class Gemma2(Decoder):
    """Norms before and after each layer, GELU, bounded scores and logits, and a window in every other block."""

    names = ("gemma2",)
    model_types: ClassVar[tuple[str, ...]] = ("gemma2",)
    activation = "geglu_tanh"
    LARGEST = 46  # blocks of the network with 27 billion weights

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return cls._common(fields, name) | {
            "attention_softcap": fields.optional(f"{name}.attn_logit_softcapping", 50.0),
            "logit_softcap": fields.optional(f"{name}.final_logit_softcapping", 30.0),
            **fields.windows(name, 2, default=4096),
        }

    @classmethod
    def _common(cls, fields: Fields, name: str) -> dict[str, Any]:
        dim, heads = fields.count(f"{name}.embedding_length"), fields.count(f"{name}.attention.head_count")
        # The file does not say the scale of attention, which in one size is not that of a head's features.
        scale = (dim / heads) ** -0.5 if fields.positive(f"{name}.block_count") == cls.LARGEST else None
        return {
            "embedding_scale": dim**0.5,
            "attention_scale": fields.optional(f"{name}.attention.scale") or scale,  # of a folder
        }

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        caps = {key: config[key] or 0.0 for key in ("attn_logit_softcapping", "final_logit_softcapping")}
        return caps | {"attention.scale": config["query_pre_attn_scalar"] ** -0.5}

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        # Those of a folder are what 1 is added to; a GGUF file has the sum.
        yield name, tensor.computed(lambda weight: weight + 1.0) if name.endswith("norm.weight") else tensor

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        yield from cls.attention_weights(c)
        yield Weight("post_attention_norm.weight", (c.dim,))
        yield Weight("ffn_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)
        yield Weight("post_ffw_norm.weight", (c.dim,))

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h = layer.normalize(layer.attention(h), "post_attention_norm")
        h, x = layer.add_and_normalize(h, x, "ffn_norm")
        return x, layer.normalize(layer.feed_forward(h), "post_ffw_norm")
