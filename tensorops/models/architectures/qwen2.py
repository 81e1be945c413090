"""Qwen 2 and 2.5.

Yang et al., "Qwen2 Technical Report", https://arxiv.org/abs/2407.10671
"""

from ._decoder import Decoder

__all__ = ["Qwen2"]


class Qwen2(Decoder):
    """Llama with biases of queries, keys and values."""

    names = ("qwen2",)
    model_types = ("qwen2",)
    biases = ("attn_q", "attn_k", "attn_v")
