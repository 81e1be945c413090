"""The ranks that share a network: the part of each weight that a rank has.

Shoeybi et al., "Megatron-LM", https://arxiv.org/abs/1909.08053: matrices that multiply the features of a token are
divided by rows (heads, or hidden features), those that return to them by columns. A rank computes its heads and its
hidden features without the others, so a block needs two sums over the ranks: after attention, and after the
feed-forward layer. A norm over all heads of a token needs a sum of its own, of one number. What has the length of a
token's features is the same on all ranks.

How their results come together, `tensorops.persistent.ranks` says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

from .architectures import WHOLE, get
from .files.blocks import ComputedTensor, QuantizedWeight, Tensor

if TYPE_CHECKING:
    from .config import ModelConfig

__all__ = ["HEADS", "WHOLE", "divide", "part_of"]

HEADS = 1  # that of a cache


def divide(config: ModelConfig, size: int) -> ModelConfig:
    """Return the sizes of one rank's part of a network.

    Parameters
    ----------
    config : ModelConfig
        The sizes of the network.
    size : int
        The number of ranks.

    Returns
    -------
    ModelConfig
        With the heads, the heads of keys and values, and the hidden features of one rank. If there are fewer heads of
        keys and values than ranks, neighbouring ranks have the same one.

    Raises
    ------
    ValueError
        The ranks cannot have equal parts; the message lists the numbers of ranks that can.
    """
    different = [config, *(config.of_block(block) for block in config.overrides)]

    def problem_with(size: int) -> str:
        return next(filter(None, (_indivisible(each, size) for each in different)), "")

    if problem := problem_with(size):
        fitting = [n for n in range(1, config.heads + 1) if not problem_with(n)]
        raise ValueError(f"{problem}; possible numbers of ranks: {', '.join(map(str, fitting))}")
    overrides = {}
    for block, own in config.overrides.items():
        parts = _parts(config.of_block(block), size)
        overrides[block] = {name: parts.get(name, value) for name, value in own.items()}
    return replace(config, overrides=overrides, **_parts(config, size))


def _parts(config: ModelConfig, size: int) -> dict[str, Any]:
    """Return the fields that differ between a network, or a block, and one rank's part of it."""
    parts = {name: getattr(config, name) // size for name in ("heads", *_hidden(config))}
    return parts | {"kv_heads": max(1, config.kv_heads // size)}


def _hidden(config: ModelConfig) -> tuple[str, ...]:
    """Return the fields with numbers of hidden features."""
    if not config.experts:
        return ("hidden_dim",)
    of_experts = ("expert_hidden_dim", "shared_hidden_dim")
    return ("hidden_dim", *of_experts) if get(config.architecture).adds_experts else of_experts


def _indivisible(config: ModelConfig, size: int) -> str:
    """Return why a network cannot be divided among that many ranks, or an empty string."""
    if config.heads % size:
        return f"{config.heads} query heads cannot be divided among {size} ranks"
    if config.kv_heads % size and size % config.kv_heads:
        return f"{config.kv_heads} heads of keys and values can neither be divided among {size} ranks nor be repeated"
    for features in (getattr(config, name) for name in _hidden(config)):
        if features % size:
            return f"{features} hidden features cannot be divided among {size} ranks"
    return ""


def part_of(weight: Any, name: str, axis: int, length: int, rank: int, size: int, start: int | None = None) -> Any:
    """Return the part of a matrix that one rank has.

    Parameters
    ----------
    weight : array, QuantizedWeight or Tensor
        The matrix.
    name : str
        Its name, for messages.
    axis : int
        That of the rows or columns that are divided; `WHOLE` for all of it.
    length : int
        How many of them a rank has; if those of all ranks are more than there are, neighbours have the same.
    rank, size : int
        Whose part, of how many.
    start : int, optional
        The first of its rows or columns, if it is not that of the rank.

    Returns
    -------
    array, QuantizedWeight or Tensor
        The part: of a tensor, one that reads no other bytes of the file; of others, one in host memory.

    Raises
    ------
    ValueError
        A group of quantised numbers would be divided.
    """
    if axis == WHOLE or length == weight.shape[axis]:
        return weight
    group = weight.group_size if isinstance(weight, QuantizedWeight | Tensor | ComputedTensor) else 1
    if axis == len(weight.shape) - 1 and length % group:
        raise ValueError(
            f"weight {name}: each of {size} ranks has {length} of {weight.shape[axis]} columns, which are not whole "
            f"groups of {group} quantised numbers"
        )
    if start is None:
        start = rank * weight.shape[axis] // size // length * length
    if isinstance(weight, QuantizedWeight | Tensor | ComputedTensor):
        return weight.part(axis, start, start + length)
    host = tp.to_backend(weight, "numpy")
    return np.ascontiguousarray(host[(slice(None),) * axis + (slice(start, start + length),)])
