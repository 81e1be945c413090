"""Kernels: overrides of operators, one package a provider, the same module names as in `tensorops.ops`.

A provider's package is imported when the first array that it may serve arrives. It must not import an array
library by itself: its launchers do, when they run.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

PROVIDERS: dict[str, str] = {
    "cpu": "tensorops.kernels.cpu",
    "dask": "tensorops.kernels.dask",
    "mlx": "tensorops.kernels.mlx",
    "torch_cpu": "tensorops.kernels.torch_cpu",
    "xla": "tensorops.kernels.xla",
}
"""Every provider and the package that registers its kernels."""

_reasons: dict[str, str] = {}


def require_new_providers(packages: Mapping[str, str]) -> None:
    """Raise `ValueError` if a provider is known already, with another package."""
    for provider, package in packages.items():
        if provider == "generic" or PROVIDERS.get(provider, package) != package:
            raise ValueError(f"the provider of kernels {provider!r} is already known")


def load(provider: str) -> str:
    """Register a provider's kernels, once; return why it cannot be loaded, or an empty string."""
    reason = _reasons.get(provider)
    if reason is None:
        reason = ""
        try:
            importlib.import_module(PROVIDERS[provider])
        except ImportError as error:
            reason = str(error)
        except Exception as error:
            if PROVIDERS[provider].partition(".")[0] == "tensorops":
                raise
            reason = f"{type(error).__name__}: {error}"  # another author's package may raise anything
        # What a first attempt left behind may make that of a thread which waited for it fail in another way.
        reason = _reasons.setdefault(provider, reason)
    return reason
