"""`linear` by a library's product of matrices: what the kernels of `onednn` and `mkl` share.

A library's half types are used where its sums are float32 and no number is lost; elsewhere the arrays are widened
first, which gives the same result, only later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from tensorops.typing import Array

Matrix: TypeAlias = np.ndarray[Any, Any]

FLOAT16, FLOAT32, FLOAT64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_FLOATING = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)

_LARGEST_SIDE = 2**31 - 1  # the libraries' sizes and strides are 32-bit integers in their usual interface

Product: TypeAlias = Callable[[bool, int, int, int, int, int, int, int, float, int, int], None]
"""Computes ``y = x @ weight.T + beta * y`` in row-major order.

It takes whether `weight` is stored transposed, the rows of `x` and of `weight` and the columns of both, then the
address and the row stride (in elements) of `x` and of `weight`, `beta`, and the address and the row stride of `y`.
"""


def refuse(x: Array, weight: Array, bias: Array | None) -> str | None:
    """Return why arrays cannot be multiplied by a library, or ``None``."""
    for name, a in (("x", x), ("weight", weight), ("bias", bias)):
        if a is None:
            continue
        if not isinstance(a, np.ndarray):
            return f"{name} is not a numpy.ndarray"
        if a.dtype not in _FLOATING:  # among them those in the other byte order
            return f"{name} has dtype {a.dtype.str}, expected native float16, bfloat16, float32 or float64"
    if x.size == 0 or weight.size == 0:
        return "x or weight is empty"
    if max(x.size // x.shape[-1], *weight.shape) > _LARGEST_SIDE:
        return f"x or weight has an axis longer than {_LARGEST_SIDE}"
    return None


def is_float64(*arrays: Matrix | None) -> bool:
    """Return whether one of the arrays is float64, so that the computation is."""
    return any(a is not None and a.dtype == FLOAT64 for a in arrays)


def affine(
    x: Matrix, weight: Matrix, bias: Matrix | None, dtype: np.dtype[Any], product: Product, *, wide: np.dtype[Any]
) -> Matrix:
    """Return ``x @ weight.T + bias`` in the dtype of `x`.

    Parameters
    ----------
    x, weight, bias
        The canonical arguments of `linear`.
    dtype
        What `product` multiplies; `x` and `weight` are converted to it.
    product
        The library's function.
    wide
        What `product` sums in: the dtype of its result, which is rounded once.
    """
    inputs = x.shape[-1]
    rows, _, row_stride = _operand(np.reshape(x, (-1, inputs)), dtype, transposable=False)
    factor, transposed, stride = _operand(weight, dtype, transposable=True)
    count, outputs = rows.shape[0], weight.shape[0]
    y = np.empty((count, outputs), dtype=wide)
    if bias is not None:
        y[...] = bias
    product(
        transposed, count, outputs, inputs,
        rows.ctypes.data, row_stride, factor.ctypes.data, stride,
        float(bias is not None), y.ctypes.data, outputs,
    )  # fmt: skip
    y = y.reshape((*x.shape[:-1], outputs))
    if y.dtype == x.dtype:
        return y
    with np.errstate(all="ignore"):  # an overflow becomes infinite, as everywhere
        return y.astype(x.dtype)


def _operand(a: Matrix, dtype: np.dtype[Any], *, transposable: bool) -> tuple[Matrix, bool, int]:
    """Return a matrix that a library can read, whether it is stored transposed, and its stride in elements."""
    if a.dtype == dtype and a.flags.aligned:
        size, (rows, columns), (down, across) = a.itemsize, a.shape, a.strides
        if _is_plain(down, across, columns, rows, size):
            return a, False, max(down // size, columns) if rows > 1 else columns
        if transposable and _is_plain(across, down, rows, columns, size):
            return a, True, max(across // size, rows) if columns > 1 else rows
    with np.errstate(all="ignore"):
        return np.require(a, dtype, ("C", "A")), False, a.shape[1]


def _is_plain(down: int, across: int, columns: int, rows: int, size: int) -> bool:
    if across != size and columns > 1:
        return False
    return rows == 1 or (down >= columns * size and down % size == 0 and down // size <= _LARGEST_SIDE)


_CHUNK = 1 << 16  # elements that stay in the second-level cache
_SUM_OF_EXPONENTS = 142  # of the smallest factors, as stored: their product has no bit below 2**-126


def keeps_small_numbers(x: Matrix, weight: Matrix) -> bool:
    """Return whether instructions that flush subnormal numbers to zero multiply two bfloat16 matrices without loss.

    They do if no element is subnormal, and every bit of every product is at least 2**-126: so is every sum then.
    """
    first = _smallest_exponent(x)
    return first > 0 and (smallest := _smallest_exponent(weight)) > 0 and first + smallest >= _SUM_OF_EXPONENTS


def _smallest_exponent(a: Matrix) -> int:
    """Return the exponent of the smallest number other than zero, as stored; 0 if it is subnormal."""
    bits = np.ascontiguousarray(a).view(np.uint16).reshape(-1)
    spare = np.empty(min(_CHUNK, bits.size), dtype=np.uint16)
    smallest = 0xFFFF
    for start in range(0, bits.size, _CHUNK):
        part = bits[start : start + _CHUNK]
        doubled = np.add(part, part, out=spare[: part.size])  # without the sign
        smallest = min(smallest, int(np.subtract(doubled, np.uint16(1), out=doubled).min()))  # 0 becomes the largest
        if smallest < 0xFF:
            return 0
    return (smallest + 1) >> 8
