"""The compiled kernels on JAX arrays: foreign calls in the programs that XLA compiles for the CPU.

A call is a barrier: XLA fuses an operator's body with the operations before and after it, but cannot fuse a kernel.
Alone, kernels are faster; if you want fusion, use ``set_backend("jax", providers=["generic"])``. The bodies are used
for programs for other platforms, exported programs, axes that XLA splits and kernels need whole, and derivatives.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="jax_ffi",
    libraries=("jax",),
    kernels="tensorops.kernels.jax_ffi.table",
    summary="the C++ kernels as foreign functions in programs that XLA compiles for the CPU",
)
