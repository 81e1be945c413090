"""Qwen3-Next.

https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .qwen35 import Qwen35

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorops.models.config import ModelConfig
    from tensorops.models.fields import Fields

    from ._decoder import Weight

__all__ = ["Qwen3Next"]


class Qwen3Next(Qwen35):
    """Qwen 3.5 with experts, in whose gated delta nets the rows of a group of heads are neighbours."""

    names = ("qwen3next",)
    model_types = ("qwen3_next",)
    folder_names = {  # noqa: RUF012
        **Qwen35.folder_names,
        "linear_attn.in_proj_ba": "ssm_ba",
        "linear_attn.in_proj_qkvz": "attn_qkvz",
    }
    rates_by_group = True

    @classmethod
    def read(cls, fields: Fields, name: str) -> dict[str, Any]:
        return super().read(fields, name) | {"is_tiled": False}

    @classmethod
    def from_folder(cls, name: str, tensor: Any, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        if not name.endswith("attn_qkvz.weight"):
            yield from super().from_folder(name, tensor, config)
            return
        # A folder's rows go group by group: queries, keys, values and gates of the first, then of the second.
        groups, keys = config["linear_num_key_heads"], config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] // groups * config["linear_value_head_dim"]
        rows = np.arange(tensor.shape[0]).reshape(groups, 2 * (keys + values))
        parts = np.split(rows, np.cumsum([keys, keys, values]), axis=1)
        queries_to_values = np.concatenate([part.reshape(-1) for part in parts[:3]])
        for part, wanted in (("attn_qkv", queries_to_values), ("attn_gate", parts[3].reshape(-1))):
            yield name.replace("attn_qkvz", part), tensor.indexed(0, wanted, (len(wanted), *tensor.shape[1:]))

    @classmethod
    def delta_net_weights(cls, c: ModelConfig) -> Iterator[Weight]:
        for weight in super().delta_net_weights(c):
            if weight.name == "ssm_beta.weight":
                yield weight._replace(name="ssm_ba.weight", shape=(2 * c.state_heads, c.dim))
            elif weight.name != "ssm_alpha.weight":
                yield weight
