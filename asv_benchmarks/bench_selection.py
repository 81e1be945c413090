"""Selection: rows of a vocabulary's length, as for sampling, and of experts, as for a router."""

from asv_benchmarks.harness import DTYPES, Benchmark, implementations, normal

SHAPES = [(1, 32000), (1, 128256), (64, 32000), (4096, 64), (4096, 128)]


class Selection(Benchmark):
    params = (implementations(["top_k"]), SHAPES, DTYPES, [1, 8, 50])
    param_names = ("implementation", "shape", "dtype", "k")

    def setup(self, implementation, shape, dtype, k):
        self.prepare("top_k", implementation, [normal(*shape, dtype=dtype)], k=k)

    def time_selection(self, implementation, shape, dtype, k):
        self.call()
