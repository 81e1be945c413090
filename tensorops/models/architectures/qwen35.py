"""Qwen 3.5, with and without experts.

Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule", https://arxiv.org/abs/2412.06464
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._decoder import WHOLE, Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["Qwen35"]

Array = Any
# Sizes of gated delta nets: fields of the configuration, and keys of a GGUF file and of a folder.
SIZES = {
    "conv_width": ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    "state_dim": ("ssm.state_size", "linear_value_head_dim"),
    "state_groups": ("ssm.group_count", "linear_num_key_heads"),
    "state_heads": ("ssm.time_step_rank", "linear_num_value_heads"),
}


class Qwen35(Decoder):
    """Gated delta nets in three of four blocks; in the others, attention with norms of queries and keys and a gate."""

    names: ClassVar[tuple[str, ...]] = ("qwen35", "qwen35moe")
    model_types: ClassVar[tuple[str, ...]] = ("qwen3_5_text", "qwen3_5_moe_text")
    ignored_keys = frozenset(("ssm.inner_size", "rope.dimension_sections"))
    gates_shared_expert = True
    folder_names = {  # noqa: RUF012
        "linear_attn.A_log": "ssm_a",
        "linear_attn.conv1d": "ssm_conv1d",
        "linear_attn.dt_bias": "ssm_dt.bias",
        "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.in_proj_b": "ssm_beta",
        "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
        "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
        "mlp.experts.down_proj": "ffn_down_exps",
        "post_attention_layernorm": "post_attention_norm",
    }

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        sizes = {field: fields.count(f"{name}.{key}") for field, (key, _) in SIZES.items()}
        if sizes["state_heads"] % sizes["state_groups"]:
            raise fields.error(f"{name}.ssm.group_count", f"does not divide the {sizes['state_heads']} heads of states")
        blocks = fields.positive(f"{name}.block_count")
        interval = fields.positive(f"{name}.full_attention_interval", 4)
        by_interval = [bool((block + 1) % interval) for block in range(blocks)]
        is_recurrent = fields.flags(f"{name}.attention.recurrent_layers", by_interval)
        own = blocks - fields.natural(f"{name}.nextn_predict_layers", 0)
        recurrent = tuple(block for block in range(own) if is_recurrent[block])
        if len(recurrent) == own:
            raise fields.error(f"{name}.attention.recurrent_layers", "no block has attention")
        return {"is_gated": True, "recurrent": recurrent, "is_tiled": not fields.file.is_folder, **sizes}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        sizes = {key: config[theirs] for key, theirs in SIZES.values()}
        return sizes | {"attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]]}

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        if name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            tensor = tensor.computed(lambda weight: weight + 1.0)
        elif name.endswith("ssm_a.weight"):
            name, tensor = name.removesuffix(".weight"), tensor.computed(lambda weight: -np.exp(weight))
        elif name.endswith("ssm_dt.bias.weight"):
            name = name.removesuffix(".weight")
        elif name.endswith("ssm_conv1d.weight"):
            channels, _, width = tensor.shape
            tensor = tensor.computed(lambda weight: weight[:, 0, :], (channels, width))
        yield from super().from_folder(name, tensor, config)

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        yield from cls.delta_net_weights(c) if block in c.recurrent else cls.attention_weights(c)
        yield Weight("post_attention_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)

    @classmethod
    def attention_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        query, *others = super().attention_weights(c)
        yield query._replace(shape=(2 * query.shape[0], c.dim))
        yield from others
        yield Weight("attn_q_norm.weight", (c.head_dim,))
        yield Weight("attn_k_norm.weight", (c.head_dim,))

    @classmethod
    def delta_net_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        """Yield those of a gated delta net."""
        rows = {"attn_qkv": c.state_channels, "attn_gate": c.state_heads * c.state_dim}
        rows |= {"ssm_beta": c.state_heads, "ssm_alpha": c.state_heads}
        for name, length in rows.items():
            yield Weight(f"{name}.weight", (length, c.dim), WHOLE, "ssm_in.weight")
        yield Weight("ssm_conv1d.weight", (c.state_channels, c.conv_width))
        yield Weight("ssm_dt.bias", (c.state_heads,))
        yield Weight("ssm_a", (c.state_heads,))
        yield Weight("ssm_norm.weight", (c.state_dim,))
        yield Weight("ssm_out.weight", (c.dim, c.state_heads * c.state_dim))

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h = layer.delta_net(h) if layer.is_recurrent else layer.attention(h)
        h, x = layer.add_and_normalize(h, x, "post_attention_norm")
        return x, layer.feed_forward(h)
