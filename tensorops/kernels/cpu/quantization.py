"""Quantized matrices on the CPU; see ``native/cpu/quantize.cpp`` and ``quantized_linear.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.quantization import dequantize, quantize, quantized_linear

quantize.kernel("cpu", supports=_native.quantize_supports, declines=True)(_native.quantize)
dequantize.kernel("cpu", supports=_native.dequantize_supports, declines=True)(_native.dequantize)
quantized_linear.kernel("cpu", supports=_native.quantized_linear_supports, declines=True)(_native.quantized_linear)
