"""Operators on several backends alternately, compared with NumPy's generic body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import tensorops
from tensorops._dtypes import nbytes
from tensorops._messages import describe_error
from tensorops._operator import OPERATORS
from tensorops._providers import GENERIC
from tensorops.backends.registry import resolve
from tensorops.benchmarks.measuring import (
    Contender,
    in_rounds,
    is_unsteady,
    median_and_quartiles,
    prepare_call,
    prepare_copy,
)
from tensorops.benchmarks.workloads import Workload, workload
from tensorops.libraries import Backend
from tensorops.testing._libraries import arrays_in

BASELINE = "numpy"  # this backend runs only generic bodies


@dataclass
class Measurement:
    """One operator of one size on one backend, or its generic body there; if there is no time, there is a reason."""

    operator: str
    backend: str
    rows: int
    features: int
    dtype: str
    body: bool = False
    kernel: str | None = None
    seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    rounds: int = 0
    calls_per_round: int = 0
    bytes: int | None = None
    gigabytes_per_second: float | None = None
    copy_gigabytes_per_second: float | None = None
    speedup: float | None = None
    speedup_over_body: float | None = None
    reason: str | None = None

    @property
    def case(self) -> tuple[str, str]:
        """The operator and the size."""
        return self.operator, f"{self.rows}x{self.features}"

    @property
    def name(self) -> str:
        """The backend, and whether only generic bodies compute."""
        return f"{self.backend}/{GENERIC}" if self.body else self.backend

    @property
    def providers(self) -> list[str] | None:
        """The only providers in force, if not all."""
        return [GENERIC] if self.body else None

    def __str__(self) -> str:
        return f"{' '.join(self.case)} on {self.name}"

    @property
    def unsteady(self) -> bool:
        """Whether the times vary much between rounds."""
        return self.quartiles is not None and is_unsteady(self.quartiles)


def jobs(
    operators: Sequence[str],
    backends: Sequence[Backend],
    sizes: Sequence[tuple[int, int]],
    dtype: str,
    seconds: float,
    bodies: bool = False,
) -> dict[str, Callable[[], list[Measurement]]]:
    """Return functions that measure each operator of each size on all backends, by readable label.

    With `bodies` they measure the operators' own bodies on each backend, too.
    """
    ways = (False, True) if bodies else (False,)
    return {
        f"{operator} {size[0]}x{size[1]}": partial(
            measure,
            [Measurement(operator, b.name, *size, dtype, body=body) for b in backends for body in ways],
            seconds,
        )
        for operator in operators
        for size in sizes
    }


def measure(wanted: list[Measurement], seconds: float) -> list[Measurement]:
    """Time an operator of one size on several backends; fill in the `wanted` results or the reason for a gap."""
    first = wanted[0]
    try:
        work = workload(first.operator, first.rows, first.features, first.dtype)
    except ValueError as error:  # a size that the operator does not support
        for found in wanted:
            found.reason = str(error)
        return wanted
    others = []
    if not any(found.backend == BASELINE for found in wanted):
        others.append(replace(first, backend=BASELINE, body=False))
    timed: list[tuple[Measurement, Contender]] = []
    for found in [*wanted, *others]:
        try:
            timed.append((found, prepare(found, work)))
        except Exception as error:  # a library may lack a dtype or an operation: a row of the table reports it
            found.reason = describe_error(error)
    if timed:
        _fill_in(timed, seconds)
    return wanted


def prepare(found: Measurement, work: Workload) -> Contender:
    """Transfer the arguments to a backend once, and call the operator for the first time."""
    operator, backend = OPERATORS[found.operator], resolve(found.backend)
    with tensorops.set_backend(backend.name, providers=found.providers):
        args, options = tensorops.to_backend((work.args, work.options), backend.name)
        found.kernel = operator.explain(*args, **options).kernel
        call = prepare_call(operator, args, options, backend.library)
        found.bytes = sum(map(nbytes, arrays_in((work.args, work.options, call())))) - work.unread
    return Contender(call, backend.name, providers=found.providers)


def _fill_in(timed: list[tuple[Measurement, Contender]], seconds: float) -> None:
    contenders = [one for _, one in timed]
    if moved := max(found.bytes or 0 for found, _ in timed):  # what no implementation can be faster than
        contenders.append(Contender(prepare_copy(moved // 2), BASELINE))
    times = in_rounds(contenders, seconds)
    copy = median_and_quartiles(times.pop())[0] if moved else None
    for (found, contender), samples in zip(timed, times, strict=True):
        found.seconds, found.quartiles = median_and_quartiles(samples)
        found.rounds, found.calls_per_round = len(samples), contender.calls
        found.gigabytes_per_second = (found.bytes or 0) / found.seconds / 1e9
        found.copy_gigabytes_per_second = moved / copy / 1e9 if copy else None
    baseline = next((found.seconds for found, _ in timed if found.backend == BASELINE), None)
    bodies = {found.backend: found.seconds for found, _ in timed if found.body}
    for found, _ in timed:
        assert found.seconds is not None
        if baseline is not None:
            found.speedup = baseline / found.seconds
        if found.backend in bodies:
            found.speedup_over_body = (bodies[found.backend] or 0) / found.seconds
