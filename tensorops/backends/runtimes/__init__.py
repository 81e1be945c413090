"""What the array libraries know of their devices and memory: one class a library.

A row of the table of namespaces names the class of its library in `runtime`. A plug-in's row may name a subclass of
`Runtime` of its own; without one it gets `Runtime` itself.
"""

from __future__ import annotations

from tensorops._namespaces import _attribute
from tensorops.backends.registry import Backend
from tensorops.backends.runtimes._base import Change, DeviceFacts, MemoryStats, Runtime
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
    "runtime_of",
]


def runtime_of(backend: Backend) -> Runtime:
    """Return what knows a backend's device and memory; making it imports no library."""
    runtime = _attribute(backend.namespace.runtime)(backend)
    if not isinstance(runtime, Runtime):
        raise TypeError(f"{backend.namespace.runtime} of backend {backend.name!r} is no tensorops Runtime")
    return runtime
