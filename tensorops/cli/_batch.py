"""Texts of ``tensorops generate``, and how it continues many of them together."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from tensorops.cli import _model
from tensorops.cli._options import checked_text, messages, write_json

if TYPE_CHECKING:
    from tensorops.models import LanguageModel
    from tensorops.models.tokenizers.tokenizer import Tokenizer


@dataclass
class Text:
    """A prompt of a batch and its tokens, how many may follow and which did; or why there is none."""

    prompt: str
    ids: list[int] = field(default_factory=list)
    most: int = 0
    added: list[int] = field(default_factory=list)
    error: str = ""


def encoded(network: LanguageModel, prompt: str, chat: bool, max_new_tokens: int | None) -> Text:
    """Return a prompt's tokens, or why they cannot be continued."""
    assert network.tokenizer is not None
    try:
        ids = network.tokenizer.encode_prompt(checked_text(prompt), chat=chat)
        if not ids:
            raise ValueError("the prompt has no character in the model's vocabulary")
        return Text(prompt, ids, _model.count_new_tokens(network, len(ids), max_new_tokens))
    except ValueError as error:  # the template comes from the file
        return Text(prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), error=str(error))


def write(network: LanguageModel, texts: list[Text], name: str, max_batch: int, options: dict[str, Any]) -> None:
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
                write_json(_answer(text, network.tokenizer, options.get("stop", ())))
    except (ValueError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    if network.mpi_rank:
        return
    count, seconds = sum(len(text.added) for text in right), time.perf_counter() - watch.started
    rate = f"{count} tokens in {seconds:.2f} s, {count / seconds:.1f} tokens/s with the prompts"
    rate += f"; seed {options['seed']}" if options.get("seed") is not None else ""
    messages.print(f"[dim]{name}: {len(right)} texts, {rate}[/]")
    if wrong := len(texts) - len(right):
        raise click.ClickException(f'{wrong} of {len(texts)} lines could not be continued: see "error" in theirs')


def _answer(text: Text, tokenizer: Tokenizer, stops: tuple[str, ...]) -> dict[str, Any]:
    from tensorops.models.stopping import stop_finder

    if text.error:
        return {"prompt": text.prompt, "error": text.error}
    shown = tokenizer.decode(text.added, stop=stops)
    is_stopped = any(map(stop_finder(tokenizer.bytes_of, stops), text.added))
    reason = "stop" if len(text.added) < text.most or is_stopped else "length"
    return {"prompt": text.prompt, "text": shown, "tokens": len(text.added), "finish_reason": reason}
