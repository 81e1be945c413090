"""Whether there is memory for a model: said before it is used, in one line with what helps."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorops.cli._options import warn
from tensorops.hardware.cpu import available_memory
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.models import LanguageModel

SMALLER = "take a file with smaller weights, such as Q4_K_M, or a smaller model"
SHORTER = "--context N limits the number of tokens, --kv-dtype their keys and values"
MOST_GROWTH = 16  # from 2 bits in a file to 32


def gigabytes(count: int) -> str:
    """Return a number of bytes in words."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def files_of(path: Path) -> list[Path]:
    """Return the files with the weights of a model: of a folder, or of a file that others continue."""
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    split = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path.name)
    return [path] if split is None else sorted(path.parent.glob(f"{glob.escape(split[1])}?????{split[2]}"))


def file_bytes(path: Path) -> int:
    """Return how many bytes the weights of a model take in its files."""
    return sum(file.stat().st_size for file in files_of(path))


def require_weights(path: Path, backend: Backend) -> None:
    """Refuse a model whose weights do not fit the memory; a small file is not even opened for that."""
    left = available_memory() if backend.library.name == "numpy" else None  # others may have memory of their own
    if left is None or MOST_GROWTH * file_bytes(path) < left:
        return
    from tensorops.models.memory import weights_bytes
    from tensorops.models.model_file import open_model

    needed = weights_bytes(open_model(path).tensors, backend.name)
    if needed > left:
        raise click.ClickException(
            f"the weights of {click.format_filename(path)} need {gigabytes(needed)} of memory on {backend.name}, and "
            f"{gigabytes(left)} are available: {SMALLER}"
        )


def require_cache(network: LanguageModel, prompt: int, new: int, backend: Backend) -> None:
    """Refuse a prompt whose keys and values do not fit the memory; warn if those of the longest text do not."""
    from tensorops.models.memory import cache_bytes

    left = available_memory() if backend.library.name == "numpy" else None
    if left is None:
        return
    if (needed := cache_bytes(network.config, prompt + 1, network.kv_dtype)) > left:
        raise click.ClickException(
            f"the keys and values of {prompt} tokens need {gigabytes(needed)} of memory, and {gigabytes(left)} are "
            "available: shorten the prompt, or give --kv-dtype q8_0"
        )
    if (needed := cache_bytes(network.config, prompt + new, network.kv_dtype)) > left:
        warn(
            f"keys and values of {prompt + new} tokens would need {gigabytes(needed)} of memory, and "
            f"{gigabytes(left)} are available: {SHORTER}"
        )


@contextlib.contextmanager
def shortage_told() -> Iterator[None]:
    """Make a lack of memory an error of the command."""
    try:
        yield
    except MemoryError as error:
        said = f" ({error})" if str(error) else ""
        raise click.ClickException(f"the memory is full{said}: {SHORTER}; or {SMALLER}") from None
