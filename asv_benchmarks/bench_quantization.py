"""Quantized weights: packing a matrix, unpacking it, and multiplying by the packed matrix."""

import functools

from asv_benchmarks.harness import DTYPES, Benchmark, implementations, normal
from tensorops import prepare, quantize, quantized_linear
from tensorops.testing import BENCHMARK_SHAPES

FORMAT = {"group_size": 32}
# Decoding and short prompts; beyond these, a product is bound by arithmetic, not by the bytes of the matrix.
FEW_ROWS = [shape for shape in BENCHMARK_SHAPES if shape[0] <= 16]


class Quantize(Benchmark):
    params = (["quantize", "dequantize"], implementations(["quantize", "dequantize"]), BENCHMARK_SHAPES, DTYPES, [4, 8])
    param_names = ("operator", "implementation", "shape", "dtype", "bits")

    def setup(self, operator, implementation, shape, dtype, bits):
        args = [normal(*shape, dtype=dtype)]
        if operator == "dequantize":
            args = list(quantize(*args, bits=bits, **FORMAT))
        self.prepare(operator, implementation, args, bits=bits, **FORMAT)

    def time_quantize(self, operator, implementation, shape, dtype, bits):
        self.call()


class QuantizedLinear(Benchmark):
    params = (implementations(["quantized_linear"]), FEW_ROWS, DTYPES, [4, 8])
    param_names = ("implementation", "shape", "dtype", "bits")

    def setup(self, implementation, shape, dtype, bits):
        features = shape[1]
        packed = quantize(normal(features, features, dtype=dtype), bits=bits, **FORMAT)
        self.prepare("quantized_linear", implementation, [normal(*shape, dtype=dtype), *packed], bits=bits, **FORMAT)

    def time_quantized_linear(self, implementation, shape, dtype, bits):
        self.call()


class PreparedQuantizedLinear(Benchmark):
    """Weights repacked once, where the processor gains by it; as many rows as the arithmetic shows."""

    params = ([1, 4, 24, 64], [4, 8], ["plain", "prepared"])
    param_names = ("rows", "bits", "weights")

    def setup(self, rows, bits, weights):
        weight, scales, biases = quantize(normal(2048, 2048), bits=bits, **FORMAT)
        constants = {"weight": weight, "scales": scales.astype("float16"), "biases": biases.astype("float16")}
        product = prepare("quantized_linear", **constants, bits=bits, **FORMAT)
        if weights == "prepared" and not product.provider:
            raise NotImplementedError(f"nothing is repacked: {product.refused}")
        x = normal(rows, 2048)
        plain = functools.partial(quantized_linear, **constants, bits=bits, **FORMAT)
        self.call = functools.partial(product if weights == "prepared" else plain, x)

    def time_prepared_quantized_linear(self, rows, bits, weights):
        self.call()
