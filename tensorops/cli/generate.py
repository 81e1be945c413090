"""``tensorops generate``: continue a text with a language model."""

from __future__ import annotations

from pathlib import Path

import click

from tensorops.backends.probing import unavailable_reason
from tensorops.backends.registry import Backend, resolve
from tensorops.cli import _model
from tensorops.cli._options import (
    backend_name,
    configured_backend,
    messages,
    model_options,
    model_path,
    require_available,
    require_configuration,
)


@click.command()
@click.argument("prompt")
@click.option(
    "--backend",
    callback=backend_name,
    help="Who computes; by default what is configured, else cpu, or numpy without its kernels.",
)
@click.option(
    "--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 takes the likeliest."
)
@click.option("--top-k", type=click.IntRange(min=1), help="Sample from the likeliest K tokens.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Sample from the likeliest of this total.")
@click.option("--min-p", type=click.FloatRange(0, 1), help="Leave out tokens rarer than this share of the likeliest.")
@click.option("--seed", type=int, help="Make sampling repeatable.")
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template.")
@model_options
def generate(
    prompt: str,
    backend: Backend | None,
    model: Path | None,
    max_new_tokens: int,
    chat: bool,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
) -> None:
    """Continue PROMPT; the text streams to standard output, the speed goes to standard error."""
    require_configuration()
    chosen = backend or configured_backend() or resolve("numpy" if unavailable_reason(resolve("cpu")) else "cpu")
    require_available(chosen)
    llama = _model.load(model_path(model), chosen)
    assert llama.tokenizer is not None  # files without one are refused when they are read
    watch = _model.Stopwatch()
    try:
        ids = llama.tokenizer.encode_prompt(prompt, chat=chat)
        tokens = llama.generate_ids(
            ids,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if not chat:
        click.echo(prompt, nl=False)
    for piece in llama.tokenizer.stream(watch.watch(tokens)):
        click.echo(piece, nl=False)
    click.echo()
    messages.print(
        f"[dim]{chosen.name}: {len(watch.stamps)} tokens, {watch.tokens_per_second:.1f} tokens/s; "
        f"first after {watch.seconds_to_first:.2f} s ({len(ids)} tokens of prompt)[/]"
    )
