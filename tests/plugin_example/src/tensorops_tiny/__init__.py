"""A tiny array library: its arrays, its functions, and in `library` and `kernels` what tensorops imports."""

from __future__ import annotations

from tensorops.backends import Provider

provider = Provider(
    name="tiny", libraries=("tiny",), kernels="tensorops_tiny.kernels", summary="kernels for tiny arrays, as an example"
)
