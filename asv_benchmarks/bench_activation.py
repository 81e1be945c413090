"""Activations, elementwise and along rows."""

from tensorops.benchmarks.asv import Benchmark, family, implementations
from tensorops.benchmarks.workloads import workload
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("activation")


class Activation(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), BENCHMARK_SHAPES, ["float32", "bfloat16"])
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        self.prepare(operator, implementation, workload(operator, *shape, dtype).args)

    def time_activation(self, operator, implementation, shape, dtype):
        self.call()
