"""Positional encodings: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from tensorops.testing.entries import HEAD_DIM, Case, Entry, Maker, Workload
from tensorops.testing.values import (
    EMPTY,
    EXTREME,
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

__all__ = ["ENTRIES", "rope"]


@quiet
def rope(
    x: ArrayLike,
    positions: ArrayLike,
    *,
    base: float = 10000.0,
    freqs: ArrayLike | None = None,
    interleaved: bool = False,
    dims: int | None = None,
) -> Float64:
    """Rotate the pairs ``(x1, x2)`` of the first `dims` features by ``positions * base**(-2 i / dims)``.

    `x` is (..., heads, seq, head_dim) and `positions` (seq,) or (..., seq), the same for every head. Pair
    i consists of the features i and i + dims/2, or 2i and 2i + 1 if `interleaved`.
    """
    x = float64(x)
    dims = x.shape[-1] if dims is None else dims
    pairs = np.arange(dims // 2)
    first, second = (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + dims // 2)
    frequencies = base ** (-2.0 * pairs / dims) if freqs is None else float64(freqs)
    angles = float64(positions)[..., None, :, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


# --- cases -------------------------------------------------------------------------------------------


def _rope_cases() -> Iterator[Case]:
    # In float32 the angle, and therefore the result, is exact to eps * position.
    case = partial(Case, "rope", tolerance=128.0)
    yield case("typical", lambda r: args(normal(r, 2, 4, 9, 16), np.arange(9)))
    yield case("interleaved", lambda r: args(normal(r, 2, 4, 9, 16), np.arange(9), interleaved=True))
    yield case("decode", lambda r: args(normal(r, 2, 4, 1, 64), np.array([60])))
    yield case("no_batch", lambda r: args(normal(r, 3, 5, 8), np.arange(5)))
    yield case("two_batch_axes", lambda r: args(normal(r, 2, 3, 2, 5, 8), np.arange(5)))
    yield case("positions_per_batch", lambda r: args(normal(r, 3, 2, 5, 8), r.integers(0, 40, (3, 5))))
    yield case("positions_broadcast", lambda r: args(normal(r, 3, 2, 5, 8), np.arange(5)[None, :] + 7))
    yield case("positions_float", lambda r: args(normal(r, 2, 2, 5, 8), np.arange(5) + 0.5))
    yield case("positions_int32", lambda r: args(normal(r, 2, 2, 5, 8), np.arange(5, dtype=np.int32)))
    yield case("positions_negative", lambda r: args(normal(r, 2, 2, 5, 8), np.arange(5) - 4))
    for n in (1, 3, 7, 17, 33):
        yield case(f"length_{n}", partial(lambda r, n: args(normal(r, 1, 2, n, 6), np.arange(n)), n=n))
    yield case("two_features", lambda r: args(normal(r, 1, 2, 5, 2), np.arange(5)))
    yield case("base", lambda r: args(normal(r, 1, 2, 9, 16), np.arange(9), base=500000.0))
    yield case("dims", lambda r: args(normal(r, 1, 2, 9, 16), np.arange(9), dims=6))
    yield case("dims_interleaved", lambda r: args(normal(r, 1, 2, 9, 16), np.arange(9), dims=6, interleaved=True))
    yield case("dims_of_odd_head", lambda r: args(normal(r, 1, 2, 5, 7), np.arange(5), dims=4))
    yield case("float32_freqs", lambda r: args(normal(r, 1, 2, 9, 16), np.arange(9), freqs=single(r.random(8))))
    yield case("freqs", lambda r: args(normal(r, 1, 2, 9, 16), np.arange(9), freqs=r.random(8)))
    yield case(
        "freqs_dims_interleaved",
        lambda r: args(normal(r, 1, 2, 9, 16), np.arange(9), freqs=r.random(3), dims=6, interleaved=True),
    )
    yield case("empty", lambda r: args(np.zeros((1, 2, 0, 8)), np.arange(0)), tags=EMPTY)
    yield case(
        "long_context",
        lambda r: args(normal(r, 1, 2, 4, 64), np.array([8188, 8189, 8190, 8191])),
        tolerance=32768.0,
        half_tolerance=8.0,
        tags=EXTREME,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS[None], np.arange(6)), tags=SPECIAL)


# --- workloads, and all of it by operator ------------------------------------------------------------


def _rope_workload(make: Maker) -> Workload:
    x = make.normal(1, make.divided(HEAD_DIM), make.rows, HEAD_DIM)
    return Workload((x, np.arange(make.rows, dtype=np.int32)))


ENTRIES = (
    Entry(
        rope,
        tuple(_rope_cases()),
        (
            ("dims_odd", ValueError, "dims", lambda: args(ones(1, 2, 3, 8), np.arange(3), dims=5)),
            ("dims_beyond", ValueError, "dims", lambda: args(ones(1, 2, 3, 8), np.arange(3), dims=10)),
            ("positions_length", ValueError, "positions", lambda: args(ones(1, 2, 3, 8), np.arange(4))),
            ("freqs_length", ValueError, "freqs", lambda: args(ones(1, 2, 3, 8), np.arange(3), freqs=ones(8))),
            ("integer_x", TypeError, "x", lambda: args(integers(1, 2, 3, 8), np.arange(3))),
        ),
        _rope_workload,
    ),
)
