"""Fused, numerically careful tensor operators for every Python array library.

An operator accepts arrays of NumPy, CuPy, JAX, MLX, PyTorch, Dask or any other library in its table, computes where
they live with the best available kernel, and returns the same kind. `set_backend` chooses another backend.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorops import _hooks, _providers, kernels
from tensorops import rope_scaling as rope_scaling
from tensorops._explanation import Explanation
from tensorops._operator import KernelRefusedError
from tensorops._prepared import Prepared, prepare
from tensorops._tuning import tune
from tensorops.backends import (
    BackendFallbackWarning,
    BackendUnavailableError,
    Record,
    Trace,
    Transfer,
    array_agnostic,
    bind_settings,
    device,
    get_backend,
    get_default_backend,
    get_namespace,
    register_backend,
    reload_config,
    set_backend,
    set_default_backend,
    to_backend,
    trace,
)
from tensorops.backends.process_default import start as _start
from tensorops.ops._trial import wrong_result as _wrong_result
from tensorops.ops.activation import (
    elu,
    geglu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log_softmax,
    logsumexp,
    mish,
    quick_gelu,
    reglu,
    relu,
    relu_squared,
    selu,
    sigmoid,
    silu,
    softmax,
    softplus,
    squareplus,
    swiglu,
)
from tensorops.ops.attention import scaled_dot_product_attention
from tensorops.ops.blocks import multi_head_attention
from tensorops.ops.contraction import einsum
from tensorops.ops.experts import grouped_linear, grouped_quantized_linear, moe
from tensorops.ops.linear import embedding, gated_linear_unit, linear
from tensorops.ops.loss import cross_entropy, linear_cross_entropy
from tensorops.ops.normalization import add_rms_norm, group_norm, instance_norm, l2_norm, layer_norm, rms_norm
from tensorops.ops.positional import rope
from tensorops.ops.quantization import dequantize, quantize, quantized_linear
from tensorops.ops.sampling import sample
from tensorops.ops.selection import top_k

if TYPE_CHECKING:
    from tensorops.backends.configure import configure
    from tensorops.backends.listing import (
        get_available_backends,
        get_backend_info,
        is_backend_available,
        list_backends,
    )
    from tensorops.backends.memory import MemoryMonitor, empty_cache, get_memory_stats, synchronize
    from tensorops.backends.options import get_config
    from tensorops.backends.ranking import OptimalBackend, get_optimal_backend
    from tensorops.hardware import Hardware, detect_hardware
    from tensorops.kernels.cpu.interface import get_include, get_library
    from tensorops.libraries import ConfigurationError, MemoryStats
    from tensorops.libraries.cupy import CUDAConfig
    from tensorops.libraries.jax import JAXConfig
    from tensorops.libraries.mlx import MLXConfig
    from tensorops.libraries.numpy import CPUConfig
    from tensorops.libraries.pyopencl import OpenCLConfig
    from tensorops.persistent import CaptureError, PersistentKernel
    from tensorops.testing.validate import ValidationReport, validate

__version__ = "0.2.0"

__all__ = [
    "BackendFallbackWarning",
    "BackendUnavailableError",
    "CPUConfig",
    "CUDAConfig",
    "CaptureError",
    "ConfigurationError",
    "Explanation",
    "Hardware",
    "JAXConfig",
    "KernelRefusedError",
    "MLXConfig",
    "MemoryMonitor",
    "MemoryStats",
    "OpenCLConfig",
    "OptimalBackend",
    "PersistentKernel",
    "Prepared",
    "Record",
    "Trace",
    "Transfer",
    "ValidationReport",
    "add_rms_norm",
    "array_agnostic",
    "bind_settings",
    "configure",
    "cross_entropy",
    "dequantize",
    "detect_hardware",
    "device",
    "einsum",
    "elu",
    "embedding",
    "empty_cache",
    "gated_linear_unit",
    "geglu",
    "gelu",
    "get_available_backends",
    "get_backend",
    "get_backend_info",
    "get_config",
    "get_default_backend",
    "get_include",
    "get_library",
    "get_memory_stats",
    "get_namespace",
    "get_optimal_backend",
    "group_norm",
    "grouped_linear",
    "grouped_quantized_linear",
    "hard_sigmoid",
    "hard_swish",
    "instance_norm",
    "is_backend_available",
    "l2_norm",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_cross_entropy",
    "list_backends",
    "log_softmax",
    "logsumexp",
    "mish",
    "moe",
    "multi_head_attention",
    "prepare",
    "quantize",
    "quantized_linear",
    "quick_gelu",
    "register_backend",
    "reglu",
    "reload_config",
    "relu",
    "relu_squared",
    "rms_norm",
    "rope",
    "sample",
    "scaled_dot_product_attention",
    "selu",
    "set_backend",
    "set_default_backend",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "squareplus",
    "swiglu",
    "synchronize",
    "to_backend",
    "top_k",
    "trace",
    "tune",
    "validate",
]

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


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tensorops' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_providers.register_package(kernels.__name__, kernels.__path__)
_hooks.wrong_result.append(_wrong_result)
_start()
