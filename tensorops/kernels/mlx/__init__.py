"""Kernels for MLX arrays: MLX's own fused operations, where they keep the operators' contract.

`mx.fast.rms_norm` and `mx.fast.layer_norm` are left out: their squares overflow in float32 from 1e19 on.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="mlx",
    libraries=("mlx",),
    kernels="tensorops.kernels.mlx.table",
    summary="MLX's own fused operations, where they keep the operators' contract",
)
