"""MKL's products of matrices for NumPy arrays, from the wheel `mkl` of PyPI; by name only."""

from __future__ import annotations

from tensorops._providers import Provider

PROVIDER = Provider(
    name="mkl",
    libraries=("numpy",),
    kernels="tensorops.kernels.mkl.table",
    summary="MKL's products of matrices, by name",
    by_name=True,  # others were mostly as fast: see docs/design-decisions.md
    operators=("linear",),
    distribution="mkl",
)
