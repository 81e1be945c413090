"""Quantized matrices of torch tensors in host memory; see ``tensorops/kernels/cpu/quantization.py``."""

from tensorops.kernels.torch_cpu._launch import register
from tensorops.ops.quantization import dequantize, quantize, quantized_linear

for operator in (dequantize, quantize, quantized_linear):
    register(operator)
