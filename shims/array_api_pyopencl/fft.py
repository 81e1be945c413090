"""The extension for Fourier transforms: all except the shifts and frequencies are computed **on the host**.

See `array_api_pyopencl.host_functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from array_api_pyopencl import _dtypes, _host
from array_api_pyopencl._arguments import as_array
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._creation_functions import asarray
from array_api_pyopencl._devices import as_device
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._layout import normalize_axes
from array_api_pyopencl._manipulation_functions import roll

Norm = Literal["backward", "ortho", "forward"]


def _transform(name: str, function: Callable[..., Any], x: Array, kinds: str, real: bool, **options: Any) -> Array:
    x = as_array(name, x)
    if x.dtype.kind not in kinds:
        raise TypeError(f"{name} is not defined for {x.dtype.name}")
    if options["norm"] not in ("backward", "ortho", "forward"):
        raise ValueError(f"{name}: norm is {options['norm']!r}, expected 'backward', 'ortho' or 'forward'")
    dtype = _dtypes.real_of(x.dtype) if real else _dtypes.complex_of(x.dtype)
    return _host.run(f"fft.{name}", lambda a: function(a, **options).astype(dtype), x)  # type: ignore[no-any-return]


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the discrete Fourier transform along an axis. Computed on the host."""
    return _transform("fft", np.fft.fft, x, "fc", False, n=n, axis=axis, norm=norm)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the inverse of `fft`. Computed on the host."""
    return _transform("ifft", np.fft.ifft, x, "fc", False, n=n, axis=axis, norm=norm)


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the non-redundant half of `fft` of real numbers. Computed on the host."""
    return _transform("rfft", np.fft.rfft, x, "f", False, n=n, axis=axis, norm=norm)


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the inverse of `rfft`. Computed on the host."""
    return _transform("irfft", np.fft.irfft, x, "fc", True, n=n, axis=axis, norm=norm)


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the real transform of a signal with Hermitian symmetry. Computed on the host."""
    return _transform("hfft", np.fft.hfft, x, "fc", True, n=n, axis=axis, norm=norm)


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """Return the inverse of `hfft`. Computed on the host."""
    return _transform("ihfft", np.fft.ihfft, x, "f", False, n=n, axis=axis, norm=norm)


def fftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the discrete Fourier transform along axes. Computed on the host."""
    axes = range(-len(s), 0) if axes is None and s is not None else axes
    return _transform("fftn", np.fft.fftn, x, "fc", False, s=s, axes=axes, norm=norm)


def ifftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the inverse of `fftn`. Computed on the host."""
    axes = range(-len(s), 0) if axes is None and s is not None else axes
    return _transform("ifftn", np.fft.ifftn, x, "fc", False, s=s, axes=axes, norm=norm)


def rfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the non-redundant half of `fftn` of real numbers. Computed on the host."""
    axes = range(-len(s), 0) if axes is None and s is not None else axes
    return _transform("rfftn", np.fft.rfftn, x, "f", False, s=s, axes=axes, norm=norm)


def irfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """Return the inverse of `rfftn`. Computed on the host."""
    axes = range(-len(s), 0) if axes is None and s is not None else axes
    return _transform("irfftn", np.fft.irfftn, x, "fc", True, s=s, axes=axes, norm=norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Array:
    """Return the frequencies of `fft` for the sample spacing `d`."""
    return _frequencies(np.fft.fftfreq(n, d), dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: Any = None) -> Array:
    """Return the frequencies of `rfft` for the sample spacing `d`."""
    return _frequencies(np.fft.rfftfreq(n, d), dtype, device)


def _frequencies(values: Any, dtype: DType | None, device: Any) -> Array:
    target = as_device(device)
    dtype = target.default_float if dtype is None else target.as_dtype(dtype)
    if dtype.kind != "f":
        raise TypeError(f"frequencies are not defined for {dtype.name}")
    return asarray(values, dtype=dtype, device=target)


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return `x` with the zero frequency moved to the middle of axes, by default all."""
    x = as_array("fftshift", x)
    found = normalize_axes(axes, x.ndim)
    return roll(x, tuple(x.shape[a] // 2 for a in found), axis=found) if found else x


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Undo `fftshift`."""
    x = as_array("ifftshift", x)
    found = normalize_axes(axes, x.ndim)
    return roll(x, tuple(-(x.shape[a] // 2) for a in found), axis=found) if found else x


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
