"""Options of a backend's device: what they have in common, and what values they take.

The classes check what can be checked without the device. The library's `Runtime` applies them, and refuses what the
library cannot honour.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class ConfigurationError(RuntimeError):
    """A device was configured to do what its backend cannot honour; the message says why, and nothing was changed."""


@dataclass(frozen=True)
class _Kind:
    """What values an option takes: in words, their types, and which of these."""

    words: str
    types: tuple[type, ...]
    accepts: Callable[[Any], bool] = lambda value: True


INDEX = _Kind("a whole number of at least 0", (int,), lambda value: 0 <= value < 2**31)
COUNT = _Kind("a whole number from 1 to 65536", (int,), lambda value: 1 <= value <= 2**16)
BYTES = _Kind("a number of bytes, at least 0", (int,), lambda value: 0 <= value < 2**62)
SOME_BYTES = _Kind("a number of bytes, at least 1", (int,), lambda value: 1 <= value < 2**62)
FRACTION = _Kind("a number above 0 and at most 1", (int, float), lambda value: math.isfinite(value) and 0 < value <= 1)
FLAG = _Kind("true or false", (bool,))
TEXT = _Kind("a text that is not empty", (str,), lambda value: bool(value.strip()))
PATH = _Kind("a folder's path", (str, os.PathLike), lambda value: bool(os.fspath(value)))


def one_of(*values: str) -> _Kind:
    """Return the kind of an option that takes one of these values."""
    return _Kind("one of " + ", ".join(map(repr, values)), (str,), lambda value: value in values)


def option(kind: _Kind, default: Any = None) -> Any:
    """Return the field of an option."""
    return dataclasses.field(default=default, metadata={"kind": kind})


@dataclass(frozen=True)
class DeviceConfig:
    """What the options of every backend's device have in common.

    Each option has a default, which leaves it as the library, the environment or the configuration file has it.
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
