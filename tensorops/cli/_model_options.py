"""Options of the commands that continue texts: how the network computes, and how the next token is chosen."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensorops.cli import _model
from tensorops.cli._options import backend_name, finite, model_option, model_path, text
from tensorops.libraries import Backend
from tensorops.ops.quantization import PRECISIONS

if TYPE_CHECKING:
    from tensorops.models import LanguageModel

C = TypeVar("C", bound=Callable[..., Any])
DEFAULTS = {"temperature": 0.8, "top_p": 0.95}  # llama.cpp's
SMALLEST = 2.0**-126  # the smallest normal number of float32


def divisor(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse a temperature that is 0 in float32, in which logits are divided by it."""
    if value is not None and 0 < value < SMALLEST:
        raise click.BadParameter(f"{value} is less than float32's {SMALLEST:.1e}; 0 chooses the likeliest token")
    return finite(context, parameter, value)


def texts(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Do what `text` does, for each of several."""
    return tuple(text(context, parameter, value) for value in values)


def biases(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[int, float] | None:
    """Return the numbers that are added to the logits of tokens, which are written as llama.cpp does: 15043-1.5."""
    found = {}
    for value in values:
        parts = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|\.\d+)|-inf)", value)
        if parts is None:
            raise click.BadParameter(f"{value!r} is no token id with a number, such as 15043+1, 15043-0.5 or 15043-inf")
        found[int(parts[1])] = float(parts[2])
    return found or None


@dataclass(frozen=True)
class NetworkOptions:
    """What the options of `network_options` say."""

    model: Path | None
    backend: Backend | None
    precision: str
    kv_dtype: str
    context_length: int | None

    def load(self, backend: Backend, ranks: int = 1) -> tuple[Path, LanguageModel]:
        """Load the model, or a rank's part."""
        path, options = model_path(self.model), {"precision": self.precision, "kv_dtype": self.kv_dtype}
        return path, _model.load(path, backend, ranks, self.context_length, **options)


def generation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of all commands that continue texts."""
    return network_options(sampling_options(command))


def sampling_options(command: C) -> C:
    """Add the options that say how the next token is chosen; their names are those of `LanguageModel.generate_ids`."""
    options = (
        click.option(
            "--temperature",
            "--temp",
            type=click.FloatRange(min=0),
            callback=divisor,
            help="0 chooses the likeliest token. By default, this, --top-k, --top-p, --min-p and --repeat-penalty are "
            f"what the model's files recommend, else {DEFAULTS['temperature']} with --top-p {DEFAULTS['top_p']}.",
        ),
        click.option("--top-k", type=click.IntRange(min=0), help="Sample from the likeliest K tokens; 0 from all."),
        click.option(
            "--top-p",
            type=click.FloatRange(0, 1, min_open=True),
            callback=finite,
            help="Sample from the likeliest tokens with this total probability; 1 from all.",
        ),
        click.option(
            "--min-p",
            type=click.FloatRange(0, 1),
            callback=finite,
            help="Leave out tokens with less than this fraction of the likeliest token's probability.",
        ),
        click.option("--seed", type=click.IntRange(min=0), help="Repeat a text; by default at random, and shown."),
        click.option(
            "--repeat-penalty",
            type=click.FloatRange(min=0, min_open=True),
            callback=finite,
            help="Divide positive logits of the last tokens by this, multiply others; 1 changes nothing.",
        ),
        click.option(
            "--repeat-last-n",
            type=click.IntRange(min=-1),
            help="How many tokens are the last ones for penalties, 64 by default; -1 for all.",
        ),
        click.option(
            "--presence-penalty",
            type=float,
            callback=finite,
            help="Subtract this from the logits of the last tokens, once for each.",
        ),
        click.option(
            "--frequency-penalty",
            type=float,
            callback=finite,
            help="Subtract this from the logits of the last tokens, as often as each is there.",
        ),
        click.option(
            "--logit-bias",
            multiple=True,
            callback=biases,
            metavar="ID±NUMBER",
            help="Add to a token's logit, as 15043+1 or 15043-inf, which forbids it; may be repeated.",
        ),
        click.option(
            "--stop",
            multiple=True,
            callback=texts,
            metavar="TEXT",
            help="End the text before this one; may be repeated.",
        ),
        click.option(
            "-n",
            "--max-new-tokens",
            type=click.IntRange(min=1),
            help="Stop after this many; by default at the end of the text, or when the model's context is full.",
        ),
    )
    return _with(command, options)


def sampling(given: dict[str, Any], model: LanguageModel) -> dict[str, Any]:
    """Return options of `LanguageModel.generate_ids`: those given, then those that the model's files recommend.

    If these do not say how to choose tokens, `DEFAULTS` do. There is a seed unless the likeliest tokens are chosen.
    """
    found = dict(model.recommended)
    if found.keys().isdisjoint(("temperature", "top_k", "top_p", "min_p")):
        found |= DEFAULTS
    found = {"temperature": 1.0, **found, **{name: value for name, value in given.items() if value is not None}}
    found["top_k"] = found.get("top_k") or None
    if found["temperature"] == 0:
        found |= {"top_k": None, "top_p": None, "min_p": None, "seed": None}
    elif "seed" not in found:
        found["seed"] = secrets.randbits(32)
    return {"max_new_tokens": None, **found}


def network_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which network computes, and how; the command gets them as `NetworkOptions`."""

    @wraps(command)
    def together(**given: Any) -> Any:
        names = [field.name for field in fields(NetworkOptions)]
        return command(how=NetworkOptions(**{name: given.pop(name) for name in names}), **given)

    options = (
        model_option,
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
    return _with(together, options)


def _with(command: C, options: tuple[Callable[[C], C], ...]) -> C:
    for option in reversed(options):  # the help lists them in this order
        command = option(command)
    return command
