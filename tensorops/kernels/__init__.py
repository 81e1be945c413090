"""Kernels: overrides of operators, one package for each provider, which describes itself; see `Provider`."""
