"""Kernels for MLX arrays: MLX's own fused operations, where they keep the operators' contract.

`mx.fast.rms_norm` and `mx.fast.layer_norm` are not among them: their squares overflow in float32 from 1e19 on.
"""

from tensorops.kernels.mlx import quantization

__all__ = ["quantization"]
