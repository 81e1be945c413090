"""Traces by ``mx.compile(shapeless=True)``, in which no result may depend on the lengths of the traced arrays.

MLX records a program once and runs it for arrays of any lengths. It does not compare shapes then: kernels that it has
fused read beyond the end of an array that is too short. Functions here that would record a length raise instead.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import mlx.core as mx

P = ParamSpec("P")
R = TypeVar("R")

_NUMBER = mx.array(0.0)


def is_shapeless() -> bool:
    """Return whether a function is being traced for arrays of any shape.

    MLX does not tell, but only then does it record a broadcast of an array that has the right shape already.
    """
    graph = io.StringIO()
    mx.export_to_dot(graph, mx.broadcast_arrays(_NUMBER, _NUMBER)[0])
    return "Broadcast" in graph.getvalue()


def require_lengths(function: str) -> None:
    """Raise a `ValueError` if a function that needs the lengths of arrays is traced for any."""
    if is_shapeless():
        raise ValueError(
            f"{function}: the result would keep lengths of this call, but mx.compile(shapeless=True) traces functions "
            "for arrays of any shape; compile without shapeless, or create constants outside of the function"
        )


def needs_lengths(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls `require_lengths` first."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        require_lengths(function.__name__)
        return function(*args, **kwargs)

    return call


def filled_like(a: Any, value: Any) -> Any:
    """Return an array of the shape of `a`, also of any shape, filled with a zero-dimensional array."""
    return mx.broadcast_arrays(value, a)[0]
