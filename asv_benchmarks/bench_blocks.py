"""Whole layers of networks: the rows of a shape are the sequence."""

from asv_benchmarks.harness import DTYPES, Benchmark, family, implementations
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("blocks")
# With more rows, this would benchmark the libraries' own matrix products.
FEW_ROWS = [shape for shape in BENCHMARK_SHAPES if shape[0] <= 128]


class Blocks(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), FEW_ROWS, DTYPES)
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        self.prepare_workload(operator, implementation, shape, dtype)

    def time_blocks(self, operator, implementation, shape, dtype):
        self.call()
