"""The compiled kernels on JAX arrays: calls of them in the programs that XLA compiles for the CPU.

A call is a barrier: XLA fuses an operator's body with what stands before and after it, and cannot fuse these. Alone
they are quicker; if you want fusion, use ``set_backend("jax", providers=["generic"])``. Programs for other platforms,
exported ones, those that XLA itself splits over devices, and derivatives are made from the bodies.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="jax_ffi",
    libraries=("jax",),
    kernels="tensorops.kernels.jax_ffi.table",
    summary="the C++ kernels as foreign functions in programs that XLA compiles for the CPU",
)
