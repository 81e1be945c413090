"""oneDNN's products of matrices for NumPy arrays, from the wheel `onednn` of PyPI.

The wheel is Intel's build for SYCL. Its primitives, among them products with quantized weights, softmax and norms, need
a SYCL device for the processor: an OpenCL driver that environment variables must name, and 45 µs for a call. Its plain
products of matrices need neither, and these are used.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="onednn",
    libraries=("numpy",),
    kernels="tensorops.kernels.onednn.table",
    summary="oneDNN's products of matrices, for bfloat16 where they are faster, else by name",
    rank=-1,  # it declines what the compiled kernels do as fast
    operators=("linear",),
    distribution="onednn",
)
