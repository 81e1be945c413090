"""Command R7B, Command A and Tiny Aya.

Cohere, "Command A: An Enterprise-Ready Large Language Model", https://arxiv.org/abs/2504.00698
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["Cohere2"]

Array = Any


class Cohere2(Decoder):
    """Attention and the feed-forward layer side by side after one norm; only heads of blocks with a window rotate."""

    names = ("cohere2",)
    model_types = ("cohere2",)
    interleaved = True
    interleaved_in_folders = True
    subtracts_mean = True
    biases = ("attn_q", "attn_k", "attn_v", "attn_output")
    biases_are_optional = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        windows = fields.windows(name, 4)
        blocks = range(fields.positive(f"{name}.block_count"))
        unrotated = tuple(block for block in blocks if block not in windows.get("windowed", ()))
        return {"logit_scale": fields.number(f"{name}.logit_scale", 1.0), "unrotated": unrotated, **windows}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"logit_scale": config["logit_scale"]}

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        yield from cls.attention_weights(c)
        yield from cls.feed_forward_weights(c)

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        return x, layer.attention(h) + layer.feed_forward(h)
