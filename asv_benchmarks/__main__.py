"""Comparisons that take minutes: with other libraries, on busy machines, and pictures of results.

    python -m asv_benchmarks peers|busy|draw --help

Run it in a clone; asv's own benchmarks are the modules ``bench_*``.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from asv_benchmarks import busy as loads, comparison, model, peers as others, pictures, reports
from tensorops._files import write_atomically
from tensorops.backends.registry import resolve
from tensorops.benchmarks.measuring import threads
from tensorops.cli import _model, bench
from tensorops.cli._options import require_available
from tensorops.testing import BENCHMARK_SHAPES

CPU = resolve("cpu")  # whose kernels are compared
SECTIONS = ("rows", "attention", "model")
SECONDS, SECONDS_UNDER_LOADS = 0.15, 0.35

GGUF = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def app() -> None:
    """Compare the compiled kernels with other libraries, under loads, and draw results."""


def _names(kind: str, valid: Any) -> Any:
    return lambda context, parameter, values: tuple(dict.fromkeys(bench.known(kind, name, valid) for name in values))


# --- compared with peers ------------------------------------------------------------------------------------


def _tasks(
    sections: tuple[str, ...], operators: tuple[str, ...], sizes: bench.Sizes, file: Path | None
) -> tuple[str, ...]:
    """Return the tasks of the sections; operators and sizes are of rows alone, and a model is a section of its own."""
    rows_only = bool(operators or sizes)
    if sections and rows_only and "rows" not in sections:
        raise click.BadParameter("operators and sizes are of the section rows", param_hint="--section")
    if sections and (file is not None) != ("model" in sections):
        raise click.BadParameter("the section model and --model GGUF_FILE need each other", param_hint="--section")
    chosen = sections or (("rows",) if rows_only else ("rows", "attention"))
    rows = operators or tuple(others.ROWS)
    return (rows if "rows" in chosen else ()) + (tuple(others.ATTENTION) if "attention" in chosen else ())


@app.command()
@click.argument("operators", nargs=-1, callback=_names("operator", others.ROWS))
@click.option("--size", "sizes", multiple=True, callback=bench.sizes_of, help="Rows x features; by default six sizes.")
@bench.dtype_option
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=SECONDS, show_default=True)
@click.option("--section", "sections", multiple=True, type=click.Choice(SECTIONS), help="May be repeated.")
@click.option("--model", "file", type=GGUF, help="A GGUF file to run compared with llama.cpp.")
@bench.json_options
def peers(
    operators: tuple[str, ...],
    sizes: bench.Sizes,
    dtype: str,
    seconds: float,
    sections: tuple[str, ...],
    file: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Time the compiled kernels compared with a copy of the same bytes and other libraries: a few minutes.

    OPERATORS are those of rows of features, by default all, and attention; gelu_tanh is gelu in its other form.
    """
    tasks = _tasks(sections, operators, sizes, file)
    bench.require_folder(output)
    require_available(CPU)
    others.use_threads(threads())
    known = others.ROWS | others.ATTENTION
    jobs: dict[str, Any] = {}
    jobs |= comparison.jobs({name: known[name] for name in tasks}, sizes or BENCHMARK_SHAPES, dtype, seconds)
    if file is not None:
        jobs[f"model {file.name}"] = partial(model.compare_model, _model.load(file, CPU), file, threads())
    bench.hand_over(reports.beside_peers(bench.run_jobs(jobs), CPU, dtype, seconds), as_json, output)


# --- under loads -------------------------------------------------------------------------------------


@app.command()
@click.argument("operators", nargs=-1, callback=_names("operator", loads.OPERATORS))
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), default=SECONDS_UNDER_LOADS, show_default=True)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    callback=_names("scenario", loads.SCENARIOS),
    metavar="NAME",
    help=f"May be repeated: {', '.join(loads.SCENARIOS)}. By default all.",
)
@click.option("--model", "file", type=GGUF, help="What decodes; by default SmolLM2-135M-Instruct, if downloaded.")
@bench.json_options
def busy(
    operators: tuple[str, ...],
    seconds: float,
    scenarios: tuple[str, ...],
    file: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Time the compiled kernels compared with other programs and under other loads: about three minutes.

    They compute with all threads, with passive waits, and with one. OPERATORS may include decode, one token of a model.
    """
    bench.require_folder(output)
    require_available(CPU)
    operators, missing = operators or loads.OPERATORS, []
    if loads.DECODE in operators:
        file, reason = bench.model_to_decode(file)
        missing = [f"{loads.DECODE}: {reason}"] if reason else []
    elif file is not None:
        raise click.UsageError(f"--model needs {loads.DECODE} among the OPERATORS")
    found = bench.run_jobs(loads.jobs(scenarios or tuple(loads.SCENARIOS), operators, seconds, file))
    bench.hand_over(reports.under_loads(found, CPU, seconds, missing), as_json, output)


# --- pictures ----------------------------------------------------------------------------------------


@app.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
def draw(source: Path, picture: Path) -> None:
    """Draw what a file of --output says: bytes per second over size below those of a copy, or tokens per second.

    PICTURE is an .svg, .png or .html file.
    """
    try:
        report = json.loads(source.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{source} is not JSON: {error}") from None
    if not isinstance(report, dict):
        raise click.ClickException(f"{source} is not a report of --output")
    try:
        pictures.require_drawable(picture)
        write_atomically(picture, pictures.draw(report, picture))
    except pictures.CannotDrawError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{picture} cannot be written: {error}") from None


if __name__ == "__main__":
    app(prog_name="python -m asv_benchmarks")
