"""The vector-Jacobian products that the compiled module has, and what their signatures say.

That of an operator `f(x, weight, eps) -> y` is a function `f_vjp(x, weight, dy, eps) -> dx, dweight`: it takes
parameters and results of the operator, which must be kept for it, and the cotangents of the results, and returns the
gradients of parameters. An option `wanted` has a bit for each gradient; others are not computed.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass

from tensorops.kernels.cpu import _native


@dataclass(frozen=True)
class Derivative:
    """The signature of a vector-Jacobian product.

    Parameters
    ----------
    name
        Of the compiled function.
    parameters
        Its parameters, in order.
    results
        The results of the operator.
    gradients
        For each of its results, the parameters of the operator whose gradient it is.
    positional
        How many parameters may be given without their names.
    """

    name: str
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    gradients: tuple[tuple[str, ...], ...]
    positional: int

    @functools.cached_property
    def cotangents(self) -> tuple[str, ...]:
        """The parameters that are cotangents, in the order of the results."""
        return tuple(f"d{name}" for name in self.results)

    @functools.cached_property
    def provided(self) -> frozenset[str]:
        """The parameters of the operator whose gradients it computes."""
        return frozenset(name for group in self.gradients for name in group)

    @functools.cached_property
    def kept(self) -> tuple[int, ...]:
        """The places of the results that it takes."""
        return tuple(i for i, name in enumerate(self.results) if name in self.parameters)

    def wanted(self, names: set[str]) -> tuple[int, ...]:
        """Return the places of the gradients to compute, if those of some parameters of the operator are asked for."""
        every = range(len(self.gradients))
        if "wanted" not in self.parameters:
            return tuple(every)
        return tuple(i for i in every if names.intersection(self.gradients[i]))


@functools.cache
def derivative_of(operator: str) -> Derivative | None:
    """Return the signature of an operator's vector-Jacobian product, or ``None`` if none is compiled."""
    name = f"{operator}_vjp"
    if name not in _native.operators():
        return None
    gradients = [each.split("=") for each in _native.results(name).split(", ")]
    parameters = inspect.signature(getattr(_native, name)).parameters
    return Derivative(
        name,
        tuple(parameters),
        tuple(_native.results(operator).split(", ")),
        tuple(tuple(each.removeprefix("d") for each in group) for group in gradients),
        sum(p.kind is not p.KEYWORD_ONLY for p in parameters.values()),
    )
