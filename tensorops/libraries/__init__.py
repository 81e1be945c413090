"""Array libraries: one file in this folder for each.

A file has a ``LIBRARY``, the row that says how to find and transfer its arrays, and ``BACKENDS``, the rows of the
backends that compute with it. Its subclass of `Runtime` manages the library's device and memory.
"""

from __future__ import annotations

from tensorops._messages import describe_error
from tensorops.libraries._options import ConfigurationError, DeviceConfig
from tensorops.libraries._rows import Backend, Library, attribute
from tensorops.libraries._runtime import Change, DeviceFacts, MemoryStats, Runtime, is_loaded

# The files of libraries, which this imports, may import all of the above from here.
# isort: split
from tensorops.libraries._known import (
    FILES,
    LIBRARIES,
    common_library,
    constant,
    creation_device,
    dtype_there,
    has_host_values,
    is_fixed,
    known_names,
    learn_types,
    library_of,
    move,
    over_blocks,
    register_library,
    rows_of,
    sums_in_order,
    symbol_type,
    take_along,
)

__all__ = [
    "FILES",
    "LIBRARIES",
    "Backend",
    "Change",
    "ConfigurationError",
    "DeviceConfig",
    "DeviceFacts",
    "Library",
    "MemoryStats",
    "Runtime",
    "common_library",
    "constant",
    "creation_device",
    "dtype_there",
    "has_host_values",
    "is_fixed",
    "is_loaded",
    "known_names",
    "learn_types",
    "library_of",
    "move",
    "over_blocks",
    "register_library",
    "rows_of",
    "runtime_of",
    "sums_in_order",
    "symbol_type",
    "take_along",
]


def runtime_of(backend: Backend) -> Runtime:
    """Return the `Runtime` of a backend, without importing a library.

    Raises
    ------
    RuntimeError
        If the class that its row names cannot be loaded or is not a `Runtime`, with the reason.
    """
    path = backend.runtime or backend.library.runtime
    try:
        runtime = attribute(path)(backend)
    except Exception as error:  # a plug-in's class may fail in any way
        raise RuntimeError(f"backend {backend.name!r}: making {path} failed with {describe_error(error)}") from error
    if not isinstance(runtime, Runtime):
        raise RuntimeError(f"backend {backend.name!r}: {path} is not a tensorops Runtime")
    return runtime
