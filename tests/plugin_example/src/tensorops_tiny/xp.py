"""The functions of the standard: those of NumPy, on our arrays. Extensions (``linalg``, ``fft``) are not offered."""

from __future__ import annotations

import functools
import types

import array_api_compat.numpy as _numpy

from tensorops_tiny.array import unwrap, wrap


@functools.cache
def __getattr__(name):
    if name.startswith("_") and name != "__array_namespace_info__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_numpy, name)
    if isinstance(value, types.ModuleType):
        raise AttributeError(f"module {__name__!r} does not offer the extension {name!r}")
    if isinstance(value, type) or not callable(value):  # dtypes and constants
        return value

    @functools.wraps(value)
    def function(*args, **kwargs):
        return wrap(value(*unwrap(args), **{key: unwrap(argument) for key, argument in kwargs.items()}))

    return function
