"""Sampling: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.activation import softmax
from tensorops.testing.entries import Case, Entry, Workload
from tensorops.testing.values import EMPTY, ODD_LENGTHS, SPECIAL, Float64, args, float64, integers, ones


def sample(
    logits: ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    rng: ArrayLike,
) -> NDArray[np.int64]:
    """Draw one index per row by inverting the cumulative distribution at the uniforms `rng`.

    `rng` has the shape of `logits` without the last axis and values in [0, 1). Filters apply in the order
    `top_k`, `top_p`, `min_p`; entries tied with the last kept entry are kept. ``temperature=0`` selects the
    first maximum. Entries of +inf share the probability.
    """
    logits = float64(logits)
    rows = logits.reshape(-1, logits.shape[-1])
    uniforms = np.broadcast_to(float64(rng), logits.shape[:-1]).reshape(-1)
    drawn = [
        int(np.argmax(row)) if temperature == 0 else _draw(row / temperature, top_k, top_p, min_p, u)
        for row, u in zip(rows, uniforms, strict=True)
    ]
    return np.asarray(drawn, dtype=np.int64).reshape(logits.shape[:-1])


def _draw(row: Float64, top_k: int | None, top_p: float | None, min_p: float | None, u: float) -> int:
    if np.any(row == np.inf):
        row = np.where(row == np.inf, 0.0, -np.inf)
    keep = np.ones(row.shape, dtype=np.bool_)
    if top_k is not None and top_k < row.size:
        keep &= row >= np.sort(row)[-top_k]
    if top_p is not None and top_p < 1.0:
        keep &= row >= _nucleus_threshold(row, keep, top_p)
    if min_p is not None:
        p = softmax(row)
        keep &= p >= min_p * np.max(p)
    cumulative = np.cumsum(softmax(row, where=keep))
    # u < 1, but rounding may leave the sum below u: the last kept entry is then the answer.
    exceeds = np.flatnonzero(cumulative > u * cumulative[-1])
    return int(exceeds[0]) if exceeds.size else int(np.flatnonzero(keep)[-1])


def _nucleus_threshold(row: Float64, keep: NDArray[np.bool_], top_p: float) -> float:
    """Return the smallest value in the shortest descending prefix whose probability reaches `top_p`."""
    p = softmax(row, where=keep)
    before = 0.0
    threshold = np.inf
    for index in np.argsort(-row, kind="stable"):
        if keep[index] and before < top_p:
            threshold = row[index]
            before += p[index]
    return float(threshold)


# --- cases -------------------------------------------------------------------------------------------


def _sample_cases() -> Iterator[Case]:
    case = partial(Case, "sample", tolerance=0.0, half_tolerance=0.0, uncast=frozenset({"rng"}))

    def logits(r: np.random.Generator, n: int, *batch: int) -> NDArray[np.float64]:
        # Distinct multiples of 1/4, exact in every dtype: all of them draw the same index.
        values = np.broadcast_to(np.arange(n) / 4 - n // 8, (*batch, n))
        return np.ascontiguousarray(r.permuted(values, axis=-1))  # keeps the order of the broadcast values

    uniforms = np.array([0.01, 0.3, 0.72, 0.97])
    for name, options in {
        "greedy": {"temperature": 0.0},
        "plain": {},
        "cold": {"temperature": 0.5},
        "hot": {"temperature": 3.0},
        "top_k": {"top_k": 5},
        "top_k_one": {"top_k": 1},
        "top_k_all": {"top_k": 1000},
        "top_p": {"temperature": 2.0, "top_p": 0.8},
        "top_p_tiny": {"top_p": 1e-3},
        "top_p_one": {"top_p": 1.0},
        "min_p": {"temperature": 2.0, "min_p": 0.2},
        "min_p_one": {"min_p": 1.0},
        "top_k_top_p": {"temperature": 3.0, "top_k": 6, "top_p": 0.7},
        "everything": {"temperature": 3.0, "top_k": 9, "top_p": 0.9, "min_p": 0.3},
    }.items():
        yield case(name, partial(lambda r, o: args(logits(r, 33, 4), **o, rng=uniforms), o=options))
    for n in ODD_LENGTHS:
        yield case(
            f"vocabulary_{n}",
            partial(lambda r, n: args(logits(r, n, 4), temperature=4.0, top_p=0.95, rng=uniforms), n=n),
        )
    yield case("one_dimension", lambda r: args(logits(r, 17), temperature=2.0, rng=np.array(0.4)))
    yield case("batch", lambda r: args(logits(r, 9, 2, 2), rng=uniforms.reshape(2, 2)))
    ties = np.tile([1.0, 3.0, 2.0, 3.0, 2.0, 0.0], (4, 1))
    yield case("ties_greedy", lambda r: args(ties, temperature=0.0, rng=uniforms))
    yield case("ties_top_k", lambda r: args(ties, top_k=3, rng=uniforms))
    yield case("ties_top_p", lambda r: args(ties, top_p=0.5, rng=uniforms))
    yield case("empty_batch", lambda r: args(np.zeros((0, 5)), rng=np.zeros(0)), tags=EMPTY)
    yield case(
        "forbidden_tokens",
        lambda r: args(np.array([[-np.inf, 1.0, -np.inf, 0.5]] * 4), top_k=3, rng=uniforms),
        tags=SPECIAL,
    )
    certain = np.tile([1.0, np.inf, -np.inf, 0.5, np.inf, 3.0, np.inf, -np.inf, 2.0], (4, 1))
    for name, options in {
        "greedy": {"temperature": 0.0},
        "plain": {},
        "hot": {"temperature": 30.0},
        "top_k": {"top_k": 2},
        "top_k_more": {"top_k": 5, "temperature": 0.1},
        "top_p": {"top_p": 0.3},
        "min_p": {"min_p": 0.5},
        "everything": {"temperature": 2.0, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
    }.items():
        yield case(f"certain_{name}", partial(lambda r, o: args(certain, **o, rng=uniforms), o=options), tags=SPECIAL)
    yield case("one_certain", lambda r: args(certain[:, :4], top_k=3, top_p=0.9, rng=uniforms), tags=SPECIAL)


# --- what is refused ---------------------------------------------------------------------------------


_UNIFORM = np.full(2, 0.5)


# --- workloads, and all of it by operator ------------------------------------------------------------


ENTRIES = (
    Entry(
        sample,
        tuple(_sample_cases()),
        (
            ("temperature", ValueError, "temperature", lambda: args(ones(2, 5), temperature=-1.0, rng=_UNIFORM)),
            ("top_k", ValueError, "top_k", lambda: args(ones(2, 5), top_k=0, rng=_UNIFORM)),
            ("top_p", ValueError, "top_p", lambda: args(ones(2, 5), top_p=1.5, rng=_UNIFORM)),
            ("min_p", ValueError, "min_p", lambda: args(ones(2, 5), min_p=-0.1, rng=_UNIFORM)),
            ("integer_logits", TypeError, "logits", lambda: args(integers(2, 5), rng=_UNIFORM)),
        ),
        lambda m: Workload((m.x(),), {"rng": m.rng.random(m.rows, dtype=np.float32)}),
    ),
)
