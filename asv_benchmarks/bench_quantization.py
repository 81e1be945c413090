"""Quantized weights: packing a matrix, unpacking it, and multiplying by the packed matrix."""

import functools

import numpy as np

from asv_benchmarks.harness import DTYPES, Benchmark, implementations, normal
from tensorops import formats, prepare, quantize, quantized_linear
from tensorops.testing import BENCHMARK_SHAPES
from tensorops.testing._stored_blocks import random_blocks

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


class InterleavedBlocks(Benchmark):
    """Blocks as files store them and interleaved, too many for the caches: a row for each of several matrices."""

    MATRICES = 12
    params = (["q4_0", "q4_k", "q5_k", "q6_k", "q8_0", "iq4_xs"], [1, 2, 8], ["stored", "interleaved"])
    param_names = ("format", "rows", "order")

    def setup(self, format, rows, order):
        rng = np.random.default_rng(0)
        self.options = {"format": format if order == "stored" else f"{format}_x32"}
        self.matrices = [random_blocks(rng, format, 8192, 2048) for _ in range(self.MATRICES)]
        if order == "interleaved":
            self.matrices = [formats.get(f"{format}_x32").store(blocks) for blocks in self.matrices]
        self.x = normal(rows, 2048)
        explained = quantized_linear.explain(self.x, self.matrices[0], **self.options)
        if explained.kernel != "cpu":
            raise NotImplementedError(str(explained))

    def time_interleaved_blocks(self, format, rows, order):
        for weight in self.matrices:
            quantized_linear(self.x, weight, **self.options)


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
