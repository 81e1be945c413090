"""Linear maps with a square matrix, gated units of two of them, and table lookups."""

import functools

import numpy as np

from asv_benchmarks.harness import DTYPES, Benchmark, implementations, normal
from tensorops import gated_linear_unit, gelu, linear, prepare, swiglu
from tensorops.testing import BENCHMARK_SHAPES

VOCABULARY = 8192
DENSE = ["gated_linear_unit", "linear_activation"]
# With more rows, this would benchmark the libraries' own matrix products.
FEW_ROWS = [shape for shape in BENCHMARK_SHAPES if shape[0] <= 128]


class Linear(Benchmark):
    params = (implementations(["linear"]), FEW_ROWS, DTYPES)
    param_names = ("implementation", "shape", "dtype")

    def setup(self, implementation, shape, dtype):
        features = shape[1]
        self.prepare("linear", implementation, [normal(*shape, dtype=dtype), normal(features, features, dtype=dtype)])

    def time_linear(self, implementation, shape, dtype):
        self.call()


class Dense(Benchmark):
    params = (DENSE, implementations(DENSE), FEW_ROWS, DTYPES)
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        self.prepare_workload(operator, implementation, shape, dtype)

    def time_dense(self, operator, implementation, shape, dtype):
        self.call()


class GatedLinearUnitSteps(Benchmark):
    """The operator on NumPy arrays, compared with its steps and compared with those with both matrices as one."""

    params = ([1, 32, 512], ["float32", "bfloat16"], ["gated_linear_unit", "steps", "joint matrix"])
    param_names = ("rows", "dtype", "what")
    features, hidden = 1024, 2816

    def setup(self, rows, dtype, what):
        x, both = normal(rows, self.features, dtype=dtype), normal(2 * self.hidden, self.features, dtype=dtype)
        gate, up, n = both[: self.hidden], both[self.hidden :], self.hidden

        def joint():
            y = linear(x, both)
            return swiglu(y[:, :n], y[:, n:])

        self.call = {
            "gated_linear_unit": lambda: gated_linear_unit(x, gate, up),
            "steps": lambda: swiglu(linear(x, gate), linear(x, up)),
            "joint matrix": joint,
        }[what]
        self.call()

    def time_gated_linear_unit_steps(self, rows, dtype, what):
        self.call()


class Embedding(Benchmark):
    params = (implementations(["embedding"]), BENCHMARK_SHAPES, DTYPES)
    param_names = ("implementation", "shape", "dtype")

    def setup(self, implementation, shape, dtype):
        count, features = shape
        ids = np.random.default_rng(0).integers(0, VOCABULARY, count, dtype=np.int32)
        self.prepare("embedding", implementation, [ids, normal(VOCABULARY, features, dtype=dtype)])

    def time_embedding(self, implementation, shape, dtype):
        self.call()


class PreparedLinear:
    """A matrix as it is, and in the order that `prepare` brings it into; all of them fit no second-level cache."""

    params = ([1, 2, 8, 32, 512], ["plain", "prepared"])
    param_names = ("rows", "order")

    def setup(self, rows, order):
        self.x, bias = normal(rows, 384), normal(1536)
        weights = [normal(1536, 384) for _ in range(6)]
        self.products = [
            prepare("linear", weight=w, bias=bias)
            if order == "prepared"
            else functools.partial(linear, weight=w, bias=bias)
            for w in weights
        ]
        self.time_products(rows, order)

    def time_products(self, rows, order):
        for product in self.products:
            product(self.x)


class LinearActivationSteps:
    """A prepared matrix and a function of the product, compared with its steps."""

    params = ([1, 8, 32, 512, 4096], ["linear_activation", "steps"])
    param_names = ("rows", "what")

    def setup(self, rows, what):
        self.x = normal(rows, 384)
        # Sums as large as x: of much larger ones, gelu is subnormal, which takes longer than anything else
        matrix = {"weight": normal(1536, 384) / np.float32(384**0.5), "bias": normal(1536)}
        product = prepare("linear", **matrix)
        activated = prepare("linear_activation", **matrix, activation="gelu")
        self.run = activated if what == "linear_activation" else lambda x: gelu(product(x))
        self.run(self.x)

    def time_linear_activation_steps(self, rows, what):
        self.run(self.x)
