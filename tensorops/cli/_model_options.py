"""Options of the commands that continue texts: how the network computes, and how the next token is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tensorops.cli._options import backend_name, finite, text
from tensorops.ops.quantization import PRECISIONS

C = TypeVar("C", bound=Callable[..., Any])
SMALLEST = 2.0**-126  # the smallest normal number of float32


def divisor(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse a temperature that is 0 in float32, in which logits are divided by it."""
    if value is not None and 0 < value < SMALLEST:
        raise click.BadParameter(f"{value} is less than float32's {SMALLEST:.1e}; 0 chooses the likeliest token")
    return finite(context, parameter, value)


def texts(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Do what `text` does, for each of several."""
    return tuple(text(context, parameter, value) for value in values)


def sampling_options(command: C) -> C:
    """Add the options that say how the next token is chosen; their names are those of `LanguageModel.generate_ids`."""
    options = (
        click.option(
            "--temperature",
            type=click.FloatRange(min=0),
            callback=divisor,
            help="0 chooses the likeliest token, as by default; with an option of sampling, the default is 1.",
        ),
        click.option("--top-k", type=click.IntRange(min=1), help="Sample from the likeliest K tokens."),
        click.option(
            "--top-p",
            type=click.FloatRange(0, 1, min_open=True),
            callback=finite,
            help="Sample from the likeliest tokens with this total probability.",
        ),
        click.option(
            "--min-p",
            type=click.FloatRange(0, 1),
            callback=finite,
            help="Leave out tokens with less than this fraction of the likeliest token's probability.",
        ),
        click.option("--seed", type=click.IntRange(min=0), help="Make sampling repeatable."),
        click.option(
            "--repeat-penalty",
            type=click.FloatRange(min=0, min_open=True),
            callback=finite,
            default=1.0,
            help="Divide positive logits of the last 64 tokens by this, multiply others; 1 changes nothing.",
        ),
        click.option(
            "--presence-penalty",
            type=float,
            callback=finite,
            default=0.0,
            help="Subtract this from the logits of the last 64 tokens, once for each.",
        ),
        click.option(
            "--stop",
            multiple=True,
            callback=texts,
            metavar="TEXT",
            help="End the text before this one; may be repeated.",
        ),
    )
    return _with(command, options)


def sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of `sampling_options` with the temperature that a seed needs."""
    is_seeded = given["temperature"] is None and given["seed"] is not None
    return given | ({"temperature": 1.0} if is_seeded else {})


def network_options(command: C) -> C:
    """Add the options that say how a network computes."""
    options = (
        click.option(
            "--backend",
            callback=backend_name,
            help="The backend; by default the configured one, else cpu, or numpy without compiled kernels.",
        ),
        click.option(
            "--precision",
            type=click.Choice(PRECISIONS),
            default="highest",
            show_default=True,
            help="How accurate products with quantized weights are: as in float32, or with inputs in 16 or 8 bits.",
        ),
        click.option(
            "--kv-dtype",
            type=click.Choice(("float32", "float16", "bfloat16", "q8_0")),
            default="float32",
            show_default=True,
            help="Keep keys and values in this dtype, q8_0 in 8 bits: half or a quarter of the memory, less accurate.",
        ),
        click.option(
            "--context",
            "context_length",
            type=click.IntRange(min=1),
            metavar="N",
            help="Limit texts to N tokens, which limits memory as well; by default the model's context.",
        ),
    )
    return _with(command, options)


def _with(command: C, options: tuple[Callable[[C], C], ...]) -> C:
    for option in reversed(options):  # the help lists them in this order
        command = option(command)
    return command
