"""Transfer arrays to a library and back, and find its floating dtypes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tensorops._messages import describe_error
from tensorops._trees import map_arrays
from tensorops.backends import to_backend
from tensorops.libraries import Backend, Library, dtype_there, library_of, move
from tensorops.testing.assertions import DTYPES


@functools.cache
def dtypes_held(row: Library) -> tuple[str, ...]:
    """Return the floating dtypes that a library supports within `holding`, found by transferring a value."""

    def holds(name: str) -> bool:
        try:
            with row.holding(name):
                move(np.zeros(1, dtype=DTYPES[name]), row)
        except TypeError:  # `from_numpy` raises it for a dtype that the library lacks
            return False
        return True

    return tuple(filter(holds, DTYPES))


# --- there and back ----------------------------------------------------------------------------------


def arrays_in(tree: Any) -> list[Any]:
    """Return the arrays in nested containers, in order and without duplicates."""
    found = []

    def note(x: Any) -> Any:
        found.append(x)
        return x

    map_arrays(note, tree)
    return found


def there(tree: Any, backend: Backend, device: Any = None) -> Any:
    """Transfer the NumPy arrays in nested containers to a backend; float64 becomes float32 if it lacks float64.

    NumPy dtypes become those of the library. A `device` of the library is used in place of the backend's.
    """
    if not backend.library.holds_float64():
        tree = map_arrays(lambda a: a.astype(np.float32) if a.dtype == np.float64 else a, tree)
    if device is None:
        moved = to_backend(tree, backend.name)
    else:
        moved = map_arrays(lambda a: move(a, backend.library, device), tree)
    return dtypes_there(moved, backend.library)


def unreachable(row: Library, device: Any) -> str:
    """Return why arrays of a library cannot be put on a device, or an empty string."""
    try:
        move(np.zeros(1, dtype=np.float32), row, device)
    except Exception as error:  # whatever the library raises is the reason
        return describe_error(error)
    return ""


def dtypes_there(tree: Any, row: Library) -> Any:
    """Return dicts, lists and tuples with the NumPy dtypes in them as those of a library."""
    if isinstance(tree, np.dtype):
        return dtype_there(tree, row)
    if type(tree) is dict:
        return {key: dtypes_there(value, row) for key, value in tree.items()}
    return type(tree)(dtypes_there(value, row) for value in tree) if type(tree) in (list, tuple) else tree


def back(tree: Any) -> Any:
    """Convert the arrays in nested containers to NumPy."""
    return map_arrays(_to_numpy, tree)


def _to_numpy(x: Any) -> np.ndarray[Any, Any]:
    row = library_of(x)
    assert row is not None
    with row.reading():
        return row.to_numpy(row.unwrap(x))
