"""``tensorops chat``: a conversation with a language model."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorops._messages import describe_error
from tensorops.cli import _model
from tensorops.cli._memory import shortage_told
from tensorops.cli._model_options import network_options, sampling, sampling_options
from tensorops.cli._options import checked_text, escape, messages, model_path, text, write
from tensorops.cli._progress import ReadingBar
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.models import LanguageModel, PromptCache

HELP = """\
/reset      begin a new conversation
/save FILE  write the messages to a file, as JSON
/help       list these commands
/exit       end, as Ctrl-D does; Ctrl-C ends a reply"""
FULL = "/reset begins a new conversation"
PROMPT = "> "
INSTEAD = (
    "`tensorops generate` continues texts with it; for conversations, take the variant of the model that was trained "
    "to follow instructions (Instruct, Chat, it)"
)


def optional_text(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Do what `text` does if there is any."""
    return None if value is None else text(context, parameter, value)


@click.command()
@click.argument("model", type=click.Path(exists=True, path_type=Path), envvar="TENSOROPS_MODEL", required=False)
@click.option(
    "--system", callback=optional_text, metavar="TEXT", help="What the model is told before the conversation."
)
@network_options
@sampling_options
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="End replies after this many tokens.")
def chat(
    model: Path | None,
    system: str | None,
    backend: Backend | None,
    precision: str,
    kv_dtype: str,
    context_length: int | None,
    max_new_tokens: int | None,
    **given: Any,
) -> None:
    """Talk with a language model: MODEL is a GGUF file or a folder, by default SmolLM2-135M-Instruct.

    Replies stream to standard output; standard error says how fast, and how much of the context is used. /help lists
    the commands of a conversation. Lines of standard input that is no terminal are messages as well.
    """
    chosen = _model.choose_backend(backend)
    path = model_path(model)
    network = _model.load(path, chosen, 1, context_length, precision=precision, kv_dtype=kv_dtype)
    _model.require_template(network, path, INSTEAD)
    conversation = Conversation(network, system, max_new_tokens, sampling(given))
    conversation.check()
    read_line: Callable[[], str | None] = piped
    if sys.stdin.isatty() and sys.stdout.isatty():
        read_line = terminal()
        note(f"{click.format_filename(path.name)} on {chosen.name}; /help lists the commands, Ctrl-D ends")
    while (line := read_line()) is not None:
        if not obey_or_answer(conversation, line.strip()):
            return


# ------------------------------------------------------------------------------------------------ conversation


class RefusalError(Exception):
    """A message that cannot be answered; the conversation goes on without it."""


@dataclass
class Conversation:
    """Messages, and the keys and values of what the model has read of them."""

    network: LanguageModel
    system: str | None  # what the model is told before the conversation
    max_new_tokens: int | None  # of a reply
    options: dict[str, Any]  # of `LanguageModel.generate_ids`
    messages: list[dict[str, str]] = field(init=False)
    used: int = field(init=False)  # how many tokens of the context the last message and its reply took up to
    kept: PromptCache = field(init=False)

    def __post_init__(self) -> None:
        self.kept = self.network.new_prompt_cache()
        self.reset()

    def reset(self) -> None:
        """Forget all messages; what new ones have in common with the old ones is not read again."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.used = 0

    def check(self) -> None:
        """Refuse a template that fails, as some do with a system message."""
        assert self.network.tokenizer is not None
        try:
            self.network.tokenizer.apply_chat_template([*self.messages, {"role": "user", "content": "Hello"}])
        except ValueError as error:
            raise click.ClickException(str(error)) from None

    def reply(
        self, message: str, watch: _model.Stopwatch, is_stopped: Callable[[], bool], bar: ReadingBar
    ) -> Iterator[str]:
        """Yield the model's reply to a message, and add both to the conversation.

        Raises
        ------
        RefusalError
            There is no room for a reply, or the template fails.
        """
        tokenizer = self.network.tokenizer
        assert tokenizer is not None
        self.messages.append({"role": "user", "content": message})
        said: list[str] = []
        try:
            ids = self._encoded()
            for piece in self._pieces(ids, watch, is_stopped, bar):
                said.append(piece)
                yield piece
        finally:
            if said:
                self.messages.append({"role": "assistant", "content": "".join(said)})
                self.used = len(ids) + len(watch.stamps)
            else:
                self.messages.pop()

    def _encoded(self) -> list[int]:
        assert self.network.tokenizer is not None
        try:
            ids = self.network.tokenizer.encode_prompt(self.messages)
        except ValueError as error:
            raise RefusalError(str(error)) from None
        if len(ids) >= self.network.context_length:
            limit = self.network.context_length
            raise RefusalError(f"the conversation has {len(ids)} tokens, and the context {limit}: {FULL}")
        return ids

    def _pieces(
        self, ids: list[int], watch: _model.Stopwatch, is_stopped: Callable[[], bool], bar: ReadingBar
    ) -> Iterator[str]:
        def stop_reading(done: int, total: int) -> None:
            bar(done, total)
            if is_stopped():
                raise RefusalError("stopped before the message was read")

        tokenizer = self.network.tokenizer
        assert tokenizer is not None
        room = self.network.context_length - len(ids)
        most = room if self.max_new_tokens is None else min(room, self.max_new_tokens)
        tokens = self.network.generate_ids(
            ids, max_new_tokens=most, prompt_cache=self.kept, on_read=stop_reading, **self.options
        )
        heard = itertools.takewhile(lambda _: not is_stopped(), watch.watch(tokens))
        return tokenizer.stream(heard, stop=self.options["stop"])


def obey_or_answer(conversation: Conversation, line: str) -> bool:
    """Do what a line says, a command or a message; return whether the conversation goes on."""
    command, _, argument = line.partition(" ")
    if command == "/exit":
        return False
    if command == "/reset":
        conversation.reset()
    elif command == "/help":
        click.echo(HELP, err=True)
    elif command == "/save":
        save(conversation, argument.strip())
    elif command.startswith("/"):
        note(f"there is no command {command}: /help lists them")
    elif line:
        answer(conversation, line)
    return True


def answer(conversation: Conversation, message: str) -> None:
    """Write the reply to a message; standard error then says how fast, and how much of the context is used."""
    watch = _model.Stopwatch()
    try:
        with interrupts_noted() as is_stopped, shortage_told(), ReadingBar() as bar:
            for piece in conversation.reply(checked_text(message), watch, is_stopped, bar):
                write(piece)
    except (RefusalError, ValueError) as error:
        note(str(error))
        return
    click.echo()
    limit = conversation.network.context_length
    full = f"; the context is full: {FULL}" if conversation.used >= limit else ""
    speed = f", {watch.speed}" if watch.speed else ""
    note(f"{len(watch.stamps)} tokens{speed}; context {conversation.used} of {limit} tokens{full}")


def save(conversation: Conversation, name: str) -> None:
    """Write the messages to a file."""
    if not name:
        note("/save needs the name of a file")
        return
    try:
        content = json.dumps(conversation.messages, ensure_ascii=False, indent=1)
        Path(name).expanduser().write_text(content + "\n", encoding="utf-8")
    except OSError as error:
        note(f"{name} cannot be written: {describe_error(error)}")
    else:
        note(f"{len(conversation.messages)} messages are in {name}")


def note(words: str) -> None:
    """Say something about the conversation."""
    messages.print(f"[dim]{escape(words)}[/]", soft_wrap=True, highlight=False)


@contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C instead of raising, so that no step of the network is cut in two; the second one raises."""
    pressed: list[int] = []

    def handle(number: int, frame: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------------------------------------- input


def piped() -> str | None:
    """Return the next line of standard input, or None at its end; bytes that are not UTF-8 are kept as surrogates."""
    line = sys.stdin.buffer.readline()
    return line.decode("utf-8", "surrogateescape") if line else None


def terminal() -> Callable[[], str | None]:
    """Return a function that asks for a line on a terminal, with editing and history, until Ctrl-D."""
    ask = line_editor()

    def read_line() -> str | None:
        try:
            return ask()
        except EOFError:
            return None
        except KeyboardInterrupt:
            note("Ctrl-D or /exit ends the conversation")
            return ""

    return read_line


def line_editor() -> Callable[[], str]:
    """Return prompt_toolkit's line editor, or else Python's, which has a history where there is readline."""
    try:
        from prompt_toolkit import PromptSession
    except ImportError:
        with suppress(ImportError):  # Windows has none
            import readline  # noqa: F401 - `input` then uses it
        return lambda: input(PROMPT)
    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt(PROMPT)
