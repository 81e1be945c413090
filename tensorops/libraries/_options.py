"""Device options of a backend: their common base class and their valid values.

The classes check what can be checked without the device. The library's `Runtime` applies them and refuses those that
the library cannot honour.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class ConfigurationError(RuntimeError):
    """The backend cannot honour a device option; the message says why, and nothing was changed."""


@dataclass(frozen=True)
class _Kind:
    """The valid values of an option: a description, their types, and a check."""

    words: str
    types: tuple[type, ...]
    accepts: Callable[[Any], bool] = lambda value: True


INDEX = _Kind("a whole number of at least 0", (int,), lambda value: 0 <= value < 2**31)
COUNT = _Kind("a whole number from 1 to 65536", (int,), lambda value: 1 <= value <= 2**16)
BYTES = _Kind("a number of bytes, at least 0", (int,), lambda value: 0 <= value < 2**62)
SOME_BYTES = _Kind("a number of bytes, at least 1", (int,), lambda value: 1 <= value < 2**62)
FRACTION = _Kind("a number above 0 and at most 1", (int, float), lambda value: math.isfinite(value) and 0 < value <= 1)
FLAG = _Kind("true or false", (bool,))
TEXT = _Kind("a non-empty string", (str,), lambda value: bool(value.strip()))
PATH = _Kind("the path of a folder", (str, os.PathLike), lambda value: bool(os.fspath(value)))


def one_of(*values: str) -> _Kind:
    """Return the kind of an option whose value is one of these."""
    return _Kind("one of " + ", ".join(map(repr, values)), (str,), lambda value: value in values)


def option(kind: _Kind, default: Any = None) -> Any:
    """Return the field of an option."""
    return dataclasses.field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class DeviceConfig:
    """The base class of device options.

    The default of each option leaves the value of the library, the environment or the configuration file unchanged.
    """

    def __post_init__(self) -> None:
        for option in dataclasses.fields(self):
            kind, value = option.metadata["kind"], getattr(self, option.name)
            if value is None and option.default is None:
                continue
            message = f"{type(self).__name__}: {option.name} is {value!r}, expected {kind.words}"
            if not isinstance(value, kind.types) or (isinstance(value, bool) and bool not in kind.types):
                raise TypeError(message)
            if not kind.accepts(value):
                raise ValueError(message)

    def refusal(self) -> str:
        """Return why no device can honour these options, or an empty string."""
        return ""
