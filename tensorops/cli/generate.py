"""``tensorops generate``: continue a text with a language model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tensorops import set_backend
from tensorops._providers import GENERIC
from tensorops.cli import INTERRUPTED, _batch, _model, _prompt_file
from tensorops.cli._continuation import Continuation
from tensorops.cli._memory import require_cache, shortage_told
from tensorops.cli._model_options import NetworkOptions, generation_options, sampling
from tensorops.cli._options import TEXT_FILE, lines_of, messages, text, text_of, write, write_json

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
@generation_options
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
    type=TEXT_FILE,
    help="Continue the text of a file; - is standard input.",
)
@click.option(
    "--batch",
    type=TEXT_FILE,
    help="Continue every line of a text file, several at a time; writes a line of JSON for each, in order.",
)
@click.option("--max-batch", type=click.IntRange(min=1), default=8, show_default=True, help="How many lines at a time.")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=1,
    help="Write N continuations, with the seed and those after it.",
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
def generate(
    prompt: str | None,
    how: NetworkOptions,
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
        prompt = text_of(source, name)
    lines = [] if batch is None else lines_of(batch, "'--batch'")
    chosen = _model.choose_backend(how.backend)
    with set_backend(chosen.name, providers=[GENERIC]) if bodies else nullcontext(), shortage_told():
        path, network = how.load(chosen, tensor_parallel)
        if chat:
            _model.require_template(network, path, "leave out --chat, and the prompt is continued as it is")
        options = sampling(given, network)
        if samples > 1 and options["temperature"] == 0:
            raise click.UsageError("--samples needs --temperature, which is 0: all would be the same")
        name = f"{chosen.name}/{GENERIC}" if bodies else chosen.name
        most = given["max_new_tokens"]
        if prompt is None:
            texts = [_batch.encoded(network, line, chat, most) for line in lines]
            _batch.write(network, texts, name, max_batch, options)
            return
        text = _batch.encoded(network, prompt, chat, most)
        if text.error:
            raise click.ClickException(text.error)
        require_cache(network, len(text.ids), text.most, chosen)
        kept, keep = network.new_prompt_cache(), None
        if prompt_cache is not None:
            kept = _prompt_file.read(prompt_cache, network, path, text.ids)
            if kept.common(text.ids) < len(text.ids) - 1:
                keep = partial(_prompt_file.write, prompt_cache, kept, path, len(text.ids))
        writer = _Writer(network, text, "" if chat else prompt, name, options, as_json, logprobs, keep)
        try:
            for number in range(samples):
                if not writer.write(kept, number):
                    click.get_current_context().exit(INTERRUPTED)
        except ValueError as error:  # a token of --logit-bias
            raise click.ClickException(str(error)) from None


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
    names = ["samples", "prompt_cache", "as_json"] if given["batch"] is not None else []
    wrong = [name for name in names if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    if wrong:
        flags = ", ".join(f"--{name.removeprefix('as_').replace('_', '-')}" for name in wrong)
        raise click.UsageError(f"--batch does not take {flags}: give one prompt")


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

    def write(self, kept: PromptCache, number: int) -> bool:
        """Write a continuation as it becomes known, with the seed that is this number after the first one.

        Return whether it has ended otherwise than by Ctrl-C.
        """
        network, ids, options = self.network, self.text.ids, dict(self.options)
        if options["seed"] is not None:
            options["seed"] += number
        streams = not (self.as_json or network.mpi_rank)  # the first rank says the same
        if streams:
            write(self.shown)
        text, written = Continuation(network, ids, kept, options, None if number else self.keep), list[str]()
        for piece in text.pieces():
            written.append(piece)
            if streams:
                write(piece)
        if streams:
            click.echo()
        added = text.added
        answer = {"prompt": self.text.prompt, "text": "".join(written), "ids": added, "tokens": len(added)}
        answer |= {"finish_reason": text.reason, "seed": options["seed"]}
        answer["timings"] = _timings(text.watch, len(ids), kept.reused)
        if self.logprobs is not None:
            answer["logprobs"] = _logprobs(network, kept, ids, added, self.logprobs)
        if not network.mpi_rank:
            if self.as_json:
                write_json(answer)
            seed = "" if options["seed"] is None else f"; seed {options['seed']}"
            messages.print(f"[dim]{self.name}: {text.summary()}{seed}[/]", soft_wrap=True, highlight=False)
        return not text.is_interrupted


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
