"""Gemma 4 (text), with and without experts.

https://ai.google.dev/gemma/docs/core/model_card_4
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["Gemma4"]

Array = Any


class Gemma4(Decoder):
    """Heads of two sizes, values that are normalised, keys and values of other blocks, inputs of each block.

    Experts, if there are any, compute beside the feed-forward layer.
    """

    names = ("gemma4",)
    model_types = ("gemma4_text",)
    folder_names = {  # noqa: RUF012
        "experts.down_proj": "ffn_down_exps",
        "experts.gate_up_proj": "ffn_gate_up_exps",
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "router.per_expert_scale": "ffn_down_exps.scale",
        "router.proj": "ffn_gate_inp",
        "router.scale": "ffn_gate_inp.scale",
    }
    activation = "geglu_tanh"
    adds_experts = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        blocks = fields.positive(f"{name}.block_count")
        shared = fields.natural(f"{name}.attention.shared_kv_layers", 0)
        windows = fields.windows(name, 6)
        windowed = windows.get("windowed", ())
        kinds = [block in windowed for block in range(blocks)]
        first = blocks - shared
        sources = {}
        for block in range(first, blocks):
            if kinds[block] not in kinds[:first]:
                raise fields.error(f"{name}.attention.shared_kv_layers", f"{shared}: block {block} has no source")
            sources[block] = first - 1 - kinds[:first][::-1].index(kinds[block])
        dim = fields.count(f"{name}.attention.key_length_swa", 256)
        for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
            if (other := fields.count(f"{name}.{key}", dim)) != dim:
                raise fields.error(f"{name}.{key}", f"{other} is not supported, only the {dim} features of a head")
        overrides: dict[int, dict[str, Any]] = {block: {"head_dim": dim} for block in windowed}
        for block in range(first):
            if f"blk.{block}.attn_v.weight" not in fields.file.tensors:
                overrides.setdefault(block, {})["keys_are_values"] = True
        return {
            "attention_scale": 1.0,
            "embedding_scale": fields.count(f"{name}.embedding_length") ** 0.5,
            "local_rope_base": fields.number(f"{name}.rope.freq_base_swa", 10000.0),
            "logit_softcap": fields.optional(f"{name}.final_logit_softcapping"),
            "normalizes_values": True,
            "overrides": overrides,
            "per_layer_dim": fields.natural(f"{name}.embedding_length_per_layer_input", 0),
            "sources": sources,
            **windows,
        }

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        layers, shared = config["layer_types"], config["num_kv_shared_layers"]
        of_layers = config["per_layer_config"] or {}
        heads = config["num_global_key_value_heads"] if config["attention_k_eq_v"] and not of_layers else None
        full = {"head_dim": config["global_head_dim"], "num_key_value_heads": heads}
        full |= next((of for number, of in of_layers.items() if layers[int(number)] == "full_attention"), {})
        heads = full["num_key_value_heads"] or config["num_key_value_heads"]
        experts: dict[str, Any] = {"expert_count": 0}
        count, used = config["num_experts"], config["top_k_experts"]
        if config["enable_moe_block"]:
            experts = {"expert_count": count, "expert_used_count": used}
        wide = 2 if config["use_double_wide_mlp"] else 1
        return {
            "attention.head_count_kv": [heads if kind == "full_attention" else config["num_key_value_heads"]
                                        for kind in layers],
            "attention.key_length": full["head_dim"],
            "attention.value_length": full["head_dim"],
            "attention.key_length_swa": config["head_dim"],
            "attention.shared_kv_layers": shared,
            "final_logit_softcapping": config["final_logit_softcapping"] or 0.0,
            "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
            **experts,
            "feed_forward_length": [config["intermediate_size"] * (wide if i >= len(layers) - shared else 1)
                                    for i in range(len(layers))],
        }  # fmt: skip

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        yield name.removesuffix(".weight") if name.endswith(".scale.weight") else name, tensor

    @classmethod
    def model_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        if c.per_layer_dim:
            width = c.blocks * c.per_layer_dim
            yield Weight("per_layer_token_embd.weight", (c.vocab_size, width))
            yield Weight("per_layer_model_proj.weight", (width, c.dim))
            yield Weight("per_layer_proj_norm.weight", (c.per_layer_dim,))

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        query, key, value, output = cls.attention_weights(c)
        yield query
        yield Weight("attn_q_norm.weight", (c.head_dim,))
        if block not in c.sources:
            yield from (key,) if c.keys_are_values else (key, value)
            yield Weight("attn_k_norm.weight", (c.head_dim,))
        yield output
        yield Weight("post_attention_norm.weight", (c.dim,))
        yield Weight("ffn_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)
        if c.experts:
            yield Weight("ffn_gate_inp.scale", (c.dim,))
            yield Weight("ffn_down_exps.scale", (c.experts,))
            for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                yield Weight(f"{name}.weight", (c.dim,))
        yield Weight("post_ffw_norm.weight", (c.dim,))
        if c.per_layer_dim:
            yield Weight("inp_gate.weight", (c.per_layer_dim, c.dim))
            yield Weight("proj.weight", (c.dim, c.per_layer_dim))
            yield Weight("post_norm.weight", (c.dim,))
        yield Weight("layer_output_scale.weight", (1,), is_optional=True)

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array | None]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h = layer.normalize(layer.attention(h), "post_attention_norm")
        h, x = layer.add_and_normalize(h, x, "ffn_norm")
        h = layer.summed(layer.gated(h))
        if layer.config.experts:
            routed = layer.normalize(x, "ffn_gate_inp.scale") * layer.config.dim**-0.5
            own = layer.summed(layer.experts(layer.normalize(x, "pre_ffw_norm_2"), routed))
            h = layer.normalize(h, "post_ffw_norm_1") + layer.normalize(own, "post_ffw_norm_2")
        return layer.with_inputs(x + layer.normalize(h, "post_ffw_norm")), None
