"""Operators compared with their peers: alternating timings, and the ratios of the times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorops
from asv_benchmarks import peers
from tensorops._operator import OPERATORS
from tensorops.benchmarks.measuring import Call, Contender, in_rounds, is_unsteady, median_and_quartiles, prepare_copy

OURS, COPY = "tensorops", "copy"
BACKEND = "cpu"  # the backend whose kernels are compared


@dataclass
class Line:
    """A task on arrays of one size: the median seconds of each contender, and why a peer is missing.

    Attributes
    ----------
    task, shape : str
        What was computed, and on which shapes.
    kernel : str
        The implementation of the operator that ran.
    seconds, quickest, quartiles : dict
        Times of the operator, the copy and the peers, by name.
    missing : dict of str to str
        Why a peer was not timed; empty for a peer that has no form of the task.
    bytes : int
        How many must be read and written: as many as the copy reads and writes.
    """

    task: str
    shape: str
    kernel: str
    seconds: dict[str, float] = field(default_factory=dict)
    quickest: dict[str, float] = field(default_factory=dict)
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    bytes: int = 0

    def __str__(self) -> str:
        return f"{self.task} {self.shape}"

    @property
    def of_copy(self) -> float:
        """The time of a copy that moves as many bytes, divided by the operator's."""
        return self.seconds[COPY] / self.seconds[OURS]

    @property
    def ratios(self) -> dict[str, float]:
        """The time of each peer, divided by the operator's."""
        return {name: t / self.seconds[OURS] for name, t in self.seconds.items() if name not in (OURS, COPY)}

    @property
    def unsteady(self) -> bool:
        """Whether the times of any contender vary much between rounds."""
        return any(map(is_unsteady, self.quartiles.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return the line for JSON, including derived values."""
        return vars(self) | {"of_copy": self.of_copy, "ratios": self.ratios, "unsteady": self.unsteady}


def jobs(
    tasks: dict[str, peers.Task], sizes: Sequence[tuple[int, int]], dtype: str, seconds: float
) -> dict[str, Callable[[], Line]]:
    """Return functions that compare tasks with their peers on each size or on their own shapes, by readable label."""
    return {
        name if task.shapes else f"{name} {size[0]}x{size[1]}": partial(compare, name, task, *size, dtype, seconds)
        for name, task in tasks.items()
        for size in (((0, 0),) if task.shapes else sizes)
    }


def compare(name: str, task: peers.Task, rows: int, features: int, dtype: str, seconds: float) -> Line:
    """Time a task and all peers that can do it.

    Raises
    ------
    PeerDiffersError
        If a peer computes something else.
    """
    args = task.work(rows, features, dtype).args
    operator = OPERATORS[task.operator]
    with tensorops.set_backend(BACKEND):
        line = Line(name, describe_shapes(args, task), operator.explain(*args, **task.options).kernel)
        ours = operator(*args, **task.options)
    copied = int(task.copies * max(a.nbytes for a in args))
    line.bytes = 2 * copied
    calls = {OURS: lambda: operator(*args, **task.options), COPY: prepare_copy(copied)}
    for peer in peers.PEERS:
        try:
            calls[peer] = peers.prepare(peer, name, args, ours)
        except peers.PeerMissingError as error:
            line.missing[peer] = str(error)
    del ours
    fill_in(line, calls, seconds)
    return line


def describe_shapes(args: tuple[Any, ...], task: peers.Task) -> str:
    """Return the first array's shape and, for attention, that of the keys."""
    shapes = ["x".join(map(str, a.shape)) for a in args]
    return f"{shapes[0]} on {shapes[1]}" if task.shapes else shapes[0]


def fill_in(line: Line, calls: dict[str, Call], seconds: float) -> None:
    """Time the calls alternately."""
    times = in_rounds([Contender(call, BACKEND) for call in calls.values()], seconds)
    for name, samples in zip(calls, times, strict=True):
        line.seconds[name], line.quartiles[name] = median_and_quartiles(samples)
        line.quickest[name] = min(samples)


def summarize(lines: Sequence[Line]) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each task and peer, the geometric mean of the ratios and the smallest."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        of_task = ratios.setdefault(line.task, {})
        for peer, ratio in line.ratios.items():
            of_task.setdefault(peer, []).append(ratio)
    return {
        task: {peer: {"geometric_mean": statistics.geometric_mean(r), "least": min(r)} for peer, r in of_task.items()}
        for task, of_task in ratios.items()
    }
