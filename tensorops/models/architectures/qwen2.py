"""Qwen 2 and 2.5, with and without experts.

Yang et al., "Qwen2 Technical Report", https://arxiv.org/abs/2407.10671
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder

if TYPE_CHECKING:
    from tensorops.models.fields import Fields

__all__ = ["Qwen2"]


class Qwen2(Decoder):
    """Llama with biases of queries, keys and values; all tokens pass one of the experts, each with a weight."""

    names = ("qwen2", "qwen2moe")
    model_types = ("qwen2", "qwen2_moe")
    biases = ("attn_q", "attn_k", "attn_v")
    gates_shared_expert = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return {"renormalize": fields.flag(f"{name}.expert_weights_norm", False)}  # which files lack
