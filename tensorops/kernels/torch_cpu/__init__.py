"""The compiled kernels on torch tensors in host memory, through NumPy views; results come from the kernels' pool.

Autograd follows kernels that have a derivative. Anything else that records or transforms the computation gets the body:
torch.func, tracing, modes, and gradients that no kernel computes.
"""

from __future__ import annotations

from tensorops._providers import Provider
from tensorops.kernels.torch_cpu import _dynamo  # noqa: F401 - lets torch.compile find what to inline

PROVIDER = Provider(
    name="torch_cpu",
    libraries=("torch",),
    kernels="tensorops.kernels.torch_cpu.table",
    summary="the C++ kernels on tensors in host memory",
)
