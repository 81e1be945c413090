"""Timing operators on several backends in turns, so that whatever slows the machine down slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from tensorops._messages import describe_error
from tensorops.backends.registry import resolve
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.testing.workloads import Workload

METHOD = (
    "seconds: median over interleaved rounds, each of which times every candidate once; the result is waited for, "
    "and nothing moves. bytes: what a call must read of its inputs, and its result. "
    "speedup: seconds of NumPy's generic body in the same rounds / seconds. jax runs under jax.jit."
)
BASELINE = "numpy"  # its backend runs generic bodies only
LEAST_ROUNDS = 3
REST = 0.005  # seconds in which the threads of the library that computed before this one go to sleep
BATCHES = 15  # into which the seconds of a measurement are divided


@dataclass
class Measurement:
    """One operator of one size on one backend; without a time there is the reason for that."""

    operator: str
    backend: str
    rows: int
    features: int
    dtype: str
    kernel: str | None = None
    seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    rounds: int = 0
    calls_per_round: int = 0
    bytes: int | None = None
    gigabytes_per_second: float | None = None
    speedup: float | None = None
    reason: str | None = None


@dataclass
class Candidate:
    """What is timed: a call on a backend, and the times it took."""

    backend: Backend
    call: Callable[[], Any]
    found: Measurement
    calls: int = 1

    def time(self) -> float:
        """Return the seconds that one call takes, the average of a batch."""
        import tensorops

        with tensorops.set_backend(self.backend.name):
            return time_batch(self.call, self.calls)


class Timed(Protocol):
    """What `in_rounds` needs: how many calls make a batch, and how long one of them takes."""

    calls: int

    def time(self) -> float:
        """Return the seconds that one call takes, the average of a batch."""


def time_batch(call: Callable[[], Any], calls: int) -> float:
    """Return the seconds that one call takes, the average of a batch after one that warms up."""
    time.sleep(REST)
    call()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def in_rounds(timed: Sequence[Timed], seconds: float) -> list[list[float]]:
    """Time several things in turns, each for about so many seconds; return the times of each, one a round."""
    for one in timed:
        quickest = one.time()
        if quickest < seconds / BATCHES:  # else a batch is one call, however long it takes
            quickest = min(quickest, one.time(), one.time())
        one.calls = max(1, int(seconds / BATCHES / max(quickest, 1e-9)))
    times: list[list[float]] = [[] for _ in timed]
    end = time.perf_counter() + seconds * len(timed)
    while len(times[0]) < LEAST_ROUNDS or time.perf_counter() < end:
        for one, samples in zip(timed, times, strict=True):
            samples.append(one.time())
    return times


def prepare(found: Measurement, work: Workload) -> Candidate:
    """Take the arguments to a backend, once, and call the operator for the first time."""
    import tensorops
    from tensorops._dtypes import nbytes
    from tensorops._operator import OPERATORS
    from tensorops.testing._libraries import arrays_in
    from tensorops.testing.workloads import wait_for

    operator, backend = OPERATORS[found.operator], resolve(found.backend)
    with tensorops.set_backend(backend.name):
        args, options = tensorops.to_backend((work.args, work.options), backend.name)
        found.kernel = operator.explain(*args, **options).kernel
        function, options = _compiled(operator, options, backend)
        result = wait_for(function(*args, **options))
        found.bytes = sum(map(nbytes, arrays_in((work.args, work.options, result)))) - work.unread
    return Candidate(backend, lambda: wait_for(function(*args, **options)), found)


def _compiled(operator: Any, options: dict[str, Any], backend: Backend) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Compile for libraries that compile functions; options that are no arrays become part of the function."""
    jit = backend.library.jit
    if jit is None:
        return operator, options
    from functools import partial

    from tensorops.libraries import library_of

    fixed = {name: value for name, value in options.items() if library_of(value) is None}
    return jit(partial(operator, **fixed)), {name: options[name] for name in options if name not in fixed}


def measure(work: Workload, wanted: list[Measurement], seconds: float) -> None:
    """Time the measurements that are `wanted`, in turns, and fill them in; what cannot run says why."""
    others = [] if any(found.backend == BASELINE for found in wanted) else [replace(wanted[0], backend=BASELINE)]
    candidates = []
    for found in [*wanted, *others]:
        try:
            candidates.append(prepare(found, work))
        except Exception as error:  # a library that lacks a dtype or an operation: a row of the table says so
            found.reason = describe_error(error)
    if not candidates:
        return
    for candidate, samples in zip(candidates, in_rounds(candidates, seconds), strict=True):
        _fill_in(candidate, samples)
    baseline = next((c.found.seconds for c in candidates if c.found.backend == BASELINE), None)
    for candidate in candidates:
        if baseline is not None and candidate.found.seconds is not None:
            candidate.found.speedup = baseline / candidate.found.seconds


def _fill_in(candidate: Candidate, samples: list[float]) -> None:
    found = candidate.found
    lower, found.seconds, upper = statistics.quantiles(samples, n=4, method="inclusive")
    found.quartiles = (lower, upper)
    found.rounds, found.calls_per_round = len(samples), candidate.calls
    found.gigabytes_per_second = (found.bytes or 0) / found.seconds / 1e9
