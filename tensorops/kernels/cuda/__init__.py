"""CUDA kernels on CuPy arrays and on torch tensors in the memory of a GPU; the sources are in ``native/gpu``."""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="cuda",
    libraries=("cupy", "torch"),
    kernels="tensorops.kernels.cuda.table",
    summary="CUDA for NVIDIA GPUs, one launch for most operators; not yet run on one",
    rank=2,  # torch tensors in host memory are computed where they are
    devices={"torch": "cuda"},
)
