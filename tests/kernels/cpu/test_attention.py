"""Attention in C++: every SIMD target, tiles and their edges, layouts, masks, values that are not finite, threads."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import support
import tensorops as tp
from support import HALVES, bits
from tensorops.testing import DTYPES, REFERENCES, assert_matches

_native = support.require_native()
OPERATOR = tp.scaled_dot_product_attention
REFERENCE = REFERENCES["scaled_dot_product_attention"]
TILE, BLOCK = 128, 144  # keys and rows that the kernel takes at a time


def qkv(rng, *, b=1, hq=2, hkv=1, tq=5, tk=9, d=16, dv=None, dtype="float32"):
    shapes = (b, hq, tq, d), (b, hkv, tk, d), (b, hkv, tk, dv or d)
    return tuple(rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes)


def attend(*args, **options):
    y = _native.scaled_dot_product_attention(*args, **options)
    assert y is not NotImplemented, _native.scaled_dot_product_attention_supports(*args, **options)
    return y


def assert_right(args, dtype="float32", tolerance=32, **options):
    """Assert that the kernel agrees with the reference; half types are rounded once.

    A mean of values of either sign is as exact as the values are large.
    """
    y = attend(*args, **options)
    expected = REFERENCE(*args, **options)
    assert_matches(y, expected, dtype, tolerance=1 if dtype in HALVES else tolerance, scale_axis=None)


def assert_like_the_body(args, **options):
    """Assert what the reference does not define: NaN and infinities where the operator's body has them."""
    y, expected = attend(*args, **options), OPERATOR.generic(*args, **options)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(y[finite], expected[finite], rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(y[np.isinf(expected)], expected[np.isinf(expected)])
    return y


# --- shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 2, 3, 5, 8, 9, 23])
def test_every_number_of_keys_to_beyond_a_tile(target, queries, dtype, rng):
    """Up to 8 rows are multiplied with the keys in place, more with a transposed copy."""
    for keys in [*range(1, 20), 31, 33, 63, 64, 65, 95, TILE - 1, TILE, TILE + 1, 2 * TILE + 17]:
        args = qkv(rng, hq=1, tq=queries, tk=keys, d=32, dtype=dtype)
        assert_right(args, dtype)
        assert_right(args, dtype, is_causal=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 11])
def test_every_head_dimension(target, queries, dtype, rng):
    for d, dv in itertools.chain(((n, n) for n in range(1, 36)), [(64, 7), (7, 64), (80, 96), (128, 1), (130, 129)]):
        assert_right(qkv(rng, hq=1, tq=queries, tk=21, d=d, dv=dv, dtype=dtype), dtype)


@pytest.mark.parametrize("queries", [1, 6, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_blocks_of_rows_hold_queries_of_several_heads(target, queries, group, rng):
    args = qkv(rng, b=2, hq=2 * group, hkv=2, tq=queries, tk=150, d=16)
    assert_right(args)
    for window in (None, 40, 129):
        assert_right(args, is_causal=True, window=window)


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("group", [1, 2, 7, 8, 9])
def test_groups_of_heads(target, queries, group, rng):
    assert_right(qkv(rng, b=2, hq=3 * group, hkv=3, tq=queries, tk=70, d=32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_caches_are_split_into_spans(target, dtype, rng):
    args = qkv(rng, hq=4, hkv=2, tq=1, tk=4 * TILE * 3 + 77, d=32, dtype=dtype)
    mask = rng.random(args[1].shape[2]) < 0.3
    mask[4 * TILE : 9 * TILE] = False  # a span of which nothing is attended to
    for options in ({}, {"is_causal": True, "window": 300}, {"mask": mask}, {"sinks": np.float32([1, -2, 30, 0])}):
        assert_right(args, dtype, **options)


def test_empty_arrays(rng):
    for shape in ({"b": 0}, {"tq": 0}, {"hq": 0}, {"tk": 0}):
        args = qkv(rng, **shape)
        y = attend(*args)
        assert y.shape == args[0].shape
        assert not y.any()
    q, k, v = qkv(rng)
    assert attend(q, k, v[..., :0]).shape == (1, 2, 5, 0)


# --- layouts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 13])
def test_the_layout_makes_no_difference(target, queries, dtype, rng):
    def room(*shape):
        return rng.standard_normal(shape).astype(DTYPES[dtype])

    by_position = np.swapaxes(room(2, 21, 4, 33), 1, 2)  # as a projection leaves the heads
    layouts = [
        (by_position[:, :, :queries], by_position[:, ::2], by_position[:, 1::2, :, 1:]),
        (room(2, 4, queries, 34)[::-1, ::-1, :, 1:], room(2, 2, 21, 33)[:, :, ::-1], room(2, 2, 42, 9)[:, :, ::2, 2:]),
        (
            np.broadcast_to(room(1, 1, 1, 33), (2, 4, queries, 33)),
            np.broadcast_to(room(1, 1, 21, 33), (2, 2, 21, 33)),
            np.broadcast_to(room(1, 2, 1, 5), (2, 2, 21, 5)),
        ),
    ]
    for args in layouts:
        y = attend(*args, is_causal=True)
        assert y.flags.c_contiguous
        np.testing.assert_array_equal(bits(y), bits(attend(*(x.copy() for x in args), is_causal=True)))


def test_misaligned_rows(target, rng):
    args = qkv(rng, tq=9)
    shifted = []
    for x in args:
        raw = np.zeros(x.nbytes + 1, np.uint8)
        odd = raw[1:].view(x.dtype).reshape(x.shape)
        odd[...] = x
        shifted.append(odd)
    mask = np.zeros((9 * 4 + 1), np.uint8)[1:].view(np.float32)
    np.testing.assert_array_equal(attend(*shifted, mask=mask), attend(*args))


# --- masks -------------------------------------------------------------------------------------------

MASK_SHAPES = [(), (1,), (200,), (7, 1), (7, 200), (1, 7, 200), (4, 1, 200), (2, 1, 1, 200), (2, 4, 7, 200)]


@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["bool", *DTYPES])
def test_masks_broadcast(target, kind, shape, rng):
    args = qkv(rng, b=2, hq=4, hkv=2, tq=7, tk=200)
    allowed = rng.random(shape) < 0.6
    added = np.where(allowed, rng.standard_normal(shape), -np.inf)
    mask = np.asarray(allowed) if kind == "bool" else added.astype(DTYPES[kind])
    assert_right(args, mask=mask)
    assert_right(args, mask=mask, is_causal=True, window=150, softcap=3.0, sinks=rng.standard_normal(4))
    few = tuple(x.astype(np.float64) for x in (args[0][:, :, :1], *args[1:]))
    if mask.shape[-2:-1] in ((), (1,)):
        assert_right(few, "float64", mask=mask, tolerance=64)


def test_masks_of_any_layout(target, rng):
    args = qkv(rng, b=2, hq=4, hkv=2, tq=20, tk=150)
    room = rng.random((150, 2, 40, 4)) < 0.5
    masks = [
        room.transpose(1, 3, 2, 0)[:, :, ::2],
        room[:, 0, ::-2, 0].T,
        np.broadcast_to(room[::-1, 0, 0, 0], (20, 150)),
    ]
    for mask in masks:
        assert mask.strides[-1] != 1
        np.testing.assert_array_equal(attend(*args, mask=mask), attend(*args, mask=mask.copy()))
        added = np.where(mask, np.float32(0), np.float32(-np.inf))
        np.testing.assert_array_equal(attend(*args, mask=added), attend(*args, mask=mask))
    every = np.full(150, 2, np.uint8).view(bool)  # true as C sees it, and not 1
    np.testing.assert_array_equal(attend(*args, mask=every), attend(*args))


@pytest.mark.parametrize("queries", [1, 9, 300])
def test_tiles_that_a_mask_hides_are_passed_over(target, queries, rng):
    """A cache with room for later keys, and a causal mask as an array."""
    args = qkv(rng, tq=queries, tk=700)
    later = np.arange(700) > np.arange(queries)[:, None] + 300
    assert_right(args, mask=~later)
    assert_right(args, mask=np.zeros((queries, 700), bool))


@pytest.mark.parametrize(("queries", "keys"), [(1, 300), (4, 300), (60, 300), (300, 60), (300, 300), (9, 2100)])
@pytest.mark.parametrize("window", [1, 2, 7, 64, 128, 129, 299, 10**18])
def test_windows(target, queries, keys, window, rng):
    args = qkv(rng, tq=queries, tk=keys, d=8)
    assert_right(args, window=window)
    assert_right(args, window=window, is_causal=True)


@pytest.mark.parametrize("sides", [(0, None), (5, 0), (-1, 3), (130, 2), (0, 200), (10**18, 1), (None, -1)], ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1, 300), (5, 700), (60, 300), (300, 60), (300, 300)])
def test_windows_with_sides(target, queries, keys, sides, rng):
    args = qkv(rng, tq=queries, tk=keys, d=8)
    assert_right(args, window=sides)
    assert_right(args, window=sides, is_causal=True)
    assert_right(args, window=sides, mask=rng.random((queries, keys)) < 0.7)


# --- lengths and pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 3, 20, 200])
def test_lengths(target, queries, dtype, rng):
    """Around the ends of tiles, in one call."""
    lengths = np.array([0, 1, 17, TILE - 1, TILE, TILE + 1, 300])
    args = qkv(rng, b=7, hq=4, hkv=2, tq=queries, tk=300, d=32, dtype=dtype)
    mask = rng.random((7, 1, queries, 300)) < 0.7
    for options in ({}, {"is_causal": True}, {"window": (30, 3)}, {"mask": mask, "sinks": np.float32([1, 0, -3, 9])}):
        assert_right(args, dtype, lengths=lengths, **options)


@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("window", [None, 100, (700, 5)])
def test_keys_that_no_query_attends_to_are_not_used(target, queries, window, rng):
    """The result has the bits of that for the other keys alone, and NaN is not seen."""
    q, k, v = qkv(rng, hq=4, hkv=2, tq=queries, tk=2000, d=32)
    added = rng.standard_normal(2000).astype(np.float32)
    for length in (1, 130, 1500, 2000):
        left = window if window is None or isinstance(window, int) else window[0] + 1
        first = 0 if left is None else max(0, length - queries - left + 1)
        options = {"is_causal": True, "window": window}
        expected = attend(q, *(x[:, :, first:length] for x in (k, v)), mask=added[first:length], **options)
        spoilt = [x.copy() for x in (k, v)]
        for x in spoilt:
            x[:, :, :first] = x[:, :, length:] = np.nan
        y = attend(q, *spoilt, mask=added, lengths=np.array([length]), **options)
        np.testing.assert_array_equal(bits(y), bits(expected))
        if length == 2000:
            np.testing.assert_array_equal(bits(attend(q, *spoilt, mask=added, **options)), bits(expected))


def in_pages(rng, x, size, pages, table):
    """Return the keys or values (batch, heads, keys, features) in those of `pages` pages that a table names."""
    batch, heads, keys, features = x.shape
    made = np.full((pages, heads, size, features), np.nan, x.dtype)
    for b in range(batch):
        for j in range(keys // size):
            made[table[b, j]] = x[b, :, j * size : (j + 1) * size]
    return made


@pytest.mark.parametrize("size", [1, 3, 16, 24, TILE, 200])
@pytest.mark.parametrize("queries", [1, 5, 30])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_give_the_bits_of_adjacent_keys(target, queries, size, dtype, rng):
    count = -(-600 // size)
    q, k, v = qkv(rng, b=2, hq=4, hkv=2, tq=queries, tk=count * size, d=32, dv=40, dtype=dtype)
    table = rng.permutation(3 * count)[: 2 * count].reshape(2, count)
    paged = [in_pages(rng, x, size, 3 * count, table) for x in (k, v)]
    by_key = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in paged]
    lengths = np.array([600, 257], dtype=np.uint16)
    mask = rng.random(count * size) < 0.8
    for options in (
        {},
        {"lengths": lengths},
        {"lengths": lengths, "is_causal": True, "window": (90, 7)},
        {"mask": mask},
    ):
        expected = attend(q, k, v, **options)
        for of_k, of_v in (paged, by_key):
            y = attend(q, of_k, of_v, page_table=table.astype(np.int32), **options)
            np.testing.assert_array_equal(bits(y), bits(expected))


@pytest.mark.parametrize("size", [1, 16, 24, 64, 100, 1200])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_of_caches_that_are_prefetched(target, size, dtype, rng):
    """With 3 MiB or more; parts of tiles also end where the keys to be prefetched change pages, or end."""
    q, k, v = qkv(rng, b=2, hq=6, hkv=3, tq=1, tk=4800, d=32, dv=32, dtype=dtype)
    table = rng.permutation(2 * 4800 // size).reshape(2, -1)
    paged = [in_pages(rng, x, size, table.size, table) for x in (k, v)]
    for options in ({}, {"lengths": np.array([4799, 2500]), "is_causal": True, "window": 4444}):
        assert_right((q, k, v), dtype, **options)
        expected = attend(q, k, v, **options)
        y = attend(q, *paged, page_table=table, **options)
        np.testing.assert_array_equal(bits(y), bits(expected))


def test_table_entries_out_of_use_are_not_read(target, rng):
    """Neither beyond the lengths, nor before the windows of all queries."""
    q, pages = rng.standard_normal((2, 2, 3, 16)), rng.standard_normal((6, 2, 16, 16))
    table = np.array([[4, 1, 3, 0, 5], [2, 5, 1, 1, 0]])
    options = {"lengths": np.array([33, 70]), "is_causal": True, "window": (10, 0)}
    expected = REFERENCE(q, pages, pages, page_table=table, **options)
    for odd in (-1, 6, -(2**63), 2**63 - 1):
        unused = np.array([[odd, 1, 3, odd, odd], [odd, odd, odd, 1, 0]])
        unused[1, 3] = 1
        y = attend(q, pages, pages, page_table=unused, **options)
        np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_products_beyond_the_range_in_pages(target, rng):
    q, k, v = (x * np.float32(1e30) for x in qkv(rng, b=2, tq=4, tk=96))
    v = v / np.float32(1e30)
    table = rng.permutation(12).reshape(2, 6)
    paged = [in_pages(rng, x, 16, 12, table) for x in (k, v)]
    for options in ({}, {"lengths": np.array([50, 96]), "is_causal": True, "window": 20}):
        y = attend(q, *paged, page_table=table, **options)
        np.testing.assert_array_equal(bits(y), bits(attend(q, k, v, **options)))
        assert np.isfinite(y).all()


@pytest.mark.parametrize("queries", [1, 50])
def test_one_long_sequence_among_many(queries, rng):
    """Its keys are divided among threads, whose number makes no difference."""
    args = qkv(rng, b=40, hq=2, hkv=1, tq=queries, tk=5000, d=16)
    lengths = np.full(40, 9)
    lengths[17] = 5000
    support.same_on_threads((1, 2, 0), lambda: attend(*args, lengths=lengths, is_causal=True))
    assert_right(args, lengths=lengths, is_causal=True)


def test_lengths_may_change_during_a_call(rng):
    """They are read once: another thread cannot move the ends of arrays."""
    q, pages = rng.standard_normal((4, 1, 2, 8)), rng.standard_normal((8, 1, 16, 8))
    lengths, table = np.full(4, 30), np.full((4, 2), 7)

    def write():
        for value in (2**40, 30):
            lengths[...] = value
        for value in (-(2**40), 7):
            table[...] = value

    with support.another_thread(write):
        for _ in range(2000):
            _native.scaled_dot_product_attention(q, pages, pages, lengths=lengths, page_table=table)


# --- values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [1, 30])
@pytest.mark.parametrize("softcap", [1e-3, 0.3, 5.0, 50.0])
def test_softcap(target, queries, softcap, rng):
    args = qkv(rng, tq=queries, tk=150)
    assert_right(args, softcap=softcap, scale=1.0)
    assert_right(args, softcap=softcap, scale=30.0)


def test_softcap_near_zero_keeps_its_digits(target):
    """The tangent is nearly the identity: two scores apart by 1e-4 must stay that."""
    q = np.full((1, 1, 1, 1), 1e-2, np.float32)
    k = np.float32([1e-2, 2e-2]).reshape(1, 1, 2, 1)
    v = np.float32([[2**20, 0], [0, 2**20]])[None, None]
    y = attend(q, k, v, softcap=1.0, scale=1.0)
    scores = np.tanh(np.float64([1e-4, 2e-4]))
    expected = np.exp(scores) / np.exp(scores).sum() * 2**20
    np.testing.assert_allclose(y[0, 0, 0], expected, rtol=2e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 30])
def test_sinks(target, queries, dtype, rng):
    args = qkv(rng, hq=4, hkv=2, tq=queries, tk=150, dtype=dtype)
    for kind in DTYPES:
        sinks = np.repeat(rng.standard_normal(4), 2).astype(DTYPES[kind])[::2]
        assert_right(args, dtype, sinks=sinks, is_causal=True)
    for value in (-np.inf, -1e30, 1e30):
        assert_right(args, dtype, sinks=np.full(4, value))


@pytest.mark.parametrize("queries", [1, 30])
@pytest.mark.parametrize("keys", [9, 300, 2000])
def test_values_at_the_end_of_the_range(target, queries, keys, rng):
    """A sum of weights times values overflows unless it is a mean."""
    q, k, v = qkv(rng, tq=queries, tk=keys)
    v = np.minimum(np.abs(v), 3) * np.float32(1e38)
    v[..., 0] = 3e38
    assert_right((q, k, v))
    assert_right((q, k * np.float32(100), v), tolerance=512)


@pytest.mark.parametrize("queries", [1, 30])
def test_scores_of_any_size(target, queries, rng):
    q, k, v = qkv(rng, tq=queries, tk=300, dtype="float64")
    for size in (1e-30, 100.0, 1e4, 1e200):
        assert_right((q, k * size, v), "float64", tolerance=1e6 if size > 1 else 32)
    order = np.sort(k[..., :1], axis=2) * np.ones(16)  # the largest score comes last, or first
    for keys in (order, order[:, :, ::-1]):
        assert_right((np.abs(q) + 1, 30 * keys, v), "float64", tolerance=4096)


def exact(q, k, v, *, scale=None, softcap=None, mask=None, sinks=None, is_causal=False):
    """The formula in long double, whose range holds the products of any two numbers of float64."""
    wide = np.longdouble
    assert np.finfo(wide).maxexp > 4 * np.finfo(np.float64).maxexp
    group, keys = q.shape[1] // k.shape[1], k.shape[2]
    k, v = (np.repeat(x.astype(wide), group, axis=1) for x in (k, v))
    s = np.einsum("bhid,bhjd->bhij", q.astype(wide), k) * wide(q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = wide(softcap) * np.tanh(s / wide(softcap))
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask.astype(wide)
    if is_causal:
        s[..., np.arange(keys) > np.arange(q.shape[2])[:, None] + keys - q.shape[2]] = -np.inf
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks.astype(wide)[:, None, None], (*s.shape[:3], 1))], axis=-1)
    weights = np.exp(s - s.max(axis=-1, keepdims=True))
    return weights[..., :keys] / weights.sum(axis=-1, keepdims=True) @ v


def beyond_the_range(dtype, size, queries, keys, dim, dv=16):
    """Queries and keys of which every other one is so large, and the others are around 1."""
    rng = np.random.default_rng(queries)
    large = np.where(np.arange(max(queries, keys)) % 2, 1.0, size)[:, None]
    q, k = (rng.standard_normal((1, h, n, dim)) * large[:n] for h, n in ((2, queries), (1, keys)))
    return *(x.astype(dtype) for x in (q, np.flip(k, axis=2))), rng.standard_normal((1, 1, keys, dv)).astype(dtype)


BEYOND = [("float64", 1e160), ("float64", 1e300), ("float32", 1e20), ("float32", 1e36)]
BEYOND_OPTIONS = [
    {},
    {"softcap": 5.0},
    {"softcap": 3.0, "scale": 1e-20},
    {"scale": 1e30},
    {"is_causal": True},
    {"is_causal": True, "softcap": 2.0, "sinks": np.float64([1, 2])},
    {"sinks": np.float64([1, 2])},
    {"mask": "bool"},
    {"mask": "float", "softcap": 2.0},
]


def with_mask(options, keys):
    masks = {"bool": np.arange(keys) % 3 > 0, "float": np.linspace(-3, 3, keys)}
    return options | {"mask": masks[options["mask"]]} if "mask" in options else options


needs_long_double = pytest.mark.skipif(
    np.finfo(np.longdouble).maxexp < 4096, reason="long double is double here: no reference holds these numbers"
)


@needs_long_double
@pytest.mark.parametrize(("dtype", "size"), BEYOND)
@pytest.mark.parametrize(
    ("queries", "keys", "dim"), [(1, 9, 16), (3, 300, 64), (30, 150, 5), (200, 200, 16), (1, 2100, 16)]
)
def test_products_beyond_the_range(target, dtype, size, queries, keys, dim):
    """All ways: where keys lie, transposed, split into spans. The softmax of finite scores is finite."""
    args = beyond_the_range(dtype, size, queries, keys, dim)
    for options in BEYOND_OPTIONS:
        options = with_mask(options, keys)
        expected = exact(*args, **options)
        np.testing.assert_allclose(attend(*args, **options), expected, rtol=0, atol=1000 * np.finfo(dtype).eps)


@needs_long_double
@pytest.mark.parametrize(("dtype", "size", "small"), [("float64", 1e290, 1e-300), ("float32", 1e20, 1e-30)])
def test_a_factor_that_takes_queries_beyond_the_range(target, dtype, size, small):
    """The products are within it: numbers around 1 come out where the factor is put last."""
    scale = 1e30 if dtype == "float32" else 1e20
    q = np.full((1, 1, 2, 3), size, dtype)
    k = (np.float64([1, 2])[:, None] * np.full((1, 1, 2, 3), small)).astype(dtype)
    v = np.eye(2, dtype=dtype).reshape(1, 1, 2, 2)
    options = {"scale": scale, "softcap": 1e11 if dtype == "float64" else 1e20}
    np.testing.assert_allclose(attend(q, k, v, **options), exact(q, k, v, **options), rtol=1e-5)


@pytest.mark.costly(2)
@needs_long_double
@pytest.mark.parametrize("library", tp.libraries.LIBRARIES)
@pytest.mark.parametrize(
    ("dtype", "size"),
    [*BEYOND[1:3], *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in (BEYOND[0], ("float32", 1e30)))],
)
def test_bodies_take_products_beyond_the_range(library, dtype, size):
    if dtype not in support.dtypes_of(library):
        pytest.skip(f"{library} holds no {dtype}")
    support.require(library)
    args = beyond_the_range(dtype, size, 30, 50, 16)
    for options in BEYOND_OPTIONS:
        options = with_mask(options, 50)
        expected = exact(*args, **options)
        options = {n: x.astype(dtype) if getattr(x, "dtype", bool) == np.float64 else x for n, x in options.items()}
        with support.holding(library, dtype):
            there = support.there((args, options), library)
            y = support.back(OPERATOR.generic(*there[0], **there[1]))
        np.testing.assert_allclose(y, expected, rtol=0, atol=1000 * np.finfo(dtype).eps)


SPECIAL = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("queries", [1, 3, 30, 200])
def test_values_that_are_not_finite(target, queries, value, rng):
    """A weight of 0 turns them into NaN everywhere: also behind the mask, and in tiles that could be left out."""
    for key in (0, 5, 140, 299):
        q, k, v = qkv(rng, hq=2, tq=queries, tk=300)
        v[0, 0, key, 3] = value
        assert_like_the_body((q, k, v))
        assert_like_the_body((q, k, v), is_causal=True)
        assert_like_the_body((q, k, v), is_causal=True, window=20)
        assert_like_the_body((q, k, v), mask=np.arange(300) > 270)
        y = assert_like_the_body((q, k, v), mask=np.zeros(300, bool))
        assert np.isnan(y[0, 0, :, 3]).all()
        assert not np.delete(y, 3, axis=3).any()


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("queries", [1, 3, 30, 200])
def test_scores_that_are_not_finite(target, queries, value, rng):
    for key in (0, 140, 299):
        q, k, v = qkv(rng, hq=2, tq=queries, tk=300)
        q, k = np.abs(q), np.abs(k)
        k[0, 0, key, 3] = value
        for options in ({}, {"is_causal": True}, {"window": 20}, {"softcap": 3.0}, {"mask": np.arange(300) != key}):
            assert_like_the_body((q, k, v), **options)
        added = rng.standard_normal(300).astype(np.float32)
        added[key] = value
        q, k, v = qkv(rng, hq=2, tq=queries, tk=300)
        assert_like_the_body((q, k, v), mask=added)
        assert_like_the_body((q, k, v), mask=added, is_causal=True)


@pytest.mark.parametrize("value", SPECIAL)
@pytest.mark.parametrize("queries", [1, 30])
def test_sinks_that_are_not_finite(target, queries, value, rng):
    args = qkv(rng, tq=queries, tk=20)
    sinks = np.float32([value, 1])
    assert_like_the_body(args, sinks=sinks)
    assert_like_the_body(args, sinks=sinks, mask=np.zeros(20, bool))


# --- threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        {"hq": 8, "hkv": 2, "tq": 1, "tk": 4096, "d": 64},
        {"hq": 2, "hkv": 1, "tq": 700, "tk": 700, "d": 64},
        {"b": 3, "hq": 4, "hkv": 4, "tq": 65, "tk": 300, "d": 64},
    ],
)
def test_the_number_of_threads_makes_no_difference(shape, rng):
    args = qkv(rng, **shape)
    support.same_on_threads((1, 2, 0), lambda: attend(*args, is_causal=True))
    assert_right(args, is_causal=True)


def test_several_threads_whatever_the_machine_has(rng):
    """OMP_NUM_THREADS is read when a process starts."""
    code = (
        "import numpy as np; from tensorops.kernels.cpu import _native as n\n"
        "r = np.random.default_rng(0); q, k = (r.standard_normal((2, 3, t, 64)) for t in (400, 500))\n"
        "f = lambda: n.scaled_dot_product_attention(q, k, k, is_causal=True)\n"
        "many = f(); n.set_num_threads(1); assert np.array_equal(many, f())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "5"}, timeout=120)


# --- what is taken, and what is not ------------------------------------------------------------------


def test_numbers_of_every_kind(rng):
    args = qkv(rng)
    same = attend(*args, scale=0.5, softcap=2.0, window=3)
    for kind in (np.float32, np.float64, np.float16):
        np.testing.assert_array_equal(attend(*args, scale=kind(0.5), softcap=kind(2), window=3), same)
    np.testing.assert_array_equal(attend(*args, softcap=2, scale=1), attend(*args, softcap=2.0, scale=1.0))
    assert_right(args, scale=0)
    assert_right(args, scale=-1.5)


Q = np.ones((1, 2, 3, 4), np.float32)
K = np.ones((1, 1, 5, 4), np.float32)


WINDOW = "window is neither a usual positive integer nor a pair of usual integers from -1 on"


@pytest.mark.parametrize(
    ("args", "options", "reason"),
    [
        ((Q[0], K, K), {}, "q has 3 dimensions, not 4"),
        ((Q, K.tolist(), K), {}, "k is not a numpy.ndarray"),
        ((Q, K, K.astype(np.int32)), {}, "v has a dtype without a kernel"),
        ((Q, K, K.astype(">f4")), {}, "v is in foreign byte order"),
        ((Q, K, K.astype(np.float64)), {}, "q, k and v differ in dtype"),
        ((Q[..., ::2], K[..., :2], K), {}, "the last axis of q is not contiguous"),
        ((Q, K[..., :3], K), {}, "q and k differ in head dimension"),
        ((Q, K, K[:, :, 1:]), {}, "k and v differ in heads or keys"),
        ((Q, np.repeat(K, 3, axis=1), np.repeat(K, 3, axis=1)), {}, "the heads of k do not divide those of q"),
        ((Q, K[:, :0], K[:, :0]), {}, "the heads of k do not divide those of q"),
        ((Q, np.repeat(K, 2, axis=0), np.repeat(K, 2, axis=0)), {}, "q, k and v differ in batch size"),
        ((Q[..., :0], K[..., :0], K), {}, "the head dimension is 0"),
        ((np.ones((1, 1, 1, 16385)), K, K), {}, "q has more than 16384 features"),
        ((Q, K, K), {"mask": [True]}, "mask is not a numpy.ndarray"),
        ((Q, K, K), {"mask": np.ones(5, np.int8)}, "mask has a dtype without a kernel"),
        ((Q, K, K), {"mask": np.ones((1, 1, 1, 1, 5), bool)}, "mask has more than 4 dimensions"),
        ((Q, K, K), {"mask": np.ones(4, bool)}, "mask does not broadcast to (batch, heads, queries, keys)"),
        ((Q, K, K), {"sinks": np.ones(3)}, "sinks does not have one element for each head of q"),
        ((Q, K, K), {"sinks": np.array(1.0)}, "sinks does not have one element for each head of q"),
        ((Q, K, K), {"sinks": [1.0, 2.0]}, "sinks is not a numpy.ndarray"),
        ((Q, K, K), {"is_causal": 1}, "is_causal is not a bool"),
        ((Q, K, K), {"scale": "1"}, "scale is not a usual number"),
        ((Q, K, K), {"scale": 10**400}, "scale is not a usual number"),
        ((Q, K, K), {"scale": np.inf}, "scale is not a usual number"),
        ((Q, K, K), {"scale": np.nan}, "scale is not a usual number"),
        ((Q, K, K), {"scale": 1e-40}, "scale is not a usual number"),
        ((Q, K, K), {"softcap": 0.0}, "softcap is not a usual positive number"),
        ((Q, K, K), {"softcap": -1}, "softcap is not a usual positive number"),
        ((Q, K, K), {"softcap": np.nan}, "softcap is not a usual positive number"),
        ((Q, K, K), {"softcap": None, "window": 2.0}, WINDOW),
        ((Q, K, K), {"window": True}, WINDOW),
        ((Q, K, K), {"window": 0}, WINDOW),
        ((Q, K, K), {"window": -(2**70)}, WINDOW),
        ((Q, K, K), {"window": 2**63 - 1}, WINDOW),
        ((Q, K, K), {"window": (1, 2, 3)}, WINDOW),
        ((Q, K, K), {"window": (1, -2)}, WINDOW),
        ((Q, K, K), {"window": (1.0, 2)}, WINDOW),
        ((Q, K, K), {"window": (1, 2**70)}, WINDOW),
        ((Q, K, K), {"lengths": [5]}, "lengths is not a numpy.ndarray"),
        ((Q, K, K), {"lengths": np.ones(1)}, "lengths has a dtype that is not an integer"),
        ((Q, K, K), {"lengths": np.ones(1, ">i4")}, "lengths is in foreign byte order"),
        ((Q, K, K), {"lengths": np.ones(2, int)}, "lengths does not have one number for each sequence"),
        ((Q, K, K), {"lengths": np.array(5)}, "lengths does not have one number for each sequence"),
        ((Q, K, K), {"lengths": np.array([6])}, "lengths has a number outside 0 … 5"),
        ((Q, K, K), {"lengths": np.array([-1])}, "lengths has a number outside 0 … 5"),
        ((Q, K, K), {"lengths": np.array([2**64 - 1], np.uint64)}, "lengths has a number outside 0 … 5"),
        ((Q, K, K), {"page_table": [[0]]}, "page_table is not a numpy.ndarray"),
        ((Q, K, K), {"page_table": np.ones((1, 1), bool)}, "page_table has a dtype that is not an integer"),
        ((Q, K, K), {"page_table": np.ones(1, int)}, "page_table does not have 2 dimensions"),
        ((Q, K, K), {"page_table": np.ones((2, 1), int)}, "page_table does not have one row for each sequence"),
        ((Q, K, K), {"page_table": np.array([[0, 1]])}, "page_table has an index outside 0 … 0 that is in use"),
        ((Q, K, K), {"page_table": np.array([[0, -1]])}, "page_table has an index outside 0 … 0 that is in use"),
        ((Q, K[:0], K[:0]), {"page_table": np.array([[0]])}, "there are no pages"),
        ((Q, K, np.repeat(K, 2, axis=0)), {"page_table": np.array([[0]])}, "k and v differ in pages"),
        (
            (Q, np.broadcast_to(K[:, :, :1], (1, 1, 2**58, 4)), np.broadcast_to(K[:, :, :1], (1, 1, 2**58, 4))),
            {"page_table": np.zeros((1, 32), int)},
            "page_table has too many pages",
        ),
        (
            (Q, K, K),
            {"mask": np.ones(5, bool), "page_table": np.zeros((1, 2), int)},
            "mask does not broadcast to (batch, heads, queries, keys)",
        ),
    ],
)
def test_what_is_refused_has_a_reason(args, options, reason):
    assert _native.scaled_dot_product_attention_supports(*args, **options) == reason
    assert _native.scaled_dot_product_attention(*args, **options) is NotImplemented


@pytest.mark.parametrize("queries", [2**40, 2**48])
def test_a_result_that_no_memory_holds_is_an_error(queries):
    q = np.broadcast_to(np.float32(1), (1, 1, queries, 1))
    v = np.ones((1, 1, 1, 2**14), np.float32)
    with pytest.raises((MemoryError, ValueError)):
        _native.scaled_dot_product_attention(q, q[:, :, :1], v)
