"""``tensorops bench``: operators timed on several backends, and the steps of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import Progress

from tensorops._files import write_atomically
from tensorops._messages import nearest
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

if TYPE_CHECKING:
    from tensorops.benchmarks.reports import Report

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
Sizes = tuple[tuple[int, int], ...]

WIDTH = 120
SECONDS, SECONDS_TO_DECODE = 0.3, 1.5


# --- options -----------------------------------------------------------------------------------------


def known(kind: str, name: str, valid: Collection[str]) -> str:
    """Return a name if it is valid; else it is a usage error that lists the valid ones."""
    if name not in valid:
        message = f"unknown {kind} {name!r}{nearest(name, valid)}; valid names: {', '.join(valid)}"
        raise click.BadParameter(message)
    return name


def _dtype_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    from tensorops.testing import DTYPES

    return known("dtype", value, DTYPES)


def _operators(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from tensorops.benchmarks.workloads import WORKLOADS

    return tuple(dict.fromkeys(known("operator", name, WORKLOADS) for name in values))


def sizes_of(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Sizes:
    """Return rows and features of each size given, each once."""
    from tensorops.benchmarks.workloads import SIZES

    found = []
    for value in values:
        shape = re.fullmatch(r"([1-9][0-9]*)x([1-9][0-9]*)", value)
        if value not in SIZES and shape is None:
            raise click.BadParameter(
                f"{value!r} is not a size{nearest(value, SIZES)}; valid: {', '.join(SIZES)}, or rows and features as "
                "16x4096"
            )
        found.append(SIZES[value] if shape is None else (int(shape[1]), int(shape[2])))
    return tuple(dict.fromkeys(found))


dtype_option = click.option(
    "--dtype", callback=_dtype_name, default="float32", metavar="[float16|bfloat16|float32|float64]"
)


def json_options(command: C) -> C:
    """Add the options of commands that print a report."""
    command = click.option(
        "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too."
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def require_folder(output: Path | None) -> None:
    """Refuse a file in no folder, and a configuration that is not in force, before anything is timed."""
    require_configuration()
    if output is not None and not output.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {output.absolute().parent}", param_hint="--output")


@click.command()
@click.argument("operators", nargs=-1, callback=_operators)
@click.option(
    "--decode",
    is_flag=True,
    help="Time a language model's step from a token to the next on every backend, as a persistent kernel and from "
    "Python, compared with the time that reading the weights takes, instead.",
)
@click.option("--backend", "named", multiple=True, callback=backend_names, metavar="NAME", help="May be repeated.")
@click.option("--bodies", is_flag=True, help="Time the generic bodies on each backend, too.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    callback=sizes_of,
    metavar="SIZE",
    help="small, decode, prefill, large, or rows x features as in 16x4096. By default decode and prefill.",
)
@dtype_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help=f"For each figure; by default {SECONDS}, with --decode {SECONDS_TO_DECODE}.",
)
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --decode: a GGUF file, by default SmolLM2-135M-Instruct if it has been downloaded.",
)
@json_options
def bench(
    operators: tuple[str, ...],
    decode: bool,
    named: tuple[Backend, ...],
    bodies: bool,
    sizes: Sizes,
    dtype: str,
    seconds: float | None,
    model: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Time OPERATORS, by default all, on every available backend, compared with NumPy's generic bodies.

    With --decode, time a model's step from a token to the next on every backend. It takes no OPERATORS.

    The exit code is 1 if nothing could be timed.
    """
    for name, given in (("--size", sizes), ("--dtype", dtype != "float32"), ("--bodies", bodies)):
        if decode and given:
            raise click.UsageError(f"{name} has no meaning with --decode")
    if model is not None and not decode:
        raise click.UsageError("--model needs --decode")
    require_folder(output)
    if decode:
        report = _of_decoding(operators, named, seconds or SECONDS_TO_DECODE, model)
    else:
        report = on_backends(operators, named, sizes, dtype, seconds or SECONDS, bodies)
    hand_over(report, as_json, output)


# --- measuring ---------------------------------------------------------------------------------------


def on_backends(
    operators: tuple[str, ...],
    named: tuple[Backend, ...] = (),
    sizes: Sizes = (),
    dtype: str = "float32",
    seconds: float = SECONDS,
    bodies: bool = False,
) -> Report:
    """Time operators on backends, by default on all that compute here."""
    from tensorops.benchmarks import backends, reports
    from tensorops.benchmarks.workloads import SIZES, WORKLOADS

    for backend in named:
        require_available(backend, option="--backend")
    chosen = named or _available()
    sizes = sizes or (SIZES["decode"], SIZES["prefill"])
    measured = run_jobs(backends.jobs(operators or tuple(WORKLOADS), chosen, sizes, dtype, seconds, bodies))
    return reports.on_backends([row for rows in measured for row in rows], chosen, dtype, seconds)


def _available() -> tuple[Backend, ...]:
    """Return the backends that compute here, but for those that exist for tests."""
    from tensorops.cli.backends import probe_best_first

    return tuple(b for b, probed in probe_best_first() if not probed.reason and not b.for_tests)


def _of_decoding(operators: tuple[str, ...], named: tuple[Backend, ...], seconds: float, model: Path | None) -> Report:
    from tensorops.benchmarks import decode, reports

    if operators:
        raise click.UsageError("--decode takes no OPERATORS")
    for backend in named:
        require_available(backend, option="--backend")
    path, reason = model_to_decode(model)
    if path is None:
        raise click.ClickException(reason)
    chosen = named or tuple(backend for backend in _available() if not backend.library.lazy)
    found = run_jobs(decode.jobs(path, chosen, seconds))[-1]
    return reports.of_decoding(found, chosen, seconds)


def model_to_decode(given: Path | None) -> tuple[Path | None, str]:
    """Return the model given, or the default one if it has been downloaded, or the reason for which there is none."""
    try:
        from tensorops.models.files import download, gguf  # noqa: F401 - what a model needs

        path = given or download.cached_model_path()
    except ImportError as error:
        return None, str(error)
    if not path.is_file():
        return None, f"there is no model {path}; `tensorops generate` downloads it"
    return path, ""


def run_jobs(jobs: Mapping[str, Callable[[], T]]) -> list[T]:
    """Run each of the labelled jobs while a bar shows how far this is; return what they return."""
    from tensorops.benchmarks.measuring import CannotMeasureError

    results = []
    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("", total=len(jobs))
        for label, job in jobs.items():
            bar.update(task, description=escape(label))
            try:
                results.append(job())
            except CannotMeasureError as error:
                raise click.ClickException(str(error)) from None
            bar.advance(task)
    return results


# --- reporting ---------------------------------------------------------------------------------------


def hand_over(report: Report, as_json: bool, output: Path | None) -> None:
    """Write the report to a file if there is one to write, and print it; exit with 1 if nothing was timed."""
    text = json.dumps(report.to_dict(), indent=2) + "\n"
    if output is not None:
        try:
            write_atomically(output, text)
        except OSError as error:
            raise click.ClickException(f"{output} cannot be written: {error}") from None
    if warning := report.warning():
        warn(warning)
    if as_json:
        click.echo(text, nl=False)
    else:
        print_report(report)
    if not report.timed:
        raise SystemExit(1)


def print_report(report: Report) -> None:
    """Print a report for people."""
    console = Console()
    if not console.is_terminal:  # a file has no width, and a table that is cut off loses digits
        console.width = max(console.width, WIDTH)
    console.print(escape(report.head()), soft_wrap=True, highlight=False)
    for table in report.tables:
        print_table(console, table)
    for reason in report.reasons:
        console.print(escape(reason), soft_wrap=True, highlight=False)
    for said in report.legend:
        console.print(f"[dim]{escape(said)}[/]")
