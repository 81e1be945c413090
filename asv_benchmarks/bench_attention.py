"""Attention: one new query against a cache of keys, and a prompt against itself.

The rows of a shape are the keys, its features those of all query heads; eight query heads share a key head.
"""

import numpy as np

from tensorops._providers import GENERIC
from tensorops.benchmarks.asv import Benchmark, family, implementations, normal
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("attention")
HEAD_DIM = 64
GROUP = 8
LONGEST_PROMPT = 2048  # beyond this, one call takes seconds
LONGEST_OF_THE_BODY = 128  # the body holds all scores: the square of this, for every head


class Attention(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), ["one", "all"], BENCHMARK_SHAPES, ["float32", "bfloat16"])
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
