"""Timing calls in turns, so that whatever slows the machine down slows all of them."""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorops
from tensorops import _providers
from tensorops.backends import registry
from tensorops.libraries import Library, Runtime, library_of, runtime_of
from tensorops.testing._libraries import arrays_in

Call: TypeAlias = Callable[[], Any]

LEAST_ROUNDS = 3
REST = 0.005  # seconds in which the threads of the library that computed before this one go to sleep
BATCHES = 15  # into which the seconds of a measurement are divided


class CannotMeasureError(Exception):
    """A comparison cannot be made; the message says why."""


# --- calls that wait for their results ---------------------------------------------------------------


def prepare_call(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any], row: Library) -> Call:
    """Return a call that ends when its result has been computed.

    Where the library compiles functions, options that are not arrays become part of the compiled function.
    """
    if row.jit is not None:
        fixed = {name: value for name, value in options.items() if library_of(value) is None}
        function = row.jit(functools.partial(function, **fixed))
        options = {name: value for name, value in options.items() if name not in fixed}
    if waiter(row) is None:  # looking for arrays to wait for would take time of its own
        return lambda: function(*args, **options)
    return lambda: wait_for(function(*args, **options))


@functools.cache
def waiter(row: Library) -> Callable[[list[Any]], object] | None:
    """Return what waits for arrays of a library, or ``None`` if its results are complete when a call returns.

    The runtime of the library knows how to wait; without one, arrays are copied to host memory.
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
    """Return `result`, an array or several in nested containers, once it has been computed.

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
    """A call to be timed, the backend in force meanwhile, and how many calls make a batch."""

    call: Call
    backend: str
    calls: int = 1

    def time(self) -> float:
        """Return the seconds that one call takes, the average of a batch after a call that warms up."""
        call, calls = self.call, self.calls
        with tensorops.set_backend(self.backend):
            time.sleep(REST)
            call()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - start) / calls


def in_rounds(contenders: Sequence[Contender], seconds: float) -> list[list[float]]:
    """Time contenders in turns, each for about so many seconds; return the times of each, one a round."""
    for one in contenders:
        quickest = one.time()
        if quickest < seconds / BATCHES:  # else a batch is one call, however long it takes
            quickest = min(quickest, one.time(), one.time())
        one.calls = max(1, int(seconds / BATCHES / max(quickest, 1e-9)))
    times: list[list[float]] = [[] for _ in contenders]
    end = time.perf_counter() + seconds * len(contenders)
    while len(times[0]) < LEAST_ROUNDS or time.perf_counter() < end:
        for one, samples in zip(contenders, times, strict=True):
            samples.append(one.time())
    return times


def median_and_quartiles(samples: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the median of some times, and the lower and the upper quartile."""
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return median, (lower, upper)


def is_unsteady(quartiles: tuple[float, float]) -> bool:
    """Return whether times vary much from round to round, as they do while other programs compute."""
    lower, upper = quartiles
    return upper > 1.5 * lower


def threads() -> int:
    """Return how many threads the compiled kernels use at most; without them, how many processors there are."""
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if _providers.load("cpu"):
        return usable
    from tensorops.kernels.cpu import _native

    return min(_native.num_threads() or usable, usable)
