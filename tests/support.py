"""What the tests share: which libraries are under test, and arrays' way there and back.

Everything is derived from tensorops' own tables, so that a new row is tested without being named here. Only what a
table cannot know stands here: the dtypes that a library holds, and the setting in which it holds them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorops as tp
from tensorops import kernels
from tensorops._namespaces import NAMESPACES, Namespace, namespace_of
from tensorops._operator import OPERATORS, Operator
from tensorops.backends.registry import BACKENDS, Backend, unavailable_reason
from tensorops.testing import DTYPES

HALVES = ("float16", "bfloat16")

# The standard knows no half types, and its strictest implementation has none.
_DTYPES_HELD = {"array_api_strict": ("float32", "float64")}

# Functions whose result's shape depends on values, extensions, and what a later standard added: off.
STRICTEST = {
    "api_version": "2024.12",
    "boolean_indexing": False,
    "data_dependent_shapes": False,
    "enabled_extensions": (),
}


def dtypes_of(namespace: str) -> tuple[str, ...]:
    """Return the floating dtypes that a library holds, in the setting of `holding`."""
    return _DTYPES_HELD.get(namespace, tuple(DTYPES))


@contextlib.contextmanager
def holding(namespace: str, dtype: str) -> Iterator[None]:
    """A context in which a library holds a dtype; the library's default otherwise."""
    if namespace == "jax" and dtype == "float64":
        import jax

        with jax.enable_x64(True):
            yield
    elif namespace == "mlx":
        import mlx.core as mx

        with mx.stream(mx.cpu):  # its GPUs have no float64, and multiply in less than float32
            yield
    else:
        yield


def backend_of(namespace: str) -> Backend:
    """Return the first backend that computes with a library's arrays."""
    return next(b for b in BACKENDS.values() if b.namespace_name == namespace)


def why_not(namespace: str) -> str:
    """Return why a library's arrays cannot be tested here, or an empty string."""
    return unavailable_reason(backend_of(namespace))


def require(namespace: str) -> Namespace:
    """Return the row of a library, or skip the test with the reason why it cannot compute here."""
    if reason := why_not(namespace):
        pytest.skip(f"{namespace}: {reason}")
    return NAMESPACES[namespace]


def require_provider(provider: str) -> None:
    """Skip the test with the reason if a provider's kernels cannot be loaded."""
    if reason := kernels.load(provider):
        pytest.skip(f"{provider}: {reason}")


def implementations(operator: Operator[..., Any], row: Namespace) -> tuple[str, ...]:
    """Return what there is of an operator for a library's arrays: its body, and kernels by provider."""
    return ("generic", *(p for p in operator.kernels if p in row.providers))


def there(tree: Any, namespace: str) -> Any:
    """Take the NumPy arrays in nested containers to a library; float64 becomes float32 where that is all it holds."""
    if namespace == "jax" and not _jax_holds_float64():
        tree = _narrowed(tree)
    return tp.to_backend(tree, backend_of(namespace).name)


def _jax_holds_float64() -> bool:
    import jax

    return bool(jax.config.jax_enable_x64)


def _narrowed(tree: Any) -> Any:
    if isinstance(tree, np.ndarray) and tree.dtype == np.float64:
        return tree.astype(np.float32)
    if isinstance(tree, dict):
        return {key: _narrowed(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(_narrowed, tree))
    return tree


def back(tree: Any) -> Any:
    """Take the arrays in nested tuples and lists to NumPy."""
    if isinstance(tree, list | tuple):
        return type(tree)(map(back, tree))
    row = namespace_of(tree)
    if row is None:
        return tree
    if row.lazy:  # computed in this thread, where warnings about special values are off
        import dask

        with np.errstate(all="ignore"), dask.config.set(scheduler="synchronous"):
            return row.to_numpy(tree)
    return row.to_numpy(tree)


def arrays_in(tree: Any) -> list[Any]:
    """Return the arrays in nested containers, in order."""
    if isinstance(tree, dict):
        return arrays_in(list(tree.values()))
    if isinstance(tree, list | tuple):
        return [array for item in tree for array in arrays_in(item)]
    return [] if namespace_of(tree) is None else [tree]


@contextlib.contextmanager
def temporary_operator(body: Callable[..., Any]) -> Iterator[Operator[..., Any]]:
    """An operator for the length of a test: kernels may be registered and nothing stays behind."""
    made = tp._operator.operator(body)
    try:
        yield made
    finally:
        del OPERATORS[made.__name__]


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter without this one's configuration; warnings are errors there too."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
