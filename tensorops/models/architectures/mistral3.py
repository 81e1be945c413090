"""Mistral 3 and Ministral 3.

https://mistral.ai/news/mistral-3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorops.models.fields import Fields

__all__ = ["Mistral3"]


class Mistral3(Decoder):
    """Llama whose queries grow with their position, for long texts."""

    names = ("mistral3",)
    model_types = ("ministral3",)
    interleaved = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return {"query_growth": fields.optional(f"{name}.attention.temperature_scale") or 0.0}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {"attention.temperature_scale": config["rope_parameters"].get("llama_4_scaling_beta", 0.0)}
