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
    ignored_folder_keys = frozenset(("no_rope_layer_interval",))

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return {"unrotated": tuple(range(3, fields.positive(f"{name}.block_count"), 4))}

    @classmethod
    def read_folder(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        rotates = config.get("no_rope_layers")  # 1 where a block has a rotary embedding, in spite of the name
        if rotates and rotates != [int((block + 1) % 4 != 0) for block in range(len(rotates))]:
            raise ValueError(f"no_rope_layers: {rotates!r:.60} is not supported, only every fourth")
        return {}
