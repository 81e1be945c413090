"""Operators that autograd follows, with compiled vector-Jacobian products.

An operator becomes a `torch.autograd.Function`. It keeps what the compiled function takes. A derivative of the
derivative is torch's own of the operator's body, and so is what the compiled function refuses.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tensorops._operator import Operator
from tensorops.backends import get_namespace
from tensorops.kernels.cpu import _native
from tensorops.kernels.cpu.derivatives import Derivative
from tensorops.libraries.torch import without_autocast


def differentiable(
    operator: Operator[..., Any],
    derivative: Derivative,
    compute: Callable[..., Any],
    differentiate: Callable[..., Any] | None,
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
        Computes the vector-Jacobian product; may return ``NotImplemented``. ``None`` if only a formula does.
    """
    import torch

    tensor = torch.Tensor
    parameters = inspect.signature(operator).parameters.values()
    names = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    defaults = {p.name: p.default for p in parameters}
    has_formula = operator.__name__ in _FORMULAS
    compiled = _Call(derivative, names)
    others = tuple(i for i, name in enumerate(names) if name not in derivative.provided)
    # Tensors that neither the compiled function nor the formula takes need not be kept.
    dropped = () if not has_formula else tuple(i for i, name in enumerate(names) if name not in derivative.parameters)
    kept_results = derivative.kept

    class Differentiable(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, by_name: dict[str, Any], *args: Any) -> Any:
            found = compute(*args, **by_name) if by_name else compute(*args)
            if found is NotImplemented:
                return found
            tensors = [a if isinstance(a, tensor) else None for a in args]
            for i in dropped:
                tensors[i] = None
            if kept_results:
                results = found if type(found) is tuple else (found,)
                tensors += [results[i] for i in kept_results]
            named = {name: value for name, value in by_name.items() if isinstance(value, tensor)}
            ctx.save_for_backward(*tensors, *named.values())  # torch notices if one is overwritten
            rest = [None if isinstance(a, tensor) else a for a in args]
            for i in dropped:
                rest[i] = args[i].dtype
            ctx.kept = rest, by_name, tuple(named)
            return found

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            return in_python(ctx, None, *cotangents)

    def in_python(ctx: Any, saved: Sequence[Any] | None, *cotangents: Any) -> Any:
        rest, by_name, named = ctx.kept
        saved = ctx.saved_tensors if saved is None else saved
        args = [other if kept is None else kept for kept, other in zip(saved, rest, strict=False)]
        results = saved[len(rest) : len(rest) + len(kept_results)]
        if named:
            by_name = by_name | dict(zip(named, saved[-len(named) :], strict=True))
        if differentiate is not None and not torch.is_grad_enabled():
            found = compiled(differentiate, args, by_name, results, cotangents, ctx.needs_input_grad)
            if found is not None:
                return found
        asked = {names[i - 1] for i, needed in enumerate(ctx.needs_input_grad) if needed}
        arguments = dict(zip(names, args, strict=False))
        of = Differentiated(operator, arguments, by_name, results, cotangents, asked).gradients()
        return None, *(of.get(name) for name in names[: len(args)])

    if differentiate is not None:
        usual = _native.torch_forward(
            (compute, tensor, torch.nn.Parameter, dropped, kept_results, Differentiable.forward)
        )
        Differentiable.forward = staticmethod(usual)  # type: ignore[method-assign]
        how = compiled.sources, compiled.options, compiled.known
        usual = _native.torch_backward((differentiate, torch.is_grad_enabled, *how, in_python))
        Differentiable.backward = staticmethod(usual)  # type: ignore[method-assign]
    apply = super(torch.autograd.Function, Differentiable).apply  # nothing transforms a call that comes here

    @functools.wraps(operator)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            while not kwargs.keys().isdisjoint(names[len(args) :]):
                name = names[len(args)]
                args = (*args, kwargs.pop(name) if name in kwargs else defaults[name])
            if any(isinstance(value, tensor) and value.requires_grad for value in kwargs.values()):
                return NotImplemented
        for i in others:
            if i < len(args) and isinstance(args[i], tensor) and args[i].requires_grad:
                return NotImplemented
        return apply(kwargs, *args)

    return call if differentiate is None else _native.torch_apply((apply, others, call))


class _Call:
    """How a compiled function is called with what was kept, decided once: small calls notice it."""

    def __init__(self, derivative: Derivative, names: tuple[str, ...]) -> None:
        self.derivative, self.names = derivative, names
        of_results = {derivative.results[i]: place for place, i in enumerate(derivative.kept)}
        of_cotangents = {name: i for i, name in enumerate(derivative.cotangents)}
        self.options = tuple(
            name for name in derivative.parameters if name not in {*names, *of_results, *of_cotangents, "wanted"}
        )
        # Where each positional parameter is among arguments, kept results and cotangents
        sources: list[tuple[int, int]] = []
        self.of_cotangents: list[int] = []
        for name in derivative.parameters[: derivative.positional]:
            if name in of_cotangents:
                self.of_cotangents.append(len(sources))
                sources.append((2, of_cotangents[name]))
            elif name in of_results:
                sources.append((1, of_results[name]))
            else:
                sources.append((0, names.index(name)))
        self.sources = tuple(sources)
        self.known: dict[tuple[bool, ...], tuple[dict[str, int], tuple[int | None, ...]]] = {}

    def gradients_of(self, needed: tuple[bool, ...]) -> tuple[dict[str, int], tuple[int | None, ...]]:
        """Return the option `wanted`, if there is one, and the place of each argument's gradient among the results."""
        if needed not in self.known:
            asked = {name for name, is_needed in zip(self.names, needed[1:], strict=False) if is_needed}
            wanted = self.derivative.wanted(asked)
            place = {name: i for i in wanted for name in self.derivative.gradients[i]}
            options = {"wanted": sum(1 << i for i in wanted)} if "wanted" in self.derivative.parameters else {}
            places = tuple(place.get(name) if name in asked else None for name in self.names[: len(needed) - 1])
            self.known[needed] = options, places
        return self.known[needed]

    def __call__(
        self,
        differentiate: Callable[..., Any],
        args: list[Any],
        by_name: dict[str, Any],
        results: Sequence[Any],
        cotangents: Sequence[Any],
        needed: tuple[bool, ...],
    ) -> tuple[Any, ...] | None:
        """Return the gradients of the arguments of the function that autograd knows; ``None`` if they are refused."""
        options, places = self.gradients_of(needed)
        if by_name:
            options = options | {name: by_name[name] for name in self.options if name in by_name}
        every: tuple[Sequence[Any], ...] = (args, results, cotangents)
        given: list[Any] = [every[of][i] if i < len(every[of]) else None for of, i in self.sources]
        while given[-1] is None:  # options at the end that were not given have defaults
            given.pop()
        found = differentiate(*given, **options)
        if found is NotImplemented:  # the gradient of a sum is one number with strides 0
            for i in self.of_cotangents:
                given[i] = given[i].contiguous()
            found = differentiate(*given, **options)
            if found is NotImplemented:
                return None
        gradients: list[Any] = [None]
        for argument, place in zip(args, places, strict=True):
            y = None if place is None else found[place] if type(found) is tuple else found
            # Of results in another dtype than the arguments, so are the gradients.
            dtype = getattr(argument, "dtype", argument)  # all that is known of a tensor that was not kept
            gradients.append(y if y is None or y.dtype is dtype else y.to(dtype))
        return tuple(gradients)


class Differentiated(NamedTuple):
    """A call whose gradients are asked for.

    Attributes
    ----------
    operator : Operator
        What was called.
    arguments, options : dict
        The arguments that may be tensors, if they were kept, and the others, by name.
    results : sequence of torch.Tensor
        The results that were kept.
    cotangents : sequence of torch.Tensor
        Of all results.
    asked : set of str
        The arguments whose gradients are asked for.
    """

    operator: Operator[..., Any]
    arguments: dict[str, Any]
    options: dict[str, Any]
    results: Sequence[Any]
    cotangents: Sequence[Any]
    asked: set[str]

    def gradients(self) -> dict[str, Any]:
        """Return the gradients, by torch's own operations, which can be differentiated again if torch records them."""
        with without_autocast():
            return _FORMULAS.get(self.operator.__name__, _by_body)(self)


def _by_body(call: Differentiated) -> dict[str, Any]:
    """Return the gradients of the body."""
    import torch

    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        # Where nothing is recorded, the graph of the call itself must not be entered again.
        given = {
            name: value.detach().requires_grad_(name in call.asked)
            if isinstance(value, torch.Tensor) and not recording
            else value.view_as(value)
            if isinstance(value, torch.Tensor)
            else value
            for name, value in call.arguments.items()
        }
        found = call.operator.compute(**given, **call.options)
        computed = found if isinstance(found, tuple) else (found,)
        inputs = [given[name] for name in sorted(call.asked)]
        of = torch.autograd.grad(computed, inputs, call.cotangents, create_graph=recording, allow_unused=True)
    return dict(zip(sorted(call.asked), of, strict=True))


# Derivatives of operators of which results are kept in place of arguments: differentiable functions of these


def _of_softmax(call: Differentiated) -> dict[str, Any]:
    (y,), (dy,) = call.results, call.cotangents
    along = call.options.get("axis", -1)
    if call.operator.__name__ == "softmax":
        return {"x": y * (dy - (y * dy).sum(along, keepdim=True))}
    return {"x": dy - y.exp() * dy.sum(along, keepdim=True)}


def _of_sum(call: Differentiated) -> dict[str, Any]:
    from tensorops.ops.normalization import layer_norm, rms_norm

    (total,), (dy, dsum) = call.results, call.cotangents
    given: dict[str, Any] = {name: x for name, x in call.arguments.items() if name not in ("x", "residual")}
    given["x"] = total
    names = {"x", *call.asked} - {"residual"}
    norm = rms_norm if call.operator.__name__ == "add_rms_norm" else layer_norm
    found = _by_body(Differentiated(norm, given, call.options, (), [dy], names))
    found["x"] = found["residual"] = found["x"] + dsum
    return found


def _of_rope(call: Differentiated) -> dict[str, Any]:
    from tensorops.ops.positional import angle_dtype, frequencies

    (dy,) = call.cotangents
    arguments = call.operator.canonical(dy, call.arguments.get("positions"), **call.options)
    # Rotated back by negative angles: negative positions may not be numbers of their dtype.
    if arguments["sin"] is not None:
        arguments["sin"] = -arguments["sin"]
    elif dims := arguments["dims"]:
        xp = get_namespace(dy)
        arguments["freqs"] = -frequencies(xp, dy, arguments["base"], arguments["freqs"], dims, angle_dtype(xp, dy))
    return {"x": call.operator.compute(**arguments)}


def _of_quantized(call: Differentiated) -> dict[str, Any]:
    from tensorops.ops.quantization import dequantize

    (dy,) = call.cotangents
    options = {name: value for name, value in call.options.items() if name != "precision"}
    scales, biases = (call.arguments.get(name) for name in ("scales", "biases"))
    weight: Any = dequantize(call.arguments["weight"], scales, biases, **options)
    return {"x": dy @ weight.to(dy.dtype)}


def _of_embedding(call: Differentiated) -> dict[str, Any]:
    import torch

    (dy,) = call.cotangents
    ids, weight = call.arguments["ids"], call.arguments["weight"]
    wide = dy.float() if dy.element_size() == 2 else dy  # in which rows that occur more than once are summed
    found = torch.ops.aten.embedding_dense_backward(wide, ids.long(), weight.shape[0], -1, False)
    return {"weight": found.to(weight.dtype)}


COMPOSED = {
    "embedding": Derivative("", ("ids", "weight"), ("y",), (("weight",),), 2),
    "linear_cross_entropy": Derivative(
        "", ("x", "weight", "targets", "bias", "ce_weight"), ("y",), (("x",), ("weight",), ("bias",)), 5
    ),
    "quantized_linear": Derivative("", ("weight", "scales", "biases"), ("y",), (("x",),), 3),
}
"""Derivatives that no compiled function computes, but a formula of torch's own operations."""

_FORMULAS: dict[str, Callable[[Differentiated], dict[str, Any]]] = {
    "embedding": _of_embedding,
    "quantized_linear": _of_quantized,
    "rope": _of_rope,
    "softmax": _of_softmax,
    "log_softmax": _of_softmax,
    "add_rms_norm": _of_sum,
    "add_layer_norm": _of_sum,
}
