"""``tensorops generate``: continue a text with a language model."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tensorops import set_backend
from tensorops._messages import describe_error
from tensorops._providers import GENERIC
from tensorops.cli import _batch, _model, _prompt_file
from tensorops.cli._memory import require_cache, shortage_told
from tensorops.cli._model_options import network_options, sampling, sampling_options
from tensorops.cli._options import checked_text, messages, model_option, model_path, text, write, write_json
from tensorops.cli._progress import ReadingBar
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.models import LanguageModel, PromptCache


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
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=1,
    help="Write N continuations, with the seed and those after it; by default with seeds at random.",
    metavar="N",
)
@click.option(
    "--prompt-cache",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep keys and values of the prompt in a file, for the next one that begins with the same text.",
)
@click.option("--json", "as_json", is_flag=True, help="Write a line of JSON for each complete continuation.")
@click.option(
    "--logprobs",
    type=click.IntRange(min=0),
    metavar="N",
    help="With --json, add the log probabilities of the tokens, and of the N likeliest ones at each place.",
)
@model_option
def generate(
    prompt: str | None,
    backend: Backend | None,
    precision: str,
    kv_dtype: str,
    context_length: int | None,
    model: Path | None,
    max_new_tokens: int | None,
    chat: bool,
    bodies: bool,
    tensor_parallel: int,
    file: Path | None,
    batch: Path | None,
    max_batch: int,
    samples: int,
    prompt_cache: Path | None,
    as_json: bool,
    logprobs: int | None,
    **given: Any,
) -> None:
    """Continue PROMPT, where - is standard input; the text streams to standard output.

    Standard error says how fast, and why the text ended.
    """
    _refuse_contradictions(click.get_current_context())
    if file is not None or prompt == "-":
        source, name = (file, "'--file'") if file is not None else (Path("-"), "'PROMPT'")
        prompt = _prompt(_content(source, name), name)
    lines = [] if batch is None else [line for line in _content(batch, "'--batch'").splitlines() if line.strip()]
    chosen = _model.choose_backend(backend)
    if samples > 1 and given["seed"] is None:
        given["seed"] = secrets.randbits(32)
    options = {"max_new_tokens": max_new_tokens, **sampling(given)}
    with set_backend(chosen.name, providers=[GENERIC]) if bodies else nullcontext(), shortage_told():
        path = model_path(model)
        network = _model.load(path, chosen, tensor_parallel, context_length, precision=precision, kv_dtype=kv_dtype)
        if chat:
            _model.require_template(network, path, "leave out --chat, and the prompt is continued as it is")
        name = f"{chosen.name}/{GENERIC}" if bodies else chosen.name
        if prompt is None:
            texts = [_batch.encoded(network, line, chat, max_new_tokens) for line in lines]
            _batch.write(network, texts, name, max_batch, options)
            return
        text = _batch.encoded(network, prompt, chat, max_new_tokens)
        if text.error:
            raise click.ClickException(text.error)
        require_cache(network, len(text.ids), text.most, chosen)
        kept, keep = network.new_prompt_cache(), None
        if prompt_cache is not None:
            kept = _prompt_file.read(prompt_cache, network, path, text.ids)
            if kept.common(text.ids) < len(text.ids) - 1:
                keep = partial(_prompt_file.write, prompt_cache, kept, path, len(text.ids))
        writer = _Writer(network, text, "" if chat else prompt, name, options, as_json, logprobs, keep)
        for number in range(samples):
            writer.write(kept, number)


def _refuse_contradictions(context: click.Context) -> None:
    """Refuse options that do not go together."""
    given = context.params
    sources = [given[name] for name in ("prompt", "file", "batch") if given[name] is not None]
    if len(sources) != 1:
        raise click.UsageError("give one of PROMPT, --file and --batch")
    if given["tensor_parallel"] > 1 and str(sources[0]) == "-":
        raise click.UsageError("--tensor-parallel reads no standard input, which would reach one process only")
    if given["tensor_parallel"] > 1 and given["prompt_cache"] is not None:
        raise click.UsageError("--prompt-cache has no parts of several processes: leave out --tensor-parallel")
    if given["logprobs"] is not None and not given["as_json"]:
        raise click.UsageError("--logprobs needs --json")
    if given["samples"] > 1 and given["temperature"] == 0:
        raise click.UsageError("--samples needs a temperature: with 0, all are the same")
    names = ["samples", "prompt_cache", "as_json"] if given["batch"] is not None else []
    wrong = [name for name in names if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    if wrong:
        flags = ", ".join(f"--{name.removeprefix('as_').replace('_', '-')}" for name in wrong)
        raise click.UsageError(f"--batch does not take {flags}: give one prompt")


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


@dataclass
class _Writer:
    """Writes continuations of a prompt, as text or as JSON."""

    network: LanguageModel
    text: _batch.Text
    shown: str  # what is written before a continuation
    name: str  # the backend, for the message
    options: dict[str, Any]  # of `LanguageModel.generate_ids`
    as_json: bool  # whether to write JSON
    logprobs: int | None  # how many of the likeliest tokens to add to it, if any
    keep: Callable[[], None] | None  # called once the prompt has been read for the first time

    def write(self, kept: PromptCache, number: int) -> None:
        """Write a continuation as it becomes known, with the seed that is this number after the first one."""
        from tensorops.models.stopping import stop_finder

        network, ids, stops = self.network, self.text.ids, self.options["stop"]
        assert network.tokenizer is not None  # files without one are refused when they are read
        seed = None if self.options["seed"] is None else self.options["seed"] + number
        streams = not (self.as_json or network.mpi_rank)  # the first rank says the same
        if streams:
            write(self.shown)
        watch, written = _model.Stopwatch(), list[str]()
        added: list[int] = []

        def note_read(done: int, total: int) -> None:
            bar(done, total)
            if done == total and self.keep is not None and not number:
                self.keep()

        with ReadingBar() as bar:
            tokens = network.generate_ids(ids, prompt_cache=kept, on_read=note_read, **{**self.options, "seed": seed})
            for piece in network.tokenizer.stream(_noted(watch.watch(tokens), added), stop=stops):
                written.append(piece)
                if streams:
                    write(piece)
        if streams:
            click.echo()
        is_stopped = any(map(stop_finder(network.tokenizer.bytes_of, stops), added))
        reason = "stop" if is_stopped or len(added) < self.text.most else "length"
        answer = {"prompt": self.text.prompt, "text": "".join(written), "ids": added, "tokens": len(added)}
        answer |= {"finish_reason": reason, "seed": seed, "timings": _timings(watch, len(ids), kept.reused)}
        if self.logprobs is not None:
            answer["logprobs"] = _logprobs(network, kept, ids, added, self.logprobs)
        if network.mpi_rank:
            return
        if self.as_json:
            write_json(answer)
        self._say(watch, "--stop" if is_stopped else self._end(len(added)))

    def _end(self, count: int) -> str:
        """Return what ended a text of so many tokens."""
        if count < self.text.most:
            return "the end of the text"
        if self.options["max_new_tokens"]:
            return "--max-new-tokens"
        return f"the context of {self.network.context_length} tokens"

    def _say(self, watch: _model.Stopwatch, end: str) -> None:
        parts = [f"{self.name}: {len(watch.stamps)} tokens, to {end}", watch.speed]
        if watch.stamps:
            parts.append(f"first after {watch.seconds_to_first:.2f} s ({len(self.text.ids)} tokens of prompt)")
        messages.print(f"[dim]{'; '.join(filter(None, parts))}[/]", soft_wrap=True)


def _noted(tokens: Iterator[int], added: list[int]) -> Iterator[int]:
    for token in tokens:
        added.append(token)
        yield token


def _timings(watch: _model.Stopwatch, prompt: int, cached: int) -> dict[str, Any]:
    """Return numbers for JSON, which has no NaN."""
    timings: dict[str, Any] = {"prompt_tokens": prompt, "cached_tokens": cached}
    timings["seconds_to_first_token"] = watch.seconds_to_first if watch.stamps else None
    timings["tokens_per_second"] = watch.tokens_per_second if len(watch.stamps) > 1 else None
    return timings


def _logprobs(
    network: LanguageModel, kept: PromptCache, prompt: list[int], added: list[int], top: int
) -> list[dict[str, Any]]:
    """Return a record for each token that was added: it, and the likeliest ones in its place."""
    assert network.tokenizer is not None
    decode = network.tokenizer.decode
    start = kept.cache.truncate(len(prompt) - 1)
    found = network.logprobs([*prompt, *added][start:], top=top, cache=kept.cache)
    records = []
    for place, token in enumerate(added, start=len(found.chosen) - len(added)):
        likeliest = [
            {"id": int(other), "text": decode([other], skip_special=False), "logprob": float(value)}
            for other, value in zip(found.top_ids[place], found.top[place], strict=True)
        ]
        record = {"id": token, "text": decode([token], skip_special=False), "logprob": float(found.chosen[place])}
        records.append(record | {"top": likeliest})
    return records
