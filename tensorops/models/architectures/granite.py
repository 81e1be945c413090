"""Granite 3, with and without experts.

https://huggingface.co/ibm-granite
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ._decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["Granite"]

Array = Any
# Scales: fields of the configuration, their keys in a GGUF file, and in a folder.
SCALES = {
    "embedding_scale": ("embedding_scale", "embedding_multiplier"),
    "residual_scale": ("residual_scale", "residual_multiplier"),
    "attention_scale": ("attention.scale", "attention_multiplier"),
}


class Granite(Decoder):
    """Llama with scales of the embedding, of what a layer adds, of attention and of the logits."""

    names: ClassVar[tuple[str, ...]] = ("granite", "granitemoe")
    model_types: ClassVar[tuple[str, ...]] = ("granite", "granitemoe", "granitemoeshared")
    interleaved = True
    # llama.cpp's converter writes the sizes of Mamba for Granite 4 without it.
    ignored_keys = frozenset(
        f"ssm.{key}" for key in ("conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank")
    )
    folder_names = {  # noqa: RUF012
        "block_sparse_moe.input_linear": "ffn_gate_up_exps",
        "block_sparse_moe.output_linear": "ffn_down_exps",
        "block_sparse_moe.router.layer": "ffn_gate_inp",
        "shared_mlp.input_linear": "ffn_gate_up_shexp",
        "shared_mlp.output_linear": "ffn_down_shexp",
    }
    fused = {  # noqa: RUF012
        **Decoder.fused,
        "ffn_gate_up": ("ffn_gate", "ffn_up"),
        "ffn_gate_up_shexp": ("ffn_gate_shexp", "ffn_up_shexp"),
    }

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        scales = {field: fields.optional(f"{name}.{key}") for field, (key, _) in SCALES.items()}
        given = {field: scale for field, scale in scales.items() if scale is not None}
        return given | {"logit_scale": 1.0 / fields.number(f"{name}.logit_scale", 1.0)}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        scales = {key: config[theirs] for key, theirs in SCALES.values()}
        return scales | {"logit_scale": config["logits_scaling"]}

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h, x = layer.add_and_normalize(layer.attention(h) * layer.config.residual_scale, x, "ffn_norm")
        return x, layer.feed_forward(h) * layer.config.residual_scale
