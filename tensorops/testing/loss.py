"""Losses: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tensorops.testing.activation import log_softmax
from tensorops.testing.entries import Arguments, Case, Entry, Workload
from tensorops.testing.values import (
    EMPTY,
    EXTREME,
    FLOAT32_RANGE,
    ODD_LENGTHS,
    SPECIAL,
    SPECIAL_ROWS,
    Float64,
    args,
    float64,
    integers,
    normal,
    ones,
    quiet,
)

__all__ = ["ENTRIES", "cross_entropy"]


@quiet
def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Float64:
    """``-(1 - s) * logp[target] - s * mean(logp)`` with ``logp = log_softmax(logits)``, `s` the smoothing.

    A target equal to `ignore_index` has loss 0 and is excluded from the mean, which is NaN if all are excluded.
    """
    log_p = log_softmax(logits)
    targets = np.asarray(targets)
    counts = targets != ignore_index
    picked = np.take_along_axis(log_p, np.where(counts, targets, 0)[..., None], axis=-1)[..., 0]
    losses = -picked
    if label_smoothing != 0.0:  # a smoothing of 0 times the loss of an impossible class would be NaN
        losses = (1.0 - label_smoothing) * losses - label_smoothing * np.mean(log_p, axis=-1)
    losses = np.where(counts, losses, 0.0)
    if reduction == "none":
        return float64(losses)
    if reduction == "sum":
        return float64(np.sum(losses))
    if reduction == "mean":
        return float64(np.sum(losses) / np.sum(counts, dtype=np.float64))
    raise ValueError(f"cross_entropy: reduction is {reduction!r}, expected 'mean', 'sum' or 'none'")


# --- cases -------------------------------------------------------------------------------------------


def _cross_entropy_cases() -> Iterator[Case]:
    case = partial(Case, "cross_entropy", tolerance=16.0, scale_axis=None)

    def pair(r: np.random.Generator, classes: int, *batch: int) -> Arguments:
        return args(normal(r, *batch, classes, scale=2.0), r.integers(0, classes, batch))

    def some_ignored(r: np.random.Generator) -> tuple[Any, ...]:
        (logits, targets), _ = pair(r, 9, 6)
        targets[1::2] = -100
        return logits, targets

    for reduction in ("mean", "sum", "none"):
        yield case(reduction, partial(lambda r, how: args(*pair(r, 33, 5)[0], reduction=how), how=reduction))
        yield case(f"ignored_{reduction}", partial(lambda r, how: args(*some_ignored(r), reduction=how), how=reduction))
        yield case(
            f"smoothed_{reduction}",
            partial(lambda r, how: args(*some_ignored(r), reduction=how, label_smoothing=0.1), how=reduction),
        )
    yield case("defaults", lambda r: pair(r, 17, 4))
    for n in ODD_LENGTHS:
        yield case(f"classes_{n}", partial(lambda r, n: args(*pair(r, n, 3)[0], reduction="none"), n=n))
    yield case("one_dimension", lambda r: args(normal(r, 7), np.array(3)))
    yield case("batch", lambda r: pair(r, 9, 2, 3))
    yield case("batch_none", lambda r: args(*pair(r, 9, 2, 3)[0], reduction="none"))
    yield case("int32", lambda r: args(normal(r, 3, 7), np.array([0, 6, 2], dtype=np.int32)))
    yield case("int8_300_classes", lambda r: args(normal(r, 2, 300), np.array([1, 127], dtype=np.int8)))
    yield case("ignore_index", lambda r: args(normal(r, 4, 7), np.array([0, 6, 0, 2]), ignore_index=0))
    yield case("uniform_target", lambda r: args(*pair(r, 9, 4)[0], label_smoothing=1.0))
    yield case("all_ignored_sum", lambda r: args(normal(r, 2, 5), np.full(2, -100), reduction="sum"))
    yield case("all_ignored_mean", lambda r: args(normal(r, 2, 5), np.full(2, -100)), tags=SPECIAL)
    yield case("empty_none", lambda r: args(*pair(r, 5, 0)[0], reduction="none"), tags=EMPTY)
    yield case("empty_sum", lambda r: args(*pair(r, 5, 0)[0], reduction="sum"), tags=EMPTY)
    # Some of these losses exceed the range of float16.
    yield case(
        "6e4",
        lambda r: args(np.array([[6e4, -6e4, 0.0]] * 3), np.arange(3), reduction="none"),
        scale_axis=(),
        tags=EXTREME,
    )
    yield case(
        "1e38",
        lambda r: args(np.array([[1e38, -1e38, 0.0]] * 3), np.arange(3), reduction="none"),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=EXTREME,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS, np.array([0, 0, 0, 1, -100, 3]), reduction="none"), tags=SPECIAL)
    yield case(
        "forbidden_classes",
        lambda r: args(np.array([[-np.inf, 1.0, 2.0, -np.inf]] * 2), np.array([1, 2])),
        tags=SPECIAL,
    )


# --- workloads, and all of it by operator ------------------------------------------------------------


ENTRIES = (
    Entry(
        cross_entropy,
        tuple(_cross_entropy_cases()),
        (
            ("targets_shape", ValueError, "targets", lambda: args(ones(3, 5), integers(4))),
            ("float_targets", TypeError, "targets", lambda: args(ones(3, 5), ones(3))),
            ("reduction", ValueError, "reduction", lambda: args(ones(3, 5), integers(3), reduction="max")),
            (
                "label_smoothing",
                ValueError,
                "label_smoothing",
                lambda: args(ones(3, 5), integers(3), label_smoothing=1.5),
            ),
            ("integer_logits", TypeError, "logits", lambda: args(integers(3, 5), integers(3))),
        ),
        lambda m: Workload((m.x(), m.integers(m.features, m.rows))),
    ),
)
