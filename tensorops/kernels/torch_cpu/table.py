"""Which operators the compiled kernels compute on torch tensors.

`linear` is not among them, as its body is one product of torch's own; neither is `sample`, which draws from NumPy's
generators.
"""

from __future__ import annotations

from tensorops.kernels.cpu import table
from tensorops.kernels.torch_cpu._launch import register

for _operator in table.OPERATORS:
    if _operator.__name__ not in ("linear", "sample"):
        register(_operator)
