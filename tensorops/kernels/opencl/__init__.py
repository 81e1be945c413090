"""OpenCL C kernels on PyOpenCL arrays; the sources are in ``native/gpu``."""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="opencl",
    libraries=("pyopencl",),
    kernels="tensorops.kernels.opencl.table",
    summary="OpenCL C for any device; run on processors, not yet on a GPU",
)
