"""The compiled kernels on JAX arrays: calls of them in the programs that XLA compiles for the CPU.

A call is a barrier: XLA fuses an operator's body with what stands before and after it, and cannot fuse these. Alone
they are quicker; who wants fusion says ``set_backend("jax", kernels=["generic"])``. Programs for other platforms,
exported ones, those that XLA itself splits over devices, and derivatives are made from the bodies.
"""

import tensorops.kernels.cpu  # noqa: F401 - its ImportError says why there is no compiled module
from tensorops.kernels.xla import activation, normalization, quantization

__all__ = ["activation", "normalization", "quantization"]
