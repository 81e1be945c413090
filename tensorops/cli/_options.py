"""Options and helpers that several subcommands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tensorops.backends.registry import Backend, resolve

C = TypeVar("C", bound=Callable[..., Any])

messages = Console(stderr=True)  # what is said about the work; results go to standard output


def backend_name(context: click.Context, parameter: click.Parameter, value: str | None) -> Backend | None:
    """Turn a backend's name into the backend; an unknown one is a usage error (exit code 2)."""
    try:
        return None if value is None else resolve(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def model_options(command: C) -> C:
    """Add the options of commands that run a language model."""
    command = click.option(
        "--max-new-tokens", type=click.IntRange(min=1), default=48, show_default=True, help="Stop after this many."
    )(command)
    return click.option(
        "--model",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="TENSOROPS_MODEL",
        help="A GGUF file; by default SmolLM2-135M-Instruct, fetched once.",
    )(command)


def model_path(given: Path | None) -> Path:
    """Return the model to run: the one given, or the default one, fetched with a progress bar if need be."""
    if given is not None:
        return given
    from tensorops.models.download import DownloadError, cached_model_path, fetch_model

    try:
        if (cached := cached_model_path()).is_file():
            return cached
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=messages) as bar:
            task = bar.add_task("SmolLM2-135M-Instruct", total=None)
            return fetch_model(lambda done, total: bar.update(task, completed=done, total=total))
    except (DownloadError, ImportError, OSError) as error:
        raise click.ClickException(
            f"{error}\nTo run a model file you have, pass --model PATH or set TENSOROPS_MODEL to its path."
        ) from None
