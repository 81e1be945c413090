"""Backends: which exist, which is in force, and how arrays move to them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from tensorops._dtypes import dtype_name, nbytes
from tensorops._providers import Provider, register_provider
from tensorops._trees import map_arrays
from tensorops.backends.probing import first_available
from tensorops.backends.process_default import (
    BackendFallbackWarning,
    get_default_backend,
    in_force,
    reload_config,
    set_default_backend,
)
from tensorops.backends.registry import BACKENDS, BackendUnavailableError, register_backend, resolve
from tensorops.backends.scopes import bind_settings, get_backend, set_backend, trace
from tensorops.backends.settings import current
from tensorops.backends.trace import Record, Trace, Transfer
from tensorops.libraries import LIBRARIES, Backend, Library as Library, common_library, library_of, move
from tensorops.typing import Array, ArrayNamespace, ArrayT, Namespace

__all__ = [
    "BACKENDS",
    "LIBRARIES",
    "Backend",
    "BackendFallbackWarning",
    "BackendUnavailableError",
    "Library",
    "Provider",
    "Record",
    "Trace",
    "Transfer",
    "array_agnostic",
    "bind_settings",
    "device",
    "get_backend",
    "get_default_backend",
    "get_namespace",
    "register_backend",
    "register_provider",
    "reload_config",
    "set_backend",
    "set_default_backend",
    "to_backend",
    "trace",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@overload
def get_namespace(x: ArrayT, /, *arrays: Array | None) -> ArrayNamespace[ArrayT]: ...
@overload
def get_namespace(*arrays: Array | None) -> ArrayNamespace[Any]: ...
def get_namespace(*arrays: Array | None) -> Namespace:
    """Return the Array API namespace of some arrays, or that of the backend in force if none is given.

    Parameters
    ----------
    *arrays : array or None
        Arrays of one library; ``None`` entries are ignored.

    Returns
    -------
    module
        An implementation of the Array API standard for that library. Its functions take MLX's and PyOpenCL's own arrays
        and return those of `array_api_mlx` and `array_api_pyopencl`, which wrap them; see `array_agnostic`.

    Raises
    ------
    TypeError
        If something is not an array, or the arrays belong to several libraries, which the message names.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> xp = tensorops.get_namespace(np.zeros(2))
    >>> xp.astype(np.asarray([1.5, 2.5]), xp.int32)
    array([1, 2], dtype=int32)
    """
    if arrays and any(x is not None for x in arrays):
        return common_library(*arrays).xp
    backend = in_force().backend
    return (resolve("numpy") if backend is None else backend).library.xp


def array_agnostic(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function compute with the standard's arrays, and return arrays of the kind that it is given.

    MLX's and PyOpenCL's own arrays do not conform to the standard: the function sees arrays of `array_api_mlx` and
    `array_api_pyopencl` in their place, without a copy. Its results become the library's own again, so
    ``mlx.core.grad``, ``compile`` and ``vmap`` take the function. Arrays of all other libraries, and these wrappers
    themselves, pass through.

    Parameters
    ----------
    function : callable
        A function of arrays, also in nested lists, tuples, dicts and dataclasses.

    Returns
    -------
    callable
        The function of any library's arrays.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> @tensorops.array_agnostic
    ... def centred(x):
    ...     return x - tensorops.get_namespace(x).mean(x)
    >>> centred(np.asarray([1.0, 3.0]))
    array([-1.,  1.])
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = _leaves((args, kwargs))
        rows = [row for row in map(library_of, given) if row is not None and row.wrapper]
        if not rows:
            return function(*args, **kwargs)
        args, kwargs = map_arrays(rows[0].wrap, (args, kwargs))
        result = function(*args, **kwargs)
        return result if any(map(rows[0].is_wrapper, given)) else map_arrays(rows[0].unwrap, result)

    return call


def _leaves(tree: Any) -> list[Any]:
    """Return what may be arrays in nested containers; written for TorchDynamo, which traces it."""
    if isinstance(tree, dict):
        return _leaves(list(tree.values()))
    if isinstance(tree, list | tuple):
        return [x for part in tree for x in _leaves(part)]
    if dataclasses.is_dataclass(tree):
        return _leaves([getattr(tree, field.name) for field in dataclasses.fields(tree)])
    return [] if tree is None or isinstance(tree, int | float | str) else [tree]


def device(x: Array) -> Any:
    """Return what the ``device`` of creation functions must be for arrays that are combined with `x`.

    Libraries differ: arrays of MLX and Dask have no devices, PyOpenCL's have a queue, and traced ones of JAX no devices
    yet. ``xp.arange(n, device=tensorops.device(x))`` is right for all of them, and within their transformations.

    Parameters
    ----------
    x : array
        An array of any library.

    Returns
    -------
    device or None
        A device of the library of `x`; ``None`` is its default.

    Raises
    ------
    TypeError
        If `x` is not an array.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x = np.ones(3)
    >>> xp = tensorops.get_namespace(x)
    >>> x + xp.arange(3, device=tensorops.device(x))
    array([1., 2., 3.])
    """
    return common_library(x).device(x)


def to_backend(tree: T, name: str) -> T:
    """Move an array, or every array in a nested structure, to a backend's array library.

    Parameters
    ----------
    tree : array, dict, list, tuple or dataclass instance
        Containers may be nested and may be instances of subclasses. An array that occurs more than once stays shared;
        everything else is unchanged.
    name : str
        A backend's name or alias.

    Returns
    -------
    same structure
        With arrays of that backend. Libraries share memory where they can, as with DLPack: do not write to the
        original afterwards. dtypes are kept; a dtype that the backend lacks is an error. Where the library's namespace
        uses wrappers, such as those of `array_api_mlx`, the arrays are unwrapped.

    Raises
    ------
    ValueError
        If there is no backend of that name.
    BackendUnavailableError
        If it cannot compute here.
    TypeError
        If an array cannot be moved: it is traced, carries a gradient, or the backend lacks its dtype.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> tensorops.to_backend({"w": [np.ones(2)]}, "numpy")
    {'w': [array([1., 1.])]}
    """
    target = first_available([resolve(name)]).library
    log = current.get().log

    def there(x: Any) -> Any:
        moved = move(x, target)
        source = library_of(x)
        if log is not None and source is not None and source is not target:
            transfer = Transfer(source.name, target.name, nbytes(x))
            log.append(Record("to_backend", "-", target.name, (tuple(x.shape),), (dtype_name(x),), (transfer,)))
        return moved

    return map_arrays(there, tree)
