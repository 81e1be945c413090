"""A file that is read by position and never mapped."""

from __future__ import annotations

import os
import stat
import threading
import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tensorops.models._errors import GGUFError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

__all__ = ["OF_PYTORCH", "OpenFile", "read_whole", "watch_reads"]

Bytes = npt.NDArray[np.uint8]
OF_PYTORCH = (
    "weights of PyTorch, which may run programs: take the model's safetensors files, or let transformers write them "
    "(AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER))"
)
PAGE = "a page of HTML: download the file itself, on huggingface.co by /resolve/ in place of /blob/"
# How files begin that are often in the place of another one.
MISTAKEN = {
    b"version https://git-lfs": "a pointer of Git LFS without the content, which `git lfs pull` in its folder fetches",
    b"<!doctype html": PAGE,
    b"<html": PAGE,
    b"pk\x03\x04": f"a zip archive, as are {OF_PYTORCH}",
}

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
        It is not a regular file, empty, or a page or a pointer in the place of a file.
    OSError
        It cannot be opened.
    """

    PIECE = 1 << 20

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Path(path))
        self._file = _open_regular(path)
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size == 0:
            raise GGUFError(self.path, "file", "empty")
        start = bytearray(min(self.size, 32))
        self._read_at(0, memoryview(start))
        _refuse_mistaken(self.path, start)

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


def read_whole(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the content of a regular file; a GGUFError says that it is none, or has more than `limit` bytes."""
    with _open_regular(path) as file:
        # `read` reserves as many bytes as it is asked for, and a file may grow after its size was asked.
        content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    if len(content) > limit:
        raise GGUFError(str(path), "file", f"larger than {limit} bytes")
    _refuse_mistaken(str(path), content[:32])
    return content


def _refuse_mistaken(path: str, start: bytes | bytearray) -> None:
    if problem := next((what for begin, what in MISTAKEN.items() if start.lower().startswith(begin)), None):
        raise GGUFError(path, "file", problem)


def _open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file that is neither a folder nor a pipe or a device."""
    irregular = GGUFError(str(Path(path)), "file", "not a regular file")
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
    except IsADirectoryError:
        raise irregular from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise irregular
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; unlike plain `open`, do not hang on a pipe without a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
