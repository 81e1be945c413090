"""Losses: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    single,
)


@quiet
def cross_entropy(
    logits: ArrayLike,
    targets: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Float64:
    """``-sum(w * q * logp) + z_loss * s**2`` with ``logp = log_softmax(logits)`` and `s` its normalizer.

    `q` are the probabilities of the targets, smoothed towards all classes. Where `w * q` is 0, so is the product. A
    target equal to `ignore_index` has loss 0 and is excluded from the mean, which is NaN if all are excluded. The first
    term's mean is divided by the weights of the targets, the second's by their number.
    """
    logits, targets = float64(logits), np.asarray(targets)
    log_p, classes = log_softmax(logits), logits.shape[-1]
    w = np.ones(classes) if weight is None else float64(weight)
    if targets.dtype.kind in "iu":
        counts = targets != ignore_index
        numbers = np.where(counts, targets, 0)
        q, divisor = np.equal(numbers[..., None], np.arange(classes)).astype(np.float64), np.sum(w[numbers] * counts)
    else:
        counts = np.ones(targets.shape[:-1], dtype=bool)
        q, divisor = float64(targets), float64(counts.size)
    shares = w * ((1.0 - label_smoothing) * q + label_smoothing / classes)
    losses = np.where(counts, np.sum(np.where(shares == 0.0, shares * _nan_only(log_p), -shares * log_p), axis=-1), 0.0)
    squares = np.where(counts, z_loss * _log_total(logits) ** 2, 0.0) if z_loss else np.zeros(counts.shape)
    if reduction == "none":
        return float64(losses + squares)
    if reduction == "sum":
        return float64(np.sum(losses) + np.sum(squares))
    if reduction == "mean":
        return float64(np.sum(losses) / divisor + np.sum(squares) / np.sum(counts, dtype=np.float64))
    raise ValueError(f"cross_entropy: reduction is {reduction!r}, expected 'mean', 'sum' or 'none'")


@quiet
def linear_cross_entropy(
    x: ArrayLike,
    weight: ArrayLike,
    targets: ArrayLike,
    bias: ArrayLike | None = None,
    ce_weight: ArrayLike | None = None,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Float64:
    """``cross_entropy(x @ weight.T + bias, targets, ce_weight)``."""
    logits = np.einsum("...i,oi->...o", float64(x), float64(weight)) + (0.0 if bias is None else float64(bias))
    return cross_entropy(
        logits,
        targets,
        ce_weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )


def _nan_only(x: Float64) -> Float64:
    return np.where(np.isnan(x), x, 0.0)


def _log_total(logits: Float64) -> Float64:
    largest = np.max(logits, axis=-1, keepdims=True)
    return float64(np.log(np.sum(np.exp(logits - largest), axis=-1)) + largest[..., 0])


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
    yield from _weighted_cases(case, pair)
    yield case("float32_weight", lambda r: args(*pair(r, 9, 4)[0], single(r.random(9) + 0.1)))
    yield case("float32_probabilities", lambda r: args(normal(r, 4, 9), single(r.dirichlet(np.ones(9), 4))))
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


def _weighted_cases(case: Callable[..., Case], pair: Callable[..., Arguments]) -> Iterator[Case]:
    """Yield cases with weights of classes, probabilities as targets and squares of logarithms."""

    def weighted(r: np.random.Generator, classes: int, *batch: int, **options: Any) -> Arguments:
        (logits, targets), _ = pair(r, classes, *batch)
        targets[..., :1] = options.get("ignore_index", -100)
        return args(logits, targets, r.random(classes) + 0.1, **options)

    def probable(r: np.random.Generator, classes: int, *batch: int, **options: Any) -> Arguments:
        targets = r.dirichlet(np.ones(classes), batch)
        return args(normal(r, *batch, classes, scale=2.0), targets, **options)

    every: dict[str, dict[str, Any]] = {
        "plain": {},
        "smoothed": {"label_smoothing": 0.1},
        "z_loss": {"z_loss": 0.01},
        "smoothed_z_loss": {"label_smoothing": 0.3, "z_loss": 1e-4},
    }
    for name, options in every.items():
        for reduction in ("mean", "sum", "none"):
            how = {"reduction": reduction, **options}
            yield case(f"weight_{name}_{reduction}", partial(lambda r, how: weighted(r, 33, 5, **how), how=how))
            yield case(f"probabilities_{name}_{reduction}", partial(lambda r, how: probable(r, 33, 5, **how), how=how))
    for n in ODD_LENGTHS:
        how = {"reduction": "none", "label_smoothing": 0.2, "z_loss": 0.01}
        yield case(f"weight_classes_{n}", partial(lambda r, n, how: weighted(r, n, 3, **how), n=n, how=how))
        yield case(f"probabilities_classes_{n}", partial(lambda r, n, how: probable(r, n, 3, **how), n=n, how=how))
    yield case("z_loss_mean", lambda r: args(*pair(r, 33, 5)[0], z_loss=1e-3))
    # Of a single row, XLA multiplies the constants of factors.
    yield case("z_loss_one_row", lambda _: args(np.array([[0.5, -1.0]]), np.array([0]), z_loss=0.5))
    yield case("z_loss_batch", lambda r: args(*pair(r, 9, 2, 3)[0], z_loss=1e-3, reduction="none"))
    yield case("weight_ignore_index", lambda r: weighted(r, 7, 4, ignore_index=2))
    yield case("weight_one_dimension", lambda r: args(normal(r, 7), np.array(3), r.random(7)))
    yield case("probabilities_one_dimension", lambda r: probable(r, 7))
    yield case("probabilities_batch_none", lambda r: probable(r, 9, 2, 3, reduction="none"))
    yield case("probabilities_weight", lambda r: args(*probable(r, 17, 4)[0], r.random(17), label_smoothing=0.1))
    yield case("weight_all_ignored_mean", lambda r: args(normal(r, 2, 5), np.full(2, -100), ones(5)), tags=SPECIAL)
    yield case("weight_empty_none", lambda r: args(normal(r, 0, 5), integers(0), ones(5), reduction="none"), tags=EMPTY)
    yield case("probabilities_empty_sum", lambda r: args(normal(r, 0, 5), ones(0, 5), reduction="sum"), tags=EMPTY)
    forbidden = np.array([[-np.inf, 1.0, 2.0, -np.inf, 0.5]] * 3)
    yield case(
        "forbidden_classes_of_probability_0",
        lambda r: args(forbidden, np.array([[0.0, 0.5, 0.25, 0.0, 0.25]] * 3), reduction="none"),
        tags=SPECIAL,
    )
    yield case(
        "forbidden_classes_of_weight_0",
        lambda r: args(forbidden, np.array([0, 1, 4]), np.array([0.0, 1, 2, 0, 1]), label_smoothing=0.1),
        tags=SPECIAL,
    )
    yield case(
        "probable_forbidden_class",
        lambda r: args(forbidden, np.array([[0.5, 0.5, 0.0, 0.0, 0.0]] * 3), z_loss=0.1, reduction="none"),
        tags=SPECIAL,
    )
    yield case(
        "weight_special",
        lambda r: args(SPECIAL_ROWS, np.array([0, 0, 0, 1, -100, 3]), ones(4), z_loss=0.1, reduction="none"),
        tags=SPECIAL,
    )
    yield case(
        "probabilities_1e38",
        lambda r: args(np.array([[1e38, -1e38, 0.0]] * 3), np.eye(3), reduction="none"),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=EXTREME,
    )
    yield case(
        "weight_1e38",
        lambda r: args(np.array([[1e38, -1e38, 0.0]] * 3), np.arange(3), np.array([1.0, 0.5, 0.25]), reduction="none"),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=EXTREME,
    )


def _linear_cross_entropy_cases() -> Iterator[Case]:
    case = partial(Case, "linear_cross_entropy", tolerance=32.0, scale_axis=None)

    def make(r: np.random.Generator, classes: int, features: int, *batch: int, **options: Any) -> Arguments:
        targets = np.asarray(r.integers(0, classes, batch))
        if batch:
            targets[..., :1] = options.get("ignore_index", -100)
        return args(normal(r, *batch, features), normal(r, classes, features, scale=0.5), targets, **options)

    def everything(r: np.random.Generator, classes: int, features: int, **options: Any) -> Arguments:
        (x, weight, targets), options = make(r, classes, features, 5, **options)
        return args(x, weight, targets, normal(r, classes), r.random(classes) + 0.1, **options)

    def probable(r: np.random.Generator, classes: int, features: int, *batch: int, **options: Any) -> Arguments:
        (x, weight, _), options = make(r, classes, features, *batch, **options)
        return args(x, weight, r.dirichlet(np.ones(classes), batch), **options)

    yield case("int32", lambda r: args(normal(r, 3, 4), normal(r, 7, 4), np.array([0, 6, 2], dtype=np.int32)))
    for reduction in ("mean", "sum", "none"):
        how = {"reduction": reduction}
        yield case(reduction, partial(lambda r, how: make(r, 33, 17, 5, **how), how=how))
        more = {"label_smoothing": 0.1, "z_loss": 0.01, **how}
        yield case(f"everything_{reduction}", partial(lambda r, how: everything(r, 33, 17, **how), how=more))
        yield case(f"probabilities_{reduction}", partial(lambda r, how: probable(r, 33, 17, 5, **how), how=how))
    none: dict[str, Any] = {"reduction": "none"}
    for n in ODD_LENGTHS:
        yield case(f"classes_{n}", partial(lambda r, n: make(r, n, 9, 3, **none), n=n))
        yield case(f"features_{n}", partial(lambda r, n: make(r, 9, n, 3, **none), n=n))
        yield case(f"rows_{n}", partial(lambda r, n: make(r, 9, 5, n, **none), n=n))
    yield case("smoothed", lambda r: make(r, 33, 17, 5, label_smoothing=0.2))
    yield case("z_loss", lambda r: make(r, 33, 17, 5, z_loss=0.02, reduction="sum"))
    yield case("z_loss_one_row", lambda _: args(ones(1, 1), np.array([[0.5], [-1.0]]), np.array([0]), z_loss=0.5))
    yield case("bias", lambda r: args(*make(r, 9, 5, 4)[0], normal(r, 9)))
    yield case("ce_weight", lambda r: args(*make(r, 9, 5, 4)[0], None, r.random(9)))
    yield case(
        "float32_parameters",
        lambda r: args(
            normal(r, 4, 5),
            single(normal(r, 9, 5)),
            r.integers(0, 9, 4),
            single(normal(r, 9)),
            single(r.random(9) + 0.1),
        ),
    )
    yield case(
        "float32_probabilities", lambda r: args(normal(r, 4, 5), normal(r, 9, 5), single(r.dirichlet(np.ones(9), 4)))
    )
    yield case("one_dimension", lambda r: make(r, 9, 5))
    yield case("batch", lambda r: make(r, 9, 5, 2, 3))
    yield case("batch_none", lambda r: make(r, 9, 5, 2, 3, **none))
    yield case("probabilities_batch", lambda r: probable(r, 9, 5, 2, 3, label_smoothing=0.1))
    yield case("ignore_index", lambda r: make(r, 9, 5, 4, ignore_index=2))
    yield case("all_ignored_sum", lambda r: args(normal(r, 2, 4), normal(r, 5, 4), np.full(2, -100), reduction="sum"))
    yield case("all_ignored_mean", lambda r: args(normal(r, 2, 4), normal(r, 5, 4), np.full(2, -100)), tags=SPECIAL)
    yield case("empty_none", lambda r: args(normal(r, 0, 4), normal(r, 5, 4), integers(0), **none), tags=EMPTY)
    yield case("empty_sum", lambda r: args(normal(r, 0, 4), normal(r, 5, 4), integers(0), reduction="sum"), tags=EMPTY)
    yield case(
        "large_logits",
        lambda r: args(np.array([[1e4, 1.0]] * 3), np.array([[3.0, 0.5], [-3.0, 1], [0, 2]]), np.arange(3), **none),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=EXTREME,
    )
    yield case(
        "1e37",
        lambda r: args(np.array([[1e37, 1.0]] * 3), np.array([[4.0, 0.5], [-4.0, 1], [0, 2]]), np.arange(3), **none),
        scale_axis=(),
        dtypes=FLOAT32_RANGE,
        tags=EXTREME,
    )
    yield case(
        "forbidden_classes",
        lambda r: args(normal(r, 3, 4), normal(r, 5, 4), np.array([1, 2, 4]), np.array([-np.inf, 0, 1, -np.inf, 0])),
        tags=SPECIAL,
    )
    yield case(
        "special",
        lambda r: args(SPECIAL_ROWS, normal(r, 5, 4), np.array([0, 0, 0, 1, -100, 3]), **none),
        tags=SPECIAL,
    )


# --- workloads, and all of it by operator ------------------------------------------------------------


def _small() -> tuple[Any, ...]:
    return ones(3, 4), ones(5, 4), integers(3)


ENTRIES = (
    Entry(
        cross_entropy,
        tuple(_cross_entropy_cases()),
        (
            ("targets_shape", ValueError, "targets", lambda: args(ones(3, 5), integers(4))),
            ("probabilities_shape", ValueError, "targets", lambda: args(ones(3, 5), ones(3))),
            ("bool_targets", TypeError, "targets", lambda: args(ones(3, 5), ones(3) > 0)),
            ("weight_shape", ValueError, "weight", lambda: args(ones(3, 5), integers(3), ones(4))),
            ("weight_ndim", ValueError, "weight", lambda: args(ones(3, 5), integers(3), ones(1, 5))),
            ("integer_weight", TypeError, "weight", lambda: args(ones(3, 5), integers(3), integers(5))),
            ("negative_z_loss", ValueError, "z_loss", lambda: args(ones(3, 5), integers(3), z_loss=-1e-4)),
            ("text_z_loss", TypeError, "z_loss", lambda: args(ones(3, 5), integers(3), z_loss="1e-4")),
            ("ignored_probabilities", ValueError, "ignore_index", lambda: args(ones(3, 5), ones(3, 5), ignore_index=0)),
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
    Entry(
        linear_cross_entropy,
        tuple(_linear_cross_entropy_cases()),
        (
            ("columns", ValueError, "weight", lambda: args(ones(3, 4), ones(5, 6), integers(3))),
            ("weight_ndim", ValueError, "weight", lambda: args(ones(3, 4), ones(4), integers(3))),
            ("x_ndim", ValueError, "x", lambda: args(np.asarray(1.0), ones(5, 4), integers(3))),
            ("no_classes", ValueError, "weight", lambda: args(ones(3, 4), ones(0, 4), integers(3))),
            ("integer_x", TypeError, "x", lambda: args(integers(3, 4), ones(5, 4), integers(3))),
            ("integer_weight", TypeError, "weight", lambda: args(ones(3, 4), integers(5, 4), integers(3))),
            ("targets_shape", ValueError, "targets", lambda: args(ones(3, 4), ones(5, 4), integers(4))),
            ("probabilities_shape", ValueError, "targets", lambda: args(ones(3, 4), ones(5, 4), ones(3, 4))),
            ("bool_targets", TypeError, "targets", lambda: args(ones(3, 4), ones(5, 4), ones(3) > 0)),
            ("bias_shape", ValueError, "bias", lambda: args(ones(3, 4), ones(5, 4), integers(3), ones(4))),
            ("ce_weight", ValueError, "ce_weight", lambda: args(ones(3, 4), ones(5, 4), integers(3), None, ones(4))),
            ("reduction", ValueError, "reduction", lambda: args(*_small(), reduction="max")),
            ("label_smoothing", ValueError, "label_smoothing", lambda: args(*_small(), label_smoothing=-0.1)),
            ("z_loss", ValueError, "z_loss", lambda: args(*_small(), z_loss=-0.1)),
            ("ignore_index", TypeError, "ignore_index", lambda: args(*_small(), ignore_index=1.5)),
        ),
        lambda m: Workload((m.x(), m.normal(4 * m.features, m.features), m.integers(4 * m.features, m.rows))),
    ),
)
