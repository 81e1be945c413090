"""``tensorops generate``: continue a text with a language model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tensorops import set_backend
from tensorops._messages import describe_error
from tensorops._providers import GENERIC
from tensorops.cli import _model
from tensorops.cli._options import (
    backend_name,
    configured_backend,
    finite,
    messages,
    model_options,
    model_path,
    require_available,
    require_configuration,
    text,
)
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.models import Llama


def divisor(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Refuse a temperature that is 0 in float32, in which logits are divided by it."""
    smallest = float(np.finfo(np.float32).tiny)
    if 0 < value < smallest:
        raise click.BadParameter(f"{value} is less than float32's {smallest:.1e}; 0 chooses the likeliest token")
    finite(context, parameter, value)
    return value


def optional_text(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Do what `text` does if there is any; the name of an argument that may be missing is in brackets otherwise."""
    try:
        return None if value is None else text(context, parameter, value)
    except click.BadParameter as error:
        error.param_hint = "'PROMPT'"
        raise


@click.command()
@click.argument("prompt", callback=optional_text, required=False)
@click.option(
    "--backend",
    callback=backend_name,
    help="The backend; by default the configured one, else cpu, or numpy without compiled kernels.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    callback=divisor,
    default=0.0,
    show_default=True,
    help="0 chooses the likeliest token.",
)
@click.option("--top-k", type=click.IntRange(min=1), help="Sample from the likeliest K tokens.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    callback=finite,
    help="Sample from the likeliest tokens with this total probability.",
)
@click.option(
    "--min-p",
    type=click.FloatRange(0, 1),
    callback=finite,
    help="Leave out tokens with less than this fraction of the likeliest token's probability.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Make sampling repeatable.")
@click.option("--bodies", is_flag=True, help="Compute by the operators' generic bodies, without kernels.")
@click.option(
    "--tensor-parallel",
    type=click.IntRange(min=1),
    default=1,
    help="Share the model among N devices of JAX or, with NumPy arrays, N processes started by mpiexec -n N.",
    metavar="N",
)
@click.option("--chat", is_flag=True, help="Apply the model's chat template to the prompt.")
@click.option(
    "--batch",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Continue every line of a text file instead, several at a time; writes a line of JSON for each, in order.",
)
@click.option("--max-batch", type=click.IntRange(min=1), default=8, show_default=True, help="How many lines at a time.")
@model_options
def generate(
    prompt: str | None,
    backend: Backend | None,
    model: Path | None,
    max_new_tokens: int,
    chat: bool,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
    bodies: bool,
    tensor_parallel: int,
    batch: Path | None,
    max_batch: int,
) -> None:
    """Continue PROMPT; the text streams to standard output, the speed goes to standard error."""
    if (prompt is None) == (batch is None):
        raise click.UsageError("give either PROMPT or --batch")
    prompts = [prompt] if prompt is not None else _lines(batch)
    require_configuration()
    chosen = backend or configured_backend() or _model.default_backend()
    require_available(chosen, option="--backend" if backend else "")
    with set_backend(chosen.name, providers=[GENERIC]) if bodies else nullcontext():
        llama = _model.load(model_path(model), chosen, tensor_parallel)
        assert llama.tokenizer is not None  # files without one are refused when they are read
        watch = _model.Stopwatch()
        try:
            encoded = [llama.tokenizer.encode_prompt(each, chat=chat) for each in prompts]
        except ValueError as error:  # the template comes from the file
            raise click.ClickException(str(error)) from None
        pick = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
        name = f"{chosen.name}/{GENERIC}" if bodies else chosen.name
        if prompt is None:
            options = {"max_new_tokens": max_new_tokens, "max_batch": max_batch, **pick}
            count = sum(_write_batch(llama, prompts, encoded, options))
            if llama.mpi_rank:  # the first rank says the same
                return
            seconds = time.perf_counter() - watch.started
            rate = f"{count} tokens in {seconds:.2f} s, {count / seconds:.1f} tokens/s with the prompts"
            messages.print(f"[dim]{name}: {len(prompts)} texts, {rate}[/]")
            return
        (ids,) = encoded
        tokens = _model.generate(llama, ids, max_new_tokens=max_new_tokens, **pick)
        if llama.mpi_rank:  # the first rank says the same
            list(tokens)
            return
        if not chat:
            click.echo(prompt, nl=False)
        for piece in llama.tokenizer.stream(watch.watch(tokens)):
            click.echo(piece, nl=False)
        click.echo()
        messages.print(
            f"[dim]{name}: {len(watch.stamps)} tokens, {watch.tokens_per_second:.1f} tokens/s; "
            f"first after {watch.seconds_to_first:.2f} s ({len(ids)} tokens of prompt)[/]"
        )


def _lines(path: Path | None) -> list[str]:
    """Return the lines of a file that are not empty."""
    assert path is not None
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: {describe_error(error)}", param_hint="'--batch'") from None


def _write_batch(llama: Llama, prompts: list[str], encoded: list[list[int]], options: dict[str, Any]) -> Iterator[int]:
    """Write a line of JSON for each prompt in their order, as soon as its turn has come; yield its number of tokens."""
    assert llama.tokenizer is not None
    if empty := [number for number, ids in enumerate(encoded, 1) if not ids]:
        raise click.ClickException(f"prompt {empty[0]} has no character in the model's vocabulary")
    tokens: list[list[int]] = [[] for _ in prompts]
    ended: set[int] = set()
    try:
        steps = llama.generate_batch(encoded, on_end=ended.add, **options)
        for turn, (prompt, added) in enumerate(zip(prompts, tokens, strict=True)):
            while turn not in ended and (step := next(steps, None)) is not None:
                number, token = step
                tokens[number].append(token)
            if not llama.mpi_rank:
                text = "".join(llama.tokenizer.stream(iter(added)))
                click.echo(json.dumps({"prompt": prompt, "text": text, "tokens": len(added)}, ensure_ascii=False))
            yield len(added)
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
