"""Linear algebra functions of the main namespace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from array_api_mlx import _arithmetic
from array_api_mlx._arguments import axes_of, reduced, unwrap
from array_api_mlx._array_object import Array
from array_api_mlx._dtypes import NUMERIC, cannot_promote, pairs_of
from array_api_mlx._shapeless import needs_lengths

_PAIRS = pairs_of(NUMERIC)


def _pair(x1: Any, x2: Any, function: str) -> tuple[Any, Any]:
    """Return two arrays with a common dtype."""
    a, b = unwrap(x1, function, "x1"), unwrap(x2, function, "x2")
    dtype = _PAIRS.get((a.dtype, b.dtype))
    if dtype is None:
        raise cannot_promote(function, a.dtype, b.dtype, NUMERIC)
    return (a, b) if a.dtype == b.dtype else (a.astype(dtype), b.astype(dtype))


def matmul(x1: Any, x2: Any, /) -> Array:
    """Return the matrix product, or that of each pair in two stacks; a first vector is a row, a second one a column."""
    return Array(_arithmetic.matmul(*_pair(x1, x2, "matmul")))


def matrix_transpose(x: Any, /) -> Array:
    """Return the transpose of a matrix, or of each of a stack of them."""
    a = unwrap(x, "matrix_transpose")
    if a.ndim < 2:
        raise ValueError(f"matrix_transpose: x has {a.ndim} dimensions, expected at least 2")
    return Array(mx.swapaxes(a, -1, -2))


@needs_lengths
def tensordot(x1: Any, x2: Any, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Return the sum of products over some axes of both: the last and first ones, or the given ones."""
    a, b = _pair(x1, x2, "tensordot")
    if isinstance(axes, int):
        first, second = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    else:
        first, second = (axes_of(tuple(each), y.ndim, "tensordot") for each, y in zip(axes, (a, b), strict=True))
    if [a.shape[i] for i in first] != [b.shape[i] for i in second]:
        raise ValueError(f"tensordot: the axes {axes} of shapes {a.shape} and {b.shape} do not have the same lengths")
    rows = [i for i in range(a.ndim) if i not in first]
    columns = [i for i in range(b.ndim) if i not in second]
    depth = math.prod(a.shape[i] for i in first)
    shape = [a.shape[i] for i in rows], [b.shape[i] for i in columns]
    left = mx.transpose(a, [*rows, *first]) if a.ndim else a
    right = mx.transpose(b, [*second, *columns]) if b.ndim else b
    product = _arithmetic.matmul(left.reshape(math.prod(shape[0]), depth), right.reshape(depth, math.prod(shape[1])))
    return Array(mx.reshape(product, (*shape[0], *shape[1])))


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Return the sum of products along an axis; complex numbers of the first are conjugated."""
    a, b = _pair(x1, x2, "vecdot")
    if axis >= 0 or -axis > min(a.ndim, b.ndim):
        raise ValueError(f"vecdot: axis is {axis}, expected a negative axis that both arrays have")
    if a.shape[axis] != b.shape[axis]:
        raise ValueError(f"vecdot: axis {axis} has length {a.shape[axis]} in x1, but {b.shape[axis]} in x2")
    left = mx.conjugate(a) if a.dtype == mx.complex64 else a
    products = left * b
    return Array(reduced(mx.sum, products, (products.ndim + axis,), False, 0).astype(a.dtype))
