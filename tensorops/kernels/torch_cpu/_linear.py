"""`linear` by torch's own function, which differs from the body in its speed only.

It multiplies half types as they are, sums in float32 and rounds once, with the bias in the same pass, where the body
converts the matrices first. It stays torch's operation: autograd, torch.func and torch.compile see it.
"""

from __future__ import annotations

from typing import Any

from tensorops.libraries.torch import without_autocast
from tensorops.ops.linear import linear


def _refuse(x: Any, weight: Any, bias: Any = None) -> str | None:
    import torch

    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if not isinstance(tensor, torch.Tensor):
            if tensor is not None:
                return f"{name} is not a tensor"
        elif tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
            return f"{name} is not a dense tensor on the CPU"
        elif tensor.dtype is not x.dtype:
            return f"{name} has another dtype than x"
    return None


@linear.kernel("torch_cpu", supports=_refuse, checks=True, derivative="torch")
def by_torch(x: Any, weight: Any, bias: Any = None) -> Any:
    """Compute `linear`, or return ``NotImplemented`` for what the body or an error is for."""
    import torch

    if _refuse(x, weight, bias) or not x.is_floating_point() or x.ndim == 0 or weight.ndim != 2:
        return NotImplemented
    if x.shape[-1] != weight.shape[1] or (bias is not None and tuple(bias.shape) != (weight.shape[0],)):
        return NotImplemented
    with without_autocast():
        return torch.nn.functional.linear(x, weight, bias)
