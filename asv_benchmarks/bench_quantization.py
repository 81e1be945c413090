"""Quantized weights: packing a matrix, unpacking it, and multiplying by the packed matrix."""

from tensorops import quantize
from tensorops.benchmarks.asv import Benchmark, implementations, normal
from tensorops.testing import BENCHMARK_SHAPES

FORMAT = {"group_size": 32}
# Decoding and short prompts; beyond these, a product is bound by arithmetic, not by the bytes of the matrix.
FEW_ROWS = [shape for shape in BENCHMARK_SHAPES if shape[0] <= 16]


class Quantize(Benchmark):
    params = (["quantize", "dequantize"], implementations(["quantize", "dequantize"]), BENCHMARK_SHAPES, [4, 8])
    param_names = ("operator", "implementation", "shape", "bits")

    def setup(self, operator, implementation, shape, bits):
        args = [normal(*shape)]
        if operator == "dequantize":
            args = list(quantize(*args, bits=bits, **FORMAT))
        self.prepare(operator, implementation, args, bits=bits, **FORMAT)

    def time_quantize(self, operator, implementation, shape, bits):
        self.call()


class QuantizedLinear(Benchmark):
    params = (implementations(["quantized_linear"]), FEW_ROWS, [4, 8])
    param_names = ("implementation", "shape", "bits")

    def setup(self, implementation, shape, bits):
        features = shape[1]
        packed = quantize(normal(features, features), bits=bits, **FORMAT)
        self.prepare("quantized_linear", implementation, [normal(*shape), *packed], bits=bits, **FORMAT)

    def time_quantized_linear(self, implementation, shape, bits):
        self.call()
