"""Logarithms of the probabilities of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["LogProbs", "likeliest"]


class LogProbs(NamedTuple):
    """Logarithms of the probabilities of tokens, as `LanguageModel.logprobs` returns them.

    Parameters
    ----------
    chosen : numpy.ndarray of float32, shape (tokens,)
        Those of the tokens of the text.
    top_ids : numpy.ndarray of int32, shape (tokens, top)
        The likeliest tokens at each place, in order.
    top : numpy.ndarray of float32, shape (tokens, top)
        Their logarithms.
    """

    chosen: np.ndarray[Any, Any]
    top_ids: np.ndarray[Any, Any]
    top: np.ndarray[Any, Any]


def likeliest(logarithms: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any], top: int) -> LogProbs:
    """Return those of the tokens chosen and of the likeliest ones; of equal ones, the first."""
    # All of a vocabulary would take longer to sort than to compute.
    candidates = (
        np.sort(np.argpartition(-logarithms, top - 1, axis=1)[:, :top], axis=1) if top else chosen[:, None][:, :0]
    )
    order = np.argsort(-np.take_along_axis(logarithms, candidates, axis=1), axis=1, kind="stable")
    ids = np.take_along_axis(candidates, order, axis=1).astype(np.int32)
    own = np.take_along_axis(logarithms, chosen[:, None], axis=1)[:, 0]
    return LogProbs(own, ids, np.take_along_axis(logarithms, ids, axis=1))
