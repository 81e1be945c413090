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
from tensorops.benchmarks import busy, comparison, decode, model, peers
from tensorops.benchmarks.backends import Measurement
from tensorops.benchmarks.comparison import Line
from tensorops.benchmarks.measuring import processors, threads
from tensorops.benchmarks.model import ModelLine
from tensorops.hardware import detect_hardware
from tensorops.libraries import Backend, runtime_of

METHOD = (
    "seconds: median over interleaved rounds, each of which times every candidate once; the result is waited for, "
    "and nothing moves. bytes: what a call must read of its inputs, and its result. "
    "speedup, x numpy: seconds of NumPy's generic body in the same rounds / seconds; x body: those of the operator's "
    "generic body on the same backend. jax runs under jax.jit. The JSON and pictures add a copy of as many bytes into "
    "existing memory."
)
METHOD_BESIDE_PEERS = (
    "seconds: median over interleaved rounds, each of which times every contender once, in one process. of copy: "
    "time of a copy of the bytes that must be read and written / ours. The others: their time / ours, above 1 if "
    "ours is faster. torch out= and the copy write into existing memory. ~: times vary by more than half."
)
METHOD_UNDER_LOADS = (
    "Each configuration is a process of its own; they time each task in turns. Under its name: the mean of all calls, "
    "which includes rare stalls. x one: mean time / mean time with one thread under the same load, below 1 if faster. "
    "passive waits: OMP_WAIT_POLICY=passive. one thread: TENSOROPS_NUM_THREADS=1, for NumPy OPENBLAS_NUM_THREADS=1. "
    "Several Python threads: wall time / their calls; x 1 caller: their calls per second / those of one Python thread. "
    f"~: fewer than {busy.FEW} calls."
)
METHOD_OF_DECODING = (
    f"Each way has {decode.ROUNDS} processes of its own, in turns; speed: 1 / the median time of a step with "
    f"{decode.POSITION} tokens in the cache, from a token to the next, which is read. persistent: Llama.persistent(); "
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


def _table(title: str, words: Iterable[str], figures: Iterable[str]) -> Table:
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
    table = _table(title, ("operator", "rows x features", "backend", "kernel"), figures_of)
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


# --- beside peers ------------------------------------------------------------------------------------


def beside_peers(found: Sequence[Line | ModelLine], backend: Backend, dtype: str, seconds: float) -> Report:
    """Return the comparison of the compiled kernels with a copy and other libraries, and of a model with llama.cpp."""
    known = circumstances((backend,), dtype, seconds) | {"method": METHOD_BESIDE_PEERS}
    known["versions"] |= peers.versions()
    lines = [line for line in found if isinstance(line, Line)]
    rows, attention = ([line for line in lines if line.task in tasks] for tasks in (peers.ROWS, peers.ATTENTION))
    report = Report(known, {}, [], _missing(found), [], [str(line) for line in lines if line.unsteady])
    if rows:
        report.results |= {"rows": [line.to_dict() for line in rows], "summary": comparison.summarize(rows)}
        report.tables.append(_ratios(f"NumPy arrays, {dtype}", rows, summary=True))
    if attention:
        report.results["attention"] = [line.to_dict() for line in attention]
        report.tables.append(_ratios(f"attention, {dtype}", attention, summary=False))
    if lines:
        report.legend.append(METHOD_BESIDE_PEERS)
    for line in found:
        if isinstance(line, ModelLine):
            report.results["model"] = line.to_dict()
            report.tables.append(_speeds(line))
            report.legend += _bound(line)
    return report


def _missing(found: Iterable[Line | ModelLine]) -> Iterable[str]:
    """Return why peers are missing, each reason once; a form that a peer lacks is only a blank in the table."""
    missing = [item for line in found for item in line.missing.items()]
    return dict.fromkeys(f"{peer}: {reason}" for peer, reason in missing if reason)


def _ratios(title: str, lines: list[Line], *, summary: bool) -> Table:
    """Return the lines of each task, followed by their means."""
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
    """Return a model's tokens per second."""
    title = f"{escape(printable(line.model))}, tokens per second"
    table = _table(title, ("",), (*line.decode, "x llama.cpp", "of bound"))
    whats = {f"decode, {line.new_tokens} tokens": line.decode, f"prefill, {line.prefill_tokens} tokens": line.prefill}
    for what, speeds in whats.items():
        speedup = model.ratio(speeds)
        of_bound = f"{speeds[model.OURS] / line.bound:.0%}" if speeds is line.decode else "-"
        cells = [f"{speed:.1f}" for speed in speeds.values()]
        table.add_row(what, *cells, "-" if speedup is None else f"{speedup:.2f}", of_bound)
    return table


def _bytes_of_bound(weights: int, bandwidth: float) -> str:
    read, speed = f"{weights / 1e6:.0f} MB", f"{bandwidth / 1e9:.1f} GB/s"
    return f"bound: {read} of weights for each token, read at {speed}: {bandwidth / weights:.0f} tokens per second."


def _bound(line: ModelLine) -> list[str]:
    said = _bytes_of_bound(line.weight_bytes, line.read_bandwidth)
    return [said, f"{model.NOTE}."] if model.LLAMA_CPP in line.decode else [said]


# --- decoding ----------------------------------------------------------------------------------------


def of_decoding(found: decode.Decoding, backends: Sequence[Backend], seconds: float) -> Report:
    """Return the report on the steps of a model."""
    table = _table(f"{escape(printable(found.model))}, tokens per second", ("backend", "way"), ("speed", "of bound"))
    timed = [speed for speed in found.speeds if speed.tokens_per_second is not None]
    for speed in timed:
        table.add_row(speed.backend, speed.way, f"{speed.tokens_per_second:.1f}", f"{speed.of_bound:.0%}")
    return Report(
        circumstances(backends, "float32", seconds) | {"method": METHOD_OF_DECODING},
        {"decode": found.to_dict()},
        [table],
        [f"{speed}: {speed.reason}" for speed in found.speeds if speed.reason],
        [_bytes_of_bound(found.weight_bytes, found.read_bandwidth), METHOD_OF_DECODING],
        [str(speed) for speed in timed if speed.unsteady],
        timed=bool(timed),
    )


# --- under loads -------------------------------------------------------------------------------------


def under_loads(found: Sequence[busy.Result], backend: Backend, seconds: float, missing: Iterable[str]) -> Report:
    """Return the report on operators on busy machines; `missing` says what was not measured in any scenario."""
    known = circumstances((backend,), "float32", seconds) | {"method": METHOD_UNDER_LOADS}
    known["processors"], known["configurations"] = processors(), busy.CONFIGURATIONS
    reasons = [*missing, *(f"{result.scenario.title}: {result.reason}" for result in found if result.reason)]
    measured = [result for result in found if result.cells]
    tables = [_under_load(result) for result in measured]
    if measured:
        tables.append(_of_one_thread(measured))
    results = {"results": [result.to_dict() for result in found], "missing": list(missing)}
    return Report(known, results, tables, reasons, [METHOD_UNDER_LOADS] if measured else [], [], timed=bool(measured))


def _tasks_of(result: busy.Result) -> list[str]:
    return list(dict.fromkeys(cell.task for cell in result.cells))


def _under_load(result: busy.Result) -> Table:
    """Return the times of a scenario."""
    several = result.scenario.python_threads > 1
    second = "x 1 caller" if several else "median"
    figures = [what for name in busy.CONFIGURATIONS for what in (name, second, "x one")][:-1]
    table = _table(result.scenario.title, ("",), figures)
    for task in _tasks_of(result):
        ratios, row = result.ratios(task), [_label(task)]
        for name, cell in result.of(task).items():
            row.append(_time_of(task, cell.mean) + " ~" * cell.few)
            row.append(_time_of(task, cell.median) if cell.throughput is None else f"{cell.throughput:.2f}")
            row += [f"{ratios[name]:.2f}"] if name in ratios else []
        table.add_row(*row)
    return table


def _label(task: str) -> str:
    return f"{task}, tokens/s" if task == busy.DECODE else task


def _time_of(task: str, seconds: float) -> str:
    return f"{1 / seconds:.1f}" if task == busy.DECODE else duration(seconds)


def _of_one_thread(found: Sequence[busy.Result]) -> Table:
    """Return the ratios of all scenarios, by task."""
    names = [name for name in busy.CONFIGURATIONS if name != busy.ONE_THREAD]
    title = f"mean time / mean time with one thread under the same load: {' / '.join(names)}"
    table = _table(title, ("", "kernel"), [result.name for result in found])
    for task in _tasks_of(found[0]):
        kernels = dict.fromkeys(cell.kernel for result in found for cell in result.of(task).values())
        ratios = [" / ".join(f"{result.ratios(task)[name]:.2f}" for name in names) for result in found]
        table.add_row(_label(task), ", ".join(kernels), *ratios)
    return table
