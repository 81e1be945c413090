"""SmolLM3.

https://huggingface.co/blog/smollm3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorops.models.fields import Fields

__all__ = ["SmolLM3"]


class SmolLM3(Decoder):
    """Llama of which every fourth block has no rotary embedding."""

    names = ("smollm3",)
    model_types = ("smollm3",)
    interleaved = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        every_fourth = [bool((block + 1) % 4) for block in range(fields.positive(f"{name}.block_count"))]
        rotates = fields.flags(f"{name}.rope.layers", every_fourth)  # of a folder
        return {"unrotated": tuple(block for block, is_rotated in enumerate(rotates) if not is_rotated)}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        # 1 where a block has a rotary embedding, in spite of the name
        return {"rope.layers": [bool(rotates) for rotates in config["no_rope_layers"]]}
