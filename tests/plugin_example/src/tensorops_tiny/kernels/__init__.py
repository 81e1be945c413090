"""A provider of kernels: this folder, which describes itself.

As ``tensorops/kernels/tiny/``, the folder would do the same inside tensorops, with no entry point.
"""

from __future__ import annotations

from tensorops.backends import Provider

PROVIDER = Provider(
    name="tiny",
    libraries=("tiny",),
    kernels=f"{__name__}.table",
    summary="kernels for tiny arrays, as an example",
)
