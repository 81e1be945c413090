"""The files that a model comes in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .folder import open_folder
from .gguf import GGUFFile, open_gguf
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import os

__all__ = ["open_model", "tokenizer_of"]


def open_model(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, or a folder of Hugging Face as if it were one."""
    return open_folder(path) if Path(path).is_dir() else open_gguf(path)


def tokenizer_of(file: GGUFFile) -> Tokenizer | None:
    """Return the tokenizer of a model; None if it is a folder without one."""
    if not file.is_folder:
        return Tokenizer(file)
    return Tokenizer.from_folder(file.path) if Path(file.path, "tokenizer.json").exists() else None
