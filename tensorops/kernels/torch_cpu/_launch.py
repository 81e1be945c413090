"""Torch tensors as NumPy arrays and back, where only this call needs to see the operation.

The compiled module does this itself, if torch has DLPack's table of C functions (``native/python/torch_calls.cpp``),
and leaves to the functions here whatever it does not know, so results and errors are the same.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorops._dtypes import FLOATING, INTEGER, name_of
from tensorops._kernel import BY_BODY
from tensorops._operator import Operator
from tensorops.backends.process_default import callers_level
from tensorops.kernels.cpu import _native
from tensorops.kernels.cpu.derivatives import derivative_of
from tensorops.kernels.torch_cpu import _derivatives, _linear_cross_entropy
from tensorops.libraries.torch import REQUIRES_GRAD, observers, refuse_tensors


def register(operator: Operator[..., Any]) -> None:
    """Register the operator's kernel of the provider ``cpu`` for torch tensors as well."""
    compiled = operator._kernels["cpu"]
    derivative = derivative_of(operator.__name__) or _derivatives.COMPOSED.get(operator.__name__)
    provided = derivative.provided if derivative else ()
    torch = _torch()
    names = [p.name for p in inspect.signature(operator).parameters.values() if p.kind is not p.KEYWORD_ONLY]

    def refuse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        every = dict(zip(names, args, strict=False)) | kwargs
        of_these = [every.pop(name) for name in provided if name in every]
        return refuse_tensors(tuple(of_these), host=True, differentiates=True) or refuse_tensors(
            tuple(every.values()), host=True
        )

    def differentiates(args: tuple[Any, ...]) -> bool:
        return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)

    @functools.wraps(operator)
    def supports(*args: Any, **kwargs: Any) -> str | None:
        if reason := refuse(args, kwargs):
            if reason is REQUIRES_GRAD:
                _warn_of_gradients(operator.__name__)
            return reason
        if operator.__name__ == "linear_cross_entropy" and differentiates(args):
            arguments = dict(zip(names, args, strict=True)) | kwargs
            if reason := _linear_cross_entropy.refuse(**arguments):
                return reason
        return compiled.supports(*_views(args), **dict(zip(kwargs, _views(kwargs.values()), strict=True)))

    fast = on_tensors(compiled.function)
    differentiable = None
    if operator.__name__ == "linear_cross_entropy":
        differentiable = _linear_cross_entropy.differentiable(on_tensors)
    elif derivative is not None:
        compiled_vjp = on_tensors(getattr(_native, derivative.name)) if derivative.name else None
        differentiable = _derivatives.differentiable(operator, derivative, fast, compiled_vjp)

    @functools.wraps(operator)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if refuse(args, kwargs):
            return NotImplemented
        if differentiates(args):
            assert differentiable is not None
            return differentiable(*args, **kwargs)
        return fast(*args, **kwargs)

    reading = _reading()
    direct = kernel if reading is None else _native.torch_kernel(compiled.function, reading, kernel, differentiable)
    by = BY_BODY if derivative is None else derivative.name or "torch"
    operator.kernel("torch_cpu", supports=supports, checks=True, derivative=by)(direct)


def on_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function on tensors of which no gradients are recorded."""

    def in_python(*args: Any, **kwargs: Any) -> Any:
        try:
            if refuse_tensors((*args, *kwargs.values()), host=True):
                return NotImplemented
            views, options = _views(args), dict(zip(kwargs, _views(kwargs.values()), strict=True))
        except RuntimeError:  # of a nested or a batched tensor; the operator's words follow
            return NotImplemented
        result = function(*views, **options)
        if result is NotImplemented:
            return result
        return tuple(map(_tensor, result)) if type(result) is tuple else _tensor(result)

    reading = _reading()
    return in_python if reading is None else _native.torch_kernel(function, reading, in_python, None)


_warned = False


def _warn_of_gradients(operator: str) -> None:
    """Say once in a program that derivatives cost the kernels: `no_grad` is easily forgotten in inference."""
    global _warned
    if _warned:
        return
    _warned = True
    warnings.warn(
        f"{operator}: {REQUIRES_GRAD}, so torch's own operations compute, which autograd follows, instead of a kernel. "
        "For inference, use torch.no_grad() or torch.inference_mode(); model.eval() does not do this. (Said once.)",
        UserWarning,
        stacklevel=callers_level(),
    )


@functools.cache
def _reading() -> tuple[Any, ...] | None:
    """Return what the compiled module asks torch; ``None`` if torch, before 2.10, has no such table."""
    torch = _torch()
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None or not _native.describes_tensors(table):
        return None
    tensor, storage = torch.Tensor, torch.UntypedStorage
    seen = observers(torch), torch.autograd.forward_ad, torch.is_grad_enabled
    asked = tensor.is_neg, tensor.untyped_storage, storage.nbytes, storage.data_ptr
    dtypes = {getattr(torch, name): _dtype(getattr(torch, name)) for name in (*FLOATING, *INTEGER, "bool")}
    return tensor, torch.nn.Parameter, table, *seen, *asked, dtypes


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
