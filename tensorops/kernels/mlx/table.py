"""Quantized matrices on MLX: `mx.quantized_matmul`, which reads the packed integers as they are."""

from __future__ import annotations

from tensorops._dtypes import dtype_name
from tensorops._typing import Array
from tensorops._validation import shown
from tensorops.ops.quantization import quantized_linear, refuse_blocks


def _supports(
    x: Array,
    weight: Array,
    scales: Array,
    biases: Array | None,
    *,
    bits: int,
    group_size: int,
    format: str = "affine",
    precision: str = "highest",
) -> str | None:
    if reason := refuse_blocks(format):
        return reason
    if biases is None:
        return "mx.quantized_matmul has no symmetric mode"
    if group_size not in (32, 64, 128):
        return f"group_size is {shown(group_size)}, mx.quantized_matmul takes 32, 64 and 128"
    for name, a in (("x", x), ("scales", scales), ("biases", biases)):
        if dtype_name(a) not in ("float16", "bfloat16", "float32"):
            return f"{name} has dtype {dtype_name(a)}, mx.quantized_matmul takes float16, bfloat16 and float32"
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


@quantized_linear.kernel("mlx", supports=_supports, derivative="MLX")
def _(x: Array, weight: Array, scales: Array, biases: Array, *, bits: int, group_size: int, **_options: str) -> Array:
    import mlx.core as mx

    # Four bytes, low byte first, are one word of MLX's packing; a view copies nothing.
    packed = weight.view(mx.uint32)
    # MLX sums in the dtype of its arguments on the CPU: errors of 2048 products in bfloat16 reach 43 % of their spread.
    wide, s, b = (a.astype(mx.float32) for a in (x, scales, biases))
    y = mx.quantized_matmul(wide, packed, s, b, transpose=True, group_size=group_size, bits=bits)
    return y.astype(x.dtype)
