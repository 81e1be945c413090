"""``tensorops perplexity``: how well a model predicts a text."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from tensorops.cli import _model
from tensorops.cli._memory import shortage_told
from tensorops.cli._model_options import NetworkOptions, network_options
from tensorops.cli._options import TEXT_FILE, messages, text_of, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorops.models import LanguageModel

CHUNK = 512  # tokens, as in llama.cpp


@click.command()
@click.argument("file", type=TEXT_FILE)
@click.option("--chunks", type=click.IntRange(min=1), metavar="N", help="Read the first N chunks only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@network_options
def perplexity(file: Path, chunks: int | None, as_json: bool, how: NetworkOptions) -> None:
    """Measure how well a language model predicts the text of FILE, where - is standard input.

    The result is exp(-mean(log p)) with the probability p of each token after those before it, and its standard error.
    As in llama.cpp, the text is cut into chunks of --context tokens, by default 512, which are read one by one;
    if the model has a token that begins texts, it is the first of each. Of each chunk, tokens in the second half count;
    tokens after the last whole chunk do not.
    """
    text = text_of(file, "'FILE'")
    chosen = _model.choose_backend(how.backend)
    with shortage_told():
        _, network = how.load(chosen)
        assert network.tokenizer is not None
        size = network.context_length if how.context_length else min(CHUNK, network.context_length)
        ids = network.tokenizer.encode(text)
        count = min(len(ids) // size, chunks or len(ids))
        if not count or size < 4:
            what = f"the text has {len(ids)} tokens, and a chunk {size}"
            raise click.ClickException(f"{what}: take a longer text, or --context N with fewer tokens, at least 4")
        started, losses = time.perf_counter(), np.empty(0)
        with messages.status("") as status:
            for number, found in enumerate(chunk_losses(network, ids, size, count), start=1):
                losses = np.concatenate((losses, found))
                status.update(f"{number} of {count} chunks: {np.exp(losses.mean()):.4f}")
    value = float(np.exp(losses.mean()))
    error = value * float(losses.std()) / (len(losses) - 1) ** 0.5 if len(losses) > 1 else None
    if as_json:
        sizes = {"chunks": count, "chunk_tokens": size, "tokens_counted": len(losses)}
        write_json({"perplexity": value, "standard_error": error, **sizes})
    else:
        click.echo(f"{value:.4f}" + (f" +/- {error:.4f}" if error is not None else ""))
    rate = f"{count * size / (time.perf_counter() - started):.0f}/s"
    said = f"{chosen.name}: {count} chunks of {size} tokens ({rate}), of which {len(losses)} tokens count"
    messages.print(f"[dim]{said}[/]", soft_wrap=True, highlight=False)


def chunk_losses(network: LanguageModel, ids: list[int], size: int, count: int) -> Iterator[np.ndarray]:
    """Yield the negative logarithms of the probabilities of tokens in the second half of each chunk."""
    assert network.tokenizer is not None
    begin = [i for i in network.tokenizer.encode("")[:1] if i == network.tokenizer.bos_id]
    for start in range(0, count * size, size):
        chunk = [*begin, *ids[start + len(begin) : start + size]]
        yield -network.logprobs(chunk).chosen[size // 2 :].astype(np.float64)
