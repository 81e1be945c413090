"""What operators are timed with: arguments of everyday sizes.

Cases are small, and made to be difficult; workloads are large, and made to be ordinary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorops._messages import nearest
from tensorops.testing.assertions import DTYPES

__all__ = ["WORKLOADS", "Workload", "workload"]

HEAD_DIM = 64
QUERY_HEADS = 8  # that share a head of keys and values
KEYS = 1024  # that a query meets at least: a conversation's cache
MOST_SCORES = 2**26  # the generic body holds them all, several times
VOCABULARY = 8192
GROUP = 32


@dataclass(frozen=True)
class Workload:
    """Arguments of one call, as NumPy arrays.

    Parameters
    ----------
    args : tuple
        The positional arguments.
    options : dict
        The keyword arguments.
    unread : int
        Bytes of the arguments that a call has no need to read, such as rows of a table that nobody looks up.
    """

    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    unread: int = 0


class _Maker:
    """Makes arrays for `rows` rows of `features` features, the same ones every time."""

    def __init__(self, rows: int, features: int, dtype_name: str) -> None:
        self.rows, self.features, self.dtype = rows, features, DTYPES[dtype_name]
        self.rng = np.random.default_rng(0)

    def normal(self, *shape: int) -> np.ndarray[Any, Any]:
        return self.rng.standard_normal(shape, dtype=np.float32).astype(self.dtype)

    def x(self) -> np.ndarray[Any, Any]:
        return self.normal(self.rows, self.features)

    def vector(self) -> np.ndarray[Any, Any]:
        return self.normal(self.features)

    def integers(self, below: int, count: int) -> np.ndarray[Any, Any]:
        return self.rng.integers(0, below, count, dtype=np.int32)

    def packed(self, rows: int) -> tuple[np.ndarray[Any, Any], ...]:
        """Return a matrix of four-bit numbers with their scales and biases."""
        groups = self.divided(GROUP)
        weight = self.rng.integers(0, 256, (rows, self.features // 2), dtype=np.uint8)
        return weight, self.normal(rows, groups), self.normal(rows, groups)

    def divided(self, by: int) -> int:
        if self.features % by:
            raise ValueError(f"its features must be a multiple of {by}, got {self.features}")
        return self.features // by


def _embedding(make: _Maker) -> Workload:
    table = make.normal(VOCABULARY, make.features)
    row = make.features * make.dtype.itemsize
    return Workload((make.integers(VOCABULARY, make.rows), table), unread=max(VOCABULARY - make.rows, 0) * row)


def _attention(make: _Maker) -> Workload:
    heads, keys = make.divided(HEAD_DIM), max(make.rows, KEYS)
    if heads * make.rows * keys > MOST_SCORES:
        raise ValueError(f"the scores of {make.rows} queries and {keys} keys are a benchmark of memory")
    groups = heads // QUERY_HEADS if heads % QUERY_HEADS == 0 else heads
    k, v = (make.normal(1, groups, keys, HEAD_DIM) for _ in range(2))
    return Workload((make.normal(1, heads, make.rows, HEAD_DIM), k, v), {"is_causal": True})


def _rope(make: _Maker) -> Workload:
    x = make.normal(1, make.divided(HEAD_DIM), make.rows, HEAD_DIM)
    return Workload((x, np.arange(make.rows, dtype=np.int32)))


_FORMAT = {"bits": 4, "group_size": GROUP}


def _quantize(make: _Maker) -> Workload:
    make.divided(GROUP)
    return Workload((make.x(),), dict(_FORMAT))


def _one_array(make: _Maker) -> Workload:
    return Workload((make.x(),))


def _gated(make: _Maker) -> Workload:
    return Workload((make.x(), make.x()))


WORKLOADS: dict[str, Callable[[_Maker], Workload]] = {
    **dict.fromkeys(("silu", "sigmoid", "relu", "softplus", "gelu", "softmax", "log_softmax", "logsumexp"), _one_array),
    **dict.fromkeys(("swiglu", "geglu"), _gated),
    "rms_norm": lambda m: Workload((m.x(), m.vector())),
    "add_rms_norm": lambda m: Workload((m.x(), m.x(), m.vector())),
    "layer_norm": lambda m: Workload((m.x(), m.vector(), m.vector())),
    "scaled_dot_product_attention": _attention,
    "rope": _rope,
    "linear": lambda m: Workload((m.x(), m.normal(m.features, m.features))),
    "embedding": _embedding,
    "quantize": _quantize,
    "dequantize": lambda m: Workload(m.packed(m.rows), dict(_FORMAT)),
    "quantized_linear": lambda m: Workload((m.x(), *m.packed(m.features)), dict(_FORMAT)),
    "cross_entropy": lambda m: Workload((m.x(), m.integers(m.features, m.rows))),
    "sample": lambda m: Workload((m.x(),), {"rng": m.rng.random(m.rows, dtype=np.float32)}),
}
"""For every operator what makes its arguments."""


def workload(operator: str, rows: int, features: int, dtype_name: str = "float32") -> Workload:
    """Return arguments of an operator, as NumPy arrays, the same ones every time.

    Parameters
    ----------
    operator : str
        Its name.
    rows, features : int
        The shape of its main input. Attention takes as many queries as rows, and heads of 64 features; the features
        of losses and of sampling are classes.
    dtype_name : str
        The dtype of floating inputs.

    Raises
    ------
    ValueError
        If there is none for the operator, or its shape cannot be had.

    Examples
    --------
    >>> [x.shape for x in workload("linear", 2, 64).args]
    [(2, 64), (64, 64)]
    """
    if operator not in WORKLOADS:
        near = nearest(operator, WORKLOADS)
        raise ValueError(f"no workload for {operator!r}{near}; valid names: {', '.join(WORKLOADS)}")
    return WORKLOADS[operator](_Maker(rows, features, dtype_name))
