"""Quantized matrices on MLX: `mx.quantized_matmul`, which reads the packed integers as they are."""

from __future__ import annotations

from tensorops._dtypes import dtype_name
from tensorops._typing import Array
from tensorops.ops.quantization import quantized_linear


def _supports(
    x: Array, weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> str | None:
    if biases is None:
        return "mx.quantized_matmul has no symmetric mode"
    if bits not in (4, 8):
        return f"bits is {bits}, mx.quantized_matmul takes 4 and 8 here"
    if group_size not in (32, 64, 128):
        return f"group_size is {group_size}, mx.quantized_matmul takes 32, 64 and 128"
    if dtype_name(x) not in ("float16", "bfloat16", "float32"):
        return f"x has dtype {dtype_name(x)}, mx.quantized_matmul takes float16, bfloat16 and float32"
    if dtype_name(weight) != "uint8":
        return f"weight has dtype {dtype_name(weight)}"
    if dtype_name(scales) != dtype_name(x) or dtype_name(biases) != dtype_name(x):
        return "scales or biases have another dtype than x"
    if x.ndim < 1 or weight.ndim != 2 or 0 in (*x.shape, *weight.shape):
        return "x or weight is empty or has too few dimensions"
    rows, columns = weight.shape[0], weight.shape[1] * 8 // bits
    if x.shape[-1] != columns or columns % group_size:
        return f"weight has {columns} columns, which fit neither x nor group_size"
    if scales.shape != (rows, columns // group_size) or biases.shape != scales.shape:
        return "scales or biases do not have the shape (out, in / group_size)"
    return None


@quantized_linear.kernel("mlx", supports=_supports)
def _(
    x: Array, weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> Array:
    import mlx.core as mx

    # Four bytes, low one first, are one word of MLX's packing; a view copies nothing.
    packed = weight.view(mx.uint32)
    return mx.quantized_matmul(x, packed, scales, biases, transpose=True, group_size=group_size, bits=bits)
