"""Models of torch whose layers compute by our operators."""

from __future__ import annotations

from tensorops.torch._prepare import prepare_model
from tensorops.torch._register import register_attention
from tensorops.torch._report import PreparedModule, PreparedReport

prepare_model_with_custom_kernels = prepare_model

__all__ = [
    "PreparedModule",
    "PreparedReport",
    "prepare_model",
    "prepare_model_with_custom_kernels",
    "register_attention",
]
