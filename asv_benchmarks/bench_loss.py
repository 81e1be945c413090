"""Losses: the rows of a shape are the tokens, its features the classes."""

import numpy as np

from asv_benchmarks.harness import DTYPES, Benchmark, implementations, normal
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = ["cross_entropy"]


class Loss(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), BENCHMARK_SHAPES, DTYPES)
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        targets = np.random.default_rng(0).integers(0, shape[1], shape[0], dtype=np.int32)
        self.prepare(operator, implementation, [normal(*shape, dtype=dtype), targets])

    def time_loss(self, operator, implementation, shape, dtype):
        self.call()


class LinearLoss(Benchmark):
    """A vocabulary of 8192 classes for hidden states of 576 features, those of a small language model."""

    params = (implementations(["linear_cross_entropy"]), [1, 8, 512], DTYPES)
    param_names = ("implementation", "rows", "dtype")

    def setup(self, implementation, rows, dtype):
        targets = np.random.default_rng(0).integers(0, 8192, rows, dtype=np.int32)
        arrays = [normal(rows, 576, dtype=dtype), normal(8192, 576, dtype=dtype), targets]
        self.prepare("linear_cross_entropy", implementation, arrays)

    def time_linear_loss(self, implementation, rows, dtype):
        self.call()
