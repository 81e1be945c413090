"""The error of this package, and the message for a missing optional dependency."""

from __future__ import annotations

__all__ = ["GGUFError", "missing"]


class GGUFError(ValueError):
    """A GGUF file is damaged, hostile, or needs something this package does not support.

    The message reads ``file: field: what is wrong``.

    Parameters
    ----------
    path : str
        The file.
    field : str
        The metadata key, tensor name or part of the header at fault.
    problem : str
        What is wrong with it.
    """

    def __init__(self, path: str, field: str, problem: str) -> None:
        super().__init__(f"{path}: {field}: {problem}")


def missing(package: str) -> ImportError:
    """Return the error for an optional dependency that is not installed."""
    return ImportError(f"tensorops.models needs the package {package!r}: pip install 'tensorops[models]'")
