"""``tensorops bench``: operators timed on several backends, each beside NumPy's generic body in the same run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tensorops._files import write_atomically
from tensorops._messages import nearest
from tensorops.cli._measuring import METHOD, Measurement, measure
from tensorops.cli._options import (
    backend_names,
    escape,
    messages,
    print_table,
    require_available,
    require_configuration,
    warn,
)
from tensorops.libraries import Backend

# -------------------------------------------------------------------------------------------- reporting


def circumstances(backends: tuple[Backend, ...], dtype: str, seconds: float) -> dict[str, Any]:
    """Return what a figure means nothing without: who computed it, on what, with which versions, and when."""
    import os
    import platform
    import shlex
    from datetime import UTC, datetime

    import numpy as np

    import tensorops
    from tensorops.hardware import detect_hardware
    from tensorops.libraries import runtime_of

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
        "method": METHOD,
    }


def threads() -> int:
    """Return how many threads the compiled kernels use at most; without them, how many processors there are."""
    import os

    from tensorops import _providers

    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if _providers.load("cpu"):
        return usable
    from tensorops.kernels.cpu import _native

    return min(_native.num_threads() or usable, usable)


def print_circumstances(report: dict[str, Any]) -> None:
    """Print in two lines what people need to know of `circumstances`."""
    cpu = report["hardware"]["cpu"]["name"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    said = f"{cpu}, {report['threads']} threads; {report['date']}\n{versions}"
    Console().print(said, highlight=False, soft_wrap=True)


def print_report(report: dict[str, Any], found: list[Measurement]) -> None:
    """Print the table that people see, under the circumstances."""
    print_circumstances(report)
    console = Console()
    table = Table(title=f"{report['dtype']}, {report['seconds_per_measurement']:g} s per measurement")
    for column in ("operator", "rows x features", "backend", "kernel"):
        table.add_column(column, overflow="fold")
    for column in ("median", "GB/s", "x numpy"):
        table.add_column(column, justify="right", no_wrap=True)
    last = None
    for row in found:
        case = (row.operator, f"{row.rows}x{row.features}")
        if case != last:
            table.add_section()
        figures = ("-", "-", "-")
        if row.seconds is not None:
            speedup = "-" if row.speedup is None else f"{row.speedup:.2f}"
            figures = (duration(row.seconds), f"{row.gigabytes_per_second:.2f}", speedup)
        kernel = row.kernel or "-"
        table.add_row(*(case if case != last else ("", "")), row.backend, kernel, *figures)
        last = case
    print_table(console, table)
    for words, backends in reasons(found).items():
        console.print(f"{words[0]} on {', '.join(backends)}: {escape(words[1])}", soft_wrap=True, highlight=False)
    console.print(f"[dim]{METHOD}[/]")


def reasons(found: list[Measurement]) -> dict[tuple[str, str], list[str]]:
    """Return what could not be measured and why, each with its backends."""
    said: dict[tuple[str, str], list[str]] = {}
    for row in found:
        if row.reason:
            said.setdefault((f"{row.operator} {row.rows}x{row.features}", row.reason), []).append(row.backend)
    return said


def warn_of_unsteady(found: list[Measurement]) -> None:
    """Say which times vary much from round to round, as they do while other programs compute."""
    unsteady = [
        f"{row.operator} {row.rows}x{row.features} on {row.backend}"
        for row in found
        if row.quartiles and row.quartiles[1] > 1.5 * row.quartiles[0]
    ]
    if unsteady:
        more = f" and {len(unsteady) - 3} others" if len(unsteady) > 3 else ""
        warn(f"times vary by more than half between rounds, is the machine busy? {', '.join(unsteady[:3])}{more}")


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


# ---------------------------------------------------------------------------------------------- command


def known(kind: str, name: str, valid: Collection[str]) -> str:
    """Return a name if it is valid; else it is a usage error that lists the valid ones."""
    if name not in valid:
        raise click.BadParameter(f"unknown {kind} {name!r}{nearest(name, valid)}; valid names: {', '.join(valid)}")
    return name


def dtype_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Check the name of a floating dtype."""
    from tensorops.testing import DTYPES

    return known("dtype", value, DTYPES)


def _operators(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from tensorops.testing.workloads import WORKLOADS

    for name in values:
        known("operator", name, WORKLOADS)
    return tuple(dict.fromkeys(values)) or tuple(WORKLOADS)


def _sizes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    from tensorops.testing.workloads import SIZES

    found = []
    for value in values:
        shape = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", value)
        if value not in SIZES and shape is None:
            raise click.BadParameter(
                f"{value!r} is no size{nearest(value, SIZES)}; valid: {', '.join(SIZES)}, or rows and features as "
                "16x4096"
            )
        found.append(SIZES[value] if shape is None else (int(shape[1]), int(shape[2])))
    return tuple(dict.fromkeys(found))


@click.command()
@click.argument("operators", nargs=-1, callback=_operators)
@click.option("--backend", "named", multiple=True, callback=backend_names, metavar="NAME", help="May be repeated.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    callback=_sizes,
    default=("decode", "prefill"),
    metavar="SIZE",
    help="small, decode, prefill, large, or rows x features as in 16x4096. By default decode and prefill.",
)
@click.option("--dtype", callback=dtype_name, default="float32", metavar="[float16|bfloat16|float32|float64]")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=0.3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
def bench(
    operators: tuple[str, ...],
    named: tuple[Backend, ...],
    sizes: tuple[tuple[int, int], ...],
    dtype: str,
    seconds: float,
    as_json: bool,
    output: Path | None,
) -> None:
    """Time OPERATORS, by default all, on every backend that computes here, beside NumPy's generic bodies.

    The exit code is 1 if nothing could be timed.
    """
    require_configuration()
    if output is not None and not output.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {output.absolute().parent}", param_hint="--output")
    for backend in named:
        require_available(backend, option="--backend")
    backends = named or _available()
    found = _measure_all(operators, backends, sizes, dtype, seconds)
    report = circumstances(backends, dtype, seconds)
    text = json.dumps({**report, "results": [asdict(row) for row in found]}, indent=2) + "\n"
    if output is not None:
        try:
            write_atomically(output, text)
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error}") from None
    warn_of_unsteady(found)
    if as_json:
        click.echo(text, nl=False)
    else:
        print_report(report, found)
    if all(row.seconds is None for row in found):
        raise SystemExit(1)


def _available() -> tuple[Backend, ...]:
    """Return the backends that compute here, but for those that exist for tests."""
    from tensorops.cli.backends import probe_best_first

    return tuple(b for b, probed in probe_best_first() if not probed.reason and b.library.extra != "test")


def _measure_all(
    operators: tuple[str, ...],
    backends: tuple[Backend, ...],
    sizes: tuple[tuple[int, int], ...],
    dtype: str,
    seconds: float,
) -> list[Measurement]:
    from tensorops.testing.workloads import workload

    found: list[Measurement] = []
    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("", total=len(operators) * len(sizes))
        for operator in operators:
            for rows, features in sizes:
                bar.update(task, description=f"{operator} {rows}x{features}")
                wanted = [Measurement(operator, b.name, rows, features, dtype) for b in backends]
                try:
                    work = workload(operator, rows, features, dtype)
                except ValueError as error:  # a size that this operator cannot have
                    for row in wanted:
                        row.reason = str(error)
                else:
                    measure(work, wanted, seconds)
                found += wanted
                bar.advance(task)
    return found
