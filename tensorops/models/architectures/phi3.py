"""Phi-3 and Phi-4.

Abdin et al., "Phi-3 Technical Report", https://arxiv.org/abs/2404.14219
"""

from __future__ import annotations

from ._decoder import Decoder

__all__ = ["Phi3"]


class Phi3(Decoder):
    """Llama with joined matrices; in some sizes, a part of a head rotates, with factors for short and long texts."""

    names = ("phi3",)
    model_types = ("phi3",)
    # The converters of GGUF files did not always write the right window, so llama.cpp ignores it, too.
    ignored_keys = frozenset(("attention.sliding_window",))
    fused = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_up": ("ffn_gate", "ffn_up")}  # noqa: RUF012
