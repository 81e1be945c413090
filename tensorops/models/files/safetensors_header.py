"""The header of a safetensors file: where its tensors are, whose bytes are read by position."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from tensorops.models._errors import GGUFError, missing

from ._open_file import OpenFile

if TYPE_CHECKING:
    import os

__all__ = ["Entry", "open_safetensors"]


class Entry(NamedTuple):
    """A tensor in a file.

    Parameters
    ----------
    dtype : str
        By the format's own name, such as ``"BF16"``.
    shape : tuple of int
        The shape.
    start, nbytes : int
        The place of its bytes in the file, and how many there are.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def open_safetensors(path: str | os.PathLike[str]) -> tuple[OpenFile, dict[str, str], dict[str, Entry]]:
    """Return an open file, the texts in its metadata, and its tensors by name.

    Raises
    ------
    GGUFError
        It is not a safetensors file, or is damaged: the package safetensors has checked the header.
    OSError
        It cannot be opened.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise missing("safetensors") from error
    file = OpenFile(path)
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        raise GGUFError(file.path, "header", f"not a safetensors file, or damaged: {error}") from None
    size = int.from_bytes(file.read(0, 8, "header").tobytes(), "little")
    header = json.loads(file.read(8, size, "header").tobytes())
    metadata: dict[str, str] = header.pop("__metadata__", None) or {}
    entries = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        entries[name] = Entry(entry["dtype"], tuple(entry["shape"]), 8 + size + start, stop - start)
    return file, metadata, entries
