"""Attention: one new query against a cache of keys, and a prompt against itself.

The rows of a shape are the keys, its features those of all query heads; eight query heads share a key head.
"""

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
