"""Attention: references, cases, refusals and workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorops.testing._stored_blocks import decode, random_blocks
from tensorops.testing.activation import softmax
from tensorops.testing.entries import HEAD_DIM, Arguments, Case, Entry, Maker, Workload
from tensorops.testing.values import (
    EMPTY,
    EXTREME,
    SPECIAL,
    Float64,
    args,
    float64,
    integers,
    normal,
    octets,
    ones,
    quiet,
    random_mask,
    single,
)

Window: TypeAlias = int | tuple[int | None, int | None] | None


def _attends(tq: int, length: int, is_causal: bool, window: Window) -> NDArray[np.bool_]:
    """Return which valid keys each query may see; the last query is at the position of the last of them."""
    left, right = (window - 1, window - 1) if isinstance(window, int) else window or (None, None)
    allowed = np.ones((tq, length), dtype=np.bool_)
    for i in range(tq):
        position = i + length - tq
        for j in range(length):
            if is_causal and j > position:
                allowed[i, j] = False
            if left is not None and left != -1 and j < position - left:
                allowed[i, j] = False
            if right is not None and right != -1 and j > position + right:
                allowed[i, j] = False
    return allowed


def _rows_of(x: Float64, b: int, kv: int, seen: NDArray[np.intp], page_table: ArrayLike | None) -> Float64:
    """Return some keys or values of a sequence and head."""
    if page_table is None:
        return float64(x[b, kv, seen])
    size = x.shape[2]
    return float64([x[int(np.asarray(page_table)[b, j // size]), kv, j % size] for j in seen])


@quiet
def scaled_dot_product_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    kv_format: str | None = None,
) -> Float64:
    """``softmax(q @ k.T * scale) @ v`` for every head; a row that attends to no key gives 0.

    `q` is (batch, q_heads, Tq, D), `k` (batch, kv_heads, Tk, D), `v` (batch, kv_heads, Tk, Dv). The scores
    are capped first, ``softcap * tanh(scores / softcap)``, then masked. `sinks` holds one logit per query
    head that is added to the sum of the softmax and has no value. Only the first `lengths` keys of a sequence exist;
    of those that are outside the windows of all queries, nothing is used. With `page_table` (batch, pages), `k` is
    (num_pages, kv_heads, page_size, D). With `kv_format`, rows of `k` and `v` are blocks of bytes.
    """
    q = float64(q)
    k, v = (float64(x) if kv_format is None else decode(kv_format, np.asarray(x)) for x in (k, v))
    batch, q_heads, tq, head_dim = q.shape
    kv_heads, tk = k.shape[1:3]
    if page_table is not None:
        tk *= np.shape(page_table)[1]
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale

    chosen = np.ones((batch, q_heads, tq, tk), dtype=np.bool_)
    added = np.zeros(())
    if mask is not None:
        mask = np.asarray(mask)
        if mask.dtype == np.bool_:
            chosen = chosen & mask
        else:
            added = float64(mask)
            chosen = chosen & (added != -np.inf)
    added = np.broadcast_to(added, chosen.shape)

    y = np.zeros((batch, q_heads, tq, v.shape[-1]))
    for b in range(batch):
        length = tk if lengths is None else int(np.asarray(lengths)[b])
        allowed = _attends(tq, length, is_causal, window)
        seen = np.flatnonzero(allowed.any(axis=0))
        for h in range(q_heads if len(seen) else 0):
            of_k, of_v = (_rows_of(x, b, h // (q_heads // kv_heads), seen, page_table) for x in (k, v))
            scores = q[b, h] @ of_k.T * scale
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            scores = scores + added[b, h][:, seen]
            attends = allowed[:, seen] & chosen[b, h][:, seen]
            if sinks is not None:
                sink = np.full((tq, 1), float64(sinks)[h])
                scores = np.concatenate([scores, sink], axis=-1)
                attends = np.concatenate([attends, np.ones((tq, 1), dtype=np.bool_)], axis=-1)
            y[b, h] = softmax(scores, where=attends)[:, : len(seen)] @ of_v
    return y


# --- cases -------------------------------------------------------------------------------------------


def _attention_cases() -> Iterator[Case]:
    # Several libraries round the scores or the probabilities of half types.
    case = partial(Case, "scaled_dot_product_attention", tolerance=32.0, half_tolerance=4.0)

    def qkv(
        r: np.random.Generator, *, b: int = 2, hq: int = 2, hkv: int = 2, tq: int = 7, tk: int = 7, d: int = 16
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        return normal(r, b, hq, tq, d), normal(r, b, hkv, tk, d), normal(r, b, hkv, tk, d)

    def float_mask(r: np.random.Generator, *shape: int) -> NDArray[np.float64]:
        return np.where(random_mask(r, *shape), normal(r, *shape), -np.inf)

    yield case("typical", lambda r: args(*qkv(r)))
    for n in (1, 3, 17, 33, 65):
        yield case(f"length_{n}", partial(lambda r, n: args(*qkv(r, b=1, tq=n, tk=n, d=8)), n=n))
    for d in (1, 7, 33, 64):
        yield case(f"head_dim_{d}", partial(lambda r, d: args(*qkv(r, d=d)), d=d))
    yield case("value_dim", lambda r: args(normal(r, 1, 2, 5, 8), normal(r, 1, 2, 7, 8), normal(r, 1, 2, 7, 12)))
    yield case("scale", lambda r: args(*qkv(r), scale=0.1))
    yield case("causal", lambda r: args(*qkv(r), is_causal=True))
    yield case("causal_decode", lambda r: args(*qkv(r, tq=1, tk=33), is_causal=True))
    # Enough of them that GPUs divide them among blocks: one of these blocks sees no key of the second sequence.
    yield case(
        "many_keys_decode",
        lambda r: args(*qkv(r, hq=4, hkv=1, tq=1, tk=600, d=16), sinks=normal(r, 4), lengths=np.array([600, 5])),
    )
    yield case("many_keys", lambda r: args(*qkv(r, b=1, tq=20, tk=600), is_causal=True, window=(400, None)))
    yield case("causal_more_keys", lambda r: args(*qkv(r, tq=5, tk=9), is_causal=True))
    yield case("causal_more_queries", lambda r: args(*qkv(r, tq=9, tk=5), is_causal=True))
    yield case("grouped", lambda r: args(*qkv(r, hq=6, hkv=2)))
    yield case("grouped_causal", lambda r: args(*qkv(r, hq=4, hkv=2), is_causal=True))
    yield case("multi_query", lambda r: args(*qkv(r, hq=4, hkv=1, tq=3)))
    yield case("bool_mask", lambda r: args(*qkv(r), mask=random_mask(r, 2, 2, 7, 7)))
    yield case("bool_mask_broadcasts", lambda r: args(*qkv(r, tk=9), mask=random_mask(r, 7, 9)))
    yield case("bool_mask_padding", lambda r: args(*qkv(r), mask=random_mask(r, 2, 1, 1, 7)))
    yield case(
        "bool_mask_hides_rows", lambda r: args(*qkv(r), mask=np.arange(7)[:, None] % 3 != np.zeros(7, dtype=int))
    )
    yield case("float_mask", lambda r: args(*qkv(r), mask=normal(r, 2, 2, 7, 7)))
    yield case("float_mask_infinite", lambda r: args(*qkv(r), mask=float_mask(r, 2, 1, 7, 7)))
    yield case(
        "float_mask_hides_rows",
        lambda r: args(*qkv(r), mask=np.where(np.arange(7)[:, None] % 3 == 0, -np.inf, normal(r, 7, 7))),
    )
    yield case("float32_mask", lambda r: args(*qkv(r), mask=single(float_mask(r, 2, 1, 7, 7))))
    yield case("float32_sinks", lambda r: args(*qkv(r), sinks=single(normal(r, 2))))
    yield case("causal_and_mask", lambda r: args(*qkv(r), mask=random_mask(r, 7, 7), is_causal=True))
    yield case("window", lambda r: args(*qkv(r, tq=9, tk=9), window=3))
    yield case("window_causal", lambda r: args(*qkv(r, tq=9, tk=9), window=3, is_causal=True))
    yield case("window_one", lambda r: args(*qkv(r), window=1, is_causal=True))
    yield case("window_decode", lambda r: args(*qkv(r, tq=1, tk=17), window=4, is_causal=True))
    yield case("window_more_queries", lambda r: args(*qkv(r, tq=9, tk=4), window=2))
    yield case("window_wider_than_keys", lambda r: args(*qkv(r), window=100, is_causal=True))
    yield case("window_sides", lambda r: args(*qkv(r, tq=9, tk=9), window=(3, 1)))
    yield case("window_left", lambda r: args(*qkv(r, tq=5, tk=9), window=(2, None)))
    yield case("window_right", lambda r: args(*qkv(r, tq=9, tk=7), window=(-1, 2)))
    yield case("window_sides_causal", lambda r: args(*qkv(r, tq=9, tk=9), window=(2, 5), is_causal=True))
    yield case("lengths", lambda r: args(*qkv(r, hq=4, tk=19), lengths=np.array([19, 4])))
    yield case("lengths_causal", lambda r: args(*qkv(r, tq=5, tk=9), is_causal=True, lengths=np.array([9, 6])))
    yield case("lengths_below_queries", lambda r: args(*qkv(r, tk=9), is_causal=True, lengths=np.array([3, 0])))
    yield case(
        "lengths_decode",
        lambda r: args(*qkv(r, b=3, hq=4, tq=1, tk=33), sinks=normal(r, 4), lengths=np.array([33, 1, 0])),
    )
    yield case(
        "lengths_window",
        lambda r: args(*qkv(r, tq=2, tk=40), mask=random_mask(r, 2, 40), window=(4, 0), lengths=np.array([40, 21])),
    )
    yield case("softcap", lambda r: args(*qkv(r), softcap=2.0))
    yield case("sinks", lambda r: args(*qkv(r), sinks=normal(r, 2)))
    yield case("sinks_hidden_rows", lambda r: args(*qkv(r, hq=4, tq=9, tk=5), sinks=normal(r, 4), is_causal=True))
    yield case(
        "everything",
        lambda r: args(
            *qkv(r, hq=4, hkv=2, tq=6, tk=17),
            mask=float_mask(r, 2, 1, 6, 17),
            is_causal=True,
            scale=0.3,
            window=8,
            softcap=5.0,
            sinks=normal(r, 4),
        ),
    )

    def paged(r: np.random.Generator, size: int, *used: int, hq: int = 2, tq: int = 3, **options: Any) -> Arguments:
        """Give the sequences `used` pages each, in random order; the others in the table have no number."""
        pages = normal(r, sum(used) + 1, 2, size, 16), normal(r, sum(used) + 1, 2, size, 12)
        table = np.full((len(used), max(used) + 1), -1)
        table[np.arange(table.shape[1]) < np.array(used)[:, None]] = r.permutation(sum(used) + 1)[:-1]
        return args(normal(r, len(used), hq, tq, 16), *pages, **options, page_table=table)

    yield case(
        "pages",
        lambda r: args(*qkv(r, b=3, tq=5, tk=4)[0:1], *qkv(r, b=5, tk=4)[1:], page_table=r.integers(0, 5, (3, 6))),
    )
    yield case("pages_lengths", lambda r: paged(r, 4, 3, 1, lengths=np.array([10, 4])))
    yield case(
        "pages_decode", lambda r: paged(r, 16, 2, 0, 4, hq=4, tq=1, sinks=normal(r, 4), lengths=np.array([17, 0, 63]))
    )
    yield case(
        "pages_everything",
        lambda r: paged(
            r, 5, 4, 7, hq=4, tq=6, mask=float_mask(r, 2, 1, 6, 40), is_causal=True, scale=0.3,
            window=(7, None), softcap=5.0, sinks=normal(r, 4), lengths=np.array([16, 35]),
        ),
    )  # fmt: skip

    def blocks(
        r: np.random.Generator, *leading: int, tq: int = 3, tk: int = 9, name: str = "q8_0", **options: Any
    ) -> Arguments:
        """Four heads and two of keys; `leading` is the number of sequences and, if they have pages, that of these."""
        dim = 256 if name == "q4_k" else 64
        k, v = (random_blocks(r, name, leading[-1], 2, tk, n) for n in (dim, 2 * dim))
        return args(normal(r, leading[0], 4, tq, dim), k, v, **options, kv_format=name)

    yield case("blocks", lambda r: blocks(r, 2, is_causal=True, sinks=normal(r, 4)))
    yield case("blocks_decode", lambda r: blocks(r, 1, tq=1, tk=70, window=(60, None), softcap=3.0))
    yield case("blocks_lengths", lambda r: blocks(r, 2, mask=random_mask(r, 3, 9), lengths=np.array([9, 4])))
    yield case(
        "blocks_pages",
        lambda r: blocks(r, 2, 5, tk=4, lengths=np.array([11, 3]), page_table=np.array([[4, 1, 0], [2, -1, -1]])),
    )
    yield case("blocks_q4_k", lambda r: blocks(r, 1, name="q4_k", window=2))
    yield case("empty_queries", lambda r: args(*qkv(r, tq=0)), tags=EMPTY)
    yield case("empty_batch", lambda r: args(*qkv(r, b=0)), tags=EMPTY)
    # Scores of a few hundred: only a softmax that subtracts the maximum survives.
    yield case(
        "large_scores",
        lambda r: args(np.full((1, 1, 2, 4), 16.0), 2.0 * np.arange(20.0).reshape(1, 1, 5, 4) - 20.0,
                        normal(r, 1, 1, 5, 4)),
        tags=EXTREME,
    )  # fmt: skip

    def one_bad_query(r: np.random.Generator) -> Arguments:
        q, k, v = qkv(r)
        q[0, 1, 2, 3] = np.nan
        return args(q, k, v)

    yield case("special", one_bad_query, tags=SPECIAL)

    def padding(r: np.random.Generator) -> Arguments:
        q, k, v = qkv(r, tq=2, tk=9)
        for x in (k, v):
            x[0, :, 6:], x[1, :, :3], x[1, :, 8] = np.nan, np.inf, -np.inf
        return args(q, k, v, is_causal=True, window=4, lengths=np.array([6, 8]))

    yield case("special_padding", padding, tags=SPECIAL)
    yield case("pages_unused", lambda r: paged(r, 4, 0, 0, lengths=np.array([0, 0])))


# --- what is refused ---------------------------------------------------------------------------------


def _qkv(hq: int = 2, hkv: int = 2, tk: int = 5, d: int = 4, tv: int = 5) -> tuple[Any, Any, Any]:
    return ones(1, hq, 3, 4), ones(1, hkv, tk, d), ones(1, hkv, tv, 4)


def _pages(entry: int = 1, lengths: Any = None) -> Arguments:
    """Two sequences of two pages with three keys each, from a pool of four."""
    table = np.array([[0, 1], [2, entry]])
    return args(ones(2, 2, 3, 4), ones(4, 2, 3, 4), ones(4, 2, 3, 4), page_table=table, lengths=lengths)


def _blocks(kv_format: Any, name: str = "k", **shape: int) -> Arguments:
    """Keys and values in one block each, one of them of another size."""
    k = {"k": octets(1, 2, 5, 34), "v": octets(1, 2, 5, 34)}
    return args(ones(1, 2, 3, 32), **k | {name: octets(1, 2, 5, shape.get("nbytes", 34))}, kv_format=kv_format)


# --- workloads, and all of it by operator ------------------------------------------------------------


QUERY_HEADS = 8  # per key and value head
KEYS = 1024  # the minimum number of keys: a conversation's cache
MOST_SCORES = 2**26  # the generic body holds all of them, several times


def _attention_workload(make: Maker) -> Workload:
    heads, keys = make.divided(HEAD_DIM), max(make.rows, KEYS)
    if heads * make.rows * keys > MOST_SCORES:
        raise ValueError(f"the scores of {make.rows} queries and {keys} keys are a benchmark of memory")
    groups = heads // QUERY_HEADS if heads % QUERY_HEADS == 0 else heads
    k, v = (make.normal(1, groups, keys, HEAD_DIM) for _ in range(2))
    return Workload((make.normal(1, heads, make.rows, HEAD_DIM), k, v), {"is_causal": True})


ENTRIES = (
    Entry(
        scaled_dot_product_attention,
        tuple(_attention_cases()),
        (
            ("q_3d", ValueError, "q", lambda: args(ones(2, 3, 4), ones(2, 3, 4), ones(2, 3, 4))),
            ("heads", ValueError, "q|k", lambda: args(*_qkv(hq=3))),
            ("head_dim", ValueError, "q|k", lambda: args(*_qkv(d=5))),
            ("value_length", ValueError, "k|v", lambda: args(*_qkv(tv=6))),
            ("mask_shape", ValueError, "mask", lambda: args(*_qkv(), mask=ones(3, 6))),
            ("mask_integer", TypeError, "mask", lambda: args(*_qkv(), mask=integers(3, 5))),
            ("window_zero", ValueError, "window", lambda: args(*_qkv(), window=0)),
            ("window_of_three", ValueError, "window", lambda: args(*_qkv(), window=(1, 1, 1))),
            ("window_side", ValueError, "window", lambda: args(*_qkv(), window=(-2, 1))),
            ("window_side_float", TypeError, "window", lambda: args(*_qkv(), window=(1.0, 1))),
            ("lengths_float", TypeError, "lengths", lambda: args(*_qkv(), lengths=ones(1))),
            ("lengths_shape", ValueError, "lengths", lambda: args(*_qkv(), lengths=integers(2))),
            ("page_table_float", TypeError, "page_table", lambda: args(*_qkv(), page_table=ones(1, 2))),
            ("page_table_1d", ValueError, "page_table", lambda: args(*_qkv(), page_table=integers(2))),
            ("page_table_batch", ValueError, "page_table", lambda: args(*_qkv(), page_table=integers(2, 2))),
            (
                "no_pages",
                ValueError,
                "k",
                lambda: args(ones(1, 2, 3, 4), *[ones(0, 2, 3, 4)] * 2, page_table=integers(1, 2)),
            ),
            (
                "page_counts",
                ValueError,
                "v",
                lambda: args(ones(1, 2, 3, 4), ones(4, 2, 3, 4), ones(5, 2, 3, 4), page_table=integers(1, 2)),
            ),
            ("paged_mask", ValueError, "mask", lambda: args(*_pages()[0], **_pages()[1] | {"mask": ones(3, 7)})),
            ("blocks_without_format", TypeError, "k", lambda: _blocks(None)),
            ("kv_format", ValueError, "kv_format", lambda: _blocks("q8_1")),
            ("kv_format_affine", ValueError, "kv_format", lambda: _blocks("affine")),
            ("kv_format_interleaved", ValueError, "kv_format", lambda: _blocks("q8_0_x32")),
            ("kv_format_type", TypeError, "kv_format", lambda: _blocks(8)),
            ("part_of_block", ValueError, "v", lambda: _blocks("q8_0", "v", nbytes=35)),
            ("block_features", ValueError, "k", lambda: _blocks("q8_0", nbytes=68)),
            ("blocks_of_numbers", TypeError, "k", lambda: args(*_qkv(), kv_format="q8_0")),
            ("sinks_length", ValueError, "sinks", lambda: args(*_qkv(), sinks=ones(3))),
        ),
        _attention_workload,
    ),
)
