"""Which operators the compiled kernels compute on torch tensors.

`linear` is torch's own product, which `linear_activation` calls, and `sample` is left out because it draws from NumPy's
generators.
"""

from __future__ import annotations

from tensorops.kernels.cpu import table
from tensorops.kernels.torch_cpu import _linear  # noqa: F401 - registers itself
from tensorops.kernels.torch_cpu._launch import register

for _operator in table.OPERATORS:
    if _operator.__name__ not in ("linear", "linear_activation", "sample"):
        register(_operator)
