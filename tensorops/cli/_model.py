"""Loading and timing a language model on a backend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorops.backends.registry import resolve
from tensorops.cli._memory import require_weights, shortage_told
from tensorops.cli._options import configured_backend, require_available, require_configuration, warnings_told
from tensorops.cli._progress import loading
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.models import LanguageModel


def default_backend() -> Backend:
    """Return the default backend of a model."""
    try:
        from tensorops.models import language_model
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    return resolve(language_model.default_backend())


def choose_backend(named: Backend | None) -> Backend:
    """Return the backend to compute with: the one named, or else the configured one, or else the default."""
    require_configuration()
    chosen = named or configured_backend() or default_backend()
    require_available(chosen, option="--backend" if named else "")
    return chosen


def load(
    path: Path,
    backend: Backend,
    ranks: int = 1,
    context_length: int | None = None,
    *,
    precision: str = "highest",
    kv_dtype: str = "float32",
) -> LanguageModel:
    """Load a model, or a rank's part, compiled if the library compiles Python functions of arrays."""
    try:
        from tensorops.models import LanguageModel
        from tensorops.models.mesh import mesh_of

        require_weights(path, backend)
        mesh = mesh_of(backend.name, ranks) if ranks > 1 else None
        world_size = ranks if mesh is None else 1
        with warnings_told(), loading(path), shortage_told():
            model = LanguageModel.load(
                path,
                backend.name,
                compile=backend.library.jit,
                mesh=mesh,
                world_size=world_size,
                precision=precision,
                kv_dtype=kv_dtype,
            )
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    if model.tokenizer is None:
        raise click.ClickException(f"{path} has no tokenizer: copy the model's tokenizer.json to this folder")
    if context_length is not None:
        _limit(model, context_length)
    return model


def require_template(model: LanguageModel, path: Path, remedy: str) -> None:
    """Refuse a model that was not trained for conversations, or whose file does not say how they are written."""
    assert model.tokenizer is not None  # files without one are refused when they are read
    if model.tokenizer.chat_template is None:
        raise click.ClickException(f"{click.format_filename(path)} has no chat template: {remedy}")


def _limit(model: LanguageModel, context_length: int) -> None:
    try:
        model.context_length = context_length
    except ValueError:
        most = model.config.context_length
        raise click.BadParameter(f"the model's context has {most} tokens", param_hint="'--context'") from None


def generate(model: LanguageModel, prompt: list[int], **options: Any) -> Iterator[int]:
    """Continue the tokens of a prompt; a refusal of the model is an error of the command."""
    if not prompt:
        raise click.ClickException("the prompt has no character in the model's vocabulary")
    try:
        count_new_tokens(model, len(prompt), options.get("max_new_tokens"))
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return model.generate_ids(prompt, **options)


def count_new_tokens(model: LanguageModel, prompt: int, max_new_tokens: int | None) -> int:
    """Return how many tokens may be added to a prompt; a ValueError says what helps if they do not fit."""
    try:
        return model.count_new_tokens(prompt, max_new_tokens)
    except ValueError as error:
        remedy = "shorten the prompt" if max_new_tokens is None else "shorten the prompt, or lower --max-new-tokens"
        raise ValueError(f"{error}: {remedy}") from None


@dataclass
class Stopwatch:
    """The times of tokens; the first, which includes the prompt and compilation, is kept separately."""

    started: float = field(default_factory=time.perf_counter)
    stamps: list[float] = field(default_factory=list)

    def watch(self, tokens: Iterator[int]) -> Iterator[int]:
        """Pass tokens on and record their times."""
        for token in tokens:
            self.stamps.append(time.perf_counter())
            yield token

    @property
    def seconds_to_first(self) -> float:
        """Seconds from the start to the first token."""
        return self.stamps[0] - self.started if self.stamps else float("nan")

    @property
    def tokens_per_second(self) -> float:
        """The median rate of the tokens after the first; NaN for fewer than two."""
        gaps = sorted(b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False))
        return 1.0 / gaps[len(gaps) // 2] if gaps else float("nan")
