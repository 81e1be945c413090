"""Which operators the compiled kernels compute on torch tensors.

`linear` is left out because its body is a single torch product, and `sample` because it draws from NumPy's generators.
"""

from __future__ import annotations

from tensorops.kernels.cpu import table
from tensorops.kernels.torch_cpu._launch import register

for _operator in table.OPERATORS:
    if _operator.__name__ not in ("linear", "sample"):
        register(_operator)
