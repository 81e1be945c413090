"""Selection: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing.entries import Case, Entry, Workload
from tensorops.testing.values import EMPTY, ODD_LENGTHS, SPECIAL, SPECIAL_ROWS, args, normal, ones


def top_k(x: ArrayLike, k: int, *, axis: int = -1, largest: bool = True) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Sort the elements of each row with Python's own sort, by NaN, value and index; integers stay integers."""
    x = np.asarray(x)
    x = x if x.dtype.kind in "iu" else x.astype(np.float64)
    rows = np.moveaxis(x, axis, -1)
    indices = np.zeros((*rows.shape[:-1], k), dtype=np.int64)
    for where in np.ndindex(rows.shape[:-1]):
        numbers = [(a != a, 0 if a != a else -a if largest else a, i) for i, a in enumerate(rows[where].tolist())]
        indices[where] = [i for _, _, i in sorted(numbers)[:k]]
    values = np.take_along_axis(rows, indices, axis=-1)
    return np.moveaxis(values, -1, axis), np.moveaxis(indices, -1, axis)


# --- cases -------------------------------------------------------------------------------------------


def _top_k_cases() -> Iterator[Case]:
    case = partial(Case, "top_k", tolerance=0.0, half_tolerance=0.0, scale_axis=())

    def steps(r: np.random.Generator, *shape: int) -> NDArray[np.float64]:
        # Distinct along the last axis and exact in every dtype, up to a length of 257.
        values = np.broadcast_to(np.arange(shape[-1]) / 2 - 64.0, shape)
        return np.ascontiguousarray(r.permuted(values, axis=-1))

    def few(r: np.random.Generator, *shape: int) -> NDArray[np.float64]:
        return r.integers(-2, 3, shape) / 2.0  # equal ones, and zeros, half of them negative

    zeros = np.array([[0.0, -0.0, 0.0, -0.0, -1.0], [-0.0, 1.0, 0.0, -0.0, 0.0]])
    none = np.array([[np.nan, -np.inf, np.nan, -np.inf, np.nan], [np.inf, np.nan, -np.inf, np.inf, np.nan]])
    yield case("typical", lambda r: args(steps(r, 4, 64), k=8))
    for name, options in {"smallest": {"largest": False}, "axis": {"axis": 0, "k": 3}, "all": {"k": 64}}.items():
        yield case(name, partial(lambda r, o: args(steps(r, 4, 64), **{"k": 5, **o}), o=options))
    for n in ODD_LENGTHS:
        for k in {1, (n + 1) // 2, n}:
            yield case(f"length_{n}_{k}", partial(lambda r, n, k: args(steps(r, 3, n), k=k), n=n, k=k))
    yield case("one_dimension", lambda r: args(steps(r, 33), k=4))
    yield case("middle_axis", lambda r: args(normal(r, 2, 9, 5), k=4, axis=1, largest=False))
    yield case("long", lambda r: args(few(r, 2, 5000), k=50))
    yield case("many", lambda r: args(normal(r, 2, 3000), k=700))
    yield case("ascending", lambda r: args(np.sort(few(r, 3, 200), axis=-1), k=20))
    yield case("equal", lambda r: args(ones(2, 300), k=30, largest=False))
    for largest in (True, False):
        name = "largest" if largest else "smallest"
        yield case(f"ties_{name}", partial(lambda r, o: args(few(r, 3, 70), k=40, largest=o), o=largest))
        yield case(f"zeros_{name}", partial(lambda r, o: args(zeros, k=4, largest=o), o=largest))
        yield case(f"special_{name}", partial(lambda r, o: args(SPECIAL_ROWS, k=4, largest=o), o=largest), tags=SPECIAL)
        yield case(f"not_numbers_{name}", partial(lambda r, o: args(none, k=5, largest=o), o=largest), tags=SPECIAL)
        yield case(
            f"few_numbers_{name}",
            partial(lambda r, o: args(np.where(few(r, 3, 90) > 0.9, 0.0, np.nan), k=60, largest=o), o=largest),
            tags=SPECIAL,
        )
    yield case("k_0", lambda r: args(steps(r, 3, 7), k=0))
    yield case("empty_batch", lambda r: args(np.zeros((0, 5)), k=2), tags=EMPTY)
    yield case("empty_rows", lambda r: args(np.zeros((2, 0)), k=0), tags=EMPTY)


# --- workloads, and all of it by operator ------------------------------------------------------------


ENTRIES = (
    Entry(
        top_k,
        tuple(_top_k_cases()),
        (
            ("too_many", ValueError, "k", lambda: args(ones(2, 5), k=6)),
            ("negative", ValueError, "k", lambda: args(ones(2, 5), k=-1)),
            ("axis", ValueError, "axis", lambda: args(ones(2, 5), k=1, axis=2)),
            ("truth_values", TypeError, "x", lambda: args(np.ones((2, 5), dtype=np.bool_), k=1)),
            ("no_dimension", ValueError, "x", lambda: args(ones(), k=0)),
        ),
        lambda m: Workload((m.x(),), {"k": min(8, m.features)}),
    ),
)
