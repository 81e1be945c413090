"""Kernels for MLX arrays: MLX's own fused operations, where they keep the operators' contract."""
