"""Activations, element by element and along rows."""

from tensorops.testing import BENCHMARK_SHAPES

from .common import Benchmark, family, implementations, normal, parameters

OPERATORS = family("activation")


class Activation(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), BENCHMARK_SHAPES, ["float32", "bfloat16"])
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        def rows():
            return normal(*shape, dtype=dtype)

        self.prepare(operator, implementation, parameters(operator, {"x": rows, "gate": rows, "up": rows}))

    def time_activation(self, operator, implementation, shape, dtype):
        self.call()
