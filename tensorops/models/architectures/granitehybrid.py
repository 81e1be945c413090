"""Granite 4.

Dao and Gu, "Transformers are SSMs", https://arxiv.org/abs/2405.21060
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._decoder import Weight
from .granite import Granite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["GraniteHybrid"]

Array = Any
# Sizes of Mamba 2: fields of the configuration, and keys of a GGUF file and of a folder.
SIZES = {
    "conv_width": ("ssm.conv_kernel", "mamba_d_conv"),
    "state_groups": ("ssm.group_count", "mamba_n_groups"),
    "state_heads": ("ssm.time_step_rank", "mamba_n_heads"),
    "state_key_dim": ("ssm.state_size", "mamba_d_state"),
}


class GraniteHybrid(Granite):
    """Granite with Mamba 2 in place of attention in most blocks, with and without experts."""

    names = ("granitehybrid",)
    model_types = ("granitemoehybrid",)
    folder_names = {  # noqa: RUF012
        **Granite.folder_names,
        "mamba.A_log": "ssm_a",
        "mamba.D": "ssm_d",
        "mamba.conv1d": "ssm_conv1d",
        "mamba.dt_bias": "ssm_dt.bias",
        "mamba.in_proj": "ssm_in",
        "mamba.norm": "ssm_norm",
        "mamba.out_proj": "ssm_out",
    }

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        sizes = {field: fields.count(f"{name}.{key}") for field, (key, _) in SIZES.items()}
        inner, heads = fields.count(f"{name}.ssm.inner_size"), sizes["state_heads"]
        if inner % heads or heads % sizes["state_groups"]:
            problem = f"{heads} heads of {sizes['state_groups']} groups do not divide {inner} features"
            raise fields.error(f"{name}.ssm.time_step_rank", problem)
        blocks = fields.positive(f"{name}.block_count")
        kv_heads = fields.counts(f"{name}.attention.head_count_kv", blocks, least=0)
        rotates = fields.flag(f"{name}.rope.scaling.finetuned", True)  # which llama.cpp has as a switch
        return {
            **super().read(fields, name),
            **sizes,
            "state_dim": inner // heads,
            "recurrent": tuple(block for block in range(blocks) if not kv_heads[block]),
            "unrotated": () if rotates else tuple(range(blocks)),
        }

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        heads = config["num_key_value_heads"]
        keys = super().read_folder(config) | {key: config[theirs] for key, theirs in SIZES.values()}
        keys["attention.head_count_kv"] = [heads if kind == "full_attention" else 0 for kind in config["layer_types"]]
        keys["rope.scaling.finetuned"] = config["position_embedding_type"] == "rope"
        keys["ssm.inner_size"] = config["mamba_expand"] * config["hidden_size"]
        if not config["num_experts"]:
            keys["feed_forward_length"] = config["shared_intermediate_size"]
        return keys

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        part = name.split(".", 2)[-1]
        if part in ("ssm_a.weight", "ssm_d.weight"):
            name, shape = name.removesuffix(".weight"), (*tensor.shape, 1)
            tensor = tensor.computed(
                lambda weight: (-np.exp(weight) if part == "ssm_a.weight" else weight).reshape(shape), shape
            )
        elif part == "ssm_dt.bias.weight":
            name = name.removesuffix(".weight")
        elif part == "ssm_conv1d.weight":
            channels, _, width = tensor.shape
            tensor = tensor.computed(lambda weight: weight[:, 0, :], (channels, width))
        elif part == "ssm_norm.weight":
            groups = config["mamba_n_groups"]
            shape = (groups, tensor.shape[0] // groups)
            tensor = tensor.computed(lambda weight: weight.reshape(shape), shape)
        elif not config["num_experts"]:
            name = name.replace("_shexp.", ".")
        yield name, tensor

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        yield from cls.mamba_weights(c) if block in c.recurrent else cls.attention_weights(c)
        yield Weight("ffn_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)

    @classmethod
    def mamba_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        """Yield those of Mamba 2."""
        values = c.state_heads * c.state_dim
        yield Weight("ssm_in.weight", (values + c.state_channels + c.state_heads, c.dim))
        yield Weight("ssm_conv1d.weight", (c.state_channels, c.conv_width))
        yield Weight("ssm_conv1d.bias", (c.state_channels,), is_optional=True)
        yield Weight("ssm_dt.bias", (c.state_heads,))
        yield Weight("ssm_a", (c.state_heads, 1))
        yield Weight("ssm_d", (c.state_heads, 1))
        yield Weight("ssm_norm.weight", (c.state_groups, values // c.state_groups))
        yield Weight("ssm_out.weight", (c.dim, values))

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        scale = layer.config.residual_scale
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h = layer.mamba(h) if layer.is_recurrent else layer.attention(h)
        h, x = layer.add_and_normalize(h * scale, x, "ffn_norm")
        return x, layer.feed_forward(h) * scale
