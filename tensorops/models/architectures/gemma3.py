"""Gemma 3 (text).

Gemma Team, "Gemma 3 Technical Report", https://arxiv.org/abs/2503.19786
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Weight
from .gemma2 import Gemma2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields

__all__ = ["Gemma3"]


class Gemma3(Gemma2):
    """Gemma 2 with norms of queries and keys in place of bounded scores, and five blocks with a window of six."""

    names = ("gemma3",)
    model_types = ("gemma3_text",)
    ignored_keys = frozenset(("attn_logit_softcapping",))  # which its class in transformers takes, and does not use
    LARGEST = 62

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return cls._common(fields, name) | {
            "rope_base": fields.number(f"{name}.rope.freq_base", 1e6),
            "local_rope_base": fields.number(f"{name}.rope.freq_base_swa", 10000.0),
            "logit_softcap": fields.optional(f"{name}.final_logit_softcapping"),
            **fields.windows(name, 6),
        }

    @classmethod
    def attention_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        yield from super().attention_weights(c)
        yield Weight("attn_q_norm.weight", (c.head_dim,))
        yield Weight("attn_k_norm.weight", (c.head_dim,))
