"""Contraction: references, cases, refusals and workloads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from tensorops.testing.entries import Case, Entry, Workload
from tensorops.testing.values import (
    EMPTY,
    FLOAT32_RANGE,
    OVERFLOW,
    SPECIAL,
    Float64,
    args,
    float64,
    integers,
    ones,
    quiet,
)


@quiet
def einsum(subscripts: str, *operands: ArrayLike, optimize: str = "auto") -> Float64:
    """Sum products one by one, all operands at once, with NumPy's own loops; `optimize` changes nothing."""
    return np.asarray(np.einsum(subscripts, *map(float64, operands), optimize=False))


# --- cases -------------------------------------------------------------------------------------------

# By name: the subscripts, and the shapes of the operands.
_CONTRACTIONS: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "product": ("ij,jk->ik", ((5, 33), (33, 7))),
    "implicit_output": ("bc,ab", ((3, 4), (5, 3))),
    "transposed": ("ba", ((3, 5),)),
    "unchanged": ("ab->ab", ((3, 5),)),
    "spaces": (" i j , j k -> i k ", ((2, 3), (3, 4))),
    "capitals": ("aB,Bc", ((2, 3), (3, 4))),
    "scores": ("bqhd,bkhd->bhqk", ((2, 4, 3, 5), (2, 6, 3, 5))),
    "values": ("bhqk,bkhd->bqhd", ((2, 3, 4, 6), (2, 6, 3, 5))),
    "trace": ("ii", ((7, 7),)),
    "diagonal": ("ii->i", ((7, 7),)),
    "diagonals": ("ijij->ji", ((3, 4, 3, 4),)),
    "diagonal_of_three": ("iii->i", ((4, 4, 4),)),
    "diagonal_in_a_product": ("iij,jk->ik", ((3, 3, 4), (4, 2))),
    "total": ("ij->", ((5, 7),)),
    "sum_of_axes": ("abcd->ca", ((2, 3, 4, 5),)),
    "inner": ("i,i", ((17,), (17,))),
    "inner_of_matrices": ("ij,ij", ((5, 7), (5, 7))),
    "outer": ("i,j", ((3,), (4,))),
    "outer_of_matrices": ("ab,cd->dbca", ((2, 3), (4, 5))),
    "elementwise": ("ij,ji->ij", ((3, 4), (4, 3))),
    "rows": ("bi,bi->b", ((6, 9), (6, 9))),
    "outer_in_rows": ("bi,bj->bij", ((2, 3), (2, 4))),
    "matrix_by_vector": ("ij,j", ((5, 9), (9,))),
    "vector_by_matrix": ("i,ij->j", ((5,), (5, 9))),
    "several_sums": ("abcd,dcbe->ea", ((2, 3, 4, 5), (5, 4, 3, 6))),
    "several_batches": ("abij,bajk->abik", ((2, 3, 4, 5), (3, 2, 5, 6))),
    "batch_of_several_sums": ("bxyi,byxj->bji", ((2, 3, 4, 5), (2, 4, 3, 6))),
    "sums_of_one_operand": ("ijx,jky->ik", ((2, 3, 4), (3, 5, 2))),
    "ellipsis": ("...ij,...jk->...ik", ((4, 2, 3, 5), (2, 5, 6))),
    "ellipsis_inside": ("i...j", ((2, 3, 4, 5),)),
    "ellipsis_of_ones": ("...i,...i", ((1, 5, 3), (4, 1, 3))),
    "ellipsis_alone": ("...,...", ((2, 3), (3,))),
    "ellipsis_of_nothing": ("i...,i...->...", ((3,), (3,))),
    "broadcast": ("ij,jk->ik", ((3, 1), (4, 5))),
    "broadcast_batch": ("bij,bjk->bik", ((1, 2, 3), (4, 3, 5))),
    "ones": ("ij,jk->ijk", ((1, 3), (3, 1))),
    "scalars": ("ab,,b->a", ((2, 3), (), (3,))),
    "no_axes": (",->", ((), ())),
    "chain": ("ab,bc,cd,de->ae", ((2, 9), (9, 3), (3, 8), (8, 2))),
    "elementwise_chain": ("bi,bi,bi->bi", ((2, 5),) * 3),
    "network": ("ijk,ilm,njm,nlk,abc->", ((3, 2, 4), (3, 5, 2), (4, 2, 2), (4, 5, 4), (2, 1, 2))),
    "hyperedge": ("ia,ib,ic->abc", ((7, 2), (7, 3), (7, 4))),
}


def _numbers(r: np.random.Generator, *shape: int) -> Float64:
    """Return numbers of both signs whose sums do not cancel, even if there is only one."""
    return np.asarray(r.uniform(-1.0, 2.0, shape))


def _einsum_cases() -> Iterator[Case]:
    case = partial(Case, "einsum", tolerance=32.0, half_tolerance=4.0, scale_axis=None)
    for name, (subscripts, shapes) in _CONTRACTIONS.items():
        yield case(
            name, partial(lambda r, s, n: args(s, *(_numbers(r, *shape) for shape in n)), s=subscripts, n=shapes)
        )
    chain, shapes = _CONTRACTIONS["chain"]
    for optimize in ("greedy", "optimal", "dp", "branch-2"):
        yield case(
            f"order_{optimize}",
            partial(
                lambda r, o, s, n: args(s, *(_numbers(r, *shape) for shape in n), optimize=o),
                o=optimize,
                s=chain,
                n=shapes,
            ),
        )
    yield case("long_sum", lambda r: args("i,i", _numbers(r, 5000), _numbers(r, 5000)), half_tolerance=16.0)
    # A partial product beyond float16, and beyond float32: the result is within both again.
    yield case("large", lambda r: args("i,i,i->i", np.full(4, 3e4), np.full(4, 3e4), np.full(4, 1e-4)))
    yield case(
        "overflow",
        lambda r: args("ij,jk->ik", np.full((2, 3), 2.0**100), np.full((3, 2), 2.0**100)),
        dtypes=FLOAT32_RANGE,
        tags=OVERFLOW,
    )
    special = np.array([[1.0, np.nan, 2.0], [np.inf, 1.0, -1.0], [0.0, -np.inf, 3.0]])
    yield case("special_diagonal", lambda r: args("ii->i", special), tags=SPECIAL)
    yield case("special_product", lambda r: args("ij,ij->ij", special, special.T), tags=SPECIAL)
    yield case("empty_sum", lambda r: args("ij,jk->ik", np.zeros((2, 0)), np.zeros((0, 3))), tags=EMPTY)
    yield case("empty_rows", lambda r: args("bij,bjk->bik", np.zeros((0, 2, 3)), np.zeros((0, 3, 4))), tags=EMPTY)
    yield case("empty_diagonal", lambda r: args("ii", np.zeros((0, 0))), tags=EMPTY)


# --- workloads, and all of it by operator ------------------------------------------------------------


ENTRIES = (
    Entry(
        einsum,
        tuple(_einsum_cases()),
        (
            ("another_length", ValueError, "operands", lambda: args("ij,jk", ones(2, 3), ones(4, 5))),
            ("dimensions", ValueError, "operands", lambda: args("ij,jk", ones(2, 3), ones(3))),
            ("diagonal", ValueError, "operands", lambda: args("ii", ones(2, 3))),
            ("kinds", TypeError, "operands", lambda: args("i,i", ones(3), integers(3))),
            ("truth_values", TypeError, "operands", lambda: args("i", np.ones(3, dtype=np.bool_))),
            ("number_of_operands", ValueError, "subscripts", lambda: args("ij,jk", ones(2, 3))),
            ("characters", ValueError, "subscripts", lambda: args("i1", ones(2, 3))),
            ("dots", ValueError, "subscripts", lambda: args("i..j", ones(2, 3))),
            ("output_only", ValueError, "subscripts", lambda: args("i->ij", ones(2))),
            ("output_twice", ValueError, "subscripts", lambda: args("i->ii", ones(2))),
            ("lost_ellipsis", ValueError, "subscripts", lambda: args("...i->i", ones(2, 3))),
            ("another_optimize", ValueError, "optimize", lambda: args("i", ones(2), optimize="fastest")),
        ),
        lambda m: Workload(("...i,ji->...j", m.x(), m.normal(m.features, m.features))),
    ),
)
