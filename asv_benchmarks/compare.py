"""What moved beyond noise between two results of one machine.

    python -m asv_benchmarks.compare BEFORE AFTER [--bench REGEX] [--threshold 0.05]

Each is a file that `tensorops bench --output` wrote, a result file of asv, a folder of several of either, which are
taken as repeated runs, or a commit. Commits are built and measured alternately by `asv continuous`, and nothing is kept
of their results.

A figure has moved if both hold:

* The quartiles of its samples do not overlap, even if each range is widened by half at both ends: of thousands of
  figures of the same distribution, hardly one would pass. For repeated runs these are the outermost quartiles of all.
* The medians differ by more than the threshold, and by more than the controls do. Controls compute without this
  library: copies, peers, the import of NumPy. If these have moved, the machine has.

The exit status is 1 if something became slower, or needs more memory.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
OURS = "tensorops"
THRESHOLD = 0.05
WIDENED = 0.5
FEWEST_CONTROLS = 4
# Benchmarks of asv that time what does not change with this library
CONTROLS = re.compile(r"^bench_peers\.|\.time_copy|_import_numpy")
SMALLER_IS_BETTER = ("time_", "timeraw_", "peakmem_")


@dataclass(frozen=True)
class Figure:
    """Seconds or bytes: the median of the samples and their quartiles; smaller is better."""

    median: float
    lower: float
    upper: float
    control: bool = False


Figures = dict[str, Figure]


# --- reading -----------------------------------------------------------------------------------------


def read(path: Path) -> Figures:
    """Return the figures of a result file, or of all in a folder."""
    if path.is_dir():
        files = sorted(file for file in path.glob("*.json") if file.name not in ("machine.json", "benchmarks.json"))
        if not files:
            raise click.ClickException(f"there are no result files in {path}")
        return together([read(file) for file in files])
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from None
    found = of_asv(data) if isinstance(data, dict) and "result_columns" in data else of_bench(data)
    if not found:
        raise click.ClickException(f"{path} has no figures to compare: no times with quartiles")
    return found


def of_bench(report: Any) -> Figures:
    """Return the figures of a file of `tensorops bench --output`."""
    found: Figures = {}
    if not isinstance(report, dict):
        return found
    dtype = report.get("dtype", "")
    for line in [*report.get("rows", []), *report.get("attention", [])]:
        for name, seconds in line["seconds"].items():
            key = f"{line['task']} {line['shape']} {dtype}: {name}"
            found[key] = Figure(seconds, *line["quartiles"][name], control=name != OURS)
    for row in report.get("results", []):
        if row.get("quartiles"):
            body = ", body" if row["body"] else ""
            key = f"{row['operator']} {row['rows']}x{row['features']} {row['dtype']}: {row['backend']}{body}"
            found[key] = Figure(row["seconds"], *row["quartiles"])
    for speed in report.get("decode", {}).get("speeds", []):
        if speed.get("quartiles"):
            found[f"decode: {speed['backend']}, {speed['way']}"] = Figure(speed["seconds"], *speed["quartiles"])
    return found


def of_asv(data: dict[str, Any]) -> Figures:
    """Return the figures of a result file of asv: times with quartiles, and peak memory."""
    found: Figures = {}
    for name, values in data["results"].items():
        row = dict(zip(data["result_columns"], values, strict=False))
        if not name.rpartition(".")[2].startswith(SMALLER_IS_BETTER) or not row.get("result"):
            continue
        cells = zip(row["result"], *(row.get(f"stats_q_{q}") or itertools.repeat(None) for q in (25, 75)), strict=False)
        memory = ".peakmem_" in f".{name}"
        for params, (value, lower, upper) in zip(itertools.product(*row["params"]), cells, strict=False):
            if memory and isinstance(value, int | float):
                lower = upper = value
            if None not in (value, lower, upper) and not math.isnan(value):
                key = f"{name}({', '.join(params)})" if params else name
                found[key] = Figure(value, lower, upper, control=bool(CONTROLS.search(name)))
    return found


def together(runs: list[Figures]) -> Figures:
    """Return the figures of repeated runs: the median of the medians, within the outermost quartiles."""
    found: Figures = {}
    for key in dict.fromkeys(itertools.chain(*runs)):
        same = [run[key] for run in runs if key in run]
        median = statistics.median(figure.median for figure in same)
        lower, upper = min(figure.lower for figure in same), max(figure.upper for figure in same)
        found[key] = Figure(median, lower, upper, same[0].control)
    return found


# --- judging -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """A figure that differs beyond noise."""

    name: str
    before: Figure
    after: Figure

    @property
    def ratio(self) -> float:
        """The median after, divided by that before."""
        return self.after.median / self.before.median


@dataclass(frozen=True)
class Judgement:
    """What moved, of how many, and by how much the controls did."""

    moves: list[Move]
    compared: int
    controls: int
    drift: float
    only_once: int

    @property
    def worse(self) -> list[Move]:
        """What became slower or larger."""
        return [move for move in self.moves if move.ratio > 1]


def judge(before: Figures, after: Figures, threshold: float = THRESHOLD) -> Judgement:
    """Return what moved beyond noise, the worst first."""
    both = [name for name in before if name in after]
    controls = [name for name in both if before[name].control]
    drift = drift_of(after[name].median / before[name].median for name in controls)
    least = max(math.log1p(threshold), drift)
    ours = [name for name in both if name not in controls]
    moves = [Move(name, before[name], after[name]) for name in ours if has_moved(before[name], after[name], least)]
    moves.sort(key=lambda move: -move.ratio)
    return Judgement(moves, len(ours), len(controls), math.expm1(drift), len(before.keys() ^ after.keys()))


def drift_of(ratios: Iterable[float]) -> float:
    """Return the logarithm of the ratio that three quarters of the controls are within; a few tell nothing."""
    far = sorted(abs(math.log(ratio)) for ratio in ratios)
    return far[math.ceil(0.75 * len(far)) - 1] if len(far) >= FEWEST_CONTROLS else 0.0


def has_moved(before: Figure, after: Figure, least: float) -> bool:
    """Return whether the widened quartiles are apart and the logarithm of the ratio is more than `least`."""
    margin = WIDENED * (before.upper - before.lower + after.upper - after.lower)
    apart = max(after.lower - before.upper, before.lower - after.upper)
    return apart > margin and abs(math.log(after.median / before.median)) > least


# --- commits -----------------------------------------------------------------------------------------


def measure(before: str, after: str, bench: str | None) -> list[Figures]:
    """Return the figures of two commits, measured alternately by asv in environments of their own."""
    commits = [commit_of(name) for name in (before, after)]
    if commits[0] == commits[1]:
        raise click.ClickException(f"{before} and {after} are the same commit")
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "asv.conf.json")
        configuration.write_text(json.dumps(temporary_configuration(Path(folder))), encoding="utf-8")
        asv = [sys.executable, "-m", "asv"]
        subprocess.run([*asv, "machine", "--machine", "here", "--yes"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        # Two rounds, each of both commits: a machine that changes its speed meanwhile does so for both.
        command = [*asv, "continuous", "--config", str(configuration), "--machine", "here", "--interleave-rounds"]
        command += ["--attribute", "rounds=2", *(["--bench", bench] if bench else []), *commits]
        subprocess.run(command, cwd=ROOT, check=False)  # its own judgement is its exit status
        return [read_commit(Path(folder, "results", "here"), commit) for commit in commits]


def commit_of(name: str) -> str:
    """Return the hash of a commit."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{name} is neither a file nor a folder nor a commit")
    return done.stdout.strip()


def temporary_configuration(folder: Path) -> dict[str, Any]:
    """Return the configuration of asv with results in a folder that will be removed; environments are kept."""
    from asv.util import load_json

    known = dict(load_json(str(ROOT / "asv.conf.json"), js_comments=True))
    absolute = {name: str(ROOT / known[name]) for name in ("repo", "benchmark_dir", "env_dir", "html_dir")}
    return known | absolute | {"results_dir": str(folder / "results")}


def read_commit(folder: Path, commit: str) -> Figures:
    """Return the figures that asv found for a commit."""
    files = list(folder.glob(f"{commit[:8]}-*.json"))
    if not files:
        raise click.ClickException(f"asv has no results of {commit[:8]}; its messages are above")
    return together([read(file) for file in files])


# --- the command -------------------------------------------------------------------------------------


def say(judged: Judgement) -> None:
    """Print what moved, and what that was judged by."""
    for move in judged.moves:
        word = "worse " if move.ratio > 1 else "better"
        click.echo(f"{word} x {move.ratio:5.2f}  {spell(move.before)} -> {spell(move.after)}  {move.name}")
    worse, better = len(judged.worse), len(judged.moves) - len(judged.worse)
    click.echo(f"of {judged.compared} figures, {worse} became worse and {better} better")
    if judged.controls >= FEWEST_CONTROLS:
        said = f"of {judged.controls} controls, three quarters moved by at most {judged.drift:.1%}"
        click.echo(f"{said}: as far as that, figures are not told apart")
    if judged.only_once:
        click.echo(f"{judged.only_once} figures are in one of the results only")


def spell(figure: Figure) -> str:
    return f"{figure.median:.4g} ({figure.lower:.4g} to {figure.upper:.4g})"


@click.command()
@click.argument("before")
@click.argument("after")
@click.option("--bench", metavar="REGEX", help="Only figures, or with commits benchmarks, whose name it matches.")
@click.option("--threshold", type=click.FloatRange(min=0), default=THRESHOLD, show_default=True)
def main(before: str, after: str, bench: str | None, threshold: float) -> None:
    """Print what moved beyond noise from BEFORE to AFTER: result files, folders of them, or two commits."""
    if exist := [name for name in (before, after) if Path(name).exists()]:
        if len(exist) == 1:
            raise click.UsageError(f"{exist[0]} is a file or folder and the other is not: compare two of a kind")
        both = [read(Path(name)) for name in (before, after)]
        if bench:
            both = [{name: f for name, f in figures.items() if re.search(bench, name)} for figures in both]
    else:
        both = measure(before, after, bench)
    judged = judge(*both, threshold)
    if not judged.compared:
        raise click.ClickException("the two have no figure in common")
    say(judged)
    if judged.worse:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
