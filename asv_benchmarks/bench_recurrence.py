"""Layers with a state: the rows of a shape are the tokens, its features the channels, or those of all heads."""

from asv_benchmarks.harness import DTYPES, Benchmark, family, implementations

OPERATORS = family("recurrence")
SHAPES = [(1, 64), (1, 4096), (16, 4096), (128, 4096), (2048, 4096)]


class Recurrence(Benchmark):
    params = (
        OPERATORS,
        implementations(OPERATORS),
        [(1, 64), (1, 4096), (16, 4096), (128, 4096), (2048, 4096)],
        DTYPES,
    )
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        self.prepare_workload(operator, implementation, shape, dtype)

    def time_recurrence(self, operator, implementation, shape, dtype):
        self.call()
