"""How a model continues one text: until something ends it, which may be Ctrl-C, and what is said about it then."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorops.cli._model import Stopwatch
from tensorops.cli._progress import ReadingBar

if TYPE_CHECKING:
    from tensorops.models import LanguageModel, PromptCache


class _InterruptedError(Exception):
    """Ctrl-C was pressed while the prompt was read."""


@dataclass
class Continuation:
    """A text, the tokens that follow it, when they came, and what ended them."""

    network: LanguageModel
    ids: list[int]
    kept: PromptCache
    options: dict[str, Any]  # of `LanguageModel.generate_ids`
    when_read: Callable[[], None] | None = None  # called when the text has been read
    watch: Stopwatch = field(default_factory=Stopwatch)
    added: list[int] = field(default_factory=list)
    is_interrupted: bool = False
    _is_stopped: bool = False
    _read: int = 0  # of the text, with what was kept of the one before

    def pieces(self) -> Iterator[str]:
        """Yield what follows, until Ctrl-C at the latest; pressed twice, it is a KeyboardInterrupt."""
        from tensorops.models.stopping import stop_finder

        tokenizer, stops = self.network.tokenizer, self.options["stop"]
        assert tokenizer is not None  # models without one are refused when they are loaded
        completes = stop_finder(tokenizer.bytes_of, stops)

        def note_read(done: int, total: int) -> None:
            bar(done, total)
            self._read = done
            if is_pressed():
                raise _InterruptedError
            if done == total and self.when_read is not None:
                self.when_read()

        def heard(tokens: Iterator[int]) -> Iterator[int]:
            for token in self.watch.watch(tokens):
                self.added.append(token)
                self._is_stopped |= completes(token)
                yield token
                self.is_interrupted = is_pressed() and not self._is_stopped
                if self.is_interrupted:
                    return

        # Ranks that share a network have to do the same steps, so Ctrl-C ends them at once.
        alone = self.network.world_size == 1
        with interrupts_noted() if alone else nullcontext(bool) as is_pressed, ReadingBar() as bar:
            try:
                tokens = self.network.generate_ids(self.ids, prompt_cache=self.kept, on_read=note_read, **self.options)
                yield from tokenizer.stream(heard(tokens), stop=stops)
            except _InterruptedError:
                self.is_interrupted = True

    @property
    def reason(self) -> str:
        """What ended the text, as programs call it."""
        if self.is_interrupted:
            return "interrupted"
        most = self.network.count_new_tokens(len(self.ids), self.options["max_new_tokens"])
        return "stop" if self._is_stopped or len(self.added) < most else "length"

    @property
    def is_full(self) -> bool:
        """Whether the context has room for no other token."""
        return len(self.ids) + len(self.added) >= self.network.context_length

    def summary(self) -> str:
        """Return how many tokens were read and written, how fast, and what ended the text."""
        if self.reason == "length":
            limit = self.network.context_length
            end = f"the context of {limit} tokens" if self.is_full else "--max-new-tokens"
        else:
            end = "Ctrl-C" if self.is_interrupted else "--stop" if self._is_stopped else "the end of the text"
        read, written = self._read - self.kept.reused, len(self.added)
        first = f" ({_rate(read / self.watch.seconds_to_first)})" if written else ""
        others = f" ({_rate(self.watch.tokens_per_second)})" if written > 1 else ""
        return f"tokens read {read}{first}, written {written}{others}, stopped by {end}"


def _rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:.{0 if tokens_per_second >= 10 else 1}f}/s"


@contextmanager
def interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C instead of raising, so that no step of the network is cut in two; the second one raises."""
    pressed: list[int] = []

    def handle(number: int, frame: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, before)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in jobs in the background
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
