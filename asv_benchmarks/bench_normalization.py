"""Normalization along rows, compared with a copy of the same bytes."""

import numpy as np

from tensorops.benchmarks.asv import Benchmark, family, implementations
from tensorops.benchmarks.workloads import workload
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("normalization")


class Normalization(Benchmark):
    params = (OPERATORS, ["copy", *implementations(OPERATORS)], BENCHMARK_SHAPES, ["float32", "bfloat16"])
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        work = workload(operator, *shape, dtype)
        if implementation == "copy":
            self.prepare_copy([x for x in work.args if x.ndim > 1])
        else:
            self.prepare(operator, implementation, work.args, **work.options)

    def prepare_copy(self, sources):
        """Copy the bytes that the operator must at least read and write, into existing memory."""
        pairs = [(np.full_like(x, 1), x) for x in sources]

        def call():
            for target, source in pairs:
                np.copyto(target, source)

        self.call = call

    def time_normalization(self, operator, implementation, shape, dtype):
        self.call()
