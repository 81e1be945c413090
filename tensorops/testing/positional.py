"""Positional encodings: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.entries import HEAD_DIM, Arguments, Case, Entry, Maker, Workload
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


@quiet
def rope(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    base: float = 10000.0,
    freqs: ArrayLike | None = None,
    cos: ArrayLike | None = None,
    sin: ArrayLike | None = None,
    interleaved: bool = False,
    dims: int | None = None,
    attention_factor: float = 1.0,
) -> Float64:
    """Rotate the pairs ``(x1, x2)`` of the first `dims` features by ``positions * base**(-2 i / dims)``.

    `x` is (..., heads, seq, head_dim) and `positions` (seq,) or (..., seq), the same for every head. Pair
    i consists of the features i and i + dims/2, or 2i and 2i + 1 if `interleaved`. The rows `positions` of `cos` and
    `sin`, or all of them in order, are used instead of angles if they are given.
    """
    x = float64(x)
    dims = x.shape[-1] if dims is None else dims
    pairs = np.arange(dims // 2)
    first, second = (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + dims // 2)
    if cos is None or sin is None:
        frequencies = base ** (-2.0 * pairs / dims) if freqs is None else float64(freqs)
        angles = np.asarray(positions, dtype=np.float64)[..., None] * frequencies
        c, s = np.cos(angles), np.sin(angles)
    else:
        rows = ... if positions is None else np.asarray(positions)
        c, s = float64(cos)[rows], float64(sin)[rows]
    c, s = attention_factor * c[..., None, :, :], attention_factor * s[..., None, :, :]
    y = x.copy()
    y[..., first] = x[..., first] * c - x[..., second] * s
    y[..., second] = x[..., second] * c + x[..., first] * s
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
    yield case("attention_factor", lambda r: args(normal(r, 1, 2, 9, 16), np.arange(9), dims=6, attention_factor=1.25))
    yield from _table_cases()
    yield case("empty", lambda r: args(np.zeros((1, 2, 0, 8)), np.arange(0)), tags=EMPTY)
    yield case(
        "long_context",
        lambda r: args(normal(r, 1, 2, 4, 64), np.array([8188, 8189, 8190, 8191])),
        tolerance=32768.0,
        half_tolerance=8.0,
        tags=EXTREME,
    )
    yield case("special", lambda r: args(SPECIAL_ROWS[None], np.arange(6)), tags=SPECIAL)


def _table_cases() -> Iterator[Case]:
    case = partial(Case, "rope")

    def tables(r: np.random.Generator, *shape: int) -> dict[str, NDArray[np.float64]]:
        # Not the cosine and the sine of one angle: a mistake in one of them shows.
        return {"cos": normal(r, *shape), "sin": normal(r, *shape)}

    x = (3, 2, 5, 8)
    yield case("tables", lambda r: args(normal(r, *x), np.array([6, 0, 3, 3, 1]), **tables(r, 7, 4)))
    yield case(
        "float32_tables",
        lambda r: args(normal(r, *x), np.arange(5), **{k: single(v) for k, v in tables(r, 7, 4).items()}),
    )
    yield case("tables_interleaved", lambda r: args(normal(r, *x), np.arange(5), interleaved=True, **tables(r, 9, 4)))
    yield case("tables_dims", lambda r: args(normal(r, *x), np.arange(5), dims=6, **tables(r, 9, 3)))
    yield case("tables_per_batch", lambda r: args(normal(r, *x), r.integers(0, 40, (3, 5)), **tables(r, 40, 4)))
    yield case("tables_int32", lambda r: args(normal(r, *x), np.arange(5, dtype=np.int32), **tables(r, 5, 4)))
    yield case("tables_broadcast", lambda r: args(normal(r, *x), np.arange(5)[None, :] + 1, **tables(r, 9, 4)))
    yield case("tables_factor", lambda r: args(normal(r, *x), np.arange(5), attention_factor=0.75, **tables(r, 5, 4)))
    yield case("tables_decode", lambda r: args(normal(r, 1, 4, 1, 64), np.array([31]), **tables(r, 32, 32)))
    yield case("tables_no_batch", lambda r: args(normal(r, 3, 5, 6), np.arange(5), **tables(r, 5, 3)))
    yield case("gathered", lambda r: args(normal(r, *x), **tables(r, 5, 4)))
    yield case("gathered_per_batch", lambda r: args(normal(r, *x), dims=6, **tables(r, 3, 5, 3)))
    yield case("gathered_broadcast", lambda r: args(normal(r, *x), interleaved=True, **tables(r, 1, 5, 4)))
    yield case("gathered_one_row", lambda r: args(normal(r, *x), **tables(r, 3, 1, 4)))
    yield case("gathered_two_batch_axes", lambda r: args(normal(r, 2, 3, 2, 5, 8), **tables(r, 2, 1, 5, 4)))
    yield case("tables_empty", lambda r: args(np.zeros((1, 2, 0, 8)), np.arange(0), **tables(r, 3, 4)), tags=EMPTY)

    def special(r: np.random.Generator) -> Arguments:
        given = tables(r, 6, 2)
        given["cos"][5, 0] = np.inf
        given["sin"][5, 1] = np.nan
        return args(SPECIAL_ROWS[None], np.arange(6), **given)

    yield case("tables_special", special, tags=SPECIAL)


# --- what is refused ---------------------------------------------------------------------------------


def _with_tables(positions: NDArray[Any] | None, *shape: int, **options: Any) -> Arguments:
    return args(ones(1, 2, 3, 8), positions, **{"cos": ones(*shape), "sin": ones(*shape), **options})


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
            ("no_positions", TypeError, "positions", lambda: args(ones(1, 2, 3, 8))),
            ("factor", ValueError, "attention_factor", lambda: args(ones(2, 3, 8), np.arange(3), attention_factor=0.0)),
            ("cos_alone", ValueError, "sin", lambda: args(ones(1, 2, 3, 8), np.arange(3), cos=ones(3, 4))),
            ("sin_alone", ValueError, "cos", lambda: args(ones(1, 2, 3, 8), np.arange(3), sin=ones(3, 4))),
            ("table_columns", ValueError, "cos", lambda: _with_tables(np.arange(3), 3, 8)),
            ("table_shapes", ValueError, "sin", lambda: _with_tables(np.arange(3), 3, 4, sin=ones(4, 4))),
            ("table_ndim", ValueError, "cos", lambda: _with_tables(np.arange(3), 1, 3, 4)),
            ("table_integer", TypeError, "cos", lambda: _with_tables(np.arange(3), 3, 4, cos=integers(3, 4))),
            ("table_positions", TypeError, "positions", lambda: _with_tables(np.arange(3.0), 3, 4)),
            ("table_and_freqs", ValueError, "freqs", lambda: _with_tables(np.arange(3), 3, 4, freqs=ones(4))),
            ("table_and_base", ValueError, "base", lambda: _with_tables(np.arange(3), 3, 4, base=500.0)),
            ("gathered_length", ValueError, "cos", lambda: _with_tables(None, 4, 4)),
            ("gathered_batch", ValueError, "cos", lambda: _with_tables(None, 2, 3, 4)),
        ),
        _rope_workload,
    ),
)
