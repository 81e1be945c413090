"""Losses: the rows of a shape are the tokens, its features the classes."""

import numpy as np

from tensorops.benchmarks.asv import Benchmark, family, implementations, normal
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("loss")


class Loss(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), BENCHMARK_SHAPES, ["float32", "bfloat16"])
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        targets = np.random.default_rng(0).integers(0, shape[1], shape[0], dtype=np.int32)
        self.prepare(operator, implementation, [normal(*shape, dtype=dtype), targets])

    def time_loss(self, operator, implementation, shape, dtype):
        self.call()
