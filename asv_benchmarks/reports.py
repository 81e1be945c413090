"""Reports of the comparisons with peers and of busy machines, in the form of those of ``tensorops bench``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from asv_benchmarks import busy, comparison, model, peers
from asv_benchmarks.comparison import Line
from asv_benchmarks.model import ModelLine
from tensorops._display import printable
from tensorops.benchmarks import reports
from tensorops.benchmarks.measuring import processors
from tensorops.benchmarks.reports import Report, circumstances, duration
from tensorops.libraries import Backend

METHOD_BESIDE_PEERS = (
    "seconds: median over interleaved rounds, each of which times every contender once, in one process. of copy: "
    "time of a copy of the bytes that must be read and written / ours. The others: their time / ours, above 1 if "
    "ours is faster. torch out= and the copy write into existing memory. ~: times vary by more than half."
)
METHOD_UNDER_LOADS = (
    "Each configuration is a process of its own; they time each task alternately. Under its name: the mean of all "
    "calls, which includes rare stalls. x one: mean time / mean time with one thread under the same load, below 1 if "
    "faster. passive waits: OMP_WAIT_POLICY=passive. one thread: TENSOROPS_NUM_THREADS=1, for NumPy "
    "OPENBLAS_NUM_THREADS=1. Several Python threads: wall time / their calls; x 1 caller: their calls per second / "
    "those of one Python thread. "
    f"~: fewer than {busy.FEW} calls."
)


# --- compared with peers ------------------------------------------------------------------------------------


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
    table = reports.new_table(title, ("operator", "shape", "kernel"), ("ours", "of copy", *names))
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
    table = reports.new_table(title, ("",), (*line.decode, "x llama.cpp", "of bound"))
    whats = {f"decode, {line.new_tokens} tokens": line.decode, f"prefill, {line.prefill_tokens} tokens": line.prefill}
    for what, speeds in whats.items():
        speedup = model.ratio(speeds)
        of_bound = f"{speeds[model.OURS] / line.bound:.0%}" if speeds is line.decode else "-"
        cells = [f"{speed:.1f}" for speed in speeds.values()]
        table.add_row(what, *cells, "-" if speedup is None else f"{speedup:.2f}", of_bound)
    return table


def _bound(line: ModelLine) -> list[str]:
    said = reports.bytes_of_bound(line.weight_bytes, line.read_bandwidth)
    return [said, f"{model.NOTE}."] if model.LLAMA_CPP in line.decode else [said]


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
    table = reports.new_table(result.scenario.title, ("",), figures)
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
    table = reports.new_table(title, ("", "kernel"), [result.name for result in found])
    for task in _tasks_of(found[0]):
        kernels = dict.fromkeys(cell.kernel for result in found for cell in result.of(task).values())
        ratios = [" / ".join(f"{result.ratios(task)[name]:.2f}" for name in names) for result in found]
        table.add_row(_label(task), ", ".join(kernels), *ratios)
    return table
