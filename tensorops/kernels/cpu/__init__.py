"""Kernels in C++ for arrays in host memory; the sources are in ``native/cpu``."""

try:
    from tensorops.kernels.cpu import _native
except ImportError as error:
    raise ImportError(
        f"the compiled module is missing ({error}): tensorops was installed without a working C++ compiler; "
        "install one (Debian: apt-get install g++), then: pip install --force-reinstall --no-deps tensorops"
    ) from error

from tensorops.kernels.cpu import normalization

__all__ = ["_native", "normalization"]
