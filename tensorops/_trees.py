"""Traversal of nested containers of arrays."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from tensorops.libraries import library_of

T = TypeVar("T")


def map_arrays(function: Callable[[Any], Any], tree: T) -> T:
    """Return nested containers with `function` applied to each array in them.

    Dicts, lists, tuples and dataclass instances, including subclasses, are traversed and copied with their other
    contents. An array that occurs more than once is visited once, so shared arrays stay shared. Everything else is
    unchanged.
    """
    return _mapped(function, tree, {})  # type: ignore[no-any-return]


def _mapped(function: Callable[[Any], Any], node: Any, done: dict[int, Any]) -> Any:
    """Do what `map_arrays` does; no function within it, which would keep arrays alive by a cycle with itself."""
    if library_of(node) is not None:
        if id(node) not in done:
            done[id(node)] = function(node)
        return done[id(node)]
    if isinstance(node, dict):
        copied = copy.copy(node)
        for key, value in node.items():
            copied[key] = _mapped(function, value, done)
        return copied
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*[_mapped(function, value, done) for value in node])
    if isinstance(node, list | tuple):
        return type(node)([_mapped(function, value, done) for value in node])
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        instance: Any = copy.copy(node)
        for field in dataclasses.fields(node):
            if hasattr(node, field.name):
                value = _mapped(function, getattr(node, field.name), done)
                object.__setattr__(instance, field.name, value)  # it may be frozen
        return instance
    return node
