"""``tensorops chat``: a conversation with a language model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tensorops._messages import describe_error, nearest
from tensorops.cli import _model
from tensorops.cli._continuation import Continuation
from tensorops.cli._memory import shortage_told
from tensorops.cli._model_options import NetworkOptions, generation_options, sampling
from tensorops.cli._options import ModelPath, checked_text, escape, messages, text, write

if TYPE_CHECKING:
    from tensorops.models import LanguageModel, PromptCache

HELP = """\
/reset, /clear     begin a new conversation
/undo              forget the last message and its reply
/regen             reply to the last message anew
/set NAME VALUE    change an option, such as temperature, seed or system; /set shows all
/save FILE         write the messages to a file, as JSON
/load FILE         go on with the messages in such a file
/help              list these commands
/exit, /bye        end, as Ctrl-D does; Ctrl-C ends a reply
Lines between \"\"\" and \"\"\", or after a line that ends with a backslash, are one message."""
FULL = "/reset begins a new conversation"
PROMPT, CONTINUED = "> ", ". "
QUOTES = '"""'
INSTEAD = (
    "`tensorops generate` continues texts with it; for conversations, take the variant of the model that was trained "
    "to follow instructions (Instruct, Chat, it)"
)


def optional_text(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Do what `text` does if there is any."""
    return None if value is None else text(context, parameter, value)


@click.command()
@click.argument("named", type=ModelPath(), required=False, metavar="[MODEL]")
@click.option(
    "--system", callback=optional_text, metavar="TEXT", help="What the model is told before the conversation."
)
@generation_options
def chat(
    named: Path | None,
    how: NetworkOptions,
    system: str | None,
    **given: Any,
) -> None:
    """Talk with a language model: MODEL is a GGUF file or a folder, by default SmolLM2-135M-Instruct.

    Replies stream to standard output; standard error says how fast, and how much of the context is used. /help lists
    the commands of a conversation. Lines of standard input that is no terminal are messages as well.
    """
    if named and click.get_current_context().get_parameter_source("model") == ParameterSource.COMMANDLINE:
        raise click.UsageError("give MODEL or --model")
    chosen = _model.choose_backend(how.backend)
    path, network = replace(how, model=named or how.model).load(chosen)
    _model.require_template(network, path, INSTEAD)
    conversation = Conversation(network, system, given)
    conversation.check()
    ask: Callable[[str], str] = piped
    if sys.stdin.isatty() and sys.stdout.isatty():
        ask = line_editor()
        note(f"{click.format_filename(path.name)} on {chosen.name}; /help lists the commands, Ctrl-D ends")
    while (message := read_message(ask)) is not None:
        if not obey_or_answer(conversation, message.strip()):
            return


# ------------------------------------------------------------------------------------------------ conversation


class RefusalError(Exception):
    """A message that cannot be answered; the conversation goes on without it."""


@dataclass
class Conversation:
    """Messages, and the keys and values of what the model has read of them."""

    network: LanguageModel
    system: str | None  # what the model is told before the conversation
    given: dict[str, Any]  # options of `LanguageModel.generate_ids`, and None for those that are not
    messages: list[dict[str, str]] = field(init=False)
    options: dict[str, Any] = field(init=False)  # all that apply, with the seed of the next reply
    kept: PromptCache = field(init=False)

    def __post_init__(self) -> None:
        self.kept = self.network.new_prompt_cache()
        self.options = sampling(self.given, self.network)
        self.reset()

    def reset(self) -> None:
        """Forget all messages; what new ones have in common with the old ones is not read again."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def tell(self, system: str) -> None:
        """Change what the model is told before the conversation."""
        self.system = system
        others = [message for message in self.messages if message["role"] != "system"]
        self.messages = [{"role": "system", "content": system}, *others]

    def set(self, name: str, value: Any) -> None:
        """Change an option."""
        self.given[name] = value
        seed = self.options["seed"]
        self.options = sampling(self.given, self.network)
        if name != "seed" and seed is not None and self.options["seed"] is not None:
            self.options["seed"] = seed

    def undo(self) -> str | None:
        """Forget the last message and its reply, and return it; None if there is none."""
        place = max((i for i, message in enumerate(self.messages) if message["role"] == "user"), default=None)
        if place is None:
            return None
        message = self.messages[place]["content"]
        del self.messages[place:]
        return message

    def check(self) -> None:
        """Refuse a template that fails, as some do with a system message."""
        assert self.network.tokenizer is not None
        try:
            self.network.tokenizer.apply_chat_template([*self.messages, {"role": "user", "content": "Hello"}])
        except ValueError as error:
            raise click.ClickException(str(error)) from None

    def begin(self, message: str) -> Continuation:
        """Return the reply to a message, of which nothing is written yet.

        Raises
        ------
        RefusalError
            There is no room for a reply, or the template fails.
        """
        assert self.network.tokenizer is not None
        try:
            ids = self.network.tokenizer.encode_prompt([*self.messages, {"role": "user", "content": message}])
        except ValueError as error:
            raise RefusalError(str(error)) from None
        limit = self.network.context_length
        if (room := limit - len(ids)) < 1:
            raise RefusalError(f"the conversation has {len(ids)} tokens, and the context {limit}: {FULL}")
        most = self.options["max_new_tokens"]
        options = {**self.options, "max_new_tokens": room if most is None else min(room, most)}
        return Continuation(self.network, ids, self.kept, options)

    def add(self, message: str, reply: str) -> None:
        """Add a message with its reply; the next one has another seed."""
        self.messages += [{"role": "user", "content": message}, {"role": "assistant", "content": reply}]
        if self.options["seed"] is not None:
            self.options["seed"] += 1


def obey_or_answer(conversation: Conversation, message: str) -> bool:
    """Do what a message says, a command or not; return whether the conversation goes on."""
    command, _, argument = message.partition(" ")
    argument = argument.strip()
    if command in ("/exit", "/bye"):
        return False
    if command in ("/reset", "/clear"):
        conversation.reset()
    elif command == "/help":
        click.echo(HELP, err=True)
    elif command in ("/undo", "/regen"):
        if (last := conversation.undo()) is None:
            note("there is no message")
        elif command == "/regen":
            answer(conversation, last)
    elif command == "/set":
        set_option(conversation, argument.removeprefix("parameter "))
    elif command in ("/save", "/load"):
        if not argument:
            note(f"{command} needs the name of a file")
        else:
            (save if command == "/save" else load)(conversation, argument)
    elif command.startswith("/"):
        note(f"there is no command {command}: /help lists them")
    elif message:
        answer(conversation, message)
    return True


def answer(conversation: Conversation, message: str) -> None:
    """Write the reply to a message; standard error then says how fast, and how much of the context is used."""
    said: list[str] = []
    try:
        message = checked_text(message)
        reply = conversation.begin(message)
        with shortage_told():
            for piece in reply.pieces():
                said.append(piece)
                write(piece)
    except (RefusalError, ValueError) as error:
        note(str(error))
        return
    finally:
        if said:
            conversation.add(message, "".join(said))
    if reply.is_interrupted and not reply.added:
        note("stopped before the message was read")
        return
    click.echo()
    parts = [f"first after {reply.watch.seconds_to_first:.2f} s"] if reply.added else []
    if (seed := reply.options["seed"]) is not None:
        parts.append(f"seed {seed}")
    used = f"context {len(reply.ids) + len(reply.added)} of {conversation.network.context_length} tokens"
    note(f"{reply.summary()}; {', '.join([*parts, used])}{f': {FULL}' if reply.is_full else ''}")


def set_option(conversation: Conversation, words: str) -> None:
    """Change an option, as on the command line; without any, show all."""
    name, _, value = words.partition(" ")
    name, value = name.lower().replace("-", "_"), value.strip()
    # Those of the command line, which check values
    options = {str(each.name): each for each in chat.params if each.name in conversation.given}
    options |= {alias.lstrip("-"): each for each in options.values() for alias in each.opts}
    if not words:
        note(", ".join(f"{key} {found!r}" for key, found in conversation.options.items() if found not in (None, ())))
    elif not value or name not in ("system", *options):
        known = sorted({"system", *conversation.given})
        note(f"/set NAME VALUE, where NAME is one of {', '.join(known)}{nearest(name, known)}")
    elif name == "system":
        conversation.tell(value)
    else:
        option = options[name]
        try:
            given = (value,) if option.multiple else value
            conversation.set(str(option.name), option.process_value(click.get_current_context(), given))
        except click.BadParameter as error:
            note(error.message)


def save(conversation: Conversation, name: str) -> None:
    """Write the messages to a file."""
    try:
        content = json.dumps(conversation.messages, ensure_ascii=False, indent=1)
        Path(name).expanduser().write_text(content + "\n", encoding="utf-8")
    except OSError as error:
        note(f"{name} cannot be written: {describe_error(error)}")
    else:
        note(f"{len(conversation.messages)} messages are in {name}")


def load(conversation: Conversation, name: str) -> None:
    """Go on with the messages in a file."""
    assert conversation.network.tokenizer is not None
    try:
        found = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
        if not isinstance(found, list):
            raise ValueError("no list of messages")
        conversation.network.tokenizer.apply_chat_template(found)
    except (OSError, ValueError, RecursionError) as error:
        note(f"{name} cannot be used: {describe_error(error)}")
    else:
        conversation.messages = found
        note(f"{len(found)} messages of {name}")


def note(words: str) -> None:
    """Say something about the conversation."""
    messages.print(f"[dim]{escape(words)}[/]", soft_wrap=True, highlight=False)


# ------------------------------------------------------------------------------------------------------- input


def read_message(ask: Callable[[str], str]) -> str | None:
    """Return a message of one or more lines, or None at the end of standard input."""
    lines: list[str] = []
    try:
        lines.append(ask(PROMPT))
        if lines[0].lstrip().startswith(QUOTES):
            lines[0] = lines[0].lstrip().removeprefix(QUOTES)
            while not lines[-1].rstrip().endswith(QUOTES):
                lines.append(ask(CONTINUED))
            lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
            return "\n".join(lines)
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(ask(CONTINUED))
    except EOFError:
        if not lines:
            return None
    except KeyboardInterrupt:
        if ask is piped:
            raise
        note("Ctrl-D or /exit ends the conversation")
        return ""
    return "\n".join(lines)


def piped(_: str) -> str:
    """Return the next line of standard input; bytes that are not UTF-8 are kept as surrogates."""
    if not (line := sys.stdin.buffer.readline()):
        raise EOFError
    return line.decode("utf-8", "surrogateescape").rstrip("\r\n")


def line_editor() -> Callable[[str], str]:
    """Return prompt_toolkit's line editor, or else Python's, which has a history where there is readline."""
    try:
        from prompt_toolkit import PromptSession
    except ImportError:
        with suppress(ImportError):  # Windows has none
            import readline  # noqa: F401 - `input` then uses it
        return input
    session: PromptSession[str] = PromptSession()
    return session.prompt
