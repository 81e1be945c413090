"""Quantized matrices on the CPU; see ``native/cpu/quantized_linear.cpp``."""

from __future__ import annotations

from tensorops.kernels.cpu import _native
from tensorops.ops.quantization import quantized_linear

quantized_linear.kernel("cpu", supports=_native.quantized_linear_supports, declines=True)(_native.quantized_linear)
