"""The compiled kernels on torch tensors in host memory, which NumPy arrays share; results come from the kernels' pool.

Whatever records or transforms what is computed gets the body: gradients, torch.func, tracing, modes.
"""

import tensorops.kernels.cpu  # noqa: F401 - its ImportError says why there is no compiled module
from tensorops.kernels.torch_cpu import (
    activation,
    attention,
    linear,
    loss,
    normalization,
    positional,
    quantization,
)

__all__ = ["activation", "attention", "linear", "loss", "normalization", "positional", "quantization"]
