"""Functions computed on the host: each goes through `run` and is recorded in open traces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
"""The functions that copy their arguments to the host, compute with NumPy, and copy the result back.

Within ``with tensorops.trace()`` each call is recorded under this name, with ``"host"`` as its kernel.
"""


def run(name: str, function: Callable[..., Any], *arrays: Array, **options: Any) -> Any:
    """Compute a function of NumPy arrays on the host, and copy its result or results back to the device."""
    device = arrays[0].device
    with np.errstate(all="ignore"):
        result = function(*(x.numpy() for x in arrays), **options)

    def back(value: Any) -> Array:
        host = np.asarray(value)
        host = np.ascontiguousarray(host).reshape(host.shape)
        return Array(device.write(host), _layout.contiguous(device.require(host.dtype), host.shape), device)

    results = tuple(back(r) for r in result) if isinstance(result, tuple) else (back(result),)
    _record(name, arrays, results)
    return results if isinstance(result, tuple) else results[0]


def _record(name: str, arrays: Sequence[Array], results: Sequence[Array]) -> None:
    """Record a computation in the open `tensorops.trace`, if any, without importing tensorops."""
    settings = sys.modules.get("tensorops.backends.settings")
    current = getattr(settings, "current", None)  # missing while another thread imports the module
    log = None if current is None else current.get().log
    if log is None:
        return
    records = sys.modules["tensorops.backends.trace"]  # imported by the settings
    moved = [records.Transfer("pyopencl", "numpy", x.nbytes) for x in arrays]
    moved += [records.Transfer("numpy", "pyopencl", y.nbytes) for y in results]
    shapes, dtypes = tuple(x.shape for x in arrays), tuple(x.dtype.name for x in arrays)
    log.append(records.Record(name, "host", "pyopencl", shapes, dtypes, tuple(moved)))
