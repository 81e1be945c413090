"""Rotary position embedding: the rows of a shape are the sequence, its features those of all heads."""

import numpy as np

from asv_benchmarks.harness import DTYPES, Benchmark, family, implementations, normal
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("positional")
HEAD_DIM = 64


class Positional(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), BENCHMARK_SHAPES, DTYPES)
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        length, features = shape
        x = normal(1, features // HEAD_DIM, length, HEAD_DIM, dtype=dtype)
        self.prepare(operator, implementation, [x, np.arange(length, dtype=np.int32)])

    def time_positional(self, operator, implementation, shape, dtype):
        self.call()
