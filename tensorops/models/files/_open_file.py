"""A file that is read by position and never mapped."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tensorops._files import NotRegularError, open_regular
from tensorops.models._errors import GGUFError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["OpenFile", "watch_reads"]

Bytes = npt.NDArray[np.uint8]

_watcher: ContextVar[Callable[[int], object] | None] = ContextVar("_watcher", default=None)


@contextmanager
def watch_reads(watcher: Callable[[int], object]) -> Iterator[None]:
    """Call a function with the number of bytes of every piece that this thread reads from files of models."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class OpenFile:
    """A regular file that stays open as long as any part of it may be needed.

    If a *mapped* file is truncated, reading the lost part ends the process with SIGBUS; here it is an error. Other
    threads and, where the system can read by position, forked processes may read at the same time.

    Parameters
    ----------
    path : str or path-like
        The file.

    Attributes
    ----------
    path : str
        The file, for messages.
    size : int
        The number of bytes when it was opened.

    Raises
    ------
    GGUFError
        It is not a regular file, or empty.
    OSError
        It cannot be opened.
    """

    PIECE = 1 << 20

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Path(path))
        try:
            self._file = open_regular(path)
        except NotRegularError as error:
            raise GGUFError(self.path, "file", str(error.strerror)) from None
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size == 0:
            raise GGUFError(self.path, "file", "empty")

    def read(self, start: int, size: int, field: str) -> Bytes:
        """Return `size` bytes starting at byte `start`; `field` is for messages."""
        found = np.empty(size, np.uint8)
        self.read_into(found, start, field)
        return found

    def read_into(self, place: Bytes, start: int, field: str) -> None:
        """Fill a contiguous array with the bytes starting at byte `start`; `field` is for messages."""
        left, watcher = place.reshape(-1), _watcher.get()
        while left.size and (number := self._read_at(start, left[: self.PIECE].data)):
            start, left = start + number, left[number:]
            if watcher is not None:
                watcher(number)
        self._require(left.size, field)

    def _read_at(self, start: int, place: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [place], start)
        with self._lock:  # Windows
            self._file.seek(start)
            return self._file.readinto(place)

    def _require(self, missing: int, field: str) -> None:
        if missing:
            problem = f"the file became shorter after it was opened: {missing} bytes are missing"
            raise GGUFError(self.path, field, problem)
