"""``tensorops generate``: continue a text with a language model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click
import numpy as np

from tensorops import set_backend
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


def divisor(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Refuse a temperature that is 0 in float32, in which logits are divided by it."""
    smallest = float(np.finfo(np.float32).tiny)
    if 0 < value < smallest:
        raise click.BadParameter(f"{value} is less than float32's {smallest:.1e}; 0 chooses the likeliest token")
    finite(context, parameter, value)
    return value


@click.command()
@click.argument("prompt", callback=text)
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
    bodies: bool,
    tensor_parallel: int,
) -> None:
    """Continue PROMPT; the text streams to standard output, the speed goes to standard error."""
    require_configuration()
    chosen = backend or configured_backend() or _model.default_backend()
    require_available(chosen, option="--backend" if backend else "")
    with set_backend(chosen.name, providers=[GENERIC]) if bodies else nullcontext():
        llama = _model.load(model_path(model), chosen, tensor_parallel)
        assert llama.tokenizer is not None  # files without one are refused when they are read
        watch = _model.Stopwatch()
        try:
            ids = llama.tokenizer.encode_prompt(prompt, chat=chat)
        except ValueError as error:  # the template comes from the file
            raise click.ClickException(str(error)) from None
        pick = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
        tokens = _model.generate(llama, ids, max_new_tokens=max_new_tokens, **pick)
        if llama.mpi_rank:  # the first rank says the same
            list(tokens)
            return
        if not chat:
            click.echo(prompt, nl=False)
        for piece in llama.tokenizer.stream(watch.watch(tokens)):
            click.echo(piece, nl=False)
        click.echo()
        name = f"{chosen.name}/{GENERIC}" if bodies else chosen.name
        messages.print(
            f"[dim]{name}: {len(watch.stamps)} tokens, {watch.tokens_per_second:.1f} tokens/s; "
            f"first after {watch.seconds_to_first:.2f} s ({len(ids)} tokens of prompt)[/]"
        )
