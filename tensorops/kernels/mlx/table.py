"""Quantized matrices on MLX: `mx.quantized_matmul` and `mx.gather_qmm`, which read packed integers as they are.

MLX has modes for the codes and scales in blocks of mxfp4 and nvfp4; blocks are only taken apart, once if the matrix is
prepared. The scale of mxfp4 that is NaN by the specification, 255, makes numbers infinite or NaN here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorops import formats
from tensorops._dtypes import dtype_name, nbytes
from tensorops._validation import shown
from tensorops.ops.experts import grouped_quantized_linear
from tensorops.ops.quantization import AFFINE, quantized_linear
from tensorops.typing import Array

_MODES = ("mxfp4", "nvfp4")
_GROUP_SIZES = (32, 64, 128)
_DTYPES = ("float16", "bfloat16", "float32")


def _refuse(
    x: Array,
    weight: Array,
    scales: Array | None = None,
    biases: Array | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    format: str = AFFINE,
    precision: str = "highest",
) -> str | None:
    if format not in (AFFINE, *_MODES):
        reason = f"mx.quantized_matmul has no mode for blocks of format {format!r}"
        if formats.get(format).group_size in _GROUP_SIZES:
            reason += f", only for the groups that tensorops.formats.get({format!r}).affine makes of them"
        return reason
    if format == AFFINE and group_size not in _GROUP_SIZES:
        return f"group_size is {shown(group_size)}, mx.quantized_matmul takes 32, 64 and 128"
    for name, a in (("x", x), ("scales", scales), ("biases", biases)):
        if a is not None and dtype_name(a) not in _DTYPES:
            return f"{name} has dtype {dtype_name(a)}, mx.quantized_matmul takes float16, bfloat16 and float32"
    return "x or weight is empty" if 0 in (*x.shape, *weight.shape) else None


@dataclass(frozen=True)
class _Matrix:
    """A matrix, or a stack of them, as MLX's products take it, with the options that describe it to MLX."""

    codes: Array
    scales: Array
    biases: Array | None
    options: dict[str, Any]

    def columns(self, x: Array) -> Array:
        """Return `x` in float32, its columns in the order of the codes."""
        import mlx.core as mx

        # MLX sums in the dtype of its arguments on the CPU: errors of 2048 products in bfloat16 reach 43 % of their
        # spread.
        wide = x.astype(mx.float32)
        if self.options["mode"] == AFFINE:
            return wide
        # Codes in the halves of a byte are neighbours for MLX, and half a group apart in blocks. To sort the columns of
        # x costs less than to sort the codes.
        halves = mx.unflatten(wide, -1, (-1, 2, self.options["group_size"] // 2))
        return mx.flatten(mx.swapaxes(halves, -1, -2), -3)

    def multiply(self, x: Array) -> Array:
        """Return the product of rows and the matrix."""
        import mlx.core as mx

        y = mx.quantized_matmul(self.columns(x), self.codes, self.scales, self.biases, transpose=True, **self.options)
        return y.astype(x.dtype)

    def multiply_by_expert(self, x: Array, index: Array) -> Array:
        """Return the products of rows and the matrices with their index."""
        import mlx.core as mx

        rows = mx.expand_dims(self.columns(x), -2)
        arrays = {"scales": self.scales, "biases": self.biases, "rhs_indices": index}
        return mx.gather_qmm(rows, self.codes, **arrays, transpose=True, **self.options)[..., 0, :].astype(x.dtype)


def _matrix(
    weight: Array,
    scales: Array | None = None,
    biases: Array | None = None,
    *,
    bits: int = 4,
    group_size: int = 32,
    format: str = AFFINE,
    precision: str = "highest",
) -> _Matrix:
    import mlx.core as mx

    if scales is not None:
        s = scales.astype(mx.float32)
        if biases is None:  # MLX has no signed integers
            weight, b = weight ^ 128, s * -128.0
        else:
            b = biases.astype(mx.float32)
        # Four bytes, low byte first, are one word of MLX's packing; a view copies nothing.
        return _Matrix(weight.view(mx.uint32), s, b, {"bits": bits, "group_size": group_size, "mode": AFFINE})
    of = formats.get(format)
    blocks = mx.unflatten(weight, -1, (-1, of.nbytes))
    groups = of.elements // of.group_size  # their scales are the first bytes
    own, codes = (mx.flatten(part, -2) for part in (blocks[..., :groups], blocks[..., groups:]))
    if format == "nvfp4":  # MLX reads the upper bit as a sign, and 127 as NaN
        own = own & 127
        own = mx.where(own == 127, 0, own)
    return _Matrix(codes.view(mx.uint32), own, None, {"bits": 4, "group_size": of.group_size, "mode": format})


@quantized_linear.kernel("mlx", supports=_refuse, derivative="MLX", pack=lambda **given: _pack(**given))
def _(x: Array, weight: Array, scales: Array | None, biases: Array | None, **options: Any) -> Array:
    return _matrix(weight, scales, biases, **options).multiply(x)


@grouped_quantized_linear.kernel(
    "mlx",
    supports=lambda x, experts, weight, scales, biases, **options: _refuse(x, weight, scales, biases, **options),
    derivative="MLX",
)
def _(x: Array, experts: Array, weight: Array, scales: Array | None, biases: Array | None, **options: Any) -> Array:
    import mlx.core as mx

    known = (experts >= 0) & (experts < weight.shape[0])
    index = mx.where(known, experts, 0).astype(mx.uint32)
    if biases is None and index.size < weight.shape[0]:  # what is not asked for need not be taken apart
        weight, scales = (None if a is None else a[index.flatten()] for a in (weight, scales))
        index = mx.arange(index.size, dtype=mx.uint32).reshape(index.shape)
    y = _matrix(weight, scales, biases, **options).multiply_by_expert(x, index)
    return mx.where(mx.expand_dims(known, -1), y, float("nan")).astype(x.dtype)


@dataclass(frozen=True)
class _Prepared:
    """Blocks that were taken apart, or signed integers that have got an offset."""

    matrix: _Matrix

    @property
    def nbytes(self) -> int:
        """The memory used, in bytes."""
        matrix = self.matrix
        return sum(nbytes(a) for a in (matrix.codes, matrix.scales, matrix.biases) if a is not None)

    def supports(self, x: Array) -> str | None:
        """Return why `x` cannot be multiplied by the matrix, or ``None``."""
        import mlx.core as mx

        if not isinstance(x, mx.array):
            return "x is not an mlx.core.array"
        if x.ndim == 0 or x.shape[-1] != self.matrix.scales.shape[-1] * self.matrix.options["group_size"]:
            return "x has another number of columns than the matrix"
        return _refuse(x, self.matrix.codes, self.matrix.scales if self.matrix.biases is not None else None)

    def __call__(self, x: Array) -> Any:
        """Multiply, or return ``NotImplemented``."""
        return NotImplemented if self.supports(x) else self.matrix.multiply(x)

    def plain(self) -> dict[str, Any]:
        """Return arguments with the same values."""
        import mlx.core as mx

        codes, scales = self.matrix.codes.view(mx.uint8), self.matrix.scales
        if self.matrix.biases is not None:
            return {"weight": codes ^ 128, "scales": scales}
        of = formats.get(self.matrix.options["mode"])
        parts = [
            mx.unflatten(a, -1, (-1, n)) for a, n in ((scales, of.elements // of.group_size), (codes, of.elements // 2))
        ]
        return {"weight": mx.flatten(mx.concatenate(parts, axis=-1), -2)}


def _pack(
    *, weight: Array, scales: Array | None = None, biases: Array | None = None, **options: Any
) -> _Prepared | str:
    import mlx.core as mx

    if not isinstance(weight, mx.array):
        return "weight is not an mlx.core.array"
    if biases is not None:
        return "groups with biases are multiplied as they are"
    reason = _refuse(mx.zeros(1), weight, scales, **options)
    return reason or _Prepared(_matrix(weight, scales, **options))
