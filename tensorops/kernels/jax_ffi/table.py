"""Which operators are foreign functions."""

import tensorops.kernels.cpu.table  # noqa: F401 - its ImportError says why there is no compiled module
from tensorops.kernels.jax_ffi import activation, normalization, quantization

__all__ = ["activation", "normalization", "quantization"]
