"""SmolLM3.

https://huggingface.co/blog/smollm3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder

if TYPE_CHECKING:
    from tensorops.models.fields import Fields

__all__ = ["SmolLM3"]


class SmolLM3(Decoder):
    """Llama of which every fourth block has no rotary embedding."""

    names = ("smollm3",)
    model_types = ("smollm3",)
    interleaved = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return {"unrotated": tuple(range(3, fields.count(f"{name}.block_count"), 4))}
