"""Kernels: overrides of operators, one package a provider, the same module names as in `tensorops.ops`.

A provider's package is imported when the first array that it may serve arrives. It must not import an array
library by itself: its launchers do, when they run.
"""

from __future__ import annotations

import importlib

PROVIDERS: dict[str, str] = {
    "cpu": "tensorops.kernels.cpu",
    "mlx": "tensorops.kernels.mlx",
}
"""Every provider and the package that registers its kernels."""

_reasons: dict[str, str] = {}


def load(provider: str) -> str:
    """Register a provider's kernels, once; return why it cannot be loaded, or an empty string."""
    if provider not in _reasons:
        try:
            importlib.import_module(PROVIDERS[provider])
            _reasons[provider] = ""
        except ImportError as error:
            _reasons[provider] = str(error)
    return _reasons[provider]
