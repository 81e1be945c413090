"""The compiled kernels as operators of torch, which `torch.compile` puts into its graphs.

Two operators serve all of ours, as signatures of torch's own cannot express every option. An argument says which
operator to call, and with what options, as text: graphs are stored and loaded by other processes.

    tensorops::call(str call, Tensor[] arrays) -> Tensor[]
    tensorops::vjp(str call, Tensor[] arrays, ScalarType[] dtypes) -> Tensor[]
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from tensorops._dtypes import name_of
from tensorops._operator import OPERATORS, Operator
from tensorops.backends.settings import Settings, activate
from tensorops.kernels.cpu import _native
from tensorops.kernels.cpu.derivatives import Derivative, derivative_of
from tensorops.kernels.torch_cpu import _derivatives
from tensorops.kernels.torch_cpu._derivatives import Differentiated
from tensorops.kernels.torch_cpu._launch import on_tensors
from tensorops.libraries.torch import observed

_OPTIONAL_RESULTS = ("quantize",)
"""Operators some of whose results may be ``None``."""

_UNRECORDED = Settings()
"""For bodies that compute shapes only."""

_LIBRARY = torch.library.Library("tensorops", "DEF")
_LIBRARY.define("call(str call, Tensor[] arrays) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.define("vjp(str call, Tensor[] arrays, ScalarType[] dtypes) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))


def encode(function: str, arrays: Iterable[str], options: dict[str, Any]) -> str:
    """Return the text of a call: the function, what parameters its arrays are, and its other arguments."""
    return json.dumps([function, list(arrays), options], default=lambda dtype: {"dtype": name_of(dtype)})


def has_kernel(operator: str) -> bool:
    """Return whether there is a kernel that a graph can call, and no transformation of torch.func to follow."""
    kernel = OPERATORS[operator].kernel_of("torch_cpu")
    return kernel is not None and operator not in _OPTIONAL_RESULTS and not observed(torch)


def differentiates(operator: str, arguments: Iterable[str]) -> bool:
    """Return whether the gradients of these arguments are known."""
    derivative = derivative_of(operator) or _derivatives.COMPOSED.get(operator)
    return derivative is not None and derivative.provided.issuperset(arguments)


class Decoded(NamedTuple):
    """The call that a text describes."""

    function: str
    arrays: tuple[str, ...]
    options: dict[str, Any]


@functools.cache
def decode(call: str) -> Decoded:
    """Return the call that a text describes."""

    def option(value: Any) -> Any:
        if isinstance(value, dict):
            return getattr(torch, value["dtype"])
        return tuple(map(option, value)) if isinstance(value, list) else value

    function, arrays, options = json.loads(call)
    return Decoded(function, tuple(arrays), {name: option(value) for name, value in options.items()})


def _listed(found: Any) -> list[torch.Tensor]:
    """Return results as torch takes those of its operators: none shares the memory of an argument."""
    results = found if isinstance(found, tuple) else (found,)
    return [y.clone() if y._is_view() or not y.is_contiguous() else y for y in results]


def _call(call: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    operator, arguments = _arguments(call, arrays)
    with torch.no_grad():
        return _listed(operator.apply(operator, arguments))


def _fake_call(call: str, arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    operator, arguments = _arguments(call, arrays)
    with activate(_UNRECORDED):
        found = operator.compute(**arguments)
    return [torch.empty(y.shape, dtype=y.dtype, device=y.device) for y in _listed(found)]


def _arguments(call: str, arrays: Iterable[Any]) -> tuple[Operator[..., Any], dict[str, Any]]:
    function, names, options = decode(call)
    operator = OPERATORS[function]
    return operator, operator.bind((), options | dict(zip(names, arrays, strict=True)))


@functools.cache
def _compiled(function: str) -> Callable[..., Any]:
    return on_tensors(getattr(_native, function))


def _vjp(call: str, arrays: list[torch.Tensor], dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    function, names, options = decode(call)
    derivative = derivative_of(function.removesuffix("_vjp"))
    assert derivative is not None
    for contiguous in (False, True):
        given = dict(zip(names, (x.contiguous() if contiguous else x for x in arrays), strict=True)) | options
        positional = [given.pop(name, None) for name in derivative.parameters[: derivative.positional]]
        while positional[-1] is None:  # options at the end that were not given have defaults
            positional.pop()
        with torch.no_grad():
            found = _compiled(function)(*positional, **given)
        if found is not NotImplemented:
            computed = [y for y in (found if isinstance(found, tuple) else (found,)) if y is not None]
            return [y.to(dtype) for y, dtype in zip(computed, dtypes, strict=True)]
    raise RuntimeError(f"{function}: the kernel refuses arrays that it took when the graph was made")


def _fake_vjp(call: str, arrays: list[torch.Tensor], dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    function, names, options = decode(call)
    given = dict(zip(names, arrays, strict=True))
    derivative = derivative_of(function.removesuffix("_vjp"))
    assert derivative is not None
    wanted = options.get("wanted", -1)
    groups = [group for i, group in enumerate(derivative.gradients) if wanted >> i & 1]
    # What is not kept has the shape of the result.
    of = [given.get(group[0], given[derivative.cotangents[0]]) for group in groups]
    return [torch.empty(x.shape, dtype=dtype, device=x.device) for x, dtype in zip(of, dtypes, strict=True)]


def _set_up(ctx: Any, inputs: tuple[str, list[torch.Tensor]], output: list[torch.Tensor]) -> None:
    call, arrays = inputs
    name, names, _ = decode(call)
    derivative = derivative_of(name) or _derivatives.COMPOSED[name]
    ctx.call = call
    ctx.of_results = [(y.shape, y.dtype) for y in output]
    ctx.dtypes = [x.dtype for x in arrays]
    kept = [x for known, x in zip(names, arrays, strict=True) if known in derivative.parameters]
    ctx.save_for_backward(*kept, *(output[i] for i in derivative.kept))


def _backward(ctx: Any, cotangents: list[torch.Tensor | None]) -> tuple[None, list[torch.Tensor | None]]:
    name, names, options = decode(ctx.call)
    derivative = derivative_of(name) or _derivatives.COMPOSED[name]
    asked = {known for known, is_needed in zip(names, ctx.needs_input_grad[1], strict=True) if is_needed}
    kept = ctx.saved_tensors  # torch hands them out once
    arguments = dict(zip((known for known in names if known in derivative.parameters), kept, strict=False))
    given = [
        torch.zeros(shape, dtype=dtype) if dy is None else dy
        for dy, (shape, dtype) in zip(cotangents, ctx.of_results, strict=True)
    ]
    call = Differentiated(OPERATORS[name], arguments, options, kept[len(arguments) :], given, asked)
    found = None
    if derivative.name and not torch.is_grad_enabled():  # derivatives of derivatives are torch's own
        found = _by_kernel(derivative, call, dict(zip(names, ctx.dtypes, strict=True)))
    if found is None:
        found = call.gradients()
    return None, [found.get(known) if known in asked else None for known in names]


def _by_kernel(of: Derivative, call: Differentiated, dtypes: dict[str, torch.dtype]) -> dict[str, Any] | None:
    """Return the gradients that the compiled kernel computes; ``None`` if it refuses such arrays.

    Tensors may be traced, and their shapes symbols.
    """
    known = set(of.parameters)
    kept = [of.results[i] for i in of.kept]
    every = {**call.arguments, **dict(zip(kept, call.results, strict=True))}
    every |= dict(zip(of.cotangents, call.cotangents, strict=True))
    arrays = {name: x for name, x in every.items() if name in known}
    options = {name: value for name, value in call.options.items() if name in known and value is not None}
    wanted = of.wanted(call.asked)
    if "wanted" in known:
        options["wanted"] = sum(1 << i for i in wanted)
    described = {name: (name_of(x.dtype), [_size(n) for n in x.shape]) for name, x in arrays.items()}
    readable = {name: name_of(x) if isinstance(x, torch.dtype) else x for name, x in options.items()}
    if _native.refuse(of.name, described, readable):
        return None
    groups = [of.gradients[i] for i in wanted]
    found = torch.ops.tensorops.vjp(
        encode(of.name, arrays, options), list(arrays.values()), [dtypes[group[0]] for group in groups]
    )
    return {name: y for group, y in zip(groups, found, strict=True) for name in group}


def _size(n: Any) -> int:
    """Return a length; of one that is symbolic, that of the call for which the graph is made."""
    return n if isinstance(n, int) else n.node.hint


_LIBRARY.impl("call", _call, "CPU")
_LIBRARY.impl("vjp", _vjp, "CPU")
torch.library.register_fake("tensorops::call", _fake_call, lib=_LIBRARY)
torch.library.register_fake("tensorops::vjp", _fake_vjp, lib=_LIBRARY)
torch.library.register_autograd("tensorops::call", _backward, setup_context=_set_up, lib=_LIBRARY)
