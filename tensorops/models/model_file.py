"""The files that a model comes in."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import architectures
from ._errors import GGUFError
from .files.gguf import GGUFFile, open_gguf
from .tokenizers.tokenizer import Tokenizer
from .weights import separated

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from .config import ModelConfig
    from .files.blocks import ComputedTensor, Tensor

__all__ = ["open_model", "read_model", "tokenizer_of"]

COUNT = "split.count"  # of the files of a model, of which the first has the metadata


def open_model(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file, with the others if the model is split, or a folder of Hugging Face as if it were one.

    Parameters
    ----------
    path : str or path-like
        The file, of several the first, or the folder.

    Raises
    ------
    GGUFError
        A file is damaged, or another one of the model is missing.
    """
    if Path(path).is_dir():
        from .files.folder import open_folder  # which imports what files do not need

        return open_folder(path)
    if Path(path).suffix in (".safetensors", ".json"):
        raise GGUFError(str(path), "file", f"of a folder: pass that, {Path(path).absolute().parent}")
    file = open_gguf(path)
    count = file.metadata.get(COUNT, 1)
    if type(count) is not int:
        raise GGUFError(file.path, COUNT, f"{count!r:.40} is not an integer")
    return file if count in (0, 1) else _joined(file)


def _joined(first: GGUFFile) -> GGUFFile:
    """Return a model of several files, whose names end with the number of each, from 1 on, and how many there are."""
    count, tensors = first.metadata[COUNT], dict(first.tensors)
    named = re.fullmatch(r"(.*-)00001(-of-(\d{5})\.gguf)", Path(first.path).name)
    if first.metadata.get("split.no", 0) != 0 or named is None or int(named[3]) != count:
        raise GGUFError(first.path, COUNT, f"{count}, but this is not the first file, NAME-00001-of-{count:05d}.gguf")
    for number in range(2, count + 1):
        path = Path(first.path).with_name(f"{named[1]}{number:05d}{named[2]}")
        if not path.exists():
            raise GGUFError(first.path, COUNT, f"{count}, but {path} is missing")
        other = open_gguf(path)
        if repeated := next((name for name in other.tensors if name in tensors), None):
            raise GGUFError(other.path, f"tensor {repeated}", "is in another file, too")
        tensors |= other.tensors
    return replace(first, tensors=tensors)


def tokenizer_of(file: GGUFFile) -> Tokenizer | None:
    """Return the tokenizer of a model; None if it is a folder without one."""
    if not file.is_folder:
        return Tokenizer(file)
    return Tokenizer.from_folder(file.path) if Path(file.path, "tokenizer.json").exists() else None


def read_model(
    path: str | os.PathLike[str],
) -> tuple[GGUFFile, ModelConfig, Mapping[str, Tensor | ComputedTensor], Tokenizer | None]:
    """Return a file, what it says of the network, its tensors and its tokenizer; a GGUFError says why it cannot load.

    No weight is read.
    """
    file = open_model(path)
    config = architectures.read_config(file)
    tensors = separated(config, file.tensors)
    if misfit := architectures.find_misfit(config, {name: tensor.shape for name, tensor in tensors.items()}):
        raise GGUFError(file.path, f"tensor {misfit[0]}", misfit[1])
    return file, config, tensors, tokenizer_of(file)
