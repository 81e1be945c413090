"""gpt-oss.

OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", https://arxiv.org/abs/2508.10925
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder, Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields
    from tensorops.models.layer import Layer

__all__ = ["GptOss"]

Array = Any
EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


class GptOss(Decoder):
    """Experts with biases and a clamped gated unit, sinks of attention, and a window in every other block."""

    names = ("gpt-oss",)
    model_types = ("gpt_oss",)
    folder_names = {  # noqa: RUF012
        "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
        "mlp.experts.gate_up_proj_bias": "ffn_gate_up_exps_bias",
        "mlp.experts.down_proj": "ffn_down_exps",
        "mlp.experts.down_proj_bias": "ffn_down_exps_bias",
        "mlp.router": "ffn_gate_inp",
        "post_attention_layernorm": "post_attention_norm",
        "self_attn.sinks": "attn_sinks",
    }
    activation = "clamped_swiglu"
    biases = (
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate_inp",
        "ffn_gate_exps",
        "ffn_up_exps",
        "ffn_down_exps",
    )

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return fields.windows(name, 2)

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        # Matrices of a folder are transposed, and their gates are between the others.
        is_bias = name.endswith("_bias.weight")
        name = name.replace("_bias.weight", ".bias")
        if "_exps" in name and not is_bias and tensor.group_size == 1:  # those in blocks are not transposed
            tensor = tensor.computed(lambda weight: weight.swapaxes(1, 2), tensor.shape[:1] + tensor.shape[:0:-1])
        if "gate_up_exps" not in name:
            yield name, tensor
            return
        shape = (tensor.shape[0], tensor.shape[1] // 2, *tensor.shape[2:])
        yield name.replace("gate_up", "gate"), tensor.indexed(1, slice(0, None, 2), shape)
        yield name.replace("gate_up", "up"), tensor.indexed(1, slice(1, None, 2), shape)

    @classmethod
    def weights(cls, c: ModelConfig, block: int) -> Iterator[Weight]:
        yield Weight("attn_norm.weight", (c.dim,))
        yield from cls.attention_weights(c)
        yield Weight("attn_sinks.weight", (c.heads,), 0)
        yield Weight("post_attention_norm.weight", (c.dim,))
        yield from cls.feed_forward_weights(c)

    @staticmethod
    def block(layer: Layer, x: Array, added: Array | None) -> tuple[Array, Array]:
        h, x = layer.add_and_normalize(added, x, "attn_norm")
        h, x = layer.add_and_normalize(layer.attention(h), x, "post_attention_norm")
        return x, layer.feed_forward(h)
