"""LFM2.

Liquid AI, "LFM2 Technical Report", https://arxiv.org/abs/2511.23404
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["LFM2"]

Array = Any


class LFM2(Decoder):
    """Short convolutions between two gates in most blocks; in the others, attention with norms of queries and keys."""

    names = ("lfm2",)
    model_types = ("lfm2",)
    renamed = {"token_embd_norm.weight": "output_norm.weight"}  # noqa: RUF012

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        blocks = fields.positive(f"{name}.block_count")
        heads = fields.counts(f"{name}.attention.head_count_kv", blocks, least=0)
        recurrent = tuple(block for block in range(blocks) if not heads[block])
        return {"conv_width": fields.count(f"{name}.shortconv.l_cache"), "recurrent": recurrent}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        hidden = config["block_ff_dim"] or config["intermediate_size"]
        if config["block_auto_adjust_ff_dim"]:
            hidden = int(2 * hidden / 3)
            if config["block_ffn_dim_multiplier"] is not None:
                unit = config["block_multiple_of"]
                hidden = -(-int(config["block_ffn_dim_multiplier"] * hidden) // unit) * unit
        heads = config["num_key_value_heads"]
        return {
            "attention.head_count_kv": [heads if kind == "full_attention" else 0 for kind in config["layer_types"]],
            "feed_forward_length": hidden,
            "shortconv.l_cache": config["conv_L_cache"],
        }

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        if name.endswith("shortconv.conv.weight"):
            channels, _, width = tensor.shape
            tensor = tensor.computed(lambda weight: weight[:, 0, :], (channels, width))
        yield name, tensor

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        if block in c.recurrent:
            yield Weight("shortconv.in_proj.weight", (3 * c.dim, c.dim))
            yield Weight("shortconv.conv.weight", (c.dim, c.conv_width))
            yield Weight("shortconv.out_proj.weight", (c.dim, c.dim))
        else:
            yield from cls.attention_weights(c)
            yield Weight("attn_q_norm.weight", (c.head_dim,))
            yield Weight("attn_k_norm.weight", (c.head_dim,))
        yield Weight("ffn_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h = layer.short_convolution(h) if layer.is_recurrent else layer.attention(h)
        h, x = layer.add_and_normalize(h, x, "ffn_norm")
        return x, layer.feed_forward(h)
