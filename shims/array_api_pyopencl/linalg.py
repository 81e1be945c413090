"""The extension for linear algebra.

Products, vector norms, powers and traces are computed on the device. Decompositions and functions based on them are
computed **on the host** with NumPy, as their docstrings say; see `array_api_pyopencl.host_functions`.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np

from array_api_pyopencl import (
    _calls,
    _dtypes,
    _elementwise_functions,
    _host,
    _layout,
    _statistical_functions as _statistics,
)
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._creation_functions import eye, zeros_like
from array_api_pyopencl._data_type_functions import astype
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._linear_algebra_functions import matmul, matrix_transpose, tensordot, vecdot
from array_api_pyopencl._manipulation_functions import broadcast_arrays, moveaxis, stack


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


def _matrices(name: str, x: Array, *, square: bool = False) -> Array:
    x = as_array(name, x)
    if x.dtype.kind not in "fc":
        raise TypeError(f"{name} is not defined for {x.dtype.name}; convert it to a floating-point type")
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise ValueError(f"{name}: expected {'square ' if square else ''}matrices, not an array of shape {x.shape}")
    return x


def _solved(name: str, function: Any, *arrays: Array, **options: Any) -> Any:
    try:
        return _host.run(f"linalg.{name}", function, *arrays, **options)
    except np.linalg.LinAlgError as error:
        raise ValueError(f"{name}: {error}") from None


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """Return the Cholesky factors of positive definite matrices, by default lower ones. Computed on the host.

    Raises
    ------
    ValueError
        If a matrix is not positive definite.
    """
    x = _matrices("cholesky", x, square=True)
    return _solved("cholesky", np.linalg.cholesky, x, upper=upper)  # type: ignore[no-any-return]


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Return the cross products of 3-element vectors along an axis.

    Raises
    ------
    ValueError
        If the axis has another length.
    """
    _, (x1, x2) = _calls.meet("cross", as_array("cross", x1), as_array("cross", x2))
    if min(x1.ndim, x2.ndim) == 0 or not -min(x1.ndim, x2.ndim) <= axis < max(x1.ndim, x2.ndim):
        raise ValueError(f"cross: axis {axis} is out of bounds")
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError("cross: the axis must have three elements")
    a, b = broadcast_arrays(x1, x2)
    a, b = moveaxis(a, axis, -1), moveaxis(b, axis, -1)
    parts = []
    for i, j in ((1, 2), (2, 0), (0, 1)):
        parts.append(a[..., i] * b[..., j] - a[..., j] * b[..., i])
    return moveaxis(stack(parts, axis=-1), -1, axis)


def det(x: Array, /) -> Array:
    """Return the determinants of square matrices. Computed on the host."""
    x = _matrices("det", x, square=True)
    return _solved("det", np.linalg.det, x)  # type: ignore[no-any-return]


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices, without a copy."""
    x = as_array("diagonal", x)
    if x.ndim < 2:
        raise ValueError(f"diagonal: expected matrices, not an array of shape {x.shape}")
    rows, columns = x.shape[-2:]
    down, right = x._layout.strides[-2:]
    first, second = max(-offset, 0), max(offset, 0)
    length = max(min(rows - first, columns - second), 0)
    start = x._layout.offset + (first * down + second * right if length else 0)
    return x._view((*x.shape[:-2], length), (*x._layout.strides[:-2], down + right), start)


def eigh(x: Array, /) -> EighResult:
    """Return the eigenvalues and eigenvectors of symmetric or Hermitian matrices. Computed on the host."""
    x = _matrices("eigh", x, square=True)
    return EighResult(*_solved("eigh", lambda a: tuple(np.linalg.eigh(a)), x))


def eigvalsh(x: Array, /) -> Array:
    """Return the eigenvalues of symmetric or Hermitian matrices. Computed on the host."""
    x = _matrices("eigvalsh", x, square=True)
    return _solved("eigvalsh", np.linalg.eigvalsh, x)  # type: ignore[no-any-return]


def eig(x: Array, /) -> EigResult:
    """Return the complex eigenvalues and eigenvectors of square matrices. Computed on the host."""
    x = _matrices("eig", x, square=True)
    dtype = _dtypes.complex_of(x.dtype)
    return EigResult(*_solved("eig", lambda a: tuple(y.astype(dtype) for y in np.linalg.eig(a)), x))


def eigvals(x: Array, /) -> Array:
    """Return the complex eigenvalues of square matrices. Computed on the host."""
    x = _matrices("eigvals", x, square=True)
    dtype = _dtypes.complex_of(x.dtype)
    return _solved("eigvals", lambda a: np.linalg.eigvals(a).astype(dtype), x)  # type: ignore[no-any-return]


def inv(x: Array, /) -> Array:
    """Return the inverses of square matrices. Computed on the host.

    Raises
    ------
    ValueError
        If a matrix is singular.
    """
    x = _matrices("inv", x, square=True)
    return _solved("inv", np.linalg.inv, x)  # type: ignore[no-any-return]


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:  # noqa: A002
    """Return norms of matrices. The orders ``"nuc"``, 2 and -2 use singular values, computed on the host."""
    x = _matrices("matrix_norm", x)
    if ord in ("nuc", 2, -2):

        def of_singular_values(a: Any) -> Any:
            s = np.linalg.svd(a, compute_uv=False)
            found = s.sum(-1) if ord == "nuc" else s.max(-1) if ord == 2 else s.min(-1)
            return found[..., None, None] if keepdims else found

        return _solved("matrix_norm", of_singular_values, x)  # type: ignore[no-any-return]
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    sums = {1: -2, -1: -2, math.inf: -1, -math.inf: -1}
    if ord not in sums:
        raise ValueError(f"matrix_norm: ord is {ord!r}, expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    lines = _statistics.sum(_elementwise_functions.abs(x), axis=sums[ord], keepdims=True)
    extreme = _statistics.max if ord > 0 else _statistics.min
    return extreme(lines, axis=(-2, -1), keepdims=keepdims)


def matrix_power(x: Array, n: int, /) -> Array:
    """Return powers of square matrices, by repeated squaring on the device; negative powers use `inv`."""
    x = _matrices("matrix_power", x, square=True)
    if n < 0:
        x, n = inv(x), -n
    identity = eye(x.shape[-1], dtype=x.dtype, device=x.device)
    result = _elementwise_functions.add(zeros_like(x), identity)
    while n:
        if n & 1:
            result = matmul(result, x)
        n >>= 1
        x = matmul(x, x) if n else x
    return result


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Return the number of singular values above `rtol` times the largest, for matrices. Computed on the host."""
    x = _matrices("matrix_rank", x)

    def rank(a: Any, tolerance: Any = rtol) -> Any:
        s = np.linalg.svd(a, compute_uv=False)
        if tolerance is None:
            tolerance = max(a.shape[-2:]) * np.finfo(s.dtype).eps
        largest = s.max(-1, keepdims=True, initial=0)
        return (s > largest * np.asarray(tolerance)[..., None]).sum(-1).astype(np.int64)

    if isinstance(rtol, Array):
        return _solved("matrix_rank", rank, x, rtol)  # type: ignore[no-any-return]
    return _solved("matrix_rank", rank, x)  # type: ignore[no-any-return]


def outer(x1: Array, x2: Array, /) -> Array:
    """Return the products of all pairs of elements of two vectors."""
    x1, x2 = as_array("outer", x1), as_array("outer", x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"outer needs vectors, not shapes {x1.shape} and {x2.shape}")
    return _calls.binary("multiply", x1[:, None], x2[None, :])


def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Return the pseudo-inverses of matrices. Computed on the host."""
    x = _matrices("pinv", x)
    if rtol is None:
        rtol = max(x.shape[-2:]) * float(np.finfo(_dtypes.real_of(x.dtype)).eps)
    if isinstance(rtol, Array):
        return _solved("pinv", lambda a, r: np.linalg.pinv(a, rcond=r), x, rtol)  # type: ignore[no-any-return]
    return _solved("pinv", lambda a: np.linalg.pinv(a, rcond=rtol), x)  # type: ignore[no-any-return]


def qr(x: Array, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Return the QR decomposition of matrices. Computed on the host."""
    x = _matrices("qr", x)
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: mode is {mode!r}, expected 'reduced' or 'complete'")
    return QRResult(*_solved("qr", lambda a: tuple(np.linalg.qr(a, mode=mode)), x))


def slogdet(x: Array, /) -> SlogdetResult:
    """Return the signs of determinants and the logarithms of their absolute values. Computed on the host."""
    x = _matrices("slogdet", x, square=True)
    return SlogdetResult(*_solved("slogdet", lambda a: tuple(np.linalg.slogdet(a)), x))


def solve(x1: Array, x2: Array, /) -> Array:
    """Return the solutions of linear equations; a 1-D `x2` is one vector. Computed on the host.

    Raises
    ------
    ValueError
        If a matrix is singular, or the shapes do not match.
    """
    _, (x1, x2) = _calls.meet("solve", as_array("solve", x1), as_array("solve", x2))
    _matrices("solve", x1, square=True)
    if x2.shape[-2 if x2.ndim > 1 else -1 :][:1] != x1.shape[-1:]:
        raise ValueError(f"solve: x2 has shape {x2.shape}, which does not match x1 of shape {x1.shape}")
    dtype = _dtypes.promote(x1.dtype, x2.dtype)
    x1, x2 = astype(x1, dtype, copy=False), astype(x2, dtype, copy=False)

    def solved(a: Any, b: Any) -> Any:
        return np.linalg.solve(a, b[..., None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b)

    return _solved("solve", solved, x1, x2)  # type: ignore[no-any-return]


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decomposition of matrices. Computed on the host."""
    x = _matrices("svd", x)
    return SVDResult(*_solved("svd", lambda a: tuple(np.linalg.svd(a, full_matrices=full_matrices)), x))


def svdvals(x: Array, /) -> Array:
    """Return the singular values of matrices. Computed on the host."""
    x = _matrices("svdvals", x)
    return _solved("svdvals", lambda a: np.linalg.svd(a, compute_uv=False), x)  # type: ignore[no-any-return]


def trace(x: Array, /, *, offset: int = 0, dtype: DType | None = None) -> Array:
    """Return the sums of the diagonals of matrices."""
    return _statistics.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,  # noqa: A002
) -> Array:
    """Return norms of vectors along axes, by default of all elements."""
    x = as_array("vector_norm", x)
    if x.dtype.kind not in "fc":
        raise TypeError(f"vector_norm is not defined for {x.dtype.name}")
    axes = _layout.normalize_axes(axis, x.ndim)
    sizes = _elementwise_functions.abs(x)
    options: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    if ord == math.inf:
        return _statistics.max(sizes, **options)
    if ord == -math.inf:
        return _statistics.min(sizes, **options)
    if ord == 0:
        nonzero = astype(_elementwise_functions.not_equal(sizes, 0), sizes.dtype)
        return _statistics.sum(nonzero, **options)
    if ord == 1:
        return _statistics.sum(sizes, **options)
    if ord == 2:
        return _elementwise_functions.sqrt(_statistics.sum(_elementwise_functions.square(sizes), **options))
    powers = _elementwise_functions.pow(sizes, float(ord))
    return _elementwise_functions.pow(_statistics.sum(powers, **options), 1 / ord)


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
