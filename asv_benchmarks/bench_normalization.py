"""Normalization along rows; `bench_peers.py` copies the same bytes."""

from asv_benchmarks.harness import DTYPES, Benchmark, family, implementations
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("normalization")


class Normalization(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), BENCHMARK_SHAPES, DTYPES)
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        self.prepare_workload(operator, implementation, shape, dtype)

    def time_normalization(self, operator, implementation, shape, dtype):
        self.call()
