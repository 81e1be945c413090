"""The extension for linear algebra.

MLX decomposes float32 and float64 matrices on its CPU stream, so these functions compute there, lazily. It supports
complex matrices only in part: for those, `cholesky`, `det`, `inv`, `pinv`, `qr`, `slogdet` and `solve` compute at once
with NumPy. Results are never narrower than the inputs, except for the complex eigenvalues of a float64 matrix, because
MLX has no complex128.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import numpy as np

from array_api_mlx import _arithmetic
from array_api_mlx._arguments import Axis, axes_of, axis_of, operands, reduced, unwrap, unwrap_of
from array_api_mlx._array_object import Array
from array_api_mlx._creation_functions import from_numpy
from array_api_mlx._dtypes import COMPLEX, FLOATING, INDEX, NUMERIC, PROMOTION, REAL_PART, pairs_of
from array_api_mlx._keys import to_numpy
from array_api_mlx._linear_algebra_functions import matmul, matrix_transpose, tensordot, vecdot
from array_api_mlx._shapeless import needs_lengths
from array_api_mlx._statistical_functions import sum as _sum, total

__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]


class EighResult(NamedTuple):
    """The result of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """The result of `eig`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The result of `qr`."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """The result of `slogdet`."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """The result of `svd`."""

    U: Array
    S: Array
    Vh: Array


def _matrices(x: Any, function: str, *, square: bool = False, what: str = "x") -> Any:
    a = unwrap_of(FLOATING, x, function, what)
    if a.ndim < 2:
        raise ValueError(f"{function}: {what} has {a.ndim} dimensions, expected at least 2")
    if square and a.shape[-1] != a.shape[-2]:
        raise ValueError(f"{function}: {what} has shape {a.shape}, expected square matrices")
    return a if a.dtype in (mx.float32, mx.float64, mx.complex64) else a.astype(mx.float32)


def _on_host(function: Callable[..., Any], *arrays: Any, dtype: Any) -> Any:
    """Compute a NumPy function of `arrays`; return one ``mx.array``, or several if it returns a tuple."""
    with np.errstate(all="ignore"):
        result = function(*map(to_numpy, arrays))
    if isinstance(result, tuple):
        return tuple(from_numpy(np.asarray(each), None) for each in result)
    return from_numpy(np.asarray(result), dtype)


def _adjoint(a: Any) -> Any:
    transposed = mx.swapaxes(a, -1, -2)
    return mx.conjugate(transposed) if a.dtype in COMPLEX else transposed


# ------------------------------------------------------------------------------------- decompositions


def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """Return the triangular factor of symmetric, positive definite matrices; complex ones use NumPy."""
    a = _matrices(x, "cholesky", square=True)
    if a.dtype in COMPLEX or not a.size:
        lower = _on_host(np.linalg.cholesky, a, dtype=a.dtype)
    else:
        lower = mx.linalg.cholesky(a, stream=mx.cpu)
    return Array(_adjoint(lower) if upper else lower)


def eigh(x: Any, /) -> EighResult:
    """Return the ascending eigenvalues and the eigenvectors of symmetric matrices."""
    a = _matrices(x, "eigh", square=True)
    if not a.size:
        return EighResult(_eigenvalues(a), Array(a))
    values, vectors = mx.linalg.eigh(a, stream=mx.cpu)
    return EighResult(Array(values), Array(vectors))


def eigvalsh(x: Any, /) -> Array:
    """Return the ascending eigenvalues of symmetric matrices."""
    a = _matrices(x, "eigvalsh", square=True)
    return Array(mx.linalg.eigvalsh(a, stream=mx.cpu)) if a.size else _eigenvalues(a)


def _eigenvalues(a: Any) -> Array:
    return Array(mx.zeros(a.shape[:-1], dtype=REAL_PART[a.dtype]))


def eig(x: Any, /) -> EigResult:
    """Return the complex eigenvalues and eigenvectors of square matrices."""
    a = _matrices(x, "eig", square=True)
    if not a.size or a.dtype in COMPLEX:
        values, vectors = _on_host(lambda y: tuple(np.linalg.eig(y.astype(np.complex64))), a, dtype=None)
    else:
        values, vectors = mx.linalg.eig(a, stream=mx.cpu)
    return EigResult(Array(values), Array(vectors))


def eigvals(x: Any, /) -> Array:
    """Return the complex eigenvalues of square matrices."""
    return eig(x).eigenvalues


def qr(x: Any, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Return the QR decomposition; complex matrices and mode "complete" use NumPy."""
    a = _matrices(x, "qr")
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode is {mode!r}, expected 'reduced' or 'complete'")
    if mode == "complete" or a.dtype in COMPLEX or not a.size:
        q, r = _on_host(lambda y: tuple(np.linalg.qr(y, mode=mode)), a, dtype=None)
    else:
        q, r = mx.linalg.qr(a, stream=mx.cpu)
    return QRResult(Array(q), Array(r))


def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decomposition."""
    a = _matrices(x, "svd")
    if not a.size:
        u, s, vh = _on_host(lambda y: tuple(np.linalg.svd(y, full_matrices=full_matrices)), a, dtype=None)
        return SVDResult(Array(u), Array(s), Array(vh))
    u, s, vh = mx.linalg.svd(a, stream=mx.cpu)
    if not full_matrices:
        rank = min(a.shape[-2:])
        u, vh = u[..., :rank], vh[..., :rank, :]
    return SVDResult(Array(u), Array(s), Array(vh))


def svdvals(x: Any, /) -> Array:
    """Return the singular values, descending."""
    a = _matrices(x, "svdvals")
    if not a.size:
        return Array(mx.zeros((*a.shape[:-2], min(a.shape[-2:])), dtype=REAL_PART[a.dtype]))
    return Array(mx.linalg.svd(a, compute_uv=False, stream=mx.cpu))


# ------------------------------------------------------------------------------------- inverses, determinants


def inv(x: Any, /) -> Array:
    """Return the inverse of square matrices; complex ones use NumPy."""
    a = _matrices(x, "inv", square=True)
    if a.dtype in COMPLEX or not a.size:
        return Array(_on_host(np.linalg.inv, a, dtype=a.dtype))
    return Array(mx.linalg.inv(a, stream=mx.cpu))


def solve(x1: Any, x2: Any, /) -> Array:
    """Return the solution of systems of equations; complex ones use NumPy."""
    a, b = _matrices(x1, "solve", square=True, what="x1"), unwrap_of(FLOATING, x2, "solve", "x2")
    dtype = PROMOTION[operands(a, b, "solve", pairs_of(FLOATING), FLOATING)[0].dtype, b.dtype]
    a, b = a.astype(dtype), b.astype(dtype)
    vector = b.ndim == 1
    b = b[:, None] if vector else b
    if b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(f"solve: x2 has shape {x2.shape}, which does not match x1 of shape {x1.shape}")
    batch = mx.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (mx.broadcast_to(y, (*batch, *y.shape[-2:])) for y in (a, b))
    if dtype in COMPLEX or not a.size or not b.size:
        solution = _on_host(np.linalg.solve, a, b, dtype=dtype)
    else:
        solution = mx.linalg.solve(a, b, stream=mx.cpu)
    return Array(solution[..., 0] if vector else solution)


def det(x: Any, /) -> Array:
    """Return the determinant of square matrices; complex ones use NumPy."""
    a = _matrices(x, "det", square=True)
    if a.dtype in COMPLEX or not a.size:
        return Array(_on_host(np.linalg.det, a, dtype=a.dtype))
    return Array(mx.linalg.det(a, stream=mx.cpu))


def slogdet(x: Any, /) -> SlogdetResult:
    """Return the sign of determinants and the logarithm of their magnitude; complex matrices use NumPy."""
    a = _matrices(x, "slogdet", square=True)
    if a.dtype in COMPLEX or not a.size:
        sign, logarithm = _on_host(lambda y: tuple(np.linalg.slogdet(y)), a, dtype=None)
    else:
        sign, logarithm = mx.linalg.slogdet(a, stream=mx.cpu)
    return SlogdetResult(Array(sign), Array(logarithm))


def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the pseudo-inverse; singular values below `rtol` times the greatest one count as zero."""
    a = _matrices(x, "pinv")
    if not a.size:
        return Array(mx.swapaxes(a, -1, -2))
    u, s, vh = (y._array for y in svd(Array(a), full_matrices=False))
    kept = s > _tolerance(a, s, rtol)
    inverse = mx.where(kept, mx.reciprocal(mx.where(kept, s, mx.ones_like(s))), mx.zeros_like(s)).astype(a.dtype)
    return Array(mx.matmul(_adjoint(vh) * inverse[..., None, :], _adjoint(u)))


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the number of singular values above `rtol` times the greatest one."""
    a = _matrices(x, "matrix_rank")
    s = svdvals(Array(a))._array
    if not s.size:
        return Array(mx.zeros(a.shape[:-2], dtype=INDEX))
    return Array(mx.sum((s > _tolerance(a, s, rtol)).astype(INDEX), axis=-1))


def _tolerance(a: Any, s: Any, rtol: Any) -> Any:
    """Return the threshold below which singular values count as zero, in the shape of the values."""
    if rtol is None:
        relative = mx.array(max(a.shape[-2:]) * float(mx.finfo(s.dtype).eps), dtype=s.dtype)
    elif isinstance(rtol, Array | mx.array):
        relative = unwrap(rtol, "pinv", "rtol").astype(s.dtype)[..., None]
    else:
        relative = mx.array(rtol, dtype=s.dtype)
    return mx.max(s, axis=-1, keepdims=True) * relative


@needs_lengths
def matrix_power(x: Any, n: int, /) -> Array:
    """Return the `n`-th power of square matrices; for negative `n`, that of the inverse."""
    a = _matrices(x, "matrix_power", square=True)
    if n < 0:
        a, n = inv(Array(a))._array, -n
    result = mx.broadcast_to(mx.eye(a.shape[-1], dtype=a.dtype), a.shape) if a.size else a
    while n and a.size:
        if n & 1:
            result = mx.matmul(result, a)
        a, n = (mx.matmul(a, a) if n > 1 else a), n >> 1
    return Array(result)


# ------------------------------------------------------------------------------------- norms


def vector_norm(x: Any, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:  # noqa: A002
    """Return the norm of vectors along an axis, or of all elements along several."""
    a = unwrap_of(FLOATING, x, "vector_norm")
    axes = axes_of(axis, a.ndim, "vector_norm")
    magnitude = mx.abs(a)
    if math.isinf(ord):
        if any(not a.shape[each] for each in axes):
            raise ValueError("vector_norm: x has no elements, so there is no greatest or least one")
        return Array(reduced(mx.max if ord > 0 else mx.min, magnitude, axes, keepdims, 0))
    if ord == 0:
        return Array(reduced(total, (a != 0).astype(magnitude.dtype), axes, keepdims, 0))
    if ord == 1:
        return Array(reduced(total, magnitude, axes, keepdims, 0))
    if ord == 2:
        return Array(mx.sqrt(reduced(total, mx.square(magnitude), axes, keepdims, 0)))
    power = mx.array(ord, dtype=magnitude.dtype)
    return Array(mx.power(reduced(total, mx.power(magnitude, power), axes, keepdims, 0), mx.reciprocal(power)))


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: float | Literal["fro", "nuc"] | None = "fro") -> Array:  # noqa: A002
    """Return the norm of matrices."""
    a = _matrices(x, "matrix_norm")
    magnitude = mx.abs(a)
    if ord is None or ord == "fro":
        norm = mx.sqrt(reduced(total, mx.square(magnitude), (a.ndim - 2, a.ndim - 1), False, 0))
    elif ord == "nuc":
        norm = reduced(total, svdvals(Array(a))._array, (a.ndim - 2,), False, 0)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = reduced(total, magnitude, (a.ndim - (2 if ord in (1, -1) else 1),), False, 0)
        norm = _greatest_or_least(sums, ord)
    elif ord in (2, -2):
        norm = _greatest_or_least(svdvals(Array(a))._array, ord)
    else:
        raise ValueError(f"matrix_norm: ord is {ord!r}, expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    return Array(norm[..., None, None] if keepdims else norm)


def _greatest_or_least(a: Any, ord: Any) -> Any:  # noqa: A002
    if not a.shape[-1]:
        return mx.zeros(a.shape[:-1], dtype=a.dtype)
    return reduced(mx.max if ord > 0 else mx.min, a, (a.ndim - 1,), False, 0)


# ------------------------------------------------------------------------------------- products, diagonals


@needs_lengths
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """Return the cross product of 3-element vectors along an axis."""
    a, b = operands(unwrap(x1, "cross", "x1"), unwrap(x2, "cross", "x2"), "cross", pairs_of(NUMERIC), NUMERIC)
    a, b = _arithmetic.promote(a, b)
    index = axis if axis < 0 else axis - max(a.ndim, b.ndim)
    for name, y in (("x1", a), ("x2", b)):
        if axis_of(index, y.ndim, "cross") >= 0 and y.shape[index] != 3:
            raise ValueError(f"cross: axis {axis} of {name} has length {y.shape[index]}, expected 3")
    a, b = mx.broadcast_arrays(a, b)
    (a0, a1, a2), (b0, b1, b2) = ([mx.moveaxis(y, index, 0)[k] for k in range(3)] for y in (a, b))
    return Array(mx.stack([a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0], axis=index))


def outer(x1: Any, x2: Any, /) -> Array:
    """Return the products of all pairs of elements of two vectors."""
    a, b = operands(unwrap(x1, "outer", "x1"), unwrap(x2, "outer", "x2"), "outer", pairs_of(NUMERIC), NUMERIC)
    if a.ndim != 1 or b.ndim != 1:
        raise ValueError(f"outer: x1 and x2 have {a.ndim} and {b.ndim} dimensions, expected 1")
    return Array(a[:, None] * b[None, :])


@needs_lengths
def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """Return the elements on a diagonal of matrices, `offset` of them to the right of the main one."""
    return Array(_diagonal(x, offset, "diagonal"))


@needs_lengths
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Return the sum of the elements on a diagonal of matrices; see `diagonal`, and `sum` for the dtype."""
    return _sum(Array(_diagonal(x, offset, "trace")), axis=-1, dtype=dtype)


def _diagonal(x: Any, offset: int, function: str) -> Any:
    a = unwrap(x, function)
    if a.ndim < 2:
        raise ValueError(f"{function}: x has {a.ndim} dimensions, expected at least 2")
    rows, columns = a.shape[-2:]
    top, left = max(-offset, 0), max(offset, 0)
    length = max(0, min(rows - top, columns - left))
    if not length:
        return mx.zeros((*a.shape[:-2], 0), dtype=a.dtype)
    steps = mx.arange(length)
    return a.reshape((*a.shape[:-2], rows * columns))[..., (steps + top) * columns + steps + left]
