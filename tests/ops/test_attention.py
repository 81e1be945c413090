"""Attention: the references against closed forms, by hand and other libraries; lengths and pages in every library."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from support import close, to_torch
from tensorops._dtypes import INTEGER
from tensorops.testing import REFERENCES, assert_matches, attention as references

inf, nan = np.inf, np.nan


def attend(v, tq=None, **options):
    """Attention of zero queries to values (Tk, Dv), as (Tq, Dv): every key that is seen weighs the same."""
    v = np.asarray(v, dtype=float)[None, None]
    tk = v.shape[2]
    q, k = np.zeros((1, 1, tk if tq is None else tq, 4)), np.ones((1, 1, tk, 4))
    return references.scaled_dot_product_attention(q, k, v, **options)[0, 0]


V = np.array([[1.0], [2.0], [4.0], [8.0]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3.75] * 4),
        ({"is_causal": True}, [1, 3 / 2, 7 / 3, 15 / 4]),
        ({"is_causal": True, "tq": 1}, [15 / 4]),
        ({"is_causal": True, "tq": 2}, [7 / 3, 15 / 4]),
        ({"is_causal": True, "tq": 6}, [0, 0, 1, 3 / 2, 7 / 3, 15 / 4]),
        ({"window": 1}, [1, 2, 4, 8]),
        ({"window": 2}, [3 / 2, 7 / 3, 14 / 3, 6]),
        ({"window": 2, "is_causal": True}, [1, 3 / 2, 3, 6]),
        ({"window": 3, "is_causal": True, "tq": 1}, [14 / 3]),
        ({"window": 1, "tq": 6}, [0, 0, 1, 2, 4, 8]),
        ({"window": (0, 0)}, [1, 2, 4, 8]),
        ({"window": (1, 0)}, [1, 3 / 2, 3, 6]),
        ({"window": (0, 2)}, [7 / 3, 14 / 3, 6, 8]),
        ({"window": (None, 1)}, [3 / 2, 7 / 3, 15 / 4, 15 / 4]),
        ({"window": (1, -1)}, [15 / 4, 15 / 4, 14 / 3, 6]),
        ({"window": (1, 2), "is_causal": True}, [1, 3 / 2, 3, 6]),
        ({"window": (0, 1), "tq": 6}, [0, 1, 3 / 2, 3, 6, 8]),
        ({"lengths": [3]}, [7 / 3] * 4),
        ({"lengths": [0]}, [0] * 4),
        ({"lengths": [3], "is_causal": True, "tq": 2}, [3 / 2, 7 / 3]),
        ({"lengths": [3], "is_causal": True}, [0, 1, 3 / 2, 7 / 3]),
        ({"lengths": [3], "window": (1, 0), "tq": 2}, [3 / 2, 3]),
        ({"lengths": [2], "sinks": [0.0]}, [1] * 4),
        ({"mask": np.array([True, False, True, False])}, [5 / 2] * 4),
        ({"mask": np.eye(4, dtype=bool)}, [1, 2, 4, 8]),
        ({"mask": np.array([[True], [False], [True], [False]])}, [15 / 4, 0, 15 / 4, 0]),
        ({"mask": np.log([1.0, 2.0, 3.0, 4.0])}, [(1 + 4 + 12 + 32) / 10] * 4),
        ({"mask": np.array([0.0, -inf, -inf, 0.0])}, [9 / 2] * 4),
        ({"mask": np.full((4, 4), -inf)}, [0] * 4),
        ({"mask": np.array([True, False, True, True]), "is_causal": True}, [1, 1, 5 / 2, 13 / 3]),
        ({"sinks": [0.0]}, [15 / 5] * 4),
        ({"sinks": [math.log(6)]}, [15 / 10] * 4),
        ({"sinks": [0.0], "is_causal": True, "tq": 5}, [0, 1 / 2, 3 / 3, 7 / 4, 15 / 5]),
    ],
)
def test_attention_to_equal_keys_is_a_mean(options, expected):
    close(attend(V, **options)[:, 0], expected)


def test_attention_scale_and_softcap_by_hand():
    q, k = np.full((1, 1, 1, 4), 0.5), np.array([[[[1.0] * 4, [0.0] * 4]]])  # dot products 2 and 0
    v = np.array([[[[1.0], [0.0]]]])

    def weight(score):
        return [[[[1 / (1 + math.exp(-score))]]]]

    close(references.scaled_dot_product_attention(q, k, v), weight(1.0))
    close(references.scaled_dot_product_attention(q, k, v, scale=3.0), weight(6.0))
    close(references.scaled_dot_product_attention(q, k, v, softcap=0.5), weight(0.5 * math.tanh(2.0)))
    # The cap comes before the mask: an added 5 is not capped.
    y = references.scaled_dot_product_attention(q, k, v, softcap=0.5, mask=np.array([5.0, 0.0]))
    close(y, weight(5 + 0.5 * math.tanh(2.0)))


def test_query_heads_share_key_heads_in_order():
    v = np.arange(2.0).reshape(1, 2, 1, 1) + 10
    y = references.scaled_dot_product_attention(np.ones((1, 6, 1, 3)), np.ones((1, 2, 1, 3)), v)
    assert_array_equal(y.ravel(), [10, 10, 10, 11, 11, 11])


@pytest.mark.parametrize("masked", ["no", "causal", "bool", "float"])
def test_attention_agrees_with_torch(rng, masked):
    torch = pytest.importorskip("torch")
    q = rng.standard_normal((2, 4, 5, 8))
    k, v = rng.standard_normal((2, 2, 5, 8)), rng.standard_normal((2, 2, 5, 6))
    mask = {"bool": rng.random((2, 1, 5, 5)) < 0.7, "float": rng.standard_normal((2, 4, 5, 5))}.get(masked)
    causal = masked == "causal"
    tq, tk, tv, tm = to_torch(torch, q, k, v, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(
        tq, tk, tv, attn_mask=tm, is_causal=causal, enable_gqa=True
    )
    actual = references.scaled_dot_product_attention(q, k, v, mask=mask, is_causal=causal)
    close(actual, expected.numpy(), rtol=1e-11, atol=1e-14)


def test_pages_by_hand():
    pages = np.arange(12.0).reshape(6, 1, 2, 1)  # page i holds 2 i and 2 i + 1
    table = [[3, 0, 1], [5, -1, -1]]
    q, keys = np.zeros((2, 1, 1, 1)), np.ones((6, 1, 2, 1))
    y = references.scaled_dot_product_attention(q, keys, pages, lengths=[5, 1], page_table=table)
    close(y.ravel(), [(6 + 7 + 0 + 1 + 2) / 5, 10])
    y = references.scaled_dot_product_attention(q, keys, pages, lengths=[5, 1], page_table=table, window=2)
    close(y.ravel(), [(1 + 2) / 2, 10])


# --- lengths and pages in every library --------------------------------------------------------------


def arguments(rng, *, queries=3):
    """Return float32 queries, pages and a table of three pages with four keys each for two sequences."""
    shapes = (2, 4, queries, 8), (7, 2, 4, 8), (7, 2, 4, 8)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return q, k, v, np.array([[5, 0, 3], [6, 2, 1]])


def gathered(x, table):
    """Return what pages hold as keys of sequences."""
    return np.stack([np.concatenate([x[page] for page in row], axis=1) for row in table])


@pytest.mark.costly(4)
@pytest.mark.parametrize("dtype", INTEGER)
def test_lengths_and_pages_of_every_dtype(library, dtype, rng):
    q, k, v, table = arguments(rng)
    lengths = np.array([12, 7])
    expected = references.scaled_dot_product_attention(q, k, v, is_causal=True, lengths=lengths, page_table=table)
    there = support.there((q, k, v), library.name)
    options = {
        "is_causal": True,
        "lengths": support.integers_there(lengths, dtype, library),
        "page_table": support.integers_there(table, dtype, library),
    }
    for call in (tp.scaled_dot_product_attention, tp.scaled_dot_product_attention.generic):
        assert_matches(support.back(call(*there, **options)), expected, "float32", tolerance=32, scale_axis=None)


OPTIONS = {
    "mask": [None, "bool", "float"],
    "is_causal": [False, True],
    "window": [None, 3, (4, 1), (None, 2)],
    "softcap": [None, 3.0],
    "sinks": [False, True],
    "lengths": [None, [12, 7], [2, 0]],
    "pages": [False, True],
}


@pytest.mark.costly
@pytest.mark.parametrize("queries", [1, 3, 9])
def test_every_combination_of_options(queries, rng):
    """Body and kernel; 9 queries of grouped heads go another way through the kernel than few."""
    q, k, v, table = arguments(rng, queries=queries)
    masks = {"bool": rng.random((2, 1, queries, 12)) < 0.7, "float": rng.standard_normal((4, 1, 12)).astype(np.float32)}
    sinks = rng.standard_normal(4).astype(np.float32)
    for values in itertools.product(*OPTIONS.values()):
        chosen = dict(zip(OPTIONS, values, strict=True))
        options = {name: chosen[name] for name in ("is_causal", "window", "softcap")}
        options["mask"] = masks.get(chosen["mask"])
        options["sinks"] = sinks if chosen["sinks"] else None
        options["lengths"] = None if chosen["lengths"] is None else np.array(chosen["lengths"])
        options["page_table"] = table if chosen["pages"] else None
        args = (q, k, v) if chosen["pages"] else (q, gathered(k, table), gathered(v, table))
        expected = references.scaled_dot_product_attention(*args, **options)
        for call in (tp.scaled_dot_product_attention, tp.scaled_dot_product_attention.generic):
            assert_matches(call(*args, **options), expected, "float32", tolerance=32, scale_axis=None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": [13, 7]}, r"lengths has the number 13, outside 0 … 12$"),
        ({"lengths": [12, -1]}, r"lengths has the number -1, outside 0 … 12$"),
        ({"page_table": [[5, 0, 7], [6, 2, 1]]}, r"page_table has the index 7, outside 0 … 6$"),
        ({"page_table": [[5, -1, 3], [6, 2, 1]]}, r"page_table has the index -1, outside 0 … 6$"),
    ],
)
@pytest.mark.parametrize("name", ["numpy", "array_api_strict", "torch", "dask"])
def test_integers_out_of_range_are_refused(name, wrong, message, rng):
    """Before the call or, for blocks of Dask arrays, when they are computed."""
    support.require(name)
    q, k, v, table = arguments(rng)
    options = {"lengths": np.array([12, 7]), "page_table": table} | {n: np.array(x) for n, x in wrong.items()}
    args, options = support.there(((q, k, v), options), name)
    both = (tp.scaled_dot_product_attention, tp.scaled_dot_product_attention.generic)
    for call in both if name != "dask" else both[:1]:
        with pytest.raises(ValueError, match=r"^scaled_dot_product_attention: " + message):
            support.back(call(*args, **options))


@pytest.mark.parametrize("name", ["jax", "mlx", "pyopencl", "cupy"])
def test_integers_out_of_range_that_cannot_be_read_are_clamped(name, rng):
    support.require(name)
    q, k, v, table = arguments(rng)
    options = {"lengths": np.array([99, -5]), "page_table": np.where(table == 6, 40, np.where(table == 0, -3, table))}
    right = {"lengths": np.array([12, 0]), "page_table": table}
    expected = references.scaled_dot_product_attention(q, k, v, **right)
    args, options = support.there(((q, k, v), options), name)
    y = support.back(tp.scaled_dot_product_attention(*args, **options))
    assert_matches(y, expected, "float32", tolerance=32, scale_axis=None)


def test_traced_lengths_and_pages(rng):
    support.require("jax")
    import jax

    q, k, v, table = arguments(rng)
    attend = jax.jit(lambda lengths, pages: tp.scaled_dot_product_attention(
        *map(jax.numpy.asarray, (q, k, v)), is_causal=True, window=(5, 0), lengths=lengths, page_table=pages
    ))  # fmt: skip
    for lengths in ([12, 7], [1, 0], [4, 8]):
        expected = references.scaled_dot_product_attention(
            q, k, v, is_causal=True, window=(5, 0), lengths=lengths, page_table=table
        )
        y = attend(jax.numpy.asarray(lengths), jax.numpy.asarray(table))
        assert_matches(np.asarray(y), expected, "float32", tolerance=32, scale_axis=None)
    assert attend._cache_size() == 1


def test_dask_divides_sequences_among_tasks(rng):
    support.require("dask")
    import dask.array as da

    q, k, v, table = arguments(rng)
    lengths = np.array([11, 6])
    options = {"lengths": da.from_array(lengths, chunks=2), "page_table": da.from_array(table, chunks=(1, 3))}
    args = (da.from_array(q, chunks=(1, 4, 3, 8)), da.from_array(k, chunks=-1), da.from_array(v, chunks=-1))
    assert tp.scaled_dot_product_attention.explain(*args, **options).kernel == "dask"
    y = tp.scaled_dot_product_attention(*args, **options)
    assert y.chunks[0] == (1, 1)
    expected = references.scaled_dot_product_attention(q, k, v, lengths=lengths, page_table=table)
    assert_matches(y.compute(), expected, "float32", tolerance=32, scale_axis=None)


@pytest.mark.parametrize("sides", [(np.int64(2), np.uint8(1)), [2, 1], (2, np.int8(1))])
def test_sides_of_windows_of_every_kind(sides, rng):
    q, k, v = (rng.standard_normal((1, 2, 9, 8)).astype(np.float32) for _ in range(3))
    y = tp.scaled_dot_product_attention(q, k, v, window=(2, 1))
    assert_array_equal(tp.scaled_dot_product_attention(q, k, v, window=sides), y)
    assert_array_equal(
        tp.scaled_dot_product_attention(q, k, v, window=3), tp.scaled_dot_product_attention(q, k, v, window=(2, 2))
    )


def test_mlx_fast_declines_what_its_function_lacks(rng):
    support.require("mlx")
    q, k, v, table = arguments(rng)
    given = support.there({"lengths": np.array([3, 4]), "page_table": table}, "mlx")
    args = support.there((q, k, v), "mlx")
    with tp.set_backend("mlx", providers=["mlx_fast", "generic"]):
        for names in (["page_table"], ["lengths", "page_table"]):
            found = tp.scaled_dot_product_attention.explain(*args, **{name: given[name] for name in names})
            assert found.refused["mlx_fast"] == f"{names[0]} is given"


MASKED = {
    "causal": lambda xp: {"is_causal": True},
    "boolean": lambda xp: {"mask": xp(np.tri(4, dtype=bool))},
    "added": lambda xp: {"mask": xp(np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32))},
    "window": lambda xp: {"window": 2},
    "lengths": lambda xp: {"lengths": xp(np.asarray([3], np.int32))},
}


@pytest.mark.costly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch about itself
@pytest.mark.parametrize("kind", MASKED)
@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
def test_directional_and_second_derivatives_with_masks(name, kind, rng):
    """Compared with differences of the float64 reference: scores of -inf must not meet tangents of zero."""
    library = support.require(name)
    q, k, v, dq, dk = (rng.standard_normal((1, 1, 4, 2)) for _ in range(5))
    at = [library.from_numpy(a.astype(np.float32), None) for a in (q, k, v)]
    along = [library.from_numpy(a.astype(np.float32), None) for a in (dq, dk)]
    options = MASKED[kind](lambda a: library.from_numpy(a, None))
    exact = MASKED[kind](np.asarray)

    def attended(q, k):
        return tp.scaled_dot_product_attention(q, k, at[2], **options)

    def total(q):
        return (attended(q, at[1]) ** 2).sum()

    def reference(h):
        return REFERENCES["scaled_dot_product_attention"](q + h * dq, k + h * dk, v, **exact)

    if name == "torch":
        import torch

        _, tangent = torch.func.jvp(attended, tuple(at[:2]), tuple(along))
        hessian = torch.func.hessian(total)(at[0])
    elif name == "jax":
        import jax

        _, tangent = jax.jvp(attended, tuple(at[:2]), tuple(along))
        hessian = jax.hessian(total)(at[0])
    else:
        import mlx.core as mx

        _, (tangent,) = mx.jvp(lambda *a: (attended(*a),), at[:2], along)
        hessian = mx.grad(lambda q: (mx.grad(total)(q) * along[0]).sum())(at[0])
    wanted = (reference(1e-5) - reference(-1e-5)) / 2e-5
    np.testing.assert_allclose(library.to_numpy(tangent), wanted, rtol=1e-3, atol=1e-4)
    assert np.isfinite(library.to_numpy(hessian)).all()
