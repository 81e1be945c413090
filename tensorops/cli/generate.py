"""``tensorops generate``: continue a text with a language model."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorops import set_backend
from tensorops._messages import describe_error
from tensorops._providers import GENERIC
from tensorops.cli import _model
from tensorops.cli._model_options import network_options, sampling, sampling_options
from tensorops.cli._options import checked_text, messages, model_option, model_path, text
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.models import LanguageModel
    from tensorops.models.tokenizer import Tokenizer


def optional_text(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Do what `text` does if there is any; the name of an argument that may be missing is in brackets otherwise."""
    try:
        return None if value is None else text(context, parameter, value)
    except click.BadParameter as error:
        error.param_hint = "'PROMPT'"
        raise


@click.command()
@click.argument("prompt", callback=optional_text, required=False)
@network_options
@sampling_options
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
    "--file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Continue the text of a file; - is standard input.",
)
@click.option(
    "--batch",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Continue every line of a text file, several at a time; writes a line of JSON for each, in order.",
)
@click.option("--max-batch", type=click.IntRange(min=1), default=8, show_default=True, help="How many lines at a time.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    help="Stop after this many; by default at the end of the text, or when the model's context is full.",
)
@model_option
def generate(
    prompt: str | None,
    backend: Backend | None,
    precision: str,
    context_length: int | None,
    model: Path | None,
    max_new_tokens: int | None,
    chat: bool,
    bodies: bool,
    tensor_parallel: int,
    file: Path | None,
    batch: Path | None,
    max_batch: int,
    **given: Any,
) -> None:
    """Continue PROMPT, where - is standard input; the text streams to standard output.

    Standard error says how fast, and why the text ended.
    """
    if (prompt is not None) + (file is not None) + (batch is not None) != 1:
        raise click.UsageError("give one of PROMPT, --file and --batch")
    if tensor_parallel > 1 and "-" in (prompt, str(file), str(batch)):
        raise click.UsageError("--tensor-parallel reads no standard input, which would reach one process only")
    if file is not None or prompt == "-":
        source, name = (file, "'--file'") if file is not None else (Path("-"), "'PROMPT'")
        prompt = _prompt(_content(source, name), name)
    lines = [] if batch is None else [line for line in _content(batch, "'--batch'").splitlines() if line.strip()]
    chosen = _model.choose_backend(backend)
    with set_backend(chosen.name, providers=[GENERIC]) if bodies else nullcontext():
        network = _model.load(model_path(model), chosen, tensor_parallel, precision, context_length)
        name = f"{chosen.name}/{GENERIC}" if bodies else chosen.name
        options = {"max_new_tokens": max_new_tokens, **sampling(given)}
        if prompt is not None:
            _stream(network, prompt, chat, name, options)
        else:
            _write_batch(
                network, [_encoded(network, line, chat, max_new_tokens) for line in lines], name, max_batch, options
            )


def _content(path: Path, name: str) -> str:
    """Return the text of a file, or of standard input for -; bytes that are not UTF-8 are kept as surrogates."""
    try:
        with click.open_file(str(path), "rb") as stream:
            return str(stream.read().decode("utf-8-sig", "surrogateescape"))
    except OSError as error:
        raise click.BadParameter(f"{path}: {describe_error(error)}", param_hint=name) from None


def _prompt(content: str, name: str) -> str:
    """Return a prompt without the end of its last line; refuse what is not text."""
    try:
        return checked_text(content.removesuffix("\n").removesuffix("\r"))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from None


def _stream(network: LanguageModel, prompt: str, chat: bool, name: str, options: dict[str, Any]) -> None:
    """Write the text that follows a prompt as it becomes known."""
    assert network.tokenizer is not None  # files without one are refused when they are read
    watch = _model.Stopwatch()
    text = _encoded(network, prompt, chat, options["max_new_tokens"])
    if text.error:
        raise click.ClickException(text.error)
    tokens = network.generate_ids(text.ids, **options)
    if network.mpi_rank:  # the first rank says the same
        list(tokens)
        return
    if not chat:
        click.echo(prompt, nl=False)
    for piece in network.tokenizer.stream(watch.watch(tokens)):
        click.echo(piece, nl=False)
    click.echo()
    count = len(watch.stamps)
    if count < text.most:
        end = "the end of the text"
    else:
        end = "--max-new-tokens" if options["max_new_tokens"] else f"the context of {network.context_length} tokens"
    messages.print(
        f"[dim]{name}: {count} tokens, to {end}; {watch.tokens_per_second:.1f} tokens/s; "
        f"first after {watch.seconds_to_first:.2f} s ({len(text.ids)} tokens of prompt)[/]",
        soft_wrap=True,
    )


@dataclass
class _Text:
    """A prompt of a batch and its tokens, how many may follow and which did; or why there is none."""

    prompt: str
    ids: list[int] = field(default_factory=list)
    most: int = 0
    added: list[int] = field(default_factory=list)
    error: str = ""


def _encoded(network: LanguageModel, prompt: str, chat: bool, max_new_tokens: int | None) -> _Text:
    assert network.tokenizer is not None
    try:
        ids = network.tokenizer.encode_prompt(checked_text(prompt), chat=chat)
        if not ids:
            raise ValueError("the prompt has no character in the model's vocabulary")
        return _Text(prompt, ids, network.count_new_tokens(len(ids), max_new_tokens))
    except ValueError as error:  # the template comes from the file
        return _Text(prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), error=str(error))


def _write_batch(
    network: LanguageModel, texts: list[_Text], name: str, max_batch: int, options: dict[str, Any]
) -> None:
    """Write a line of JSON for each text in their order, as soon as its turn has come."""
    assert network.tokenizer is not None
    watch = _model.Stopwatch()
    right = [text for text in texts if not text.error]
    ended: set[int] = set()
    number = 0
    try:
        steps = network.generate_batch([t.ids for t in right], max_batch=max_batch, on_end=ended.add, **options)
        for text in texts:
            while not text.error and number not in ended and (step := next(steps, None)) is not None:
                right[step[0]].added.append(step[1])
            number += not text.error
            if not network.mpi_rank:  # the first rank says the same
                click.echo(json.dumps(_answer(text, network.tokenizer), ensure_ascii=False))
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    if network.mpi_rank:
        return
    count, seconds = sum(len(text.added) for text in right), time.perf_counter() - watch.started
    rate = f"{count} tokens in {seconds:.2f} s, {count / seconds:.1f} tokens/s with the prompts"
    messages.print(f"[dim]{name}: {len(right)} texts, {rate}[/]")
    if wrong := len(texts) - len(right):
        raise click.ClickException(f'{wrong} of {len(texts)} lines could not be continued: see "error" in theirs')


def _answer(text: _Text, tokenizer: Tokenizer) -> dict[str, Any]:
    if text.error:
        return {"prompt": text.prompt, "error": text.error}
    reason = "stop" if len(text.added) < text.most else "length"
    answer = {"prompt": text.prompt, "text": tokenizer.decode(text.added), "tokens": len(text.added)}
    return answer | {"finish_reason": reason}
