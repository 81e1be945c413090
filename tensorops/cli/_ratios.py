"""Operators beside their peers: what is timed in turns, and the ratios that come of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorops.cli import _measuring
from tensorops.testing import peers

OURS, COPY = "tensorops", "copy"


@dataclass
class Contender:
    """One way to do a task, and how many calls of it make a batch."""

    call: Callable[[], Any]
    calls: int = 1

    def time(self) -> float:
        """Return the seconds that one call takes."""
        return _measuring.time_batch(self.call, self.calls)


@dataclass
class Line:
    """A task on arrays of one size: the seconds of everybody who did it, medians of rounds, and why others did not.

    Attributes
    ----------
    task, shape : str
        What was done, and to what.
    kernel : str
        Which implementation of the operator ran.
    seconds, quickest, quartiles : dict
        By name: the operator, the copy and the peers.
    missing : dict of str to str
        The peers that took no part, with the reason, which is empty where a peer has no form of the task.
    """

    task: str
    shape: str
    kernel: str
    seconds: dict[str, float] = field(default_factory=dict)
    quickest: dict[str, float] = field(default_factory=dict)
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def of_copy(self) -> float:
        """The time of a copy that moves as many bytes / the operator's."""
        return self.seconds[COPY] / self.seconds[OURS]

    @property
    def ratios(self) -> dict[str, float]:
        """The time of each peer / the operator's."""
        return {name: t / self.seconds[OURS] for name, t in self.seconds.items() if name not in (OURS, COPY)}

    @property
    def unsteady(self) -> bool:
        """Whether somebody's times vary much from round to round, as they do while other programs compute."""
        return any(upper > 1.5 * lower for lower, upper in self.quartiles.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, with what is computed of it."""
        return vars(self) | {"of_copy": self.of_copy, "ratios": self.ratios, "unsteady": self.unsteady}


def compare(name: str, task: peers.Task, rows: int, features: int, dtype: str, seconds: float) -> Line:
    """Time a task and all peers that can do it.

    Raises
    ------
    PeerDiffersError
        A peer computes something else.
    """
    import tensorops
    from tensorops._operator import OPERATORS

    args = task.work(rows, features, dtype).args
    operator = OPERATORS[task.operator]
    with tensorops.set_backend("cpu"):
        kernel = operator.explain(*args, **task.options).kernel
        line = Line(name, describe_shapes(args, task), kernel)
        ours = operator(*args, **task.options)
        copied = int(task.copies * max(a.nbytes for a in args))
        calls = {OURS: lambda: operator(*args, **task.options), COPY: peers.prepare_copy(copied)}
        for peer in peers.PEERS:
            try:
                calls[peer] = peers.prepare(peer, name, args, ours)
            except peers.PeerMissingError as error:
                line.missing[peer] = str(error)
        del ours
        fill_in(line, calls, seconds)
    return line


def describe_shapes(args: tuple[Any, ...], task: peers.Task) -> str:
    """Return the first array's shape, and of attention that of the keys."""
    shapes = ["x".join(map(str, a.shape)) for a in args]
    return f"{shapes[0]} on {shapes[1]}" if task.shapes else shapes[0]


def fill_in(line: Line, calls: dict[str, Callable[[], Any]], seconds: float) -> None:
    """Time the calls in turns."""
    times = _measuring.in_rounds([Contender(call) for call in calls.values()], seconds)
    for name, samples in zip(calls, times, strict=True):
        lower, line.seconds[name], upper = statistics.quantiles(samples, n=4, method="inclusive")
        line.quartiles[name], line.quickest[name] = (lower, upper), min(samples)


def summarise(lines: Sequence[Line]) -> dict[str, dict[str, dict[str, float]]]:
    """Return for each task and each peer the geometric mean of the ratios, and the least."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for task in dict.fromkeys(line.task for line in lines):
        by_peer: dict[str, list[float]] = {}
        for line in lines:
            if line.task == task:
                for peer, ratio in line.ratios.items():
                    by_peer.setdefault(peer, []).append(ratio)
        found[task] = {
            peer: {"geometric_mean": statistics.geometric_mean(ratios), "least": min(ratios)}
            for peer, ratios in by_peer.items()
        }
    return found
