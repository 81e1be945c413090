"""Attention: one new query against a cache of keys, and a prompt against itself.

The rows of a shape are the keys, its features those of all query heads; eight query heads share a key head.
"""

import functools

import numpy as np

from asv_benchmarks.harness import DTYPES, Benchmark, family, implementations, normal, speed_in_turns
from tensorops import dequantize, quantize, scaled_dot_product_attention
from tensorops._providers import GENERIC
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("attention")
HEAD_DIM = 64
GROUP = 8
LONGEST_PROMPT = 2048  # beyond this, one call takes seconds
LONGEST_OF_THE_BODY = 128  # the body holds all scores: the square of this, for every head


class Attention(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), ["one", "all"], BENCHMARK_SHAPES, DTYPES)
    param_names = ("operator", "implementation", "queries", "shape", "dtype")

    def setup(self, operator, implementation, queries, shape, dtype):
        keys, features = shape
        count = 1 if queries == "one" else keys
        if count > (LONGEST_OF_THE_BODY if implementation.endswith(f"/{GENERIC}") else LONGEST_PROMPT):
            raise NotImplementedError("a prompt too long for this implementation")
        heads = features // HEAD_DIM
        q = normal(1, heads, count, HEAD_DIM, dtype=dtype)
        k = normal(1, max(heads // GROUP, 1), keys, HEAD_DIM, dtype=dtype)
        self.prepare(operator, implementation, [q, k, k], is_causal=True)

    def time_attention(self, operator, implementation, queries, shape, dtype):
        self.call()


class Sentences:
    """Sentences of an encoder with 12 heads of 32 features, each token attending to all."""

    params = ([1, 32], [24, 112, 222])
    param_names = ("sentences", "tokens")

    def setup(self, count, tokens):
        heads = [normal(count, tokens, 12, 32).transpose(0, 2, 1, 3) for _ in range(3)]
        self.call = functools.partial(scaled_dot_product_attention, *heads)
        self.call()

    def time_sentences(self, count, tokens):
        self.call()


class Cache(Benchmark):
    """One new query for each of 8 sequences whose cache has room for 2048 keys; pages are in random order."""

    params = (OPERATORS, implementations(OPERATORS), ["full", "half full", "pages of 16", "pages of 64"], ["float32"])
    param_names = ("operator", "implementation", "cache", "dtype")

    def setup(self, operator, implementation, cache, dtype):
        batch, keys = 8, 2048
        q, k = normal(batch, 8, 1, HEAD_DIM, dtype=dtype), normal(batch, 2, keys, HEAD_DIM, dtype=dtype)
        options = {}
        if cache == "half full":
            options["lengths"] = np.full(batch, keys // 2)
        elif cache != "full":
            size = int(cache.split()[-1])
            k = k.reshape(batch * keys // size, 2, size, HEAD_DIM)
            options["page_table"] = np.random.default_rng(0).permutation(len(k)).reshape(batch, -1)
        self.prepare(operator, implementation, [q, k, k + 1], **options)

    def time_cache(self, operator, implementation, cache, dtype):
        self.call()


class Pages(Benchmark):
    """The speed with pages in random order as a multiple of that with adjacent keys: one new query of each sequence."""

    # sequences, heads, heads of keys, keys, features of a head
    shapes = {
        f"{batch} × {heads}/{kv_heads} × {keys} × {dim}": (batch, heads, kv_heads, keys, dim)
        for batch, heads, kv_heads, keys, dim in (
            (8, 8, 2, 2048, 64),
            (1, 32, 8, 2048, 128),
            (1, 32, 8, 8192, 128),
            (8, 32, 8, 2048, 128),
            (8, 32, 8, 8192, 128),
        )
    }
    params = (list(shapes), ["float32", "bfloat16", "float16"], [16, 64, 256])
    param_names = ("shape", "dtype", "page_size")
    unit = "times the speed of adjacent keys"

    def setup(self, shape, dtype, page_size):
        batch, heads, kv_heads, keys, dim = self.shapes[shape]
        some = normal(kv_heads, 256, dim, dtype=dtype)
        table = np.random.default_rng(0).permutation(batch * keys // page_size).reshape(batch, -1)
        k = np.tile(some, (batch, 1, keys // 256, 1))
        k, v = k, k[::-1].copy()
        paged = [a.reshape(-1, kv_heads, page_size, dim) for a in (np.empty_like(k), np.empty_like(v))]
        for a, pages in zip((k, v), paged, strict=True):
            pages[table] = a.reshape(batch, kv_heads, -1, page_size, dim).swapaxes(1, 2)
        q = normal(batch, heads, 1, dim, dtype=dtype)
        calls = [
            lambda: scaled_dot_product_attention(q, *paged, page_table=table),
            lambda: scaled_dot_product_attention(q, k, v),
        ]
        assert np.array_equal(*(call().astype(np.float32) for call in calls))
        self.calls = calls

    def track_speed(self, shape, dtype, page_size):
        return speed_in_turns(*self.calls)


class Blocks(Benchmark):
    """The speed with keys and values in blocks of q8_0 as a multiple of that in float32: one new query."""

    # heads, heads of keys, features of a head
    shapes = {
        f"{heads}/{kv_heads} × {dim}": (heads, kv_heads, dim) for heads, kv_heads, dim in ((9, 3, 64), (32, 8, 128))
    }
    params = (list(shapes), [4096, 32768])
    param_names = ("shape", "keys")
    unit = "times the speed of float32"

    def setup(self, shape, keys):
        heads, kv_heads, dim = self.shapes[shape]
        k, v = (normal(1, kv_heads, keys, dim, dtype="float32") for _ in range(2))
        rows = [quantize(x.reshape(-1, dim), format="q8_0")[0] for x in (k, v)]
        blocks = [x.reshape(1, kv_heads, keys, -1) for x in rows]
        k, v = (dequantize(x, format="q8_0").reshape(k.shape) for x in rows)
        q = normal(1, heads, 1, dim, dtype="float32")
        calls = [
            lambda: scaled_dot_product_attention(q, *blocks, kv_format="q8_0"),
            lambda: scaled_dot_product_attention(q, k, v),
        ]
        assert np.array_equal(*(call() for call in calls))
        self.calls = calls

    def track_speed(self, shape, keys):
        return speed_in_turns(*self.calls)
