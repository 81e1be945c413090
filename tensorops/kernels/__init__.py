"""Kernels: overrides of operators, one self-describing package per provider; see `Provider`."""
