"""Torch tensors as NumPy arrays and back, where only this call needs to see the operation."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tensorops._dtypes import name_of
from tensorops._operator import Operator
from tensorops.libraries.torch import refuse_tensors


def register(operator: Operator[..., Any]) -> None:
    """Register the operator's kernel of the provider ``cpu`` for torch tensors as well."""
    compiled = operator._kernels["cpu"]

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        if reason := refuse_tensors((*args, *kwargs.values()), host=True):
            return reason
        return compiled.supports(*_views(args), **dict(zip(kwargs, _views(kwargs.values()), strict=True)))

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if refuse_tensors((*args, *kwargs.values()), host=True):
            return NotImplemented
        try:
            views, options = _views(args), dict(zip(kwargs, _views(kwargs.values()), strict=True))
        except RuntimeError:  # of a nested tensor; the operator's words follow
            return NotImplemented
        result = compiled.function(*views, **options)
        if result is NotImplemented:
            return result
        return tuple(map(_tensor, result)) if type(result) is tuple else _tensor(result)

    operator.kernel("torch_cpu", supports=supports, checks=True)(kernel)


@functools.cache
def _torch() -> Any:
    import torch

    return torch


@functools.cache
def _bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _views(arguments: Any) -> list[Any]:
    """Return tensors as arrays, and the dtype of a result as NumPy's."""
    torch = _torch()
    return [
        _array(x, torch) if isinstance(x, torch.Tensor) else _dtype(x) if type(x) is torch.dtype else x
        for x in arguments
    ]


def _dtype(x: Any) -> np.dtype[Any]:
    name = name_of(x)
    return _bfloat16() if name == "bfloat16" else np.dtype(name)


def _array(x: Any, torch: Any) -> Any:
    x = x.detach() if x.requires_grad else x
    return x.view(torch.int16).numpy().view(_bfloat16()) if x.dtype is torch.bfloat16 and x.ndim else x.numpy()


def _tensor(y: Any) -> Any:
    if y is None:  # such as the biases of a symmetric quantization
        return None
    torch = _torch()
    if y.dtype == _bfloat16():
        return torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(y)
