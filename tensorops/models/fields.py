"""Typed access to a GGUF file's metadata: a wrong type or value is an error that names the key."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ._errors import GGUFError

if TYPE_CHECKING:
    from .files.gguf import GGUFFile

__all__ = ["Fields"]


class Fields:
    """The metadata of a file, one method per type; a key without a default is required.

    Parameters
    ----------
    file : GGUFFile
        The file.

    Attributes
    ----------
    asked : set of str
        The keys that somebody asked for.
    longest : int
        The length of the longest axis of a tensor, an upper bound of all sizes.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.asked: set[str] = set()
        self.longest = max((length for tensor in file.tensors.values() for length in tensor.shape), default=0)

    def value(self, key: str, default: Any = None) -> Any:
        """Return what a key has, of any type."""
        self.asked.add(key)
        return self.file.metadata.get(key, default)

    def error(self, key: str, problem: str) -> GGUFError:
        """Return the error that says what is wrong with a key."""
        return GGUFError(self.file.path, key, problem)

    def string(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.value(key, default)
        if not isinstance(value, str):
            raise self.error(key, "missing" if value is None else "not a string")
        return value

    def strings(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self.value(key)
        if not isinstance(value, list):
            raise self.error(key, "missing" if value is None else "not a list of strings")
        return value

    def integers(self, key: str, default: list[int]) -> list[int]:
        """Return a list of as many integers as the default has."""
        value = self.value(key)
        if value is None:
            return default
        if getattr(value, "shape", None) != (len(default),) or value.dtype.kind not in "iu":
            raise self.error(key, f"not a list of {len(default)} integers")
        return [int(number) for number in value]

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "not a boolean")
        return value

    def flags(self, key: str, default: list[bool]) -> list[bool]:
        """Return a list of as many booleans as the default has."""
        value = self.value(key)
        if value is None:
            return default
        if getattr(value, "shape", None) != (len(default),) or value.dtype.kind != "b":
            raise self.error(key, f"not a list of {len(default)} booleans")
        return [bool(flag) for flag in value]

    def positive(self, key: str, default: int | None = None) -> int:
        """Return a positive integer, however large: positions, a period, or what is compared with something else."""
        value = self.value(key, default)
        if type(value) is not int or value < 1:
            raise self.error(key, "missing" if value is None else f"{value!r:.40} is not a positive integer")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive integer that is the size of something in a tensor, before memory is taken for it."""
        value = self.positive(key, default)
        if value > self.longest and key in self.file.metadata:
            raise self.error(key, f"{value} is more than the longest axis of a tensor, which has {self.longest}")
        return value

    def counts(self, key: str, length: int, default: int | None = None, least: int = 1) -> list[int]:
        """Return an integer of at least `least` for each of some blocks; a file may have a positive one for all."""
        value = self.value(key)
        if getattr(value, "ndim", 0) != 1:
            return [self.count(key, default)] * length
        found = self.integers(key, [0] * length)
        if min(found) < least or max(found) > self.longest:
            limits = f"{least} to the longest axis, {self.longest}"
            raise self.error(key, f"{min(found)} to {max(found)} is not from {limits}")
        return found

    def natural(self, key: str, default: int) -> int:
        """Return an integer that is not negative."""
        return 0 if _is_zero(self.value(key, default)) else self.count(key, default)

    def windows(self, name: str, period: int, default: int | None = None) -> dict[str, Any]:
        """Return `window` and `windowed` of a `ModelConfig`: one in `period` blocks has no window; with 0, all have."""
        key, pattern = f"{name}.attention.sliding_window", f"{name}.attention.sliding_window_pattern"
        blocks, window = self.positive(f"{name}.block_count"), self.value(key, default or 0)
        if _is_zero(window):
            return {}
        window = self.positive(key, default)
        given = self.value(pattern, period)
        if isinstance(given, int) and given >= 0:
            given = [not given or block % given < given - 1 for block in range(blocks)]
        if (getattr(given, "shape", None) is None and not isinstance(given, list)) or len(given) != blocks:
            raise self.error(pattern, f"not one boolean for each of {blocks} blocks")
        return {"window": window, "windowed": tuple(block for block, is_windowed in enumerate(given) if is_windowed)}

    def index(self, key: str, length: int) -> int | None:
        """Return an index below `length`, or None if there is no such key."""
        value = self.value(key)
        if value is not None and (type(value) is not int or not 0 <= value < length):
            raise self.error(key, f"{value!r:.40} is not an integer from 0 to {length - 1}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite positive number."""
        value = self.value(key, default)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, "missing" if value is None else f"{value!r:.40} is not a positive number")
        return float(value)

    def optional(self, key: str, default: float | None = None) -> float | None:
        """Return a finite positive number, or None if it is 0."""
        value = self.value(key, default)
        return None if value is None or _is_zero(value) else self.number(key, default)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float) and value == 0  # a file may have anything here, arrays too
