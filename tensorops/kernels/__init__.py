"""Kernels: overrides of operators, one package for each provider, which describes itself; see `Provider`."""

from tensorops._kernel import Configuration, Deviation, Packed

__all__ = ["Configuration", "Deviation", "Packed"]
