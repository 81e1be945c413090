"""The known libraries: which one an array belongs to, and how arrays move from one library to another.

The rows are in the files of this folder, one for each library. A library is not imported before one of its arrays
arrives or its backend is requested. All transfers go through host memory as a NumPy array, which shares memory where
the library can (see `move`).
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tensorops import _dtypes, _hooks
from tensorops._messages import describe_type
from tensorops.libraries._arrays import bfloat16
from tensorops.libraries._rows import Library, attribute
from tensorops.typing import Array, Dtype, Namespace


def _files() -> list[ModuleType]:
    package = sys.modules[__package__]
    names = (info.name for info in pkgutil.iter_modules(package.__path__))
    files = [importlib.import_module(f"{__package__}.{name}") for name in names if not name.startswith("_")]
    # Errors list libraries in this order.
    return sorted(files, key=lambda file: all(backend.for_tests for backend in file.BACKENDS))


FILES: tuple[ModuleType, ...] = tuple(_files())
"""The modules of this folder that describe a library: each has a ``LIBRARY``, and ``BACKENDS`` that use it."""

LIBRARIES: dict[str, Library] = {file.LIBRARY.name: file.LIBRARY for file in FILES}
"""Every known library by name, including those of plug-ins once they are loaded."""

_hooks.accelerators.update({row.name: row.accelerators for row in LIBRARIES.values() if row.accelerators is not None})

_BY_PACKAGE = {package: row for row in LIBRARIES.values() for package in row.packages}
_BY_TYPE: dict[type, Library] = {}
_NO_LIBRARY = {"builtins", "__main__"}


def register_library(row: Library) -> None:
    """Register an array library of another distribution.

    Raises
    ------
    ValueError
        If its name or one of its packages belongs to another library.
    """
    if LIBRARIES.get(row.name, row) is not row:
        raise ValueError(f"the library {row.name!r} is already known, as another library")
    for package in row.packages:
        if (owner := _BY_PACKAGE.get(package, row)) is not row:
            raise ValueError(f"the package {package!r} already belongs to the library {owner.name!r}")
    LIBRARIES[row.name] = row
    _BY_PACKAGE.update(dict.fromkeys(row.packages, row))


def learn_types(row: Library) -> None:
    """Add the types of a library's arrays to the look-up, without waiting for the first array of each."""
    for path in (row.array_type, *row.subtypes):
        _BY_TYPE[attribute(path)] = row


def library_of(x: object) -> Library | None:
    """Return the row of the library that `x` is an array of, or ``None`` if it is not an array.

    It is looked up once per type: JAX's tracers, subclasses and parameters have their own types.
    """
    row = _BY_TYPE.get(type(x))
    if row is None:
        row = _find(x)
        if row is not None:
            _BY_TYPE[type(x)] = row
    return row


def _find(x: object) -> Library | None:
    row = _find_among_known(x)
    package = type(x).__module__.partition(".")[0]
    if row is None and package not in _NO_LIBRARY and package not in _BY_PACKAGE:
        for load in _hooks.load_plugins:  # perhaps an array of a plug-in's library
            load()
        row = _find_among_known(x)
    return row


def _find_among_known(x: object) -> Library | None:
    for cls in type(x).__mro__:
        row = _BY_PACKAGE.get(cls.__module__.partition(".")[0])
        if row is not None and row.packages[0] in sys.modules and row.owns(x):
            return row
    return None


def known_names() -> str:
    """Return the names of the libraries whose arrays operators take, for messages."""
    return ", ".join(row.name for row in LIBRARIES.copy().values() if not row.missing)


def common_library(*arrays: Array | None) -> Library:
    """Return the row of the one library that all `arrays` belong to; ``None`` entries are ignored.

    Raises
    ------
    TypeError
        If something is not an array, or the arrays belong to several libraries, which the message names.
    """
    found: Library | None = None
    for x in arrays:
        if x is None:
            continue
        row = library_of(x)
        if row is None:
            raise TypeError(f"expected an array of {known_names()}; got {describe_type(x)}")
        if row.missing:
            raise TypeError(f"{row.name} arrays cannot be used: {row.missing}")
        if reason := row.unfit(x):
            raise TypeError(reason)
        if found is not None and row is not found:
            raise TypeError(
                f"arrays of several libraries in one call: {found.name} and {row.name}; convert one of them, or "
                f"move them all: tensorops.to_backend(arrays, {found.name!r})"
            )
        found = row
    if found is None:
        raise TypeError("expected at least one array")
    return found


def creation_device(x: Array) -> Any:
    """Return the device on which to create arrays to combine with `x`; ``None`` for the default."""
    row = library_of(x)
    return None if row is None else row.device(x)


def has_host_values(x: Array) -> bool:
    """Return whether reading values of `x` needs no computation or transfer."""
    row = library_of(x)
    return row is not None and row.host_values(x)


def symbol_type(value: object) -> type | None:
    """Return `int`, `float` or `bool` if a number of a library's trace stands for values of this type."""
    row = _BY_PACKAGE.get(type(value).__module__.partition(".")[0])
    return None if row is None else row.symbol(value)


def is_fixed(length: Any, x: Array) -> bool:
    """Return whether a length, computed from those of `x`, is one number, rather than any in a trace."""
    row = library_of(x)
    return row is None or row.fixed(length)


def rows_of(xp: Namespace, matrix: Array, indices: Array) -> Array:
    """Return the rows of a matrix at indices; those out of range are errors where the library can tell."""
    row = library_of(matrix)
    if row is None or row.lookup is None:
        return xp.take(matrix, indices, axis=0)
    return row.lookup(matrix, indices)


def take_along(xp: Namespace, x: Array, indices: Array, axis: int) -> Array:
    """Return the elements of `x` at indices along an axis, counted from its front."""
    row = library_of(x)
    if row is None or row.take_along is None:
        return xp.take_along_axis(x, indices, axis=axis)
    return row.take_along(x, indices, axis)


def sums_in_order(x: Array) -> bool:
    """Return whether long sums of the library of `x` lose digits."""
    row = library_of(x)
    return row is not None and row.sums_in_order


def constant(x: Array) -> Array:
    """Return the values of `x` in an array that derivatives take for a constant."""
    row = library_of(x)
    return x if row is None else row.in_form_of(x, row.constant)


def over_blocks(function: Callable[..., Array], size: int, rows: tuple[Array, ...], shared: tuple[Any, ...]) -> Array:
    """Return the joined results of ``function(*blocks, *shared)`` for blocks of that many rows, one after another.

    What the function computes besides its result, a number for each row, is kept neither for the next block nor for
    derivatives, which compute it again. The function is hashable, and equal to others that compute the same; entries
    may be ``None``.
    """
    row, count = common_library(rows[0]), rows[0].shape[0]
    if not count > size:  # nor if Dask does not know it
        return function(*rows, *shared)
    if row.over_blocks is not None:
        return row.over_blocks(function, size, rows, shared)
    step = row.recomputed(function)
    parts = []
    for begin in range(0, count, size):
        blocks = (None if a is None else a[begin : min(begin + size, count), ...] for a in rows)
        parts.append(step(*blocks, *shared))
    return row.xp.concat(parts)


def move(x: Array, target: Library, device: Any = None) -> Array:
    """Move `x` to another library, sharing memory where both can, and keep its dtype; the result is unwrapped.

    Raises
    ------
    TypeError
        If the value cannot be moved: it is traced, carries a gradient, or the target lacks its dtype.
    """
    source = common_library(x)
    if source is target:
        return target.unwrap(x)
    moved = target.from_numpy(source.to_numpy(source.unwrap(x)), device)
    before, after = _dtypes.dtype_name(x), _dtypes.dtype_name(moved)
    if before != after and before not in _dtypes.INTEGER:  # integers are narrowed if their values allow it
        raise TypeError(f"{target.name} holds no {before}")
    return moved


def dtype_there(dtype: Dtype, target: Library) -> Dtype:
    """Return the dtype of a library's arrays that has the name of another library's dtype.

    Raises
    ------
    TypeError
        If the library lacks it.
    """
    import numpy as np

    name = _dtypes.name_of(dtype)
    one: Array = move(np.zeros(1, bfloat16() if name == "bfloat16" else name), target)
    return one.dtype
