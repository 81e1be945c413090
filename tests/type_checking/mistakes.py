"""Mistakes that a checker finds. Each line states the errors it must report; reporting none is also an error."""
# pyright: standard, reportUnnecessaryTypeIgnoreComment=error

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import tensorops as tp

Array = npt.NDArray[np.float32]


def what_is_not_an_array(x: Array) -> None:
    tp.silu("x")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tp.silu([1.0, 2.0])  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tp.silu(1.0)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tp.silu(None)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tp.silu(np.float32(1.0))  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tp.logsumexp("x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    tp.sample("logits")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tp.rms_norm(x, "weight")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tp.linear(x, None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tp.embedding(x, "weight")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tp.softmax(x, where="where")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tp.sample(x, rng=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def options(x: Array) -> None:
    tp.silu(x, axis=0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tp.rms_norm(x, epsilon=1e-6)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tp.rms_norm(x, axis="last")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tp.quantize(x, 4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def the_same_of_what_every_operator_has(x: Array) -> None:
    tp.rms_norm.generic("x")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tp.rms_norm.generic(x, epsilon=1e-6)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tp.rms_norm.explain("x")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    tp.rms_norm.explain(x, epsilon=1e-6)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    tp.logsumexp.explain([1.0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tp.rms_norm.explian(x)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    tp.rms_norm.kernels[0]  # type: ignore[index]  # pyright: ignore[reportArgumentType]


def results(x: Array) -> str:
    tp.silu(x).no_such_method()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    _, _, _ = tp.add_rms_norm(x, x)  # type: ignore[misc]  # pyright: ignore[reportAssignmentType]
    return tp.silu(x)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
