"""Linear maps with a square matrix, and table lookups."""

import numpy as np

from tensorops.benchmarks.asv import Benchmark, implementations, normal
from tensorops.testing import BENCHMARK_SHAPES

VOCABULARY = 8192
# With more rows, this would benchmark the libraries' own matrix products.
FEW_ROWS = [shape for shape in BENCHMARK_SHAPES if shape[0] <= 128]


class Linear(Benchmark):
    params = (implementations(["linear"]), FEW_ROWS, ["float32", "bfloat16"])
    param_names = ("implementation", "shape", "dtype")

    def setup(self, implementation, shape, dtype):
        features = shape[1]
        self.prepare("linear", implementation, [normal(*shape, dtype=dtype), normal(features, features, dtype=dtype)])

    def time_linear(self, implementation, shape, dtype):
        self.call()


class Embedding(Benchmark):
    params = (implementations(["embedding"]), BENCHMARK_SHAPES, ["float32", "bfloat16"])
    param_names = ("implementation", "shape", "dtype")

    def setup(self, implementation, shape, dtype):
        count, features = shape
        ids = np.random.default_rng(0).integers(0, VOCABULARY, count, dtype=np.int32)
        self.prepare("embedding", implementation, [ids, normal(VOCABULARY, features, dtype=dtype)])

    def time_embedding(self, implementation, shape, dtype):
        self.call()
