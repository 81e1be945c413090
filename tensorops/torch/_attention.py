"""Attention: a module's own `forward`, which calls our functions in place of some that it names.

In transformers' models, these are the rotation of queries and keys, and attention itself, that of the implementation
"sdpa"; elsewhere, torch's `scaled_dot_product_attention`. What a module does before, between and after them stays its
own, and so does the choice of an implementation.

The same code runs with other names for these functions, which are put beside them into the module that defines the
class. So it reads and writes that module's variables, and TorchDynamo guards them. Behind each name is an object that
looks up the function that it stands for in each call, and calls that if it is no longer the one that was compared.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as torch_functional

import tensorops as tp
from tensorops.torch._coverage import Reads, names_in
from tensorops.torch._layers import REFUSALS, layer, own_forward

ROTATION = "apply_rotary_pos_emb"
INTERFACE = "ALL_ATTENTION_FUNCTIONS"
DIRECT = "scaled_dot_product_attention"
PREFIX = "_tensorops_"
TORCHS = torch_functional.scaled_dot_product_attention


def attend(
    own: Callable[..., Any],
    module: torch.nn.Module,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **named: Any,
) -> Any:
    """Compute what transformers' `sdpa_attention_forward` computes, which is `own`."""
    queries, keys = query.shape[2], key.shape[2]
    # With a mask, torch is as fast for several queries, unless it has to repeat the keys for groups of heads.
    worthwhile = attention_mask is None or queries == 1 or query.shape[1] != key.shape[1]
    usual = dropout == 0.0 and named.get("position_bias") is None and named.get("softcap") is None
    usual = usual and not named.get("output_attentions") and not torch.is_autocast_enabled("cpu")
    if worthwhile and usual and query.is_cpu and (attention_mask is None or not attention_mask.requires_grad):
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        causal = bool(causal) and queries > 1 and attention_mask is None
        k, v = key, value
        if causal and keys > queries:  # the first tokens, in a cache of a fixed size
            k, v = key[:, :, :queries], value[:, :, :queries]
        try:
            if not causal or k.shape[2] == queries:  # torch counts positions from the first key, we from the last
                y = tp.scaled_dot_product_attention(query, k, v, mask=attention_mask, is_causal=causal, scale=scaling)
                return y.transpose(1, 2).contiguous(), None
        except REFUSALS:
            pass
    return own(module, query, key, value, attention_mask, dropout, scaling, is_causal, **named)


def directly(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute what torch's `scaled_dot_product_attention` computes."""
    try:
        queries, grouped = query.shape[2], query.shape[1] != key.shape[1]
        worthwhile = attn_mask is None or queries == 1 or grouped
        aligned = not is_causal or (attn_mask is None and queries == key.shape[2])
        usual = dropout_p == 0.0 and (enable_gqa or not grouped) and not torch.is_autocast_enabled("cpu")
        if worthwhile and aligned and usual and query.is_cpu and (attn_mask is None or not attn_mask.requires_grad):
            return tp.scaled_dot_product_attention(query, key, value, mask=attn_mask, is_causal=is_causal, scale=scale)
    except (IndexError, *REFUSALS):
        pass
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


class Attends(torch.nn.Module):  # type: ignore[misc]
    """A module that calls torch's function, as others do whose arguments nobody knows."""

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        """Return causal attention."""
        return torch_functional.scaled_dot_product_attention(query, key, value, is_causal=True)


LEAST_BYTES = 1 << 18
"""Of queries, keys and values: a call of a kernel in a graph earns its time only from here on."""


def attend_in_graph(
    own: Callable[..., Any], module: torch.nn.Module, query: Any, key: Any, value: Any, *args: Any, **named: Any
) -> Any:
    """Compute what `attend` does, in a graph that torch compiles."""
    is_row = query.shape[2] == 1 and query.dtype is torch.float32  # for which torch is as fast
    if is_row or (query.numel() + key.numel() + value.numel()) * query.element_size() < LEAST_BYTES:
        return own(module, query, key, value, *args, **named)
    return attend(own, module, query, key, value, *args, **named)


def attention_interface(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return an implementation of attention for transformers, from its implementation "sdpa"."""

    def tensorops_attention_forward(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
        if named.get("s_aux") is not None:  # which `own` ignores
            raise ValueError(
                f"the attention of tensorops takes no sinks (s_aux), which {type(module).__name__} passes: use the "
                'implementation "eager", and tensorops.torch.prepare_model'
            )
        compute = attend_in_graph if torch.compiler.is_compiling() else attend
        return compute(own, module, *args, **named)

    return tensorops_attention_forward


class _Rotation:
    """A function that rotates queries and keys by tables of which both halves are equal."""

    def __init__(self, place: dict[str, Any]) -> None:
        self.place, self.proven = place, place[ROTATION]
        self.reads = Reads(self.proven)

    def __call__(self, q: Any, k: Any, cos: Any, sin: Any, *args: Any, **named: Any) -> Any:
        own = self.place[ROTATION]
        usual = own is self.proven and not args and not named and self.reads.unchanged()
        if usual and cos.ndim == 3 and q.is_cpu and q.dtype is cos.dtype and k.dtype is cos.dtype:
            half = cos.shape[-1] // 2
            cos_of_pairs, sin_of_pairs = cos[..., :half], sin[..., :half]
            try:
                return tuple(tp.rope(x, cos=cos_of_pairs, sin=sin_of_pairs) for x in (q, k))
            except REFUSALS:
                pass
        return own(q, k, cos, sin, *args, **named)  # such as tables with other axes


class _Interface:
    """transformers' table of implementations, with ours in place of its own "sdpa"."""

    def __init__(self, place: dict[str, Any], attend: Callable[..., Any] = attend) -> None:
        self.place, self.attend = place, attend
        self.proven = place[INTERFACE].get_interface("sdpa", None)

    def get_interface(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        chosen: Callable[..., Any] = self.place[INTERFACE].get_interface(name, default)
        return functools.partial(self.attend, chosen) if name == "sdpa" and chosen is self.proven else chosen


class _Functional:
    """torch.nn.functional, under some name, with our attention."""

    def __init__(self, place: dict[str, Any], name: str) -> None:
        self.__place, self.__name = place, name

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.__place[self.__name], name)
        return directly if own is TORCHS else own


class _Direct:
    """torch's attention, by its own name."""

    def __init__(self, place: dict[str, Any]) -> None:
        self.place = place

    def __call__(self, *args: Any, **named: Any) -> Any:
        own = self.place[DIRECT]
        return (directly if own is TORCHS else own)(*args, **named)


def global_names(code: types.CodeType) -> set[str]:
    """Return the names that code and the functions inside it read as globals, and use as nothing else."""
    read, others, parts = set(), set(), [code]
    for part in parts:
        parts += [constant for constant in part.co_consts if isinstance(constant, types.CodeType)]
        for instruction in dis.get_instructions(part):
            if instruction.opname == "LOAD_GLOBAL":
                read.add(instruction.argval)
            elif instruction.opcode in dis.hasname:
                others.add(instruction.argval)
    return read - others


def _renamed(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    constants = (_renamed(x, names) if isinstance(x, types.CodeType) else x for x in code.co_consts)
    return code.replace(co_names=tuple(names.get(name, name) for name in code.co_names), co_consts=tuple(constants))


def calling(function: Any, others: dict[str, Callable[..., Any]], prefix: str = PREFIX) -> Any:
    """Return a function with the same code and decorators that calls others, which `others` make for its globals."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        place, makers = function.__globals__, dict(others)
        names = global_names(function.__code__) & place.keys()
        makers |= {name: functools.partial(_Functional, name=name) for name in names if place[name] is torch_functional}
        if place.get(DIRECT) is TORCHS:
            makers[DIRECT] = _Direct
        new_names = {name: prefix + name for name in names & makers.keys()}
        place |= {new: makers[name](place) for name, new in new_names.items()}
        code, cells = _renamed(function.__code__, new_names), function.__closure__
    else:
        ours = calling(inner, others, prefix)
        code, place = function.__code__, function.__globals__
        cells = tuple(types.CellType(ours) if c.cell_contents is inner else c for c in function.__closure__ or ())
    found = types.FunctionType(code, place, function.__name__, function.__defaults__, cells)
    found.__kwdefaults__ = function.__kwdefaults__
    return found


@functools.cache
def _with_ours(forward: Callable[..., Any], rotates: bool) -> Callable[..., Any]:
    others: dict[str, Callable[..., Any]] = {INTERFACE: _Interface}
    return calling(forward, others | {ROTATION: _Rotation} if rotates else others)  # type: ignore[no-any-return]


_IN_GRAPHS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""The forward of classes of which modules have been prepared, as TorchDynamo traces it: it cannot make functions."""


def enable_in_graphs(kind: type[torch.nn.Module]) -> None:
    """Let graphs of a class of modules call our attention; their compiler fuses the rotation."""
    if kind.forward not in _IN_GRAPHS:
        interface: dict[str, Callable[..., Any]] = {INTERFACE: functools.partial(_Interface, attend=attend_in_graph)}
        _IN_GRAPHS[kind.forward] = calling(kind.forward, interface, PREFIX + "graph_")


def _attention_in_graph(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    forward = _IN_GRAPHS.get(type(module).forward)
    return own_forward(module, *args, **named) if forward is None else forward(module, *args, **named)


@functools.partial(layer, traced=_attention_in_graph)
def attention(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Compute the module's own `forward` with our attention and, if its tables have equal halves, our rotation."""
    found = module._tensorops_found
    try:
        covered = found.holds(module, args[0] if args else next(iter(named.values())))
    except (AttributeError, StopIteration):  # it is no tensor
        covered = False
    if not covered:
        return own_forward(module, *args, **named)
    return _with_ours(found.forward, *found.knows)(module, *args, **named)


@layer
def direct_attention(module: torch.nn.Module, *args: Any, **named: Any) -> Any:
    """Compute the module's own `forward`, which takes whatever it does, with our attention in place of torch's."""
    found = module._tensorops_found
    if type(module).forward is not found.forward:
        return own_forward(module, *args, **named)
    return _with_ours(found.forward, rotates=False)(module, *args, **named)


def replaced_in(module: torch.nn.Module) -> tuple[bool, bool, bool]:
    """Return whether the code of a forward rotates queries, asks for an implementation, or calls torch's function."""
    inner = inspect.unwrap(type(module).forward)
    names, place = global_names(inner.__code__), inner.__globals__
    direct = place.get(DIRECT) is TORCHS and DIRECT in names
    functional = any(place.get(name) is torch_functional for name in names) and DIRECT in names_in(inner.__code__)
    return ROTATION in names, INTERFACE in names, direct or functional


def tables_of(model: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the tables for the first positions from each module that makes them; none if one makes something else."""
    found = []
    for module in model.modules():
        if "RotaryEmbedding" not in type(module).__name__:
            continue
        try:
            own = copy.deepcopy(module)
            for layer_type in getattr(module, "layer_types", None) or (None,):
                named = {} if layer_type is None else {"layer_type": layer_type}
                with torch.no_grad():
                    cos, sin = own(torch.zeros(1), torch.arange(6)[None], **named)
                found.append((cos.double(), sin.double()))
        except Exception:  # it takes or gives something else
            return []
    return found


def halves_are_equal(table: torch.Tensor) -> bool:
    """Return whether a table has three axes, and the second half of its rows is the first again."""
    return table.ndim == 3 and bool(torch.equal(*table.chunk(2, dim=-1)))
