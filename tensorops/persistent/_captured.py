"""What is known of a step that has been compiled."""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass
from pathlib import Path


class CaptureError(ValueError):
    """A step does something that cannot be run again without Python; the message names it."""


@dataclass(frozen=True)
class Statistics:
    """What compiling a step gave.

    Parameters
    ----------
    seconds : float
        How long it took.
    calls : int
        How many calls of kernels one run makes; 0 if the library's compiler does not tell.
    bytes : int
        How many bytes these read and write: each array of each call once.
    arena_bytes : int
        The memory for all arrays in between.
    separate_bytes : int
        What they would take if no two of them shared memory.
    not_compared : str
        Why the results were not compared with the step's own; empty if they were.
    """

    seconds: float
    calls: int = 0
    bytes: int = 0
    arena_bytes: int = 0
    separate_bytes: int = 0
    not_compared: str = ""


@dataclass(frozen=True)
class CapturedCall:
    """One call of a kernel.

    Parameters
    ----------
    operator : str
        What the step called.
    kernel : str
        What runs: the name of a compiled function.
    shapes : tuple of str
        Dtype and shape of each array that it reads, then of those that it writes.
    bytes : int
        How many bytes these arrays have.
    """

    operator: str
    kernel: str
    shapes: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Captured:
    """What a compiled step runs, as `PersistentKernel.explain` returns it.

    Parameters
    ----------
    backend, mechanism : str
        Where it runs, and what runs it.
    calls : tuple of CapturedCall
        The calls of kernels in order, where they are known.
    statistics : Statistics
        Numbers about all of them.
    in_python : tuple of str
        What is left to Python in each run.
    text : str
        The program, where a library's compiler makes one.
    step : tuple of str
        What the step is: its mode, and the attention that it calls.
    by_rows : tuple of str
        Which calls are run together, block of rows by block of rows.
    """

    backend: str
    mechanism: str
    calls: tuple[CapturedCall, ...]
    statistics: Statistics
    in_python: tuple[str, ...]
    text: str = ""
    step: tuple[str, ...] = ()
    by_rows: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a table."""
        s = self.statistics
        lines = [f"{self.backend}: {self.mechanism}", *self.step]
        if self.calls:
            lines.append(
                f"{s.calls} calls of kernels on {_size(s.bytes)}; {_size(s.arena_bytes)} for the arrays in between, "
                f"{_size(s.separate_bytes)} if none shared memory"
            )
        lines += self.by_rows
        lines += [f"in Python: {each}" for each in self.in_python]
        wide = max((len(c.operator) for c in self.calls), default=0)
        for number, c in enumerate(self.calls):
            lines.append(f"{number:5}  {c.operator:{wide}}  {_size(c.bytes):>9}  {', '.join(c.shapes)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *_ = str(self).splitlines()
        rows = (
            f"<tr><td>{number}</td><td>{html.escape(c.operator)}</td><td>{_size(c.bytes)}</td>"
            f"<td>{html.escape(', '.join(c.shapes))}</td></tr>"
            for number, c in enumerate(self.calls)
        )
        return f"<table><caption>{html.escape(head)}</caption>{''.join(rows)}</table>"


@dataclass(frozen=True)
class Profile:
    """The time of each call of one run, as `PersistentKernel.profile` returns it.

    Parameters
    ----------
    calls : tuple of CapturedCall
        The calls in order.
    seconds : tuple of float
        The time of each, waiting for all of its threads.
    """

    calls: tuple[CapturedCall, ...]
    seconds: tuple[float, ...]

    def __str__(self) -> str:
        """Return a table of the operators, the one that took most time first."""
        sums: dict[str, tuple[float, int, int]] = {}
        for call, taken in zip(self.calls, self.seconds, strict=True):
            seconds, count, moved = sums.get(call.operator, (0.0, 0, 0))
            sums[call.operator] = (seconds + taken, count + 1, moved + call.bytes)
        wide = max(map(len, sums), default=0)
        lines = [f"{'operator':{wide}}  calls        µs      share     GB/s"]
        whole = sum(self.seconds) or 1.0
        for name, (seconds, count, moved) in sorted(sums.items(), key=lambda item: -item[1][0]):
            rate = moved / seconds / 1e9 if seconds else 0.0
            lines.append(f"{name:{wide}}  {count:5}  {seconds * 1e6:8.1f}  {seconds / whole:8.1%}  {rate:7.1f}")
        return "\n".join(lines)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the calls as a trace for ``chrome://tracing`` or Perfetto.

        Parameters
        ----------
        path : str or path-like
            The JSON file to write.
        """
        events, start = [], 0.0
        for number, (call, taken) in enumerate(zip(self.calls, self.seconds, strict=True)):
            facts = {"call": number, "bytes": call.bytes, "arrays": list(call.shapes)}
            times = {"ts": start * 1e6, "dur": taken * 1e6}
            events.append(
                {"name": call.operator, "ph": "X", "pid": 0, "tid": 0, "cat": call.kernel, "args": facts} | times
            )
            start += taken
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def words_of(error: ValueError) -> str:
    """Return what went wrong in a plan, without the number of the call."""
    return str(error).partition(" ")[2].removeprefix("tensorops: ")


def times(count: int) -> str:
    """Return a phrase on how often."""
    return "once" if count == 1 else f"{count} times"


def _size(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024  # type: ignore[assignment]
    return f"{count:.4g} GiB"
