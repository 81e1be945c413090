"""Waiting for libraries, and reading their memory use: now, or while a block runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias, TypeVar

from tensorops.backends.probing import first_available
from tensorops.backends.process_default import in_force
from tensorops.backends.registry import all_backends, resolve
from tensorops.libraries import MemoryStats, Runtime, _host, is_loaded, runtime_of

T = TypeVar("T")

Sample: TypeAlias = tuple[float, int | None, int | None]

MOST_SAMPLES = 10_000  # the number of samples that a monitor keeps: a block may run for days


def synchronize(name: str | None = None) -> None:
    """Wait until all work submitted to a library has been computed.

    Parameters
    ----------
    name : str, optional
        A backend's name or alias; by default the backend in force, or with ``"auto"`` every library that this program
        has imported.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.
    BackendUnavailableError
        If it cannot compute here.
    RuntimeError
        If the library fails, with its reason.

    Notes
    -----
    ``cuda`` waits for the current device of this thread; ``jax`` for every live array and for ordered effects; ``mlx``
    for the default streams of this thread (an unevaluated array stays unevaluated); ``torch`` for every GPU in use;
    ``opencl`` for the queues of live arrays. The others compute before a call returns.

    Examples
    --------
    >>> import tensorops
    >>> from tensorops.backends.memory import synchronize
    >>> synchronize("numpy")
    """
    _of_each(name, lambda runtime: runtime.synchronize())


def get_memory_stats(name: str | None = None) -> MemoryStats:
    """Return a library's own memory statistics, in bytes.

    Parameters
    ----------
    name : str, optional
        A backend's name or alias; by default the backend in force, or with ``"auto"`` ``cpu``.

    Returns
    -------
    MemoryStats
        ``in_use``, ``peak``, ``cached``, ``limit`` and ``total``; ``None`` if the library does not report a value. For
        ``cpu``, the pool of results of 64 KiB and more. For ``jax`` on a CPU, the sum of the live arrays. For
        ``numpy`` and ``dask``, all memory of Python while `tracemalloc` is tracing.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.
    BackendUnavailableError
        If it cannot compute here.
    RuntimeError
        If the library fails, with its reason.

    Examples
    --------
    >>> from tensorops.backends.memory import get_memory_stats
    >>> get_memory_stats("numpy").device
    'cpu'
    """
    return _runtime(name).memory_stats()


def empty_cache(name: str | None = None) -> int | None:
    """Free the memory that a library keeps for later arrays.

    Parameters
    ----------
    name : str, optional
        A backend's name or alias; by default the backend in force, or with ``"auto"`` every library that this program
        has imported.

    Returns
    -------
    int or None
        The number of bytes freed, summed over the libraries that report it; ``None`` if none does. ``jax`` drops its
        compiled functions, and on a CPU does not report a number.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.
    BackendUnavailableError
        If it cannot compute here.
    RuntimeError
        If the library fails, with its reason.

    Examples
    --------
    >>> from tensorops.backends.memory import empty_cache
    >>> empty_cache("numpy")
    0
    """
    freed = _of_each(name, lambda runtime: runtime.empty_cache())
    known = [nbytes for nbytes in freed if nbytes is not None]
    return sum(known) if known else None


def _of_each(name: str | None, ask: Callable[[Runtime], T]) -> list[T]:
    """Call a method for the backend named or in force, or for each imported library.

    Of libraries that share a memory only the first is called. A failure does not stop the others.
    """
    if name is not None or in_force().backend is not None:
        return [ask(_runtime(name))]
    answers: list[T] = []
    failures: list[RuntimeError] = []
    asked: set[str] = set()
    for backend in all_backends().values():
        if backend.missing or not is_loaded(backend.library):  # its runtime's module may not even exist
            continue
        try:
            runtime = runtime_of(backend)
            if runtime.loaded and runtime.memory not in asked:
                asked.add(runtime.memory)
                answers.append(ask(runtime))
        except RuntimeError as error:  # it names the backend
            failures.append(error)
    if failures:
        raise RuntimeError("; ".join(map(str, failures))) from failures[0]
    return answers


def _runtime(name: str | None) -> Runtime:
    chosen = in_force().backend if name is None else resolve(name)
    return runtime_of(first_available([resolve("cpu") if chosen is None else chosen]))


class MemoryMonitor:
    """Watch the memory of a library and of the process while a block runs.

    A thread takes a sample every `interval` seconds. If the library tracks its own peak (``cpu``, ``mlx``, ``torch`` on
    a GPU, ``numpy`` under `tracemalloc`), no peak between two samples is missed; the library's peak is then reset, also
    for others that read it. Monitors may be nested. One object watches one block at a time.

    Parameters
    ----------
    name : str, optional
        A backend's name or alias; by default the backend in force where the block begins, or with ``"auto"`` ``cpu``.
    interval : float, default 0.01
        Seconds between two samples. Whenever there are 10,000 samples, every other one is dropped and the interval
        doubles.

    Attributes
    ----------
    samples : tuple of (float, int or None, int or None)
        Seconds since the start, bytes in use in the library, and resident bytes of the process; ``None`` if unknown.
    start, end : int or None
        Bytes in use when the block began and when it ended; while it runs, `end` is the latest sample.
    peak, peak_resident : int or None
        The most bytes in use, and the most resident bytes of the process in any sample.

    Raises
    ------
    ValueError
        If there is no backend of that name, or `interval` is not a positive number.
    BackendUnavailableError
        If the backend cannot compute here.
    RuntimeError
        At the end of the block, if the library failed to report its memory.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> from tensorops.backends.memory import MemoryMonitor
    >>> with MemoryMonitor("numpy") as memory:
    ...     y = tensorops.silu(np.zeros(1000))
    >>> len(memory.samples) >= 2
    True
    """

    def __init__(self, name: str | None = None, *, interval: float = 0.01) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval <= 3600:
            raise ValueError(f"MemoryMonitor: interval is {interval!r}, expected seconds above 0 and at most 3600")
        if name is not None:
            resolve(name)
        self._name, self._interval = name, interval
        self._clear()
        self._watch: _Watch | None = None
        self._backend = name

    def _clear(self) -> None:
        self._samples: list[Sample] = []
        self._looks = 0
        self._seen: int | None = None  # the most bytes in use in any sample
        self._seen_resident: int | None = None
        self._counted: int | None = None  # the highest peak that the library itself counted

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Seconds since the start, bytes in use, and resident bytes of the process."""
        return tuple(self._samples)

    @property
    def start(self) -> int | None:
        """Bytes in use when the block began."""
        return self._samples[0][1] if self._samples else None

    @property
    def end(self) -> int | None:
        """Bytes in use in the latest sample; after the block, when it ended."""
        return self._samples[-1][1] if self._samples else None

    @property
    def peak(self) -> int | None:
        """The most bytes in use."""
        counted = self._watch.counted() if self._watch is not None else None
        return _highest(self._seen, self._counted, counted)

    @property
    def peak_resident(self) -> int | None:
        """The most resident bytes of the process in any sample."""
        return self._seen_resident

    def __enter__(self) -> MemoryMonitor:
        if self._watch is not None:
            raise RuntimeError("MemoryMonitor: this object already watches a block; create another one for the inner")
        runtime = _runtime(self._name)
        self._backend = runtime.name
        self._clear()
        watch = _Watch(self, runtime, self._interval)
        watch.begin()
        self._watch = watch
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        watch, self._watch = self._watch, None
        assert watch is not None
        failure = watch.finish()
        if failure is not None and error is None:  # an error of the block matters more
            raise failure

    def _note_peak(self, nbytes: int | None) -> None:
        """Record a peak that the library tracked."""
        self._counted = _highest(self._counted, nbytes)

    def _note_sample(self, sample: Sample) -> bool:
        """Record one sample; return whether every other sample was dropped for it."""
        _, in_use, resident = sample
        self._seen, self._seen_resident = _highest(self._seen, in_use), _highest(self._seen_resident, resident)
        self._looks += 1
        full = len(self._samples) >= MOST_SAMPLES
        if full:
            self._samples = self._samples[::2]  # a new list: other threads may be reading the old one
        self._samples.append(sample)
        return full

    def __str__(self) -> str:
        if not self._samples:
            return "MemoryMonitor: nothing watched yet"
        start, peak, end, resident = map(_readable, (self.start, self.peak, self.end, self.peak_resident))
        return (
            f"{self._backend}: {start} in use at the start, {peak} at the peak, {end} at the end; "
            f"process {resident} at the peak ({self._looks} readings in {self._samples[-1][0]:.2f} s)"
        )


class _Watch:
    """The sampling thread and the library's own peak, for one block."""

    # The watches that share a library's peak: resetting it for an inner block must not lose the outer block's peak.
    _running: dict[str, list[_Watch]] = {}  # noqa: RUF012 - shared on purpose
    _lock = threading.Lock()

    def __init__(self, monitor: MemoryMonitor, runtime: Runtime, interval: float) -> None:
        self._monitor, self._runtime, self._interval = monitor, runtime, interval
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._counts = False
        self._thread = threading.Thread(target=self._look_on, name="tensorops-memory", daemon=True)

    def begin(self) -> None:
        self._read = self._runtime.gauge()
        self._began = time.perf_counter()
        self._look()
        with self._lock:
            running = self._running.setdefault(self._runtime.memory, [])
            counted = self._runtime.memory_stats().peak
            self._counts = self._runtime.reset_peak()
            if self._counts:
                for outer in running:
                    outer._monitor._note_peak(counted)
            running.append(self)
        self._thread.start()

    def finish(self) -> Exception | None:
        """End the thread, take a last sample, and return what went wrong."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            if self._failure is None:
                try:
                    self._look()
                    self._monitor._note_peak(self.counted())
                except Exception as error:  # kept for the end of the block, whose own error takes precedence
                    self._failure = error
            if self in self._running.get(self._runtime.memory, ()):  # not in a child that was forked meanwhile
                self._running[self._runtime.memory].remove(self)
        return self._failure

    def counted(self) -> int | None:
        """Return the peak that the library has counted since the innermost block began."""
        return self._runtime.memory_stats().peak if self._counts else None

    def _look(self) -> None:
        in_use, resident = self._read(), _host.resident_bytes()
        if self._monitor._note_sample((time.perf_counter() - self._began, in_use, resident)):
            self._interval *= 2

    def _look_on(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._look()
            except Exception as error:  # kept for the end of the block
                self._failure = error
                return


def _renew_after_fork() -> None:
    _Watch._lock = threading.Lock()
    _Watch._running = {}  # their threads stayed in the parent


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_after_fork)


def _highest(*values: int | None) -> int | None:
    return max((v for v in values if v is not None), default=None)


def _readable(nbytes: int | None) -> str:
    if nbytes is None:
        return "unknown"
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{nbytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
