"""Penalties of tokens that a text has already, and biases of others, as llama.cpp defines them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NONE", "WINDOW", "Penalties"]

Array = Any
WINDOW = 64  # llama.cpp's `--repeat-last-n`


@dataclass(frozen=True)
class Penalties:
    r"""What changes the logits before the next token is chosen.

    A logit :math:`z` of a token that is :math:`n` times among the last ones, those of the prompt included, becomes

    .. math:: r(z + b) - n f - \min(n, 1) p

    with the bias :math:`b` of the token. :math:`r` divides by `repeat` what is positive, and multiplies the rest, where
    :math:`n > 0`.

    Parameters
    ----------
    repeat : float
        See Keskar et al., "CTRL", 2019, https://arxiv.org/abs/1909.05858.
    presence, frequency : float
        :math:`p` and :math:`f`; they are OpenAI's as well.
    last : int
        How many tokens are the last ones; -1 for all.
    bias : tuple of (int, float)
        Tokens, each with its :math:`b`; -inf forbids one.

    Raises
    ------
    ValueError
        A number is not finite, `repeat` is not positive, or `last` is less than -1.
    """

    repeat: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    last: int = WINDOW
    bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.repeat) and self.repeat > 0):
            raise ValueError(f"repeat_penalty is {self.repeat}, expected a positive number")
        for name, value in (("presence", self.presence), ("frequency", self.frequency)):
            if not math.isfinite(value):
                raise ValueError(f"{name}_penalty is {value}, expected a finite number")
        if isinstance(self.last, bool) or self.last < -1:
            raise ValueError(f"repeat_last_n is {self.last!r}, expected a number of tokens, or -1 for all")
        for token, value in self.bias:
            if not value < math.inf:
                raise ValueError(f"logit_bias of token {token} is {value}, expected a finite number or -inf")

    @property
    def _looks_back(self) -> bool:
        return self.last != 0 and (self.repeat, self.presence, self.frequency) != (1.0, 0.0, 0.0)

    @property
    def count(self) -> int:
        """How many arrays `arrays` returns."""
        return self._looks_back + bool(self.bias)

    def __bool__(self) -> bool:
        return self.count > 0

    def arrays(self, texts: Sequence[Sequence[int]], vocab_size: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        """Return what `apply` needs besides the logits, arrays of shape (texts, vocab_size)."""
        found = []
        if self._looks_back:
            counts = np.zeros((len(texts), vocab_size), dtype=np.float32)
            for row, ids in zip(counts, texts, strict=True):
                np.add.at(row, list(ids[-self.last :] if self.last > 0 else ids), 1)
            found.append(counts)
        if self.bias:
            biases = np.zeros((len(texts), vocab_size), dtype=np.float32)
            biases[:, [token for token, _ in self.bias]] = [value for _, value in self.bias]
            found.append(biases)
        return found

    def apply(self, logits: Array, *arrays: Array) -> Array:
        """Return logits after biases and penalties; the result of `arrays` is in the same library."""
        if not self:
            return logits
        xp = tp.get_namespace(logits)
        logits, *others = map(xp.asarray, (logits, *arrays))
        if self.bias:
            logits = logits + others.pop()
        if others:
            (counts,) = others
            seen = xp.clip(counts, max=1.0)
            # By products, as steps without Python have no comparisons
            divided, multiplied = (seen * (factor - 1.0) + 1.0 for factor in (1.0 / self.repeat, self.repeat))
            logits = xp.clip(logits, min=0.0) * divided + xp.clip(logits, max=0.0) * multiplied - seen * self.presence
            logits = logits - counts * self.frequency
        return logits


NONE = Penalties()
