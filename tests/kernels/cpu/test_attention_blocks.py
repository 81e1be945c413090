"""Attention in C++ to keys and values in quantized blocks: values, tiles, layouts, pages, reach, and what is refused.

Blocks of q8_0 are halves times bytes, which float32 holds exactly. So besides the formula in float64, results are
compared bit by bit with those for the same numbers in float32.
"""

import numpy as np
import pytest

import support
import tensorops as tp
from support import bits
from tensorops import formats
from tensorops.testing import REFERENCES, assert_matches
from tensorops.testing._stored_blocks import decode, random_blocks

_native = support.require_native()
OPERATOR = tp.scaled_dot_product_attention
REFERENCE = REFERENCES["scaled_dot_product_attention"]
TILE, BLOCK = 128, 144  # keys and rows that the kernel takes at a time
ODD = [b"\x00\x7e", b"\x00\x7c", b"\x00\xfc"]  # scales: NaN, infinity, its negative


def qkv(rng, *, b=1, hq=2, hkv=1, tq=1, tk=9, d=64, dv=None, name="q8_0"):
    q = rng.standard_normal((b, hq, tq, d)).astype(np.float32)
    return q, *(random_blocks(rng, name, b, hkv, tk, n) for n in (d, dv or d))


def numbers(blocks):
    return np.ascontiguousarray(decode("q8_0", blocks), np.float32)


def attend(*args, kv_format="q8_0", **options):
    y = _native.scaled_dot_product_attention(*args, kv_format=kv_format, **options)
    assert y is not NotImplemented, _native.scaled_dot_product_attention_supports(*args, kv_format=kv_format, **options)
    return y


def assert_right(args, **options):
    """Assert that the kernel agrees with the formula, and has the bits of attention to numbers."""
    y = attend(*args, **options)
    assert_matches(y, REFERENCE(*args, kv_format="q8_0", **options), "float32", tolerance=32, scale_axis=None)
    q, k, v = args
    of_numbers = _native.scaled_dot_product_attention(q, numbers(k), numbers(v), **options)
    np.testing.assert_array_equal(bits(y), bits(of_numbers))


# --- shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("queries", [1, 3, 8, 9, 23])
def test_every_number_of_keys_to_beyond_a_tile(target, queries, d, rng):
    for keys in (1, 2, 7, 8, 17, 64, 95, TILE - 1, TILE, TILE + 1, 2 * TILE + 17):
        args = qkv(rng, hq=1, tq=queries, tk=keys, d=d, dv=32 if keys % 2 else d)
        assert_right(args)
        assert_right(args, is_causal=True)


@pytest.mark.parametrize("queries", [1, 6, BLOCK + 1])
@pytest.mark.parametrize("group", [1, 3, 4, 9])
def test_groups_of_heads(target, queries, group, rng):
    args = qkv(rng, b=2, hq=2 * group, hkv=2, tq=queries, tk=150)
    assert_right(args)
    for window in (None, 40, (129, 3)):
        assert_right(args, is_causal=True, window=window, softcap=3.0)


def test_long_caches_are_split_into_spans(target, rng):
    args = qkv(rng, hq=4, hkv=2, tk=4 * TILE * 3 + 77)
    mask = rng.random(args[1].shape[2]) < 0.3
    mask[4 * TILE : 9 * TILE] = False  # a span of which nothing is attended to
    added = rng.standard_normal(mask.shape).astype(np.float32)
    for options in (
        {},
        {"is_causal": True, "window": 300},
        {"mask": mask},
        {"mask": added, "scale": 0.3},
        {"sinks": np.float32([1, -2, 30, 0])},
        {"lengths": np.array([900])},
    ):
        assert_right(args, **options)


@pytest.mark.parametrize("name", formats.names())
@pytest.mark.parametrize("queries", [1, 30])
def test_every_format(target, queries, name, rng):
    d = max(64, formats.get(name).elements)
    args = qkv(rng, b=2, hq=4, hkv=2, tq=queries, tk=140, d=d, name=name)
    y = attend(*args, kv_format=name, is_causal=True)
    expected = REFERENCE(*args, kv_format=name, is_causal=True)
    # q4_k and the like have minima: their numbers are rounded sums of products.
    assert_matches(y, expected, "float32", tolerance=64, scale_axis=None)
    assert OPERATOR.explain(*args, kv_format=name, is_causal=True).kernel == "cpu"


def test_empty_arrays(rng):
    for shape in ({"b": 0}, {"tq": 0}, {"hq": 0}, {"tk": 0}):
        args = qkv(rng, **shape)
        for y in (attend(*args), OPERATOR.generic(*args, kv_format="q8_0")):
            assert y.shape == args[0].shape
            assert not y.any()
    q, k, v = qkv(rng)
    assert attend(q, k, v[..., :0]).shape == (1, 2, 1, 0)


# --- layouts and pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [1, 13])
def test_the_layout_makes_no_difference(target, queries, rng):
    def room(*shape):
        return random_blocks(rng, "q8_0", *shape)

    q = rng.standard_normal((2, 4, queries, 64)).astype(np.float32)
    by_position = np.swapaxes(room(2, 150, 4, 64), 1, 2)
    wide = room(2, 2, 300, 128)
    layouts = [
        (by_position[:, ::2], by_position[:, 1::2]),
        (wide[:, ::-1, ::2, :68], wide[::-1, :, 1::2, 68:]),
        (np.broadcast_to(room(1, 1, 150, 64), (2, 2, 150, 68)), np.broadcast_to(room(1, 2, 1, 32), (2, 2, 150, 34))),
        (room(2, 2, 150, 64)[:, :, ::-1], room(2, 2, 150, 96)),
    ]
    for k, v in layouts:
        y = attend(q, k, v, is_causal=True)
        np.testing.assert_array_equal(bits(y), bits(attend(q, k.copy(), v.copy(), is_causal=True)))
        assert_matches(
            y, REFERENCE(q, k, v, is_causal=True, kv_format="q8_0"), "float32", tolerance=32, scale_axis=None
        )


@pytest.mark.parametrize("size", [1, 3, 16, TILE, 200])
@pytest.mark.parametrize("queries", [1, 5, 30])
def test_pages(target, queries, size, rng):
    """Pages that no sequence uses have NaN."""
    count = -(-600 // size)
    q, k, v = qkv(rng, b=2, hq=4, hkv=2, tq=queries, tk=count * size, dv=96)
    table = rng.permutation(3 * count)[: 2 * count].reshape(2, count)
    paged = []
    for x in (k, v):
        pages = np.full((3 * count, 2, size, x.shape[3]), 0x7E, np.uint8)
        pages[table] = x.reshape(2, 2, count, size, -1).swapaxes(1, 2)
        paged.append(pages)
    by_key = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in paged]
    lengths = np.array([600, 257], dtype=np.uint16)
    for options in ({}, {"lengths": lengths}, {"lengths": lengths, "is_causal": True, "window": (90, 7)}):
        expected = attend(q, k, v, **options)
        for pages in (paged, by_key):
            y = attend(q, *pages, page_table=table, **options)
            np.testing.assert_array_equal(bits(y), bits(expected))
        assert_matches(
            expected, REFERENCE(q, k, v, kv_format="q8_0", **options), "float32", tolerance=32, scale_axis=None
        )


# --- values ------------------------------------------------------------------------------------------


def test_every_byte_and_every_scale(target, rng):
    """Halves that are subnormal or zero, and the byte -128: a single key is the value itself."""
    scales = np.arange(0, 0x7C00, 31, dtype="<u2")
    for sign in (0, 0x8000):
        blocks = rng.integers(0, 256, (1, 1, len(scales), 34), dtype=np.uint8)
        blocks[..., :2] = (scales | sign)[:, None].view(np.uint8)
        blocks[..., 2] = 0x80
        q = np.zeros((1, 1, len(scales), 32), np.float32)
        y = attend(q, blocks, blocks, window=1)
        np.testing.assert_array_equal(y, numbers(blocks))


@pytest.mark.parametrize("scale", ODD)
@pytest.mark.parametrize("queries", [1, 30])
def test_blocks_beyond_reach_have_no_effect(target, queries, scale, rng):
    q, k, v = qkv(rng, b=2, hq=4, hkv=2, tq=queries, tk=300)
    lengths, options = np.array([170, 290]), {"is_causal": True, "window": (40, None)}
    expected = attend(q, k, v, lengths=lengths, **options)
    for b, length in enumerate(lengths):
        for x in (k, v):
            for reach in (slice(0, length - queries - 40), slice(length, None)):
                x[b, :, reach, :2] = np.frombuffer(scale, np.uint8)
    y = attend(q, k, v, lengths=lengths, **options)
    np.testing.assert_array_equal(bits(y), bits(expected))
    assert np.isfinite(y).all()


@pytest.mark.parametrize("scale", ODD)
@pytest.mark.parametrize("queries", [1, 3, 30])
def test_values_that_are_not_finite(target, queries, scale, rng):
    """As in numbers: where only a mask or causality excludes them, 0 times NaN is NaN."""
    for key in (0, 140, 299):
        q, k, v = qkv(rng, tq=queries, tk=300)
        v[0, 0, key, :2] = np.frombuffer(scale, np.uint8)
        for options in ({}, {"is_causal": True}, {"mask": np.arange(300) != key}, {"mask": np.zeros(300, bool)}):
            y, expected = attend(q, k, v, **options), OPERATOR.generic(q, k, v, kv_format="q8_0", **options)
            np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
            assert not np.isfinite(y[..., :32]).all()
            np.testing.assert_allclose(y[..., 32:], expected[..., 32:], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("queries", [1, 30])
def test_products_beyond_the_range(target, queries, rng):
    """Rows whose scores leave float32's range are computed again, from the same blocks."""
    q, k, v = qkv(rng, tq=queries, tk=150)
    k = k.reshape(1, 1, 150, 2, 34)
    k[..., :2] = np.frombuffer(b"\x00\x7b", np.uint8)  # 57344
    k = k.reshape(1, 1, 150, 68)
    for options in ({}, {"is_causal": True, "softcap": 3.0}):
        y = attend(q * np.float32(1e34), k, v, **options)
        assert np.isfinite(y).all()
        of_numbers = _native.scaled_dot_product_attention(q * np.float32(1e34), numbers(k), numbers(v), **options)
        np.testing.assert_array_equal(bits(y), bits(of_numbers))


@pytest.mark.parametrize("shape", [{"hq": 8, "hkv": 2, "tk": 4096}, {"b": 3, "hq": 4, "hkv": 4, "tq": 65, "tk": 300}])
def test_the_number_of_threads_makes_no_difference(shape, rng):
    args = qkv(rng, **shape)
    support.same_on_threads((1, 2, 0), lambda: attend(*args, is_causal=True))


# --- what is taken, and what is not ------------------------------------------------------------------

Q, K = np.ones((1, 2, 3, 32), np.float32), np.ones((1, 1, 5, 34), np.uint8)


@pytest.mark.parametrize(
    ("args", "kv_format", "reason"),
    [
        ((Q, K, K), None, "q, k and v differ in dtype"),
        ((Q, K, K), "q8_1", "kv_format has no compiled kernel"),
        ((Q, K, K), "q8_0_x32", "kv_format has no compiled kernel"),
        ((Q, K, K), 8, "kv_format has no compiled kernel"),
        ((Q, Q[:, :1], K), "q8_0", "k or v does not have dtype uint8"),
        ((Q, K, Q[:, :1]), "q8_0", "k or v does not have dtype uint8"),
        ((Q, K[..., 1:], K), "q8_0", "the rows of k or v are not whole blocks"),
        ((Q, K, K[..., 1:]), "q8_0", "the rows of k or v are not whole blocks"),
        ((Q, K.repeat(2, axis=3), K), "q8_0", "q and k differ in head dimension"),
        ((Q, K.repeat(2, axis=3)[..., ::2], K), "q8_0", "the last axis of k is not contiguous"),
        ((Q, K, K.repeat(513, axis=3)), "q8_0", "v has more than 16384 features"),
        *(
            (
                (Q.astype(dtype), K, K),
                "q8_0",
                "k and v are in blocks, which the kernel reads for queries of float32 only",
            )
            for dtype in (np.float16, np.float64)
        ),
    ],
)
def test_what_the_kernel_declines(args, kv_format, reason):
    assert _native.scaled_dot_product_attention_supports(*args, kv_format=kv_format) == reason
    assert _native.scaled_dot_product_attention(*args, kv_format=kv_format) is NotImplemented


def test_the_derivative_declines():
    dy = np.ones_like(Q)
    assert _native.scaled_dot_product_attention_vjp(Q, K, K, dy, kv_format="q8_0") is NotImplemented
    reason = _native.scaled_dot_product_attention_vjp_supports(Q, K, K, dy, kv_format="q8_0")
    assert reason == "keys and values are in blocks"


def test_the_kernel_is_chosen_and_named(rng):
    args = qkv(rng)
    with tp.trace() as log:
        OPERATOR(*args, kv_format="q8_0")
    assert [call.kernel for call in log] == ["cpu"]
    explained = OPERATOR.explain(args[0].astype(np.float64), *args[1:], kv_format="q8_0")
    assert explained.kernel == "generic"
    assert "queries of float32 only" in str(explained)
