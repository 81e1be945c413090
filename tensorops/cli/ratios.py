"""``tensorops ratios``: the compiled kernels' times beside a copy's and other libraries', all of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tensorops._messages import describe_error
from tensorops.backends.registry import resolve
from tensorops.cli import _ratios, _ratios_model, bench
from tensorops.cli._options import escape, messages, print_table, require_available, require_configuration, warn
from tensorops.testing import BENCHMARK_SHAPES, peers

METHOD = (
    "seconds: median over interleaved rounds, each of which times everybody once, in one process. of copy: time of a "
    "copy of the bytes that must be read and written / ours. The others: their time / ours, above 1 if ours is faster. "
    "torch out= and the copy write into memory that is there already."
)
WIDTH = 120
SECTIONS = ("rows", "attention", "model")


def _task(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(bench.known("operator", name, peers.ROWS) for name in values))


@click.command()
@click.argument("operators", nargs=-1, callback=_task)
@click.option(
    "--section",
    "sections",
    multiple=True,
    type=click.Choice(SECTIONS),
    help="May be repeated; by default rows and attention, and model where one is given. With OPERATORS rows only.",
)
@click.option("--dtype", callback=bench.dtype_name, default="float32", metavar="[float16|bfloat16|float32|float64]")
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A GGUF file, to be run beside llama.cpp.",
)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=0.15, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def ratios(
    operators: tuple[str, ...],
    sections: tuple[str, ...],
    dtype: str,
    model: Path | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Time the compiled kernels beside a copy, and beside other libraries that are installed.

    OPERATORS are those of rows of features, by default all; gelu_tanh is gelu in its other form. All of it takes less
    than five minutes on two processors.
    """
    require_configuration()
    chosen = sections or (("rows",) if operators else tuple(s for s in SECTIONS if s != "model" or model is not None))
    if "model" in chosen and model is None:
        raise click.BadParameter("the section model needs a GGUF file: --model PATH", param_hint="--section")
    if operators and "rows" not in chosen:
        raise click.BadParameter("operators are of the section rows", param_hint="--section")
    require_available(resolve("cpu"))
    peers.use_threads(bench.threads())
    found = _measure(chosen, operators or tuple(peers.ROWS), dtype, seconds, model)
    report = bench.circumstances((resolve("cpu"),), dtype, seconds)
    report["versions"] |= peers.versions()
    report |= {"method": METHOD}
    if as_json:
        click.echo(json.dumps(report | _to_json(found), indent=2))
        return
    bench.print_circumstances(report)
    _print(found, report)


def _measure(
    sections: tuple[str, ...], operators: tuple[str, ...], dtype: str, seconds: float, model: Path | None
) -> dict[str, Any]:
    """Return what was found in each section: lists of `Line`, and one `ModelLine`."""
    jobs = [("rows", name, peers.ROWS[name], shape) for name in operators for shape in BENCHMARK_SHAPES]
    jobs += [("attention", name, task, (0, 0)) for name, task in peers.ATTENTION.items()]
    jobs = [job for job in jobs if job[0] in sections]
    found: dict[str, Any] = {}
    with Progress(console=messages, transient=True) as bar:
        steps = bar.add_task("", total=len(jobs) + ("model" in sections))
        for section, name, task, (rows, features) in jobs:
            bar.update(steps, description=f"{name} {rows}x{features}" if rows else f"attention {name}")
            try:
                line = _ratios.compare(name, task, rows, features, dtype, seconds)
            except peers.PeerDiffersError as error:
                raise click.ClickException(str(error)) from None
            found.setdefault(section, []).append(line)
            bar.advance(steps)
        if "model" in sections:
            assert model is not None
            bar.update(steps, description=model.name)
            try:
                found["model"] = _ratios_model.compare_model(model, bench.threads())
            except (ImportError, RuntimeError, ValueError) as error:
                raise click.ClickException(f"{model}: {describe_error(error)}") from None
    return found


def _to_json(found: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for section in ("rows", "attention"):
        if section in found:
            result[section] = [line.to_dict() for line in found[section]]
    if "rows" in found:
        result["summary"] = _ratios.summarise(found["rows"])
    if "model" in found:
        result["model"] = found["model"].to_dict()
    return result


# --- for people --------------------------------------------------------------------------------------


def _print(found: dict[str, Any], report: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:  # a file has no width, and a table that is cut off loses digits
        console.width = max(console.width, WIDTH)
    lines = [*found.get("rows", ()), *found.get("attention", ())]
    if "rows" in found:
        print_table(console, _table(f"NumPy arrays, {report['dtype']}", found["rows"], summary=True))
    if "attention" in found:
        print_table(console, _table(f"attention, {report['dtype']}", found["attention"], summary=False))
    for reason in _reasons(lines):
        console.print(escape(reason), soft_wrap=True, highlight=False)
    if lines:
        console.print(f"[dim]{METHOD}[/]")
    if "model" in found:
        _print_model(console, found["model"])
    _warn_of_unsteady(lines)


def _table(title: str, lines: list[_ratios.Line], *, summary: bool) -> Table:
    """Return the lines of each task, and under them, what they come to."""
    table = Table(title=title)
    names = [peer for peer in peers.PEERS if any(peer in line.seconds for line in lines)]
    for column in ("operator", "shape", "kernel"):
        table.add_column(column, overflow="fold")
    for column in ("ours", "of copy", *names):
        table.add_column(column, justify="right", overflow="fold")
    totals = _ratios.summarise(lines)
    for task in totals:
        table.add_section()
        of_task = [line for line in lines if line.task == task]
        for line in of_task:
            figures = (line.ratios.get(peer) for peer in names)
            first = task if line is of_task[0] else ""
            shape = f"{line.shape} ~" if line.unsteady else line.shape
            cells = (first, shape, line.kernel, bench.duration(line.seconds[_ratios.OURS]))
            table.add_row(*cells, f"{line.of_copy:.0%}", *("-" if r is None else f"{r:.2f}" for r in figures))
        if summary:
            ends = (totals[task].get(peer) for peer in names)
            said = ("-" if e is None else f"{e['geometric_mean']:.2f}/{e['least']:.2f}" for e in ends)
            table.add_row("", "mean/least", "", "", "", *said, style="bold")
    return table


def _reasons(lines: Iterable[_ratios.Line]) -> list[str]:
    """Return why peers took no part, each reason once; a form that a peer does not have is a blank in the table."""
    said = {f"{peer}: {reason}": None for line in lines for peer, reason in line.missing.items() if reason}
    return list(said)


def _warn_of_unsteady(lines: Iterable[_ratios.Line]) -> None:
    """Say for which lines the machine was busy with something else."""
    unsteady = [f"{line.task} {line.shape}" for line in lines if line.unsteady]
    if unsteady:
        more = f" and {len(unsteady) - 3} others" if len(unsteady) > 3 else ""
        warn(f"times vary by more than half between rounds, is the machine busy? {', '.join(unsteady[:3])}{more} (~)")


def _print_model(console: Console, line: _ratios_model.ModelLine) -> None:
    table = Table(title=f"{line.model}, tokens per second")
    table.add_column("")
    for column in (*line.decode, "x llama.cpp", "of bound"):
        table.add_column(column, justify="right", no_wrap=True)
    whats = {f"decode, {line.new_tokens} tokens": line.decode, f"prefill, {line.prefill_tokens} tokens": line.prefill}
    for what, speeds in whats.items():
        speedup = _ratios_model.ratio(speeds)
        of_bound = f"{speeds[_ratios_model.OURS] / line.bound:.0%}" if speeds is line.decode else "-"
        cells = [f"{speed:.1f}" for speed in speeds.values()]
        table.add_row(what, *cells, "-" if speedup is None else f"{speedup:.2f}", of_bound)
    print_table(console, table)
    for name, reason in line.missing.items():
        console.print(escape(f"{name}: {reason}"), soft_wrap=True, highlight=False)
    read, speed = f"{line.weight_bytes / 1e6:.0f} MB", f"{line.read_bandwidth / 1e9:.1f} GB/s"
    console.print(
        f"[dim]bound: {read} of weights for each token, read at {speed}: {line.bound:.0f} tokens per second.[/]"
    )
    if _ratios_model.LLAMA_CPP in line.decode:
        console.print(f"[dim]{_ratios_model.NOTE}.[/]")
