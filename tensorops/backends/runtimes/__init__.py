"""What the array libraries know of their devices and memory: one class a library.

A row of the table of namespaces names the class of its library in `runtime`. A plug-in's row may name a subclass of
`Runtime` of its own; without one it gets `Runtime` itself.
"""

from __future__ import annotations

from tensorops._namespaces import _attribute
from tensorops.backends.registry import Backend, describe_error
from tensorops.backends.runtimes._base import Change, DeviceFacts, MemoryStats, Runtime, is_loaded
from tensorops.backends.runtimes._cupy import CupyRuntime
from tensorops.backends.runtimes._jax import JaxRuntime
from tensorops.backends.runtimes._mlx import MlxRuntime
from tensorops.backends.runtimes._numpy import NumpyRuntime
from tensorops.backends.runtimes._pyopencl import PyopenclRuntime
from tensorops.backends.runtimes._torch import TorchRuntime

__all__ = [
    "Change",
    "CupyRuntime",
    "DeviceFacts",
    "JaxRuntime",
    "MemoryStats",
    "MlxRuntime",
    "NumpyRuntime",
    "PyopenclRuntime",
    "Runtime",
    "TorchRuntime",
    "is_loaded",
    "runtime_of",
]


def runtime_of(backend: Backend) -> Runtime:
    """Return what knows a backend's device and memory; making it imports no library.

    Raises
    ------
    RuntimeError
        If the class that its row names cannot be had or is none, with the reason.
    """
    path = backend.namespace.runtime
    try:
        runtime = _attribute(path)(backend)
    except Exception as error:  # a plug-in's class may fail in any way
        raise RuntimeError(f"backend {backend.name!r}: making {path} failed with {describe_error(error)}") from error
    if not isinstance(runtime, Runtime):
        raise RuntimeError(f"backend {backend.name!r}: {path} is no tensorops Runtime")
    return runtime
