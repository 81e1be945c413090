"""Quantized matrices on MLX: `mx.quantized_matmul`, which reads the packed integers as they are."""

from __future__ import annotations

from tensorops._dtypes import dtype_name
from tensorops._typing import Array
from tensorops._validation import shown
from tensorops.ops.quantization import quantized_linear


def _supports(
    x: Array, weight: Array, scales: Array, biases: Array | None = None, *, bits: int = 4, group_size: int = 32
) -> str | None:
    if biases is None:
        return "mx.quantized_matmul has no symmetric mode"
    if type(bits) is not int or bits not in (4, 8):
        return f"bits is {shown(bits)}, mx.quantized_matmul takes 4 and 8 here"
    if type(group_size) is not int or group_size not in (32, 64, 128):
        return f"group_size is {shown(group_size)}, mx.quantized_matmul takes 32, 64 and 128"
    for name, a in (("x", x), ("scales", scales), ("biases", biases)):
        if dtype_name(a) not in ("float16", "bfloat16", "float32"):
            return f"{name} has dtype {dtype_name(a)}, mx.quantized_matmul takes float16, bfloat16 and float32"
    if dtype_name(weight) != "uint8":
        return f"weight has dtype {dtype_name(weight)}"
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
    # MLX sums in the dtype of its arguments on the CPU: errors of 2048 products in bfloat16 reach 43 % of their spread.
    arrays: tuple[Array, ...] = (x, scales, biases)  # `_supports` has refused a call without biases
    wide, s, b = (a.astype(mx.float32) for a in arrays)
    y = mx.quantized_matmul(wide, packed, s, b, transpose=True, group_size=group_size, bits=bits)
    return y.astype(x.dtype)
