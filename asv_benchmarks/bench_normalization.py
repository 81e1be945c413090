"""Normalization along rows; `bench_peers.py` copies the same bytes."""

from asv_benchmarks.harness import DTYPES, Benchmark, family, implementations, normal
from tensorops import add_layer_norm, layer_norm
from tensorops.testing import BENCHMARK_SHAPES

OPERATORS = family("normalization")


class Normalization(Benchmark):
    params = (OPERATORS, implementations(OPERATORS), BENCHMARK_SHAPES, DTYPES)
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        self.prepare_workload(operator, implementation, shape, dtype)

    def time_normalization(self, operator, implementation, shape, dtype):
        self.call()


class AddLayerNormSteps:
    """A residual and the norm after it, compared with the two steps on NumPy arrays."""

    params = ([1024, 3584, 32768], ["add_layer_norm", "steps"])
    param_names = ("rows", "what")

    def setup(self, rows, what):
        x, residual, weight, bias = normal(rows, 384), normal(rows, 384), normal(384), normal(384)
        self.call = {
            "add_layer_norm": lambda: add_layer_norm(x, residual, weight, bias),
            "steps": lambda: layer_norm(x + residual, weight, bias),
        }[what]
        self.call()

    def time_add_layer_norm_steps(self, rows, what):
        self.call()
