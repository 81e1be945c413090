"""Penalties of tokens that a text has already, as llama.cpp defines them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NONE", "WINDOW", "Penalties", "seen_tokens"]

Array = Any
WINDOW = 64  # llama.cpp's `--repeat-last-n`


@dataclass(frozen=True)
class Penalties:
    """Penalties of the tokens among the last 64, those of the prompt included.

    Parameters
    ----------
    repeat : float
        Divides their logits that are positive, and multiplies the others; Keskar et al., "CTRL", 2019,
        https://arxiv.org/abs/1909.05858.
    presence : float
        Is then subtracted, once for each token.

    Raises
    ------
    ValueError
        A number is not finite, or `repeat` is not positive.
    """

    repeat: float = 1.0
    presence: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.repeat) and self.repeat > 0):
            raise ValueError(f"repeat_penalty is {self.repeat}, expected a positive number")
        if not math.isfinite(self.presence):
            raise ValueError(f"presence_penalty is {self.presence}, expected a finite number")

    def __bool__(self) -> bool:
        return self.repeat != 1.0 or self.presence != 0.0

    def apply(self, logits: Array, seen: Array) -> Array:
        """Return logits after the penalties, for the result of `seen_tokens` in the same library."""
        xp = tp.get_namespace(logits)
        logits, seen = xp.asarray(logits), xp.asarray(seen)
        # By products, as steps without Python have no comparisons
        divided, multiplied = (seen * (factor - 1.0) + 1.0 for factor in (1.0 / self.repeat, self.repeat))
        return xp.clip(logits, min=0.0) * divided + xp.clip(logits, max=0.0) * multiplied - seen * self.presence


NONE = Penalties()


def seen_tokens(ids: Sequence[int], vocab_size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return 1 for the tokens that are among the last of a text, else 0, in an array of shape (1, vocab_size)."""
    seen = np.zeros((1, vocab_size), dtype=np.float32)
    seen[0, list(ids[-WINDOW:])] = 1
    return seen
