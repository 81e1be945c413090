"""The linear algebra functions of the main namespace: on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

from array_api_pyopencl import _calls, _layout, _products
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._manipulation_functions import moveaxis, permute_dims, reshape


def matmul(x1: Array, x2: Array, /) -> Array:
    """Return the product of matrices, or of stacks of them that broadcast; a 1-D array is a vector.

    Raises
    ------
    ValueError
        If the shapes do not match.
    """
    return _products.matmul(as_array("matmul", x1), as_array("matmul", x2))


def matrix_transpose(x: Array, /) -> Array:
    """Return the transposes of matrices, without a copy."""
    x = as_array("matrix_transpose", x)
    return x.mT


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Return the sum of ``conj(x1) * x2`` along an axis; the other axes broadcast.

    Raises
    ------
    ValueError
        If the lengths along the axis differ.
    """
    _, (x1, x2) = _calls.meet("vecdot", as_array("vecdot", x1), as_array("vecdot", x2))
    a = moveaxis(x1, axis, -1)
    b = moveaxis(x2, axis, -1)
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"vecdot: the lengths {a.shape[-1]} and {b.shape[-1]} along the axis differ")
    result: Array = _products.product("vecdot", a[..., None, :], b[..., :, None], conjugate=True)
    shape = result.shape[:-2]
    return result._view(shape, _layout.contiguous_strides(shape))


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Return the sums of products over pairs of axes: the last of `x1` with the first of `x2`, or the given ones.

    Raises
    ------
    ValueError
        If the axes do not match.
    """
    _, (x1, x2) = _calls.meet("tensordot", as_array("tensordot", x1), as_array("tensordot", x2))
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            raise ValueError(f"tensordot: axes is {axes}, with arrays of {x1.ndim} and {x2.ndim} dimensions")
        first, second = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        first = _layout.normalize_axes(tuple(axes[0]), x1.ndim)
        second = _layout.normalize_axes(tuple(axes[1]), x2.ndim)
    lengths = tuple(x1.shape[a] for a in first)
    if lengths != tuple(x2.shape[a] for a in second):
        raise ValueError(f"tensordot: the lengths of the axes {first} and {second} differ")
    free1 = tuple(a for a in range(x1.ndim) if a not in first)
    free2 = tuple(a for a in range(x2.ndim) if a not in second)
    shape = tuple(x1.shape[a] for a in free1) + tuple(x2.shape[a] for a in free2)
    inner = math.prod(lengths)
    a = reshape(permute_dims(x1, free1 + first), (math.prod(x1.shape[i] for i in free1), inner))
    b = reshape(permute_dims(x2, second + free2), (inner, math.prod(x2.shape[i] for i in free2)))
    return reshape(_products.product("tensordot", a, b), shape)
