"""Shared libraries in installed wheels, loaded at run time, and the threads that they compute on.

Both oneDNN and MKL compute on the threads of oneTBB here. These sleep when there is no work, and a caller whose helpers
are late takes their share, so they neither hold processors that other threads need nor wait for each other. They do not
survive fork: in a child of a process that has loaded such a library, its kernels refuse, as a call might never end.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import os
import platform
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tensorops import _providers
from tensorops._messages import installing
from tensorops.backends.process import process
from tensorops.hardware import usable_processors


def library_path(distribution: str, name: str) -> Path:
    """Return the path of a shared library that a distribution installed.

    Raises
    ------
    ImportError
        If it is not there, with what to do.
    """
    remedy = installing(distribution)
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise ImportError(f"{distribution} is supported on x86-64 Linux only")
    try:
        files = importlib.metadata.files(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{distribution} is not installed; to fix it: {remedy}") from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise ImportError(f"the installed version of {distribution} has no {name}; to fix it: {remedy}")


_loading = threading.RLock()


def load(path: Path) -> ctypes.CDLL:
    """Load a shared library, and first what it needs from the same folder, where wheels put everything.

    Raises
    ------
    OSError
        If the loader refuses it, or something that it needs is missing.
    """
    global _loaded
    tried: set[str] = set()
    with _loading:
        _loaded = True
        while True:
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                needed = str(error).partition(":")[0]
                beside = path.parent / needed
                if needed in tried or beside == path or not beside.is_file():
                    raise
                tried.add(needed)
                load(beside)


class _Control(ctypes.Structure):
    """oneTBB's `global_control`: while it exists, at most `value` threads compute, the calling one included."""

    _fields_ = (("value", ctypes.c_size_t), ("reserved", ctypes.c_ssize_t), ("parameter", ctypes.c_int))


class Threads:
    """oneTBB's threads, within tensorops' bounds.

    These are `set_num_threads` and ``TENSOROPS_NUM_THREADS``, OpenMP's limit, which threadpoolctl sets, and one thread
    in a block of Dask. oneTBB has bounds for the process only: while calls from several threads run at the same time,
    the lowest holds for all of them. A bound is kept until a call has another, as lifting it wakes threads up.
    """

    def __init__(self, tbb: ctypes.CDLL) -> None:
        self._create = tbb._ZN3tbb6detail2r16createERNS0_2d114global_controlE
        self._destroy = tbb._ZN3tbb6detail2r17destroyERNS0_2d114global_controlE
        self._lock = threading.Lock()
        self._running: Counter[int] = Counter()  # calls by their bound
        self._control: _Control | None = None

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """Keep to the bound that holds for the calling thread."""
        bound = bound_of_threads()
        with self._lock:
            self._running[bound] += 1
            self._set(min((b for b, calls in self._running.items() if b and calls), default=0))
        try:
            yield
        finally:
            with self._lock:
                self._running[bound] -= 1

    def _set(self, bound: int) -> None:
        before = self._control
        if bound == (before.value if before is not None else 0):
            return
        self._control = _Control(bound, 0, 0) if bound else None
        if self._control is not None:
            self._create(ctypes.byref(self._control))
        if before is not None:
            self._destroy(ctypes.byref(before))


@functools.cache
def threads_of(folder: Path) -> Threads:
    """Return the threads of the oneTBB in a folder; of the one that this process has loaded, if there is one."""
    return Threads(load(folder / "libtbb.so.12"))


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = _loaded


_loaded = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def refuse_after_fork() -> str | None:
    """Return why nothing can be computed in a child of fork, or ``None``."""
    return "this is a child of fork, to which oneTBB's threads do not belong" if _forked else None


_PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_USABLE = usable_processors()  # fewer, if there is a quota


def bound_of_threads() -> int:
    """Return how many threads a call may compute on; 0 if that is all that there are."""
    if _providers.load("cpu"):  # no compiled kernels, which would have read the configuration
        configured = process.configuration.devices.get("cpu", {}).get("num_threads") or 0
        return configured if configured < _PROCESSORS else 0
    native = importlib.import_module("tensorops.kernels.cpu._native")
    alone = native.use_one_thread(False)
    native.use_one_thread(alone)
    if alone:
        return 1
    bound = min(native.num_threads() or _PROCESSORS, _openmp_limit(str(native.__file__)), _USABLE)
    return bound if bound < _PROCESSORS else 0


def _openmp_limit(module: str) -> int:
    limit = _openmp(module)
    return _PROCESSORS if limit is None else int(limit())


@functools.cache
def _openmp(module: str) -> ctypes._NamedFuncPointer | None:
    """Return the function that gives the limit of the OpenMP runtime that a module is linked with, if it is."""
    return getattr(ctypes.CDLL(module), "omp_get_max_threads", None)
