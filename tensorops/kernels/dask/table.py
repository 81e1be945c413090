"""Which operators are computed block by block."""

from tensorops.kernels.dask import activation, normalization, positional

__all__ = ["activation", "normalization", "positional"]
