"""Functions take `pyopencl.array.Array` objects as well, and compute with wrappers around them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import pyopencl.array

from array_api_pyopencl._array_object import Array
from array_api_pyopencl._creation_functions import asarray

_MAY_HOLD_SOME = (pyopencl.array.Array, list, tuple)


def accept_raw_arrays(module: dict[str, Any], names: Iterable[str]) -> None:
    """Let functions of a module take raw arrays among their arguments, or in a list or tuple there."""
    for name in names:
        if isinstance(module[name], FunctionType):
            module[name] = _accepting(module[name])


def _accepting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        for x in arguments:
            if isinstance(x, _MAY_HOLD_SOME):
                arguments = tuple(map(_wrapped, arguments))
                break
        if options:
            options = {name: _wrapped(x) for name, x in options.items()}
        return function(*arguments, **options)

    return called


def _wrapped(x: Any) -> Any:
    if type(x) is Array or not isinstance(x, _MAY_HOLD_SOME):
        return x
    if isinstance(x, pyopencl.array.Array):
        return asarray(x)
    for each in x:
        if isinstance(each, pyopencl.array.Array):
            return [_wrapped(each) for each in x]
    return x
