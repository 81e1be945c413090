"""The extension for Fourier transforms: all except the shifts and frequencies are computed **on the host**.

See `array_api_pyopencl.host_functions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np

from array_api_pyopencl import _dtypes, _host
from array_api_pyopencl._arguments import as_array, named
from array_api_pyopencl._array_object import Array
from array_api_pyopencl._creation_functions import asarray
from array_api_pyopencl._devices import as_device
from array_api_pyopencl._dtypes import DType
from array_api_pyopencl._layout import normalize_axes
from array_api_pyopencl._manipulation_functions import roll

Norm = Literal["backward", "ortho", "forward"]


def _transform(name: str, x: Array, kinds: str, real: bool, **options: Any) -> Array:
    x = as_array(name, x)
    if x.dtype.kind not in kinds:
        raise TypeError(f"{name} is not defined for {x.dtype.name}")
    if options["norm"] not in ("backward", "ortho", "forward"):
        raise ValueError(f"{name}: norm is {options['norm']!r}, expected 'backward', 'ortho' or 'forward'")
    dtype = _dtypes.real_of(x.dtype) if real else _dtypes.complex_of(x.dtype)
    function = getattr(np.fft, name)
    return _host.run(f"fft.{name}", lambda a: function(a, **options).astype(dtype), x)  # type: ignore[no-any-return]


class _AlongAxis(Protocol):
    def __call__(self, x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array: ...


class _AlongAxes(Protocol):
    def __call__(
        self, x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
    ) -> Array: ...


def _along_axis(name: str, does: str, *, kinds: str = "fc", real: bool = False) -> _AlongAxis:
    def call(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
        return _transform(name, x, kinds, real, n=n, axis=axis, norm=norm)

    call.__doc__ = f"{does} Computed on the host."
    return named(call, name)  # type: ignore[no-any-return]


def _along_axes(name: str, does: str, *, kinds: str = "fc", real: bool = False) -> _AlongAxes:
    def call(
        x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
    ) -> Array:
        axes = range(-len(s), 0) if axes is None and s is not None else axes
        return _transform(name, x, kinds, real, s=s, axes=axes, norm=norm)

    call.__doc__ = f"{does} Computed on the host."
    return named(call, name)  # type: ignore[no-any-return]


fft = _along_axis("fft", "Return the discrete Fourier transform along an axis.")
ifft = _along_axis("ifft", "Return the inverse of `fft`.")
rfft = _along_axis("rfft", "Return the non-redundant half of `fft` of real numbers.", kinds="f")
irfft = _along_axis("irfft", "Return the inverse of `rfft`.", real=True)
hfft = _along_axis("hfft", "Return the real transform of a signal with Hermitian symmetry.", real=True)
ihfft = _along_axis("ihfft", "Return the inverse of `hfft`.", kinds="f")
fftn = _along_axes("fftn", "Return the discrete Fourier transform along axes.")
ifftn = _along_axes("ifftn", "Return the inverse of `fftn`.")
rfftn = _along_axes("rfftn", "Return the non-redundant half of `fftn` of real numbers.", kinds="f")
irfftn = _along_axes("irfftn", "Return the inverse of `rfftn`.", real=True)


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
