"""Attention on the CPU; see ``native/cpu/attention.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.attention import scaled_dot_product_attention

scaled_dot_product_attention.kernel("cpu", supports=_native.scaled_dot_product_attention_supports, declines=True)(
    _native.scaled_dot_product_attention
)
