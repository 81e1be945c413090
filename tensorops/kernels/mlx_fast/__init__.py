"""The fused operations in `mlx.core.fast`: norms, rope and attention.

They are quicker than the bodies and less careful, and declare it: where results deviate from what an operator promises,
nothing but ``set_backend("mlx", providers=["mlx_fast", "generic"])`` uses them. Norms of float16 keep the promise.
"""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="mlx_fast",
    libraries=("mlx",),
    kernels="tensorops.kernels.mlx_fast.table",
    summary="MLX's fast operations, by name where they deviate from the operators' promises",
)
