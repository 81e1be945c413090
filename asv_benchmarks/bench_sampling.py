"""Sampling: the rows of a shape are the sequences, its features the vocabulary."""

import numpy as np

from asv_benchmarks.harness import DTYPES, Benchmark, implementations, normal
from tensorops.testing import BENCHMARK_SHAPES

OPTIONS = {
    "largest": {"temperature": 0.0},
    "all": {},
    "min_p": {"min_p": 0.05},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.9},
}
FEW_ROWS = [shape for shape in BENCHMARK_SHAPES if shape[0] <= 128]


class Sampling(Benchmark):
    params = (list(OPTIONS), implementations(["sample"]), FEW_ROWS, DTYPES)
    param_names = ("options", "implementation", "shape", "dtype")

    def setup(self, options, implementation, shape, dtype):
        uniform = np.random.default_rng(0).random(shape[0], dtype=np.float32)
        self.prepare("sample", implementation, [normal(*shape, dtype=dtype)], rng=uniform, **OPTIONS[options])

    def time_sampling(self, options, implementation, shape, dtype):
        self.call()
