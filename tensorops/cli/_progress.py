"""Bars on standard error for what takes long: only on a terminal, and gone when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tensorops.cli._memory import file_bytes
from tensorops.cli._options import messages

if TYPE_CHECKING:
    from rich.progress import Progress

LARGE = 1 << 28  # bytes; a smaller file is there in an instant


def loading(path: Path) -> AbstractContextManager[None]:
    """Show how much of a large file has been read while it loads."""
    if not messages.is_terminal or (total := file_bytes(path)) < LARGE:
        return nullcontext()
    return _loading(path, total)


@contextmanager
def _loading(path: Path, total: int) -> Iterator[None]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from tensorops.models.files._open_file import watch_reads

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=messages, transient=True) as bar:
        task = bar.add_task(path.name, total=total)
        with watch_reads(lambda count: bar.advance(task, count)):
            yield


class ReadingBar:
    """How much of a prompt has been read: to be called with the number of tokens, and of all, after each piece.

    It appears after the first piece, if that is not all, and is gone before the first token is written.
    """

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __enter__(self) -> ReadingBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None and done < total and messages.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, console=messages, transient=True)
            self._bar.add_task("reading the prompt", total=total, completed=done)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done)
            if done >= total:
                self._bar.stop()
                self._bar = None
