"""C++ kernels for arrays in host memory; the sources are in ``native``."""

from __future__ import annotations

import importlib

from tensorops import _hooks
from tensorops._providers import Provider

PROVIDER = Provider(
    name="cpu",
    libraries=("numpy",),
    kernels="tensorops.kernels.cpu.table",
    summary="C++ for AVX2, AVX-512 and NEON, on all cores",
)


def _features() -> frozenset[str]:
    return frozenset(importlib.import_module("tensorops.kernels.cpu._native").cpu_features())


_hooks.cpu_features.append(_features)
