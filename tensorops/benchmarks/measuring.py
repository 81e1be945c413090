"""Time calls alternately, so anything that slows the machine down slows all of them."""

from __future__ import annotations

import functools
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import tensorops
from tensorops import _providers
from tensorops.backends import registry
from tensorops.libraries import LIBRARIES, Library, Runtime, library_of, runtime_of
from tensorops.testing._libraries import arrays_in

Call: TypeAlias = Callable[[], Any]

LEAST_ROUNDS = 3
REST = 0.005  # seconds for the threads of the previous library to go to sleep
BATCHES = 15  # the number of batches that share the seconds of a measurement


class CannotMeasureError(Exception):
    """A comparison cannot be made; the message says why."""


# --- calls that wait for their results ---------------------------------------------------------------


def prepare_call(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any], row: Library) -> Call:
    """Return a call that returns only when its result has been computed.

    If the library compiles functions, options that are not arrays become part of the compiled function.
    """
    if row.jit is not None:
        fixed = {name: value for name, value in options.items() if library_of(value) is None}
        function = row.jit(functools.partial(function, **fixed))
        options = {name: value for name, value in options.items() if name not in fixed}
    if waiter(row) is None:  # searching for arrays to wait for would take time itself
        return lambda: function(*args, **options)
    return lambda: wait_for(function(*args, **options))


@functools.cache
def waiter(row: Library) -> Callable[[list[Any]], object] | None:
    """Return a function that waits for a library's arrays, or ``None`` if results are complete when a call returns.

    The library's runtime knows how to wait; without a runtime, arrays are copied to host memory.
    """
    if row.wait is not None:
        return row.wait
    backend = next((backend for backend in registry.BACKENDS.values() if backend.library is row), None)
    if backend is None or type(runtime := runtime_of(backend)) is Runtime:
        return lambda arrays: [row.to_numpy(array) for array in arrays]
    if type(runtime).do_synchronize is Runtime.do_synchronize:
        return None
    return lambda arrays: runtime.synchronize()


def wait_for(result: Any) -> Any:
    """Return `result`, an array or nested containers of arrays, once it has been computed.

    Examples
    --------
    >>> import numpy as np
    >>> wait_for((np.ones(2), None))
    (array([1., 1.]), None)
    """
    if arrays := arrays_in(result):
        row = library_of(arrays[0])
        assert row is not None
        if (wait := waiter(row)) is not None:
            wait([row.unwrap(array) for array in arrays])
    return result


# --- times -------------------------------------------------------------------------------------------


@dataclass
class Contender:
    """A call to time, the backend and the providers in force meanwhile, and the number of calls per batch."""

    call: Call
    backend: str
    calls: int = 1
    providers: list[str] | None = None

    def time(self) -> float:
        """Return the seconds of one call, averaged over a batch after a warm-up call."""
        call, calls = self.call, self.calls
        with tensorops.set_backend(self.backend, providers=self.providers):
            time.sleep(REST)
            call()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - start) / calls


def in_rounds(contenders: Sequence[Contender], seconds: float) -> list[list[float]]:
    """Time contenders alternately, each for about `seconds`; return the times of each, one per round."""
    for one in contenders:
        quickest = one.time()
        if quickest < seconds / BATCHES:  # otherwise a batch is one call, however long it takes
            quickest = min(quickest, one.time(), one.time())
        one.calls = max(1, int(seconds / BATCHES / max(quickest, 1e-9)))
    times: list[list[float]] = [[] for _ in contenders]
    end = time.perf_counter() + seconds * len(contenders)
    while len(times[0]) < LEAST_ROUNDS or time.perf_counter() < end:
        for one, samples in zip(contenders, times, strict=True):
            samples.append(one.time())
    return times


def median_and_quartiles(samples: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the median, the lower and the upper quartile of some times."""
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return median, (lower, upper)


def is_unsteady(quartiles: tuple[float, float]) -> bool:
    """Return whether times vary much between rounds, as they do while other programs compute."""
    lower, upper = quartiles
    return upper > 1.5 * lower


def processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def threads() -> int:
    """Return the maximum number of threads of the compiled kernels; without them, the number of processors."""
    usable = processors()
    if _providers.load("cpu"):
        return usable
    from tensorops.kernels.cpu import _native

    return min(_native.num_threads() or usable, usable)


def prepare_copy(nbytes: int) -> Call:
    """Return a call that copies that many bytes into memory already written: with torch if installed, else NumPy."""
    x, row = np.ones(nbytes // 4, np.float32), LIBRARIES["torch"]
    try:
        importlib.import_module(row.packages[0])
    except ImportError:
        there = np.copy(x)
        return lambda: np.copyto(there, x)
    source = row.from_numpy(x, None)
    return functools.partial(source.clone().copy_, source)
