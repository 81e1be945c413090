"""Triton kernels for products of matrices on NVIDIA's tensor cores: attention and linear maps of many rows.

Triton only compiles them; they are launched as those of the provider ``cuda`` are, on CuPy arrays and CUDA tensors.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="triton",
    libraries=("torch", "cupy"),
    kernels="tensorops.kernels.triton.table",
    summary="Triton on tensor cores: attention and linear maps of many rows, in half precision; not yet run on a GPU",
    rank=1,  # asked after what computes in host memory, and before the provider ``cuda``
    devices={"torch": "cuda"},
    operators=("linear", "gated_linear_unit", "quantized_linear", "scaled_dot_product_attention"),
    distribution="triton",
)
