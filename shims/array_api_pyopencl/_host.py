"""The one way to what is computed on the host: every such function goes through `run`, and can be observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from array_api_pyopencl import _layout
from array_api_pyopencl._array_object import Array

host_functions: tuple[str, ...] = (
    *("linalg.cholesky", "linalg.det", "linalg.eig", "linalg.eigh", "linalg.eigvals", "linalg.eigvalsh", "linalg.inv"),
    *("linalg.matrix_norm", "linalg.matrix_rank", "linalg.pinv", "linalg.qr", "linalg.slogdet", "linalg.solve"),
    *("linalg.svd", "linalg.svdvals"),
    *("fft.fft", "fft.ifft", "fft.fftn", "fft.ifftn", "fft.rfft", "fft.irfft", "fft.rfftn", "fft.irfftn"),
    *("fft.hfft", "fft.ihfft"),
)
"""The functions that copy their arguments to the host, compute with NumPy, and copy the result back."""

host_observers: list[Callable[[str], None]] = []
"""What is called with the function's name whenever something is computed on the host."""


def run(name: str, function: Callable[..., Any], *arrays: Array, **options: Any) -> Any:
    """Compute a function of NumPy arrays on the host; its result, or each of its results, returns to the device."""
    for observe in host_observers:
        observe(name)
    device = arrays[0].device
    with np.errstate(all="ignore"):
        result = function(*(x.numpy() for x in arrays), **options)

    def back(value: Any) -> Array:
        host = np.asarray(value)
        host = np.ascontiguousarray(host).reshape(host.shape)
        return Array(device.write(host), _layout.contiguous(device.require(host.dtype), host.shape), device)

    return tuple(back(r) for r in result) if isinstance(result, tuple) else back(result)
