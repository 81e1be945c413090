"""``tensorops embed``: texts as vectors."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from tensorops import to_backend
from tensorops.cli import _model
from tensorops.cli._memory import shortage_told
from tensorops.cli._model_options import NetworkOptions, network_options, texts
from tensorops.cli._options import TEXT_FILE, checked_text, lines_of, write_json


@click.command()
@click.argument("given", metavar="TEXTS...", nargs=-1, callback=texts)
@click.option("--file", type=TEXT_FILE, help="Take every line of a file; - is standard input.")
@click.option(
    "--pooling",
    type=click.Choice(("mean", "last", "cls")),
    default="mean",
    show_default=True,
    help="The mean of the tokens' features, those of the last token, or of the first one.",
)
@click.option("--normalize", is_flag=True, help="Divide vectors by their lengths: their products are cosines then.")
@network_options
def embed(given: tuple[str, ...], file: Path | None, pooling: str, normalize: bool, how: NetworkOptions) -> None:
    """Write TEXTS as vectors: the features of a language model, a line of JSON for each text.

    They are those after the model's last norm, as of `LanguageModel.embed`.
    """
    if bool(given) == (file is not None):
        raise click.UsageError("give TEXTS or --file")
    lines = list(given) if file is None else lines_of(file, "'--file'")
    chosen = _model.choose_backend(how.backend)
    with shortage_told():
        _, network = how.load(chosen)
        for line in lines:
            try:
                vector = np.asarray(to_backend(network.embed(checked_text(line), pooling), "numpy"))
            except ValueError as error:
                raise click.ClickException(str(error)) from None
            write_json((vector / np.linalg.norm(vector) if normalize else vector).tolist())
