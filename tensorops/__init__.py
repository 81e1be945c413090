"""Fused, numerically careful tensor operators for every Python array library.

An operator accepts arrays of NumPy, CuPy, JAX, MLX, PyTorch, Dask or any other library in its table, computes where
they live with the best available kernel, and returns the same kind. `set_backend` chooses another backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorops import _hooks, _providers, kernels, rope_scaling as rope_scaling
from tensorops._dispatch import KernelRefusedError as KernelRefusedError
from tensorops._explanation import Explanation as Explanation
from tensorops._prepared import Prepared as Prepared, prepare as prepare
from tensorops._tuning import tune as tune
from tensorops.backends import (
    BackendFallbackWarning as BackendFallbackWarning,
    BackendUnavailableError as BackendUnavailableError,
    Record as Record,
    Trace as Trace,
    Transfer as Transfer,
    array_agnostic as array_agnostic,
    bind_settings as bind_settings,
    device as device,
    get_backend as get_backend,
    get_default_backend as get_default_backend,
    get_namespace as get_namespace,
    register_backend as register_backend,
    reload_config as reload_config,
    set_backend as set_backend,
    set_default_backend as set_default_backend,
    to_backend as to_backend,
    trace as trace,
)
from tensorops.backends.process_default import start as _start
from tensorops.ops._trial import wrong_result as _wrong_result
from tensorops.ops.activation import *
from tensorops.ops.attention import *
from tensorops.ops.blocks import *
from tensorops.ops.contraction import *
from tensorops.ops.experts import *
from tensorops.ops.linear import *
from tensorops.ops.loss import *
from tensorops.ops.normalization import *
from tensorops.ops.positional import *
from tensorops.ops.quantization import *
from tensorops.ops.recurrence import *
from tensorops.ops.sampling import *
from tensorops.ops.selection import *

if TYPE_CHECKING:
    from tensorops.backends.configure import configure as configure
    from tensorops.backends.listing import (
        get_available_backends as get_available_backends,
        get_backend_info as get_backend_info,
        is_backend_available as is_backend_available,
        list_backends as list_backends,
    )
    from tensorops.backends.memory import (
        MemoryMonitor as MemoryMonitor,
        empty_cache as empty_cache,
        get_memory_stats as get_memory_stats,
        synchronize as synchronize,
    )
    from tensorops.backends.options import get_config as get_config
    from tensorops.backends.ranking import OptimalBackend as OptimalBackend, get_optimal_backend as get_optimal_backend
    from tensorops.hardware import Hardware as Hardware, detect_hardware as detect_hardware
    from tensorops.kernels.cpu.interface import get_include as get_include, get_library as get_library
    from tensorops.libraries import ConfigurationError as ConfigurationError, MemoryStats as MemoryStats
    from tensorops.libraries.cupy import CUDAConfig as CUDAConfig
    from tensorops.libraries.jax import JAXConfig as JAXConfig
    from tensorops.libraries.mlx import MLXConfig as MLXConfig
    from tensorops.libraries.numpy import CPUConfig as CPUConfig
    from tensorops.libraries.pyopencl import OpenCLConfig as OpenCLConfig
    from tensorops.persistent import CaptureError as CaptureError, PersistentKernel as PersistentKernel
    from tensorops.testing.validate import ValidationReport as ValidationReport, validate as validate

__version__ = "0.2.0"

# Rarely used names are imported on first use: importing tensorops takes less time than NumPy.
_LATER = {
    "backends.configure": "configure",
    "backends.listing": "get_available_backends get_backend_info is_backend_available list_backends",
    "backends.memory": "MemoryMonitor empty_cache get_memory_stats synchronize",
    "backends.options": "get_config",
    "backends.ranking": "OptimalBackend get_optimal_backend",
    "hardware": "Hardware detect_hardware",
    "kernels.cpu.interface": "get_include get_library",
    "libraries": "ConfigurationError MemoryStats",
    "libraries.cupy": "CUDAConfig",
    "libraries.jax": "JAXConfig",
    "libraries.mlx": "MLXConfig",
    "libraries.numpy": "CPUConfig",
    "libraries.pyopencl": "OpenCLConfig",
    "persistent": "CaptureError PersistentKernel",
    "testing.validate": "ValidationReport validate",
}
_MODULE_OF = {name: f"tensorops.{module}" for module, names in _LATER.items() for name in names.split()}


def _is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", "").startswith("tensorops.")


if not TYPE_CHECKING:  # type checkers go by the imports above, in which `as` and `*` mean that names are public
    __all__ = sorted({*_MODULE_OF, *(name for name, value in globals().items() if _is_public(name, value))})

    def __dir__() -> list[str]:
        return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tensorops' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


_providers.register_package(kernels.__name__, kernels.__path__)
_hooks.wrong_result.append(_wrong_result)
_start()
