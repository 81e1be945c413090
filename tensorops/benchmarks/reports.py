"""What was measured: as JSON for programs, and as tables and sentences for people."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

import tensorops
from tensorops._display import printable
from tensorops.benchmarks import comparison, model, peers
from tensorops.benchmarks.backends import Measurement
from tensorops.benchmarks.comparison import Line
from tensorops.benchmarks.measuring import threads
from tensorops.benchmarks.model import ModelLine
from tensorops.hardware import detect_hardware
from tensorops.libraries import Backend, runtime_of


@dataclass
class Report:
    """What was measured, and the circumstances without which a figure means nothing.

    Attributes
    ----------
    circumstances : dict
        The command, versions, hardware, date and settings.
    found : list of Measurement, Line and ModelLine
        The results.
    method : str
        How the figures were taken.
    """

    circumstances: dict[str, Any]
    found: Sequence[Any]
    method = ""

    def results(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """Return the tables for people."""
        raise NotImplementedError

    def reasons(self) -> Iterable[str]:
        """Return why some things were not measured, each reason once."""
        raise NotImplementedError

    def legend(self) -> list[str]:
        """Return what explains the tables."""
        return [self.method]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return self.circumstances | {"method": self.method} | self.results()

    @property
    def timed(self) -> bool:
        """Whether there is any figure."""
        return True

    def head(self) -> str:
        """Return in two lines what people need to know of the circumstances."""
        known = self.circumstances
        versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
        return f"{known['hardware']['cpu']['name']}, {known['threads']} threads; {known['date']}\n{versions}"

    def warning(self) -> str:
        """Return a warning if times vary much from round to round, else an empty string."""
        unsteady = [str(one) for one in self.found if one.unsteady]
        more = f" and {len(unsteady) - 3} others" if len(unsteady) > 3 else ""
        said = f"times vary by more than half between rounds, is the machine busy? {', '.join(unsteady[:3])}{more}"
        return said if unsteady else ""


def circumstances(backends: Sequence[Backend], dtype: str, seconds: float) -> dict[str, Any]:
    """Return what a figure means nothing without: who computed it, on what, with which versions, and when."""
    versions = {"python": platform.python_version(), "tensorops": tensorops.__version__, "numpy": np.__version__}
    for backend in backends:
        versions |= runtime_of(backend).version()
    return {
        "command": shlex.join(["tensorops", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "platform": platform.platform(),
        "threads": threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # by other programs, and by this
        "environment": {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")},
        "hardware": detect_hardware().to_dict(),
        "dtype": dtype,
        "seconds_per_measurement": seconds,
    }


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _table(title: str, words: Iterable[str], figures: Iterable[str]) -> Table:
    """Return a table without rows; columns of figures are aligned to the right."""
    table = Table(title=title)
    for column in words:
        table.add_column(column, overflow="fold")
    for column in figures:
        table.add_column(column, justify="right", overflow="fold")
    return table


# --- on several backends -----------------------------------------------------------------------------


@dataclass
class BackendsReport(Report):
    """Operators on several backends."""

    found: Sequence[Measurement]
    method = (
        "seconds: median over interleaved rounds, each of which times every candidate once; the result is waited for, "
        "and nothing moves. bytes: what a call must read of its inputs, and its result. "
        "speedup: seconds of NumPy's generic body in the same rounds / seconds. jax runs under jax.jit."
    )

    @property
    def timed(self) -> bool:
        return any(row.seconds is not None for row in self.found)

    def results(self) -> dict[str, Any]:
        return {"results": [row.to_dict() for row in self.found]}

    def tables(self) -> list[Table]:
        title = "{dtype}, {seconds_per_measurement:g} s per measurement".format_map(self.circumstances)
        table = _table(title, ("operator", "rows x features", "backend", "kernel"), ("median", "GB/s", "x numpy"))
        last = None
        for row in self.found:
            if row.case != last:
                table.add_section()
            figures = ("-", "-", "-")
            if row.seconds is not None:
                speedup = "-" if row.speedup is None else f"{row.speedup:.2f}"
                figures = (duration(row.seconds), f"{row.gigabytes_per_second:.2f}", speedup)
            table.add_row(*(row.case if row.case != last else ("", "")), row.backend, row.kernel or "-", *figures)
            last = row.case
        return [table]

    def reasons(self) -> Iterable[str]:
        backends: dict[tuple[str, str], list[str]] = {}
        for row in self.found:
            if row.reason:
                backends.setdefault((" ".join(row.case), row.reason), []).append(row.backend)
        return [f"{case} on {', '.join(names)}: {reason}" for (case, reason), names in backends.items()]


# --- beside peers ------------------------------------------------------------------------------------


@dataclass
class PeersReport(Report):
    """The compiled kernels beside a copy and other libraries, and a model beside llama.cpp."""

    found: Sequence[Line | ModelLine]
    method = (
        "seconds: median over interleaved rounds, each of which times every contender once, in one process. of copy: "
        "time of a copy of the bytes that must be read and written / ours. The others: their time / ours, above 1 if "
        "ours is faster. torch out= and the copy write into existing memory. ~: times vary by more than half."
    )

    def __post_init__(self) -> None:
        lines = [line for line in self.found if isinstance(line, Line)]
        self.rows = [line for line in lines if line.task in peers.ROWS]
        self.attention = [line for line in lines if line.task in peers.ATTENTION]
        self.models = [line for line in self.found if isinstance(line, ModelLine)]

    def results(self) -> dict[str, Any]:
        sections: dict[str, Any] = {}
        if self.rows:
            sections |= {"rows": [line.to_dict() for line in self.rows], "summary": comparison.summarize(self.rows)}
        if self.attention:
            sections["attention"] = [line.to_dict() for line in self.attention]
        for line in self.models:
            sections["model"] = line.to_dict()
        return sections

    def tables(self) -> list[Table]:
        dtype = self.circumstances["dtype"]
        tables = [_ratios(f"NumPy arrays, {dtype}", self.rows, summary=True)] if self.rows else []
        tables += [_ratios(f"attention, {dtype}", self.attention, summary=False)] if self.attention else []
        return tables + [_speeds(line) for line in self.models]

    def reasons(self) -> Iterable[str]:
        """Return why peers are missing; a form that a peer lacks is a blank in the table and has no reason."""
        missing = [item for line in self.found for item in line.missing.items()]
        return dict.fromkeys(f"{peer}: {reason}" for peer, reason in missing if reason)

    def legend(self) -> list[str]:
        said = [self.method] if self.rows or self.attention else []
        for line in self.models:
            read, speed = f"{line.weight_bytes / 1e6:.0f} MB", f"{line.read_bandwidth / 1e9:.1f} GB/s"
            said.append(
                f"bound: {read} of weights for each token, read at {speed}: {line.bound:.0f} tokens per second."
            )
            said += [f"{model.NOTE}."] if model.LLAMA_CPP in line.decode else []
        return said


def _ratios(title: str, lines: list[Line], *, summary: bool) -> Table:
    """Return the lines of each task, and under them their means."""
    names = [peer for peer in peers.PEERS if any(peer in line.seconds for line in lines)]
    table = _table(title, ("operator", "shape", "kernel"), ("ours", "of copy", *names))
    for task, totals in comparison.summarize(lines).items():
        table.add_section()
        first = task
        for line in (line for line in lines if line.task == task):
            figures = (line.ratios.get(peer) for peer in names)
            shape = f"{line.shape} ~" if line.unsteady else line.shape
            cells = (first, shape, line.kernel, duration(line.seconds[comparison.OURS]), f"{line.of_copy:.0%}")
            table.add_row(*cells, *("-" if r is None else f"{r:.2f}" for r in figures))
            first = ""
        if summary:
            ends = (totals.get(peer) for peer in names)
            said = ("-" if e is None else f"{e['geometric_mean']:.2f}/{e['least']:.2f}" for e in ends)
            table.add_row("", "mean/least", "", "", "", *said, style="bold")
    return table


def _speeds(line: ModelLine) -> Table:
    """Return the tokens per second of a model."""
    title = f"{escape(printable(line.model))}, tokens per second"
    table = _table(title, ("",), (*line.decode, "x llama.cpp", "of bound"))
    whats = {f"decode, {line.new_tokens} tokens": line.decode, f"prefill, {line.prefill_tokens} tokens": line.prefill}
    for what, speeds in whats.items():
        speedup = model.ratio(speeds)
        of_bound = f"{speeds[model.OURS] / line.bound:.0%}" if speeds is line.decode else "-"
        cells = [f"{speed:.1f}" for speed in speeds.values()]
        table.add_row(what, *cells, "-" if speedup is None else f"{speedup:.2f}", of_bound)
    return table
