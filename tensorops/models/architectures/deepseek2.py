"""DeepSeek V2, V3 and R1.

DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model",
https://arxiv.org/abs/2405.04434, and "DeepSeek-V3 Technical Report", https://arxiv.org/abs/2412.19437
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["DeepSeek2"]

Array = Any


class DeepSeek2(Decoder):
    """Attention to latents, and experts after some blocks without: chosen by softmax, or by corrected sigmoids."""

    names = ("deepseek2",)
    model_types = ("deepseek_v2", "deepseek_v3")
    folder_names = {"mlp.gate.e_score_correction_bias": "exp_probs_b"}  # noqa: RUF012
    interleaved = True
    interleaved_in_folders = True
    yarn_scales_scores = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        rotating, latent = fields.count(f"{name}.rope.dimension_count"), fields.count(f"{name}.attention.kv_lora_rank")
        # Files without these lengths have those of whole keys and values instead of the latent's.
        of_heads = {
            of: fields.count(f"{name}.attention.{of}_length_mla", fields.count(f"{name}.attention.{of}_length"))
            for of in ("key", "value")
        }
        if of_heads["key"] <= rotating:
            raise fields.error(f"{name}.rope.dimension_count", f"{rotating} of the {of_heads['key']} features of a key")
        growth = 1.0
        if logarithmic := fields.optional(f"{name}.rope.scaling.yarn_log_multiplier"):
            growth += logarithmic * math.log(max(fields.number(f"{name}.rope.scaling.factor", 1.0), 1.0))
        return {
            "attention_scale": of_heads["key"] ** -0.5 * growth**2,
            "expanded_dim": of_heads["value"],
            "head_dim": rotating + latent,
            "kv_heads": 1,
            "latent_dim": latent,
            "query_latent_dim": fields.natural(f"{name}.attention.q_lora_rank", 0),
            "renormalize": fields.flag(f"{name}.expert_weights_norm", False),
            "rope_dims": rotating,
            "unrotated_dim": of_heads["key"] - rotating,
        }

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        rotating, latent, rope = config["qk_rope_head_dim"], config["kv_lora_rank"], config["rope_parameters"]
        keys = {
            "attention.head_count_kv": 1,
            "attention.key_length": latent + rotating,
            "attention.key_length_mla": config["qk_nope_head_dim"] + rotating,
            "attention.value_length": latent,
            "attention.value_length_mla": config["v_head_dim"],
            "expert_gating_func": 2 if config["scoring_func"] == "sigmoid" else 1,
            "rope.dimension_count": rotating,
        }
        if config.get("topk_method") == "greedy":
            keys |= {"expert_group_count": 1, "expert_group_used_count": 1}
        if rope["rope_type"] != "default" and rope.get("mscale_all_dim"):
            keys["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
            keys["rope.scaling.attn_factor"] = rope.get("attention_factor", 1.0)
        return keys

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        yield name.replace("exp_probs_b.weight", "exp_probs_b.bias"), tensor

    @classmethod
    def separated(cls, c: ModelConfig, name: str, weight: Any) -> Iterator[tuple[str, Any]]:
        keys, values = c.unrotated_dim, c.expanded_dim
        if not name.endswith("attn_kv_b.weight") or weight.shape != (c.heads * (keys + values), c.latent_dim):
            yield name, weight
            return

        def of_keys(whole: Array) -> Array:
            return np.ascontiguousarray(whole.reshape(c.heads, -1, c.latent_dim)[:, :keys, :].swapaxes(1, 2))

        def of_values(whole: Array) -> Array:
            return np.ascontiguousarray(whole.reshape(c.heads, -1, c.latent_dim)[:, keys:, :])

        shapes = {of_keys: (c.heads, c.latent_dim, keys), of_values: (c.heads, values, c.latent_dim)}
        for part, (function, shape) in zip(("attn_k_b", "attn_v_b"), shapes.items(), strict=True):
            is_stored = hasattr(weight, "computed")
            made = weight.computed(function, shape) if is_stored else function(tp.to_backend(weight, "numpy"))
            yield name.replace("attn_kv_b", part), made

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield from super().weights(c, block)
        if c.experts:
            yield Weight("exp_probs_b.bias", (c.experts,), is_optional=True)

    @classmethod
    def attention_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        latent = c.query_latent_dim
        if latent:
            yield Weight("attn_q_a.weight", (latent, c.dim))
            yield Weight("attn_q_a_norm.weight", (latent,))
        rows = c.heads * (c.unrotated_dim + c.head_dim - c.latent_dim)
        yield Weight("attn_q_b.weight" if latent else "attn_q.weight", (rows, latent or c.dim), 0)
        yield Weight("attn_kv_a_mqa.weight", (c.head_dim, c.dim))
        yield Weight("attn_kv_a_norm.weight", (c.latent_dim,))
        yield Weight("attn_k_b.weight", (c.heads, c.latent_dim, c.unrotated_dim), 0)
        yield Weight("attn_v_b.weight", (c.heads, c.expanded_dim, c.latent_dim), 0)
        yield Weight("attn_output.weight", (c.dim, c.heads * c.expanded_dim), 1)

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h, x = layer.add_and_normalize(layer.latent_attention(h), x, "ffn_norm")
        return x, layer.feed_forward(h)
