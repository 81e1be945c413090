"""The file of ``--prompt-cache``: the keys and values of a prompt, and of which model they are."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorops._messages import describe_error
from tensorops.cli._memory import files_of
from tensorops.cli._options import escape, messages

if TYPE_CHECKING:
    from tensorops.models import LanguageModel, PromptCache

MODEL = "tensorops.prompt_cache.model"  # the key of the metadata


def identity(path: Path) -> str:
    """Return what changes with a model's file, or the files in a folder: their sizes and times."""
    files = [*files_of(path), *(sorted(path.glob("*.json")) if path.is_dir() else [])]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def read(path: Path, network: LanguageModel, model: Path, ids: list[int]) -> PromptCache:
    """Return the keys and values in a file that is of this model, and say how many tokens of a prompt they serve."""
    if network.config.without_cache:
        raise click.ClickException(
            "--prompt-cache keeps keys and values of all blocks, which networks of the architecture "
            f"{network.config.architecture} do not have: leave it out"
        )
    kept = network.new_prompt_cache()
    try:
        owner = _model_of(path)
    except FileNotFoundError:
        return kept
    if owner != identity(model):
        _say(f"{path} is of another model, or of another version of its file: the prompt is read anew")
        return kept
    try:
        kept.load(path, network.backend)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise click.ClickException(f"{path} cannot be read: {describe_error(error)}; delete it") from None
    if known := kept.common(ids):
        _say(f"{known} of {len(ids)} tokens of the prompt are in {path}")
    else:
        _say(f"{path} is of another text: the prompt is read anew")
    return kept


def _model_of(path: Path) -> str:
    """Return the identity of the model in a file; refuse a file of another kind, which would be overwritten."""
    from tensorops.models.files.safetensors_header import open_safetensors

    try:
        _, metadata, _ = open_safetensors(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise click.ClickException(
            f"{path} is no prompt cache ({describe_error(error)}): --prompt-cache takes the name of a new file"
        ) from None
    if MODEL not in metadata:
        raise click.ClickException(f"{path} is no prompt cache: --prompt-cache takes the name of a new file")
    return metadata[MODEL]


def write(path: Path, kept: PromptCache, model: Path, count: int) -> None:
    """Write the keys and values of a prompt of that many tokens."""
    try:
        kept.save(path, count, metadata={MODEL: identity(model)})
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {describe_error(error)}") from None


def _say(words: str) -> None:
    messages.print(f"[dim]{escape(words)}[/]", soft_wrap=True, highlight=False)
