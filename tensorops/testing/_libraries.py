"""What the table of array libraries cannot know, and arrays' way there and back.

Which floating dtypes a library holds, the setting in which it holds them, where it is less exact than they are, and
how its results are best computed. A library that is not named here gets what suits most.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorops._namespaces import Namespace, move, namespace_of
from tensorops._trees import map_arrays
from tensorops.testing.assertions import DTYPES

if TYPE_CHECKING:
    from tensorops.backends.registry import Backend
    from tensorops.testing.cases import Case

# Limits of libraries, by (library, dtype): operators whose result has that dtype, but is only as exact as float32 and
# vanishes where a float32 would. Our tests fail when an entry is not needed any more.
ONLY_AS_EXACT_AS_FLOAT32: dict[tuple[str, str], tuple[str, ...]] = {}

# Compiled or scheduled anew for every shape: seconds where another library takes milliseconds.
SLOW = ("jax", "dask")


def is_limited(case: Case, row: Namespace, dtype: str) -> bool:
    """Tell whether a library's result for a case is only as exact as float32, though its dtype is wider."""
    limited = case.operator in ONLY_AS_EXACT_AS_FLOAT32.get((row.name, dtype), ())
    return limited and "float32" in case.dtypes


def is_compiled(row: Namespace) -> bool:
    """Tell whether calls are best put into one `jax.jit`: alone, each operation is compiled for each shape."""
    return row.name == "jax"


@contextlib.contextmanager
def holding(row: Namespace, dtype: str) -> Iterator[None]:
    """Set up a library to hold a dtype for the length of a block; in its usual setting if that will do."""
    if row.name == "jax" and dtype == "float64":
        import jax

        with jax.enable_x64(True):
            yield
    elif row.name == "mlx":
        import mlx.core as mx

        with mx.stream(mx.cpu):  # its GPUs have no float64, and multiply in less than float32
            yield
    else:
        yield


@functools.cache
def dtypes_held(row: Namespace) -> tuple[str, ...]:
    """Return the floating dtypes that a library holds, in the setting of `holding`: found by taking a value there."""

    def holds(name: str) -> bool:
        try:
            with holding(row, name):
                move(np.zeros(1, dtype=DTYPES[name]), row)
        except TypeError:  # what `from_numpy` raises for a dtype that the library lacks
            return False
        return True

    return tuple(filter(holds, DTYPES))


# --- there and back ----------------------------------------------------------------------------------


def arrays_in(tree: Any) -> list[Any]:
    """Return the arrays in nested containers, in order, each once."""
    found = []

    def note(x: Any) -> Any:
        found.append(x)
        return x

    map_arrays(note, tree)
    return found


def there(tree: Any, backend: Backend) -> Any:
    """Take the NumPy arrays in nested containers to a backend; float64 becomes float32 where jax holds no more."""
    from tensorops.backends import to_backend

    if backend.namespace.name == "jax" and not _jax_holds_float64():
        tree = map_arrays(lambda a: a.astype(np.float32) if a.dtype == np.float64 else a, tree)
    return to_backend(tree, backend.name)


def _jax_holds_float64() -> bool:
    import jax

    return bool(jax.config.jax_enable_x64)


def back(tree: Any) -> Any:
    """Take the arrays in nested containers to NumPy."""
    return map_arrays(_to_numpy, tree)


def _to_numpy(x: Any) -> np.ndarray[Any, Any]:
    row = namespace_of(x)
    assert row is not None
    if row.name == "dask":  # computed in this thread, where warnings about special values are off
        import dask

        with np.errstate(all="ignore"), dask.config.set(scheduler="synchronous"):
            return row.to_numpy(row.unwrap(x))
    return row.to_numpy(row.unwrap(x))
