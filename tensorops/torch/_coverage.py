"""What a replacement has been proven for. Each call compares it with what the module is by then."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import is_autocast_enabled

FOUND = "_tensorops_found"
COMPILED = {"_is_torch_compile", "_compiled_call_impl"}  # are set by torch.compile
MACHINERY = frozenset(vars(torch.nn.Module())) | {FOUND, "forward"} | COMPILED
"""Attributes of modules that are no facts about what they compute, or are compared on their own."""
PARTS = ("_parameters", "_buffers", "_modules")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Mode(NamedTuple):
    """How a module is called."""

    dtype: torch.dtype  # of its argument, and of its parameters
    training: bool
    autocast: bool  # to bfloat16


MODES = tuple(
    Mode(dtype, training, autocast)
    for dtype in DTYPES
    for autocast in (False, True)
    if not autocast or dtype in (torch.float32, torch.bfloat16)
    for training in (False, True)
)


def attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Return the attributes that a `forward` may read, but for parameters, buffers and modules."""
    return {name: value for name, value in vars(module).items() if name not in MACHINERY}


def names_in(code: types.CodeType) -> Iterator[str]:
    """Yield the names that a function's code uses, and the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


class Reads:
    """What a function reads besides its arguments: globals, variables of enclosing functions, methods of a class."""

    def __init__(self, function: Any, kind: type = object) -> None:
        self.named: tuple[tuple[Mapping[str, Any], str, Any], ...] = ()
        self.cells: tuple[tuple[types.CellType, Any], ...] = ()
        self._visit(function, [vars(owner) for owner in kind.__mro__ if owner not in torch.nn.Module.__mro__], set())

    def _visit(self, function: Any, owners: list[Mapping[str, Any]], visited: set[Any]) -> None:
        if isinstance(function, property):
            function = function.fget
        function = getattr(function, "__func__", function)  # of a static or class method
        if not isinstance(function, types.FunctionType) or function in visited:
            return
        visited.add(function)
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # is still empty
                continue
            if not isinstance(value, type):  # such as `__class__`
                self.cells += ((cell, value),)
                self._visit(value, owners, visited)
        for name in dict.fromkeys(names_in(function.__code__)):
            for place in (function.__globals__, *owners):
                if name in place and not isinstance(place[name], types.ModuleType):
                    self.named += ((place, name, place[name]),)
                    self._visit(place[name], owners, visited)

    def unchanged(self) -> bool:
        """Return whether everything is still the same object."""
        for place, name, value in self.named:
            if place.get(name) is not value:
                return False
        return all(cell.cell_contents is value for cell, value in self.cells)

    def __deepcopy__(self, memo: Any) -> Reads:
        return self


class State:
    """What a module's `forward` reads of the module, but for parameters and the modules that its replacement calls."""

    def __init__(self, module: torch.nn.Module, called: tuple[str, ...] = ()) -> None:
        own = vars(module)
        self.forward = type(module).forward
        reads = Reads(self.forward, type(module))
        self.reads = reads if reads.named or reads.cells else None
        # A list may be changed in place, so a copy is compared.
        values = {n: copy.copy(v) if isinstance(v, list | dict | set) else v for n, v in attributes(module).items()}
        values |= {part: {} for part in PARTS if not own[part]}  # are compared at once, which is fast
        self.names = tuple(values) if len(values) != 1 else (*values, *values)
        self.get: Callable[[Any], Any] = itemgetter(*self.names) if values else _nothing  # a tuple of values
        self.values = self.get(values)
        self.size = len(own.keys() - {FOUND, "forward"} - COMPILED)
        self.parts = tuple(
            (part, len(own[part]), tuple((name, x is None) for name, x in own[part].items() if name not in called))
            for part in PARTS
            if own[part]
        )
        self.children = tuple(
            (name, State(child)) for name, child in module._modules.items() if child is not None and name not in called
        )

    def holds(self, module: torch.nn.Module, replaced: bool = True) -> bool:
        """Return whether a module, whose `forward` is replaced or not, is still in this state."""
        own = module.__dict__
        size = self.size + 2 if replaced else self.size
        if (
            type(module).forward is not self.forward
            or self.get(own) != self.values
            or (len(own) != size and len(own.keys() - COMPILED) != size)
            or (self.reads is not None and not self.reads.unchanged())
        ):
            return False
        for part, count, names in self.parts:
            present = own[part]
            if len(present) != count:
                return False
            for name, absent in names:
                if (present[name] is None) is not absent:
                    return False
        for name, state in self.children:
            child = own["_modules"][name]
            if child.training is not own["training"] or hooked(child) or not state.holds(child, False):
                return False
        return True


def _nothing(_: Any) -> tuple[()]:
    return ()


def hooked(module: torch.nn.Module) -> bool:
    """Return whether somebody listens to calls of a module."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


class Coverage:
    """What a layer knows about a module, in which modes that was proven, and in which state of the module.

    Without a state, the layer runs the module's own code, which reads everything itself.
    """

    def __init__(
        self, knows: tuple[Any, ...], modes: frozenset[Mode], forward: Callable[..., Any], state: State | None
    ) -> None:
        self.knows, self.modes, self.forward, self.state = knows, modes, forward, state

    def holds(self, module: torch.nn.Module, x: Any) -> bool:
        """Return whether a call with a tensor is covered."""
        autocast = is_autocast_enabled("cpu")
        if (x.dtype, module.training, autocast) not in self.modes or not x.is_cpu:
            return False
        if autocast and torch.get_autocast_dtype("cpu") is not torch.bfloat16:
            return False
        return type(module).forward is self.forward if self.state is None else self.state.holds(module)

    def holds_in_graph(self, module: torch.nn.Module, x: Any) -> bool:
        """Return what TorchDynamo traces in place of `holds`, which tells that only if all is plain values."""
        state = self.state
        if state is None or state.children or state.reads is not None:
            return False
        if torch.is_autocast_enabled("cpu") or (x.dtype, module.training, False) not in self.modes:
            return False
        for name, value in zip(state.names, state.values, strict=True):
            if name not in PARTS and getattr(module, name) != value:
                return False
        return True

    holds._torchdynamo_inline = holds_in_graph  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return tuple, ()  # a program without the library can load the module, which is then its own

    def __deepcopy__(self, memo: Any) -> Coverage:
        return Coverage(self.knows, self.modes, self.forward, copy.deepcopy(self.state, memo))
