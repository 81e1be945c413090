"""Reports of measurements: JSON for programs, tables and text for people."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

import tensorops
from tensorops._display import printable
from tensorops.benchmarks import decode
from tensorops.benchmarks.backends import Measurement
from tensorops.benchmarks.measuring import threads
from tensorops.hardware import detect_hardware
from tensorops.libraries import Backend, runtime_of

METHOD = (
    "seconds: median over interleaved rounds, each of which times every candidate once; the result is waited for, "
    "and nothing moves. bytes: what a call must read of its inputs, and its result. "
    "speedup, x numpy: seconds of NumPy's generic body in the same rounds / seconds; x body: those of the operator's "
    "generic body on the same backend. jax runs under jax.jit. The JSON and pictures add a copy of as many bytes into "
    "existing memory."
)
METHOD_OF_DECODING = (
    f"Each way has {decode.ROUNDS} alternating processes of its own; speed: 1 / the median time of a step with "
    f"{decode.POSITION} tokens in the cache, from a token to the next, which is read. persistent: by persistent(); "
    "from Python: as generate calls the operators, compiled where the library compiles. of bound: the median time in "
    f"which the same processes read as many bytes, after every {decode.STEPS_PER_READ} steps, / that of a step."
)


@dataclass
class Report:
    """Figures and their circumstances, for programs and for people."""

    circumstances: dict[str, Any]
    results: dict[str, Any]
    tables: list[Table]
    reasons: Iterable[str]  # why some things were not measured
    legend: list[str]
    unsteady: list[str]  # what was timed while the machine was busy
    timed: bool = True  # anything at all

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return self.circumstances | self.results

    def head(self) -> str:
        """Return two lines on the circumstances of the measurement."""
        known = self.circumstances
        versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
        return f"{known['hardware']['cpu']['name']}, {known['threads']} threads; {known['date']}\n{versions}"

    def warning(self) -> str:
        """Return a warning if times vary much between rounds, else an empty string."""
        if not self.unsteady:
            return ""
        more = f" and {len(self.unsteady) - 3} others" if len(self.unsteady) > 3 else ""
        return f"times vary by more than half between rounds, is the machine busy? {', '.join(self.unsteady[:3])}{more}"


def circumstances(backends: Sequence[Backend], dtype: str, seconds: float) -> dict[str, Any]:
    """Return the circumstances of a measurement: the machine, the versions, the time and the load."""
    versions = {"python": platform.python_version(), "tensorops": tensorops.__version__, "numpy": np.__version__}
    for backend in backends:
        versions |= runtime_of(backend).version()
    return {
        "command": shlex.join(["tensorops", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "platform": platform.platform(),
        "threads": threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,  # of this and other programs
        "environment": {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")},
        "hardware": detect_hardware().to_dict(),
        "dtype": dtype,
        "seconds_per_measurement": seconds,
    }


def duration(seconds: float) -> str:
    """Return a time in a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def new_table(title: str, words: Iterable[str], figures: Iterable[str]) -> Table:
    """Return a table without rows; columns of figures are right-aligned."""
    table = Table(title=title)
    for column in words:
        table.add_column(column, overflow="fold")
    for column in figures:
        table.add_column(column, justify="right", overflow="fold")
    return table


# --- on several backends -----------------------------------------------------------------------------


def on_backends(found: Sequence[Measurement], backends: Sequence[Backend], dtype: str, seconds: float) -> Report:
    """Return the report on operators across several backends."""
    return Report(
        circumstances(backends, dtype, seconds) | {"method": METHOD},
        {"results": [asdict(row) for row in found]},
        [_medians(f"{dtype}, {seconds:g} s per measurement", found)],
        _reasons(found),
        [METHOD],
        [str(row) for row in found if row.unsteady],
        timed=any(row.seconds is not None for row in found),
    )


def _medians(title: str, found: Iterable[Measurement]) -> Table:
    found = list(found)
    bodies = ("x body",) if any(row.body for row in found) else ()
    figures_of = ("median", "GB/s", "x numpy", *bodies)
    table = new_table(title, ("operator", "rows x features", "backend", "kernel"), figures_of)
    last = None
    for row in found:
        if row.case != last:
            table.add_section()
        figures = ["-"] * len(figures_of)
        if row.seconds is not None:
            speedups = (row.speedup, row.speedup_over_body)[: len(figures_of) - 2]
            ratios = ["-" if speedup is None else f"{speedup:.2f}" for speedup in speedups]
            figures = [duration(row.seconds), f"{row.gigabytes_per_second:.2f}", *ratios]
        table.add_row(*(row.case if row.case != last else ("", "")), row.name, row.kernel or "-", *figures)
        last = row.case
    return table


def _reasons(found: Iterable[Measurement]) -> list[str]:
    """Return what could not be measured, with the backends and the reason."""
    backends: dict[tuple[str, str], list[str]] = {}
    for row in found:
        if row.reason:
            backends.setdefault((" ".join(row.case), row.reason), []).append(row.name)
    return [f"{case} on {', '.join(names)}: {reason}" for (case, reason), names in backends.items()]


# --- decoding ----------------------------------------------------------------------------------------


def of_decoding(found: decode.Decoding, backends: Sequence[Backend], seconds: float) -> Report:
    """Return the report on the steps of a model."""
    table = new_table(f"{escape(printable(found.model))}, tokens per second", ("backend", "way"), ("speed", "of bound"))
    timed = [speed for speed in found.speeds if speed.tokens_per_second is not None]
    for speed in timed:
        table.add_row(speed.backend, speed.way, f"{speed.tokens_per_second:.1f}", f"{speed.of_bound:.0%}")
    return Report(
        circumstances(backends, "float32", seconds) | {"method": METHOD_OF_DECODING},
        {"decode": found.to_dict()},
        [table],
        [f"{speed}: {speed.reason}" for speed in found.speeds if speed.reason],
        [bytes_of_bound(found.weight_bytes, found.read_bandwidth), METHOD_OF_DECODING],
        [str(speed) for speed in timed if speed.unsteady],
        timed=bool(timed),
    )


def bytes_of_bound(weights: int, bandwidth: float) -> str:
    """Return the legend of a bound."""
    read, speed = f"{weights / 1e6:.0f} MB", f"{bandwidth / 1e9:.1f} GB/s"
    return f"bound: {read} of weights for each token, read at {speed}: {bandwidth / weights:.0f} tokens per second."
