"""``tensorops bench``: operators timed on several backends, beside other libraries, or on a busy machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import Progress

from tensorops._files import write_atomically
from tensorops._messages import nearest
from tensorops.backends.registry import resolve
from tensorops.cli import _model
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

_MODES = {
    "--size": ("", "--peers"),
    "--dtype": ("", "--peers"),
    "--bodies": ("",),
    "--section": ("--peers",),
    "--model": ("--peers", "--busy", "--decode"),
    "--scenario": ("--busy",),
}

T = TypeVar("T")
Sizes = tuple[tuple[int, int], ...]

CPU = "cpu"  # whose kernels are compared with peers
SECTIONS = ("rows", "attention", "model")
WIDTH = 120
SECONDS, SECONDS_BESIDE_PEERS, SECONDS_UNDER_LOADS, SECONDS_TO_DECODE = 0.3, 0.15, 0.35, 1.5


# --- options -----------------------------------------------------------------------------------------


def _known(kind: str, name: str, valid: Collection[str], when: str = "") -> str:
    """Return a name if it is valid; else it is a usage error that lists the valid ones."""
    if name not in valid:
        message = f"unknown {kind} {name!r}{nearest(name, valid)}; valid names{when}: {', '.join(valid)}"
        raise click.BadParameter(message)
    return name


def _dtype_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    from tensorops.testing import DTYPES

    return _known("dtype", value, DTYPES)


def _operators(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from tensorops.benchmarks import busy, peers
    from tensorops.benchmarks.workloads import WORKLOADS

    valid: Collection[str] = WORKLOADS
    when = ""
    if context.params["peers"]:
        valid, when = peers.ROWS, " with --peers"
    elif context.params["busy"]:
        valid, when = busy.OPERATORS, " with --busy"
    return tuple(dict.fromkeys(_known("operator", name, valid, when) for name in values))


def _scenarios(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from tensorops.benchmarks.busy import SCENARIOS

    return tuple(dict.fromkeys(_known("scenario", name, SCENARIOS) for name in values))


def _sizes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Sizes:
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


def _tasks(sections: tuple[str, ...], operators: tuple[str, ...], sizes: Sizes, model: Path | None) -> tuple[str, ...]:
    """Return the tasks of the sections; operators and sizes are of rows alone, and a model is a section of its own."""
    from tensorops.benchmarks.peers import ATTENTION, ROWS

    rows_only = bool(operators or sizes)
    if sections and rows_only and "rows" not in sections:
        raise click.BadParameter("operators and sizes are of the section rows", param_hint="--section")
    if sections and (model is not None) != ("model" in sections):
        raise click.BadParameter("the section model and --model GGUF_FILE need each other", param_hint="--section")
    chosen = sections or (("rows",) if rows_only else ("rows", "attention"))
    rows = operators or tuple(ROWS)
    return (rows if "rows" in chosen else ()) + (tuple(ATTENTION) if "attention" in chosen else ())


def _require_sense(mode: str, named: tuple[Backend, ...], given: dict[str, object]) -> None:
    """Refuse options that have no meaning in a mode: "--peers", "--busy" or "" without these."""
    if mode in ("--peers", "--busy") and any(backend.name != CPU for backend in named):
        raise click.UsageError(f"{mode} times the kernels of the backend {CPU} only: leave out {mode} or --backend")
    for name, value in given.items():
        if value and mode not in _MODES[name]:
            needed = " or ".join(filter(None, _MODES[name]))
            raise click.UsageError(f"{name} has no meaning with {mode}" if mode else f"{name} needs {needed}")


@click.command()
@click.argument("operators", nargs=-1, callback=_operators)
@click.option(
    "--peers",
    is_flag=True,
    is_eager=True,
    help="Time the compiled kernels on NumPy arrays beside a copy of the same bytes and other libraries instead.",
)
@click.option(
    "--busy",
    is_flag=True,
    is_eager=True,
    help="Time the compiled kernels on NumPy arrays on an idle and on a busy machine, with all threads, with passive "
    "waits and with one thread instead.",
)
@click.option(
    "--decode",
    is_flag=True,
    is_eager=True,
    help="Time a language model's step from a token to the next on every backend, as a persistent kernel and from "
    "Python, beside the time that reading the weights takes, instead.",
)
@click.option("--backend", "named", multiple=True, callback=backend_names, metavar="NAME", help="May be repeated.")
@click.option("--bodies", is_flag=True, help="Time the generic bodies on each backend, too.")
@click.option(
    "--size",
    "sizes",
    multiple=True,
    callback=_sizes,
    metavar="SIZE",
    help="small, decode, prefill, large, or rows x features as in 16x4096. By default decode and prefill, with --peers "
    "six from 1x64 to 8192x4096.",
)
@click.option("--dtype", callback=_dtype_name, default="float32", metavar="[float16|bfloat16|float32|float64]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help=f"For each figure; by default {SECONDS}, with --peers {SECONDS_BESIDE_PEERS}, with --busy "
    f"{SECONDS_UNDER_LOADS}, with --decode {SECONDS_TO_DECODE}.",
)
@click.option(
    "--section",
    "sections",
    multiple=True,
    type=click.Choice(SECTIONS),
    help="With --peers; may be repeated. By default rows, attention unless OPERATORS or a size are given, and "
    "model if there is one.",
)
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A GGUF file; with --peers to run beside llama.cpp, with --busy or --decode to decode, by default "
    "SmolLM2-135M-Instruct if it has been downloaded.",
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    callback=_scenarios,
    metavar="NAME",
    help="With --busy; may be repeated: idle, spinner, spinners, torch, python-threads, quota, openmp-threads. By "
    "default all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON to this file, too.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw a picture, an .svg, .png or .html file: bytes per second over size below those of a copy, or tokens per "
    "second below the bound. By default for six sizes from 1x64 to 8192x4096.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --plot: draw what this file of an earlier --output says, and time nothing.",
)
def bench(
    operators: tuple[str, ...],
    peers: bool,
    busy: bool,
    decode: bool,
    named: tuple[Backend, ...],
    bodies: bool,
    sizes: Sizes,
    dtype: str,
    seconds: float | None,
    sections: tuple[str, ...],
    model: Path | None,
    scenarios: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    plot: Path | None,
    source: Path | None,
) -> None:
    """Time OPERATORS, by default all, on every backend that computes here, beside NumPy's generic bodies.

    With --peers, time the compiled kernels beside a copy and beside other libraries that are installed: OPERATORS are
    those of rows of features, where gelu_tanh is gelu in its other form, and all of it takes less than five minutes on
    two processors.

    With --busy, time the compiled kernels beside other programs and under other loads: OPERATORS may include decode,
    one token of a model, and all of it takes about three minutes on two processors.

    With --decode, time a model's step from a token to the next on every backend. It takes no OPERATORS.

    The exit code is 1 if nothing could be timed.
    """
    if plot is not None:
        _require_drawable(plot, busy)
    if source is not None:
        _draw_again(source, plot)
        return
    modes = [name for name, given in (("--peers", peers), ("--busy", busy), ("--decode", decode)) if given]
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)} exclude each other")
    mode = modes[0] if modes else ""
    given = {"--size": sizes, "--dtype": dtype != "float32", "--section": sections, "--model": model}
    _require_sense(mode, named, given | {"--scenario": scenarios, "--bodies": bodies})
    require_configuration()
    if output is not None and not output.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {output.absolute().parent}", param_hint="--output")
    if peers:
        tasks = _tasks(sections, operators, sizes, model)
        report = _beside_peers(tasks, sizes, dtype, seconds or SECONDS_BESIDE_PEERS, model)
    elif decode:
        report = _of_decoding(operators, named, seconds or SECONDS_TO_DECODE, model)
    elif busy:
        report = _under_loads(operators, scenarios, seconds or SECONDS_UNDER_LOADS, model)
    else:
        if plot is not None and not sizes:
            sizes = _all_sizes()
        report = on_backends(operators, named, sizes, dtype, seconds or SECONDS, bodies)
    _hand_over(report, as_json, output)
    if plot is not None and report.timed:
        _draw(report.to_dict(), plot)
    if not report.timed:
        raise SystemExit(1)


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
    measured = _run(backends.jobs(operators or tuple(WORKLOADS), chosen, sizes, dtype, seconds, bodies))
    return reports.on_backends([row for rows in measured for row in rows], chosen, dtype, seconds)


def _all_sizes() -> Sizes:
    from tensorops.testing import BENCHMARK_SHAPES

    return BENCHMARK_SHAPES


def _available() -> tuple[Backend, ...]:
    """Return the backends that compute here, but for those that exist for tests."""
    from tensorops.cli.backends import probe_best_first

    return tuple(b for b, probed in probe_best_first() if not probed.reason and b.library.extra != "test")


def _beside_peers(tasks: tuple[str, ...], sizes: Sizes, dtype: str, seconds: float, model: Path | None) -> Report:
    from tensorops.benchmarks import comparison, peers, reports
    from tensorops.benchmarks.measuring import threads
    from tensorops.benchmarks.model import compare_model
    from tensorops.testing import BENCHMARK_SHAPES

    cpu = resolve(CPU)
    require_available(cpu)
    peers.use_threads(threads())
    known = peers.ROWS | peers.ATTENTION
    jobs: dict[str, Callable[[], Any]] = {}
    jobs |= comparison.jobs({name: known[name] for name in tasks}, sizes or BENCHMARK_SHAPES, dtype, seconds)
    if model is not None:
        jobs[f"model {model.name}"] = partial(compare_model, _model.load(model, cpu), model, threads())
    return reports.beside_peers(_run(jobs), cpu, dtype, seconds)


def _under_loads(operators: tuple[str, ...], scenarios: tuple[str, ...], seconds: float, model: Path | None) -> Report:
    from tensorops.benchmarks import busy, reports

    cpu = resolve(CPU)
    require_available(cpu)
    operators, missing = operators or busy.OPERATORS, []
    if busy.DECODE in operators:
        model, reason = _model_to_decode(model)
        missing = [f"{busy.DECODE}: {reason}"] if reason else []
    elif model is not None:
        raise click.UsageError(f"--model needs {busy.DECODE} among the OPERATORS")
    found = _run(busy.jobs(scenarios or tuple(busy.SCENARIOS), operators, seconds, model))
    return reports.under_loads(found, cpu, seconds, missing)


def _of_decoding(operators: tuple[str, ...], named: tuple[Backend, ...], seconds: float, model: Path | None) -> Report:
    from tensorops.benchmarks import decode, reports

    if operators:
        raise click.UsageError("--decode takes no OPERATORS")
    for backend in named:
        require_available(backend, option="--backend")
    path, reason = _model_to_decode(model)
    if path is None:
        raise click.ClickException(reason)
    chosen = named or tuple(backend for backend in _available() if not backend.library.lazy)
    found = _run(decode.jobs(path, chosen, seconds))[-1]
    return reports.of_decoding(found, chosen, seconds)


def _model_to_decode(given: Path | None) -> tuple[Path | None, str]:
    """Return the model given, or the default one if it has been downloaded, or the reason for which there is none."""
    try:
        from tensorops.models import download, gguf  # noqa: F401 - what a model needs

        path = given or download.cached_model_path()
    except ImportError as error:
        return None, str(error)
    if not path.is_file():
        return None, f"there is no model {path}; `tensorops generate` downloads it"
    return path, ""


def _run(jobs: Mapping[str, Callable[[], T]]) -> list[T]:
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


def _hand_over(report: Report, as_json: bool, output: Path | None) -> None:
    """Write the report to a file if there is one to write, and print it."""
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


def _require_drawable(plot: Path, busy: bool) -> None:
    """Refuse a picture that cannot be drawn before anything is timed for it."""
    from tensorops.benchmarks import pictures

    if busy:
        raise click.UsageError("--plot has no meaning with --busy")
    if not plot.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {plot.absolute().parent}", param_hint="--plot")
    try:
        pictures.require_drawable(plot)
    except pictures.CannotDrawError as error:
        raise click.ClickException(str(error)) from None


def _draw_again(source: Path, plot: Path | None) -> None:
    """Draw a report that was written to a file."""
    if plot is None:
        raise click.UsageError("--from needs --plot")
    try:
        report = json.loads(source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{source} is not JSON: {error}") from None
    if not isinstance(report, dict):
        raise click.ClickException(f"{source} is not a report of `tensorops bench --output`")
    _draw(report, plot)


def _draw(report: dict[str, Any], plot: Path) -> None:
    from tensorops.benchmarks import pictures

    try:
        write_atomically(plot, pictures.draw(report, plot))
    except pictures.CannotDrawError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{plot} cannot be written: {error}") from None


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
