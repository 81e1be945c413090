"""Llama, and Mixtral with its experts.

Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", https://arxiv.org/abs/2302.13971
Jiang et al., "Mixtral of Experts", https://arxiv.org/abs/2401.04088
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder

if TYPE_CHECKING:
    from tensorops.models.fields import Fields

__all__ = ["Llama"]


class Llama(Decoder):
    """Norms before attention and the feed-forward layer, rotary embeddings, a gated unit; biases in some models."""

    names = ("llama",)
    model_types = ("llama", "mistral", "mixtral")
    interleaved = True
    biases = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    biases_are_optional = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return fields.windows(name, 0)
