"""The extension for Fourier transforms. MLX computes them in single precision: float64 input gives complex64 output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import mlx.core as mx
import numpy as np

from array_api_mlx._arguments import axes_of, axis_of, require_device, unwrap, unwrap_of
from array_api_mlx._array_object import Array
from array_api_mlx._creation_functions import from_numpy
from array_api_mlx._dtypes import FLOATING, REAL_FLOATING, name_of, require_dtype

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

Norm = Literal["backward", "ortho", "forward"]
_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _require_norm(norm: str, function: str) -> None:
    if norm not in _OPPOSITE:
        raise ValueError(f"{function}: norm is {norm!r}, expected 'backward', 'ortho' or 'forward'")


def _along_one(
    x: Any, function: str, transform: Callable[..., Any], n: int | None, axis: int, norm: str, kinds: frozenset[Any]
) -> Any:
    a = unwrap_of(kinds, x, function)
    _require_norm(norm, function)
    index = axis_of(axis, a.ndim, function)
    if n is not None and n < 1:
        raise ValueError(f"{function}: n is {n}, expected a positive number")
    if not a.shape[index]:
        raise ValueError(f"{function}: axis {axis} of x has no elements")
    return transform(a, n=n, axis=index, norm=norm)


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the discrete Fourier transform along an axis, truncated or zero-padded to length `n`."""
    return Array(_along_one(x, "fft", mx.fft.fft, n, axis, norm, FLOATING))


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the inverse of `fft`."""
    return Array(_along_one(x, "ifft", mx.fft.ifft, n, axis, norm, FLOATING))


def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the non-redundant half of the transform of real numbers."""
    return Array(_along_one(x, "rfft", mx.fft.rfft, n, axis, norm, REAL_FLOATING))


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the inverse of `rfft`, real numbers."""
    return Array(_along_one(x, "irfft", mx.fft.irfft, n, axis, norm, FLOATING))


def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the transform of half of a Hermitian signal, real numbers."""
    a = unwrap_of(FLOATING, x, "hfft")
    _require_norm(norm, "hfft")
    return Array(_along_one(_conjugate(a), "hfft", mx.fft.irfft, n, axis, _OPPOSITE[norm], FLOATING))


def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the inverse of `hfft`."""
    _require_norm(norm, "ihfft")
    return Array(mx.conjugate(_along_one(x, "ihfft", mx.fft.rfft, n, axis, _OPPOSITE[norm], REAL_FLOATING)))


def _conjugate(a: Any) -> Any:
    return mx.conjugate(a) if a.dtype == mx.complex64 else a


def _along_several(
    x: Any,
    function: str,
    transform: Callable[..., Any],
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str,
    kinds: frozenset[Any],
) -> Array:
    a = unwrap_of(kinds, x, function)
    _require_norm(norm, function)
    if axes is None:
        indices = tuple(range(a.ndim)) if s is None else tuple(range(a.ndim - len(s), a.ndim))
    else:
        indices = axes_of(tuple(axes), a.ndim, function)
    if s is not None and len(s) != len(indices):
        raise ValueError(f"{function}: s has {len(s)} lengths for {len(indices)} axes")
    if any(not a.shape[index] for index in indices):
        raise ValueError(f"{function}: x has shape {a.shape} and no elements along an axis")
    return Array(transform(a, s=None if s is None else list(s), axes=list(indices), norm=norm))


def fftn(
    x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the transform along several or all axes, each truncated or zero-padded to its length in `s`."""
    return _along_several(x, "fftn", mx.fft.fftn, s, axes, norm, FLOATING)


def ifftn(
    x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the inverse of `fftn`."""
    return _along_several(x, "ifftn", mx.fft.ifftn, s, axes, norm, FLOATING)


def rfftn(
    x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the transform of real numbers along several or all axes, halved along the last."""
    return _along_several(x, "rfftn", mx.fft.rfftn, s, axes, norm, REAL_FLOATING)


def irfftn(
    x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the inverse of `rfftn`, real numbers."""
    return _along_several(x, "irfftn", mx.fft.irfftn, s, axes, norm, FLOATING)


def _frequencies(values: Any, dtype: Any, device: Any, function: str) -> Array:
    require_device(device, function)
    target = mx.float32 if dtype is None else require_dtype(dtype, function)
    if target not in REAL_FLOATING:
        raise TypeError(f"{function}: dtype is {name_of(target)}, expected a real floating-point data type")
    return Array(from_numpy(values, target))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of the elements of `fft`, for the sample spacing `d`."""
    return _frequencies(np.fft.fftfreq(n, d=d), dtype, device, "fftfreq")


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Array:
    """Return the frequencies of the elements of `rfft`, for the sample spacing `d`."""
    return _frequencies(np.fft.rfftfreq(n, d=d), dtype, device, "rfftfreq")


def fftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return `x` with the zero frequency moved to the middle of some or all axes."""
    return _shifted(x, axes, "fftshift", lambda n: n // 2)


def ifftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return the inverse of `fftshift`."""
    return _shifted(x, axes, "ifftshift", lambda n: -(n // 2))


def _shifted(x: Any, axes: int | Sequence[int] | None, function: str, by: Callable[[int], int]) -> Array:
    a = unwrap(x, function)
    for index in axes_of(tuple(axes) if isinstance(axes, Sequence) else axes, a.ndim, function):
        a = mx.roll(a, by(a.shape[index]), index) if a.size else a
    return Array(a)
