"""``tensorops run``: `chat`, or with a prompt `generate --chat`, as `ollama run` is called."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from tensorops.cli._model_options import generation_options
from tensorops.cli._options import ModelPath
from tensorops.cli.chat import chat
from tensorops.cli.generate import generate


@click.command()
@click.argument("words", nargs=-1, metavar="[MODEL] [PROMPT]...")
@generation_options
@click.pass_context
def run(context: click.Context, /, words: tuple[str, ...], **_: Any) -> None:
    """Talk with a language model, or with a PROMPT have one reply to it; as `ollama run`.

    MODEL is a GGUF file or a folder, and left out where --model has it; by default SmolLM2-135M-Instruct. The
    rest is `tensorops chat`, or `tensorops generate --chat` with the words of PROMPT.
    """
    given = {name: value for name, value in context.params.items() if name != "words"}
    if words and context.get_parameter_source("model") != ParameterSource.COMMANDLINE:
        parameter = next(each for each in context.command.params if each.name == "words")
        given["model"], words = ModelPath()(words[0], parameter, context), words[1:]
    if words:
        context.invoke(generate, prompt=" ".join(words), chat=True, **given)
    else:
        context.invoke(chat, **given)
