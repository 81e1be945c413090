"""Peak memory of a process that calls an operator: subtract that of one that only makes the arguments.

What is left is the result, and what the implementation needs meanwhile.
"""

from asv_benchmarks.harness import Benchmark, implementations, normal
from tensorops._operator import OPERATORS
from tensorops.benchmarks.workloads import workload

ARGUMENTS = "arguments"
ON_NUMPY = [name for name in implementations(list(OPERATORS)) if name.startswith("numpy/")]


class Memory(Benchmark):
    """Every operator on NumPy arrays."""

    params = (list(OPERATORS), [ARGUMENTS, *ON_NUMPY], [(512, 4096)], ["float32", "bfloat16"])
    param_names = ("operator", "implementation", "shape", "dtype")

    def setup(self, operator, implementation, shape, dtype):
        if implementation == ARGUMENTS:
            self.made, self.call = workload(operator, *shape, dtype), lambda: None
        else:
            self.prepare_workload(operator, implementation, shape, dtype)

    def peakmem_operator(self, operator, implementation, shape, dtype):
        self.call()


class Attention(Benchmark):
    """A prompt against itself, whose scores the body holds: the square of its length for each of 4 heads."""

    params = ([ARGUMENTS, *implementations(["scaled_dot_product_attention"])], [256, 1024, 4096])
    param_names = ("implementation", "length")

    def setup(self, implementation, length):
        q = normal(1, 4, length, 64)
        self.made, self.call = q, lambda: None
        if implementation != ARGUMENTS:
            self.prepare("scaled_dot_product_attention", implementation, [q, q, q], is_causal=True)

    def peakmem_attention(self, implementation, length):
        self.call()


def peakmem_import_tensorops():
    import tensorops  # noqa: F401
