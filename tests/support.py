"""What the tests share: which libraries are under test, and arrays' way there and back.

Everything is derived from tensorops' own tables, so that a new row is tested without being named here. What a table
cannot know stands in `tensorops.testing`, where authors of other backends have it, too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tensorops as tp
from tensorops import _providers
from tensorops._operator import OPERATORS, Operator
from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import BACKENDS
from tensorops.libraries import LIBRARIES, Backend, Library
from tensorops.testing import DTYPES, _libraries
from tensorops.testing._libraries import arrays_in, back

__all__ = [
    "HALVES",
    "STRICTEST",
    "arrays_in",
    "back",
    "backend_of",
    "before_python_path",
    "dtypes_of",
    "holding",
    "implementations",
    "python",
    "require",
    "require_provider",
    "temporary_operator",
    "there",
    "why_not",
]

HALVES = ("float16", "bfloat16")

# Functions whose result's shape depends on values, extensions, and what a later standard added: off.
STRICTEST = {
    "api_version": "2024.12",
    "boolean_indexing": False,
    "data_dependent_shapes": False,
    "enabled_extensions": (),
}


def dtypes_of(library: str) -> tuple[str, ...]:
    """Return the floating dtypes that a library holds, in the setting of `holding`; all, if it is not here to ask."""
    return tuple(DTYPES) if why_not(library) else _libraries.dtypes_held(LIBRARIES[library])


def holding(library: str, dtype: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a library holds a dtype; in its usual setting if that will do."""
    return LIBRARIES[library].holding(dtype)


def backend_of(library: str) -> Backend:
    """Return the first backend that computes with a library's arrays."""
    return next(b for b in BACKENDS.values() if b.library.name == library and not b.missing)


def why_not(library: str) -> str:
    """Return why a library's arrays cannot be tested here, or an empty string."""
    return unavailable_reason(backend_of(library))


def require(library: str) -> Library:
    """Return the row of a library, or skip the test with the reason why it cannot compute here."""
    if reason := why_not(library):
        pytest.skip(f"{library}: {reason}", allow_module_level=True)
    return LIBRARIES[library]


def require_provider(provider: str) -> None:
    """Skip the test with the reason if a provider's kernels cannot be loaded."""
    if reason := _providers.load(provider):
        pytest.skip(f"{provider}: {reason}", allow_module_level=True)


def implementations(operator: Operator[..., Any], row: Library) -> tuple[str, ...]:
    """Return what there is of an operator for a library's arrays: its body, and kernels by provider."""
    return ("generic", *(p for p in operator.kernels if p in _providers.serving_library(row.name)))


def there(tree: Any, library: str) -> Any:
    """Take the NumPy arrays in nested containers to a library; float64 becomes float32 where that is all it holds."""
    return _libraries.there(tree, backend_of(library))


@contextlib.contextmanager
def temporary_operator(body: Callable[..., Any], **declared: Any) -> Iterator[Operator[..., Any]]:
    """An operator for the length of a test: kernels may be registered and nothing stays behind."""
    made = tp._operator.operator(**declared)(body)
    try:
        yield made
    finally:
        del OPERATORS[made.__name__]


def before_python_path(*folders: os.PathLike[str]) -> str:
    """Return `PYTHONPATH` with these folders before those that it has."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter without this one's configuration; warnings are errors there too."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TENSOROPS_")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=inherited | {"TENSOROPS_CONFIG": ""} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
