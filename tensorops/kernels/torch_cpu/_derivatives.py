"""Operators that autograd follows, with compiled vector-Jacobian products.

An operator becomes a `torch.autograd.Function`. It keeps what the compiled function takes. A derivative of the
derivative is torch's own of the operator's body, and so is what the compiled function refuses.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tensorops._operator import Operator
from tensorops.kernels.cpu.derivatives import Derivative


def differentiable(
    operator: Operator[..., Any],
    derivative: Derivative,
    compute: Callable[..., Any],
    differentiate: Callable[..., Any],
) -> Callable[..., Any]:
    """Return a function that computes an operator so that autograd follows it, or returns ``NotImplemented``.

    Parameters
    ----------
    operator
        The operator.
    derivative
        The signature of its vector-Jacobian product.
    compute
        Computes the operator without gradients; may return ``NotImplemented``.
    differentiate
        Computes the vector-Jacobian product; may return ``NotImplemented``.
    """
    import torch

    parameters = inspect.signature(operator.__wrapped__).parameters.values()
    names = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    defaults = {p.name: p.default for p in parameters}
    taken = [name for name in derivative.parameters if name in names]  # and kept
    options = [name for name in derivative.parameters if name in operator.parameters and name not in names]
    by_formula = _FORMULAS.get(operator.__name__)
    kept = names if by_formula is None else tuple(taken)
    provided = derivative.provided
    takes_wanted = "wanted" in derivative.parameters

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, by_name: dict[str, Any], *args: Any) -> Any:
            found = compute(*args, **by_name)
            if found is NotImplemented:
                return found
            given = dict(zip(names, args, strict=False))
            results = found if type(found) is tuple else (found,)
            values = {name: given[name] for name in kept if name in given}
            tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
            ctx.save_for_backward(*tensors.values(), *[results[i] for i in derivative.kept])
            ctx.tensors = tuple(tensors)
            ctx.values = {name: value for name, value in values.items() if name not in tensors}
            ctx.by_name = by_name
            return found

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            places = [i - 1 for i, needed in enumerate(ctx.needs_input_grad) if needed]
            asked = {names[i] for i in places}
            saved = ctx.saved_tensors
            count = len(ctx.tensors)
            arguments = dict(zip(ctx.tensors, saved, strict=False)) | ctx.values
            found = None
            if not torch.is_grad_enabled():
                found = _compiled(ctx, arguments, saved[count:], cotangents, asked)
            if found is None:
                if by_formula is None:
                    found = _by_body(operator, arguments, ctx.by_name, cotangents, asked)
                else:
                    found = by_formula(operator, arguments, ctx.by_name, saved[count:], cotangents, asked)
            gradients: list[Any] = [None] * len(ctx.needs_input_grad)
            for i in places:
                gradients[i + 1] = found[names[i]]
            return tuple(gradients)

    def _compiled(
        ctx: Any, arguments: dict[str, Any], kept_results: Any, cotangents: Sequence[Any], asked: set[str]
    ) -> dict[str, Any] | None:
        found = {name: arguments[name] for name in taken if name in arguments}
        found.update(zip([derivative.results[i] for i in derivative.kept], kept_results, strict=True))
        found.update(zip(derivative.cotangents, cotangents, strict=True))
        for name in options:
            if name in ctx.by_name:
                found[name] = ctx.by_name[name]
        for name in derivative.required:
            found.setdefault(name, None)  # a parameter that was not given
        wanted = derivative.wanted(asked)
        if takes_wanted:
            found["wanted"] = sum(1 << i for i in wanted)
        results = differentiate(**found)
        if results is NotImplemented:  # the gradient of a sum is one number with strides 0
            results = differentiate(
                **{n: v.contiguous() if n in derivative.cotangents else v for n, v in found.items()}
            )
        if results is NotImplemented:
            return None
        every = results if type(results) is tuple else (results,)
        of = {name: every[i] for i in wanted for name in derivative.gradients[i] if name in asked}
        # Of results in another dtype than the arguments, so are the gradients.
        return {name: y.to(arguments[name].dtype) if name in arguments else y for name, y in of.items()}

    others = tuple(i for i, name in enumerate(names) if name not in provided)
    apply = super(torch.autograd.Function, Differentiable).apply  # nothing transforms a call that comes here

    @functools.wraps(operator)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            while not kwargs.keys().isdisjoint(names[len(args) :]):
                name = names[len(args)]
                args = (*args, kwargs.pop(name) if name in kwargs else defaults[name])
            if any(isinstance(value, torch.Tensor) and value.requires_grad for value in kwargs.values()):
                return NotImplemented
        if any(isinstance(x, torch.Tensor) and x.requires_grad for x in (args[i] for i in others if i < len(args))):
            return NotImplemented
        return apply(kwargs, *args)

    return call


def _by_body(
    operator: Operator[..., Any],
    arguments: dict[str, Any],
    by_name: dict[str, Any],
    cotangents: Sequence[Any],
    asked: set[str],
) -> dict[str, Any]:
    """Return the gradients of the body, which can be differentiated again if torch records them."""
    import torch

    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        # Where nothing is recorded, the graph of the call itself must not be entered again.
        given = {
            name: value.detach().requires_grad_(name in asked)
            if isinstance(value, torch.Tensor) and not recording
            else value.view_as(value)
            if isinstance(value, torch.Tensor)
            else value
            for name, value in arguments.items()
        }
        results = operator.compute(**given, **by_name)
        results = results if isinstance(results, tuple) else (results,)
        inputs = [given[name] for name in sorted(asked)]
        found = torch.autograd.grad(results, inputs, cotangents, create_graph=recording, allow_unused=True)
    return dict(zip(sorted(asked), found, strict=True))


# Derivatives of operators of which results are kept in place of arguments: differentiable functions of these


def _of_softmax(
    operator: Operator[..., Any],
    arguments: dict[str, Any],
    by_name: dict[str, Any],
    results: Sequence[Any],
    cotangents: Sequence[Any],
    asked: set[str],
) -> dict[str, Any]:
    (y,), (dy,) = results, cotangents
    along = by_name.get("axis", -1)
    if operator.__name__ == "softmax":
        return {"x": y * (dy - (y * dy).sum(along, keepdim=True))}
    return {"x": dy - y.exp() * dy.sum(along, keepdim=True)}


def _of_sum(
    operator: Operator[..., Any],
    arguments: dict[str, Any],
    by_name: dict[str, Any],
    results: Sequence[Any],
    cotangents: Sequence[Any],
    asked: set[str],
) -> dict[str, Any]:
    from tensorops.ops.normalization import rms_norm

    (total,), (dy, dsum) = results, cotangents
    given = {"x": total, **{name: arguments[name] for name in ("weight", "eps") if name in arguments}}
    names = {"x", *asked} - {"residual"}
    found = _by_body(rms_norm, given, by_name, [dy], names)
    found["x"] = found["residual"] = found["x"] + dsum
    return found


def _of_rope(
    operator: Operator[..., Any],
    arguments: dict[str, Any],
    by_name: dict[str, Any],
    results: Sequence[Any],
    cotangents: Sequence[Any],
    asked: set[str],
) -> dict[str, Any]:
    positions, by_name = arguments.get("positions"), dict(by_name)
    if by_name.get("sin") is not None:
        by_name["sin"] = -by_name["sin"]
    else:
        positions = -positions
    return {"x": operator.compute(*cotangents, positions, **by_name)}


_FORMULAS: dict[str, Callable[..., dict[str, Any]]] = {
    "rope": _of_rope,
    "softmax": _of_softmax,
    "log_softmax": _of_softmax,
    "add_rms_norm": _of_sum,
}
