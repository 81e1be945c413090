"""Kernels: overrides of operators, one package for each provider, which describes itself; see `Provider`."""

from tensorops._operator import Deviation

__all__ = ["Deviation"]
