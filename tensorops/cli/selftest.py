"""``tensorops selftest``: every operator of every backend against its float64 reference, on this machine."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tensorops._messages import describe_error
from tensorops.backends.registry import resolve
from tensorops.cli._options import (
    backend_names,
    escape,
    messages,
    print_table,
    require_available,
    require_configuration,
)
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from tensorops.testing.conformance import Outcome, Subject

STATUSES = ("passed", "failed", "refused", "skipped")
SHOWN = 40  # the maximum number of failures printed for one backend


@dataclass
class Tally:
    """The outcomes of one implementation of the operators on one backend."""

    implementation: str
    dtypes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0

    def counts(self) -> dict[str, int]:
        """Return the number of outcomes with each status."""
        return {status: sum(o.status == status for o in self.outcomes) for status in STATUSES}


@dataclass
class Result:
    """The outcome of one backend; `reason` says why it was not tested."""

    backend: str
    tallies: dict[str, Tally] = field(default_factory=dict)
    reason: str = ""

    @property
    def failures(self) -> list[Outcome]:
        """The cases that failed."""
        return [o for tally in self.tallies.values() for o in tally.outcomes if o.status == "failed"]

    @property
    def ok(self) -> bool:
        """Whether something was tested, and nothing failed."""
        passed = sum(tally.counts()["passed"] for tally in self.tallies.values())
        return not self.reason and not self.failures and passed > 0

    def add(self, subject: Subject, outcomes: list[Outcome], seconds: float) -> None:
        """Count the outcomes of one subject."""
        tally = self.tallies.setdefault(subject.implementation, Tally(subject.implementation))
        tally.outcomes += outcomes
        tally.seconds += seconds
        if subject.dtype not in tally.dtypes:
            tally.dtypes.append(subject.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        tallies = self.tallies.values()
        return {
            "name": self.backend,
            "ok": self.ok,
            "reason": self.reason,
            **{status: sum(tally.counts()[status] for tally in tallies) for status in STATUSES},
            "seconds": round(sum(tally.seconds for tally in tallies), 3),
            "implementations": [
                {"name": t.implementation, "dtypes": t.dtypes, **t.counts(), "seconds": round(t.seconds, 3)}
                for t in tallies
            ],
            "failures": [asdict(outcome) for outcome in self.failures],
        }


@click.command()
@click.option("--backend", "named", multiple=True, callback=backend_names, metavar="NAME", help="May be repeated.")
@click.option("--full", is_flag=True, help="Run every case even on libraries that take seconds to compile.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def selftest(named: tuple[Backend, ...], full: bool, as_json: bool) -> None:
    """Compare every operator on every backend that computes here with its float64 reference.

    The exit code is 0 if all results are right, 1 if one is wrong or a backend that was named is not available.
    """
    require_configuration()
    for backend in named:
        require_available(backend, option="--backend")
    backends = named or _available()
    results = run(backends, full=full)
    left_out = "" if full else describe_quick(backends)
    if as_json:
        rows = [result.to_dict() for result in results]
        ok = all(result.ok for result in results)
        click.echo(json.dumps({"ok": ok, "full": full, "left_out": left_out, "backends": rows}, indent=2))
    else:
        print_report(results, left_out)
    if not all(result.ok for result in results):
        raise SystemExit(1)


def _available() -> tuple[Backend, ...]:
    from tensorops.backends.listing import get_available_backends

    with messages.status("Probing backends ..."):
        names = get_available_backends()
    if not names:  # nothing would be tested, and no result is wrong
        raise click.ClickException("no backend can compute here; `tensorops doctor` says why")
    return tuple(map(resolve, names))


def describe_quick(backends: tuple[Backend, ...]) -> str:
    """Return what a quick run leaves out, or an empty string."""
    slow = [backend.name for backend in backends if backend.library.slow]
    if not slow:
        return ""
    return (
        f"quick run: on {' and '.join(slow)}, where every new shape takes long, only one typical case of each "
        "operator and those with NaN, infinities or no elements; --full runs all"
    )


def run(backends: tuple[Backend, ...], *, full: bool) -> list[Result]:
    """Run the cases, with a progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages, transient=True) as bar:
        return [_run_backend(backend, full, bar) for backend in backends]


def _run_backend(backend: Backend, full: bool, bar: Progress) -> Result:
    from tensorops.testing.conformance import subjects

    result = Result(backend.name)
    task = bar.add_task(backend.name, total=None)
    try:
        chosen = subjects(backend.name, quick=not full)
    except Exception as error:  # a backend that answered the probe may still fail in this process
        result.reason = describe_error(error)
        return result
    bar.update(task, total=sum(map(len, chosen)))
    for subject in chosen:
        bar.update(task, description=f"{backend.name} {subject.operator.__name__}")
        started = time.perf_counter()
        outcomes = subject.run()
        result.add(subject, outcomes, time.perf_counter() - started)
        bar.advance(task, len(outcomes))
    bar.update(task, description=backend.name)
    return result


def print_report(results: list[Result], left_out: str) -> None:
    """Print the table of results, and the failures."""
    console = Console()
    shown = [s for s in STATUSES if s != "skipped" or any(r.to_dict()[s] for r in results)]
    table = Table(title="Conformance with the float64 references")
    table.add_column("backend", no_wrap=True)
    table.add_column("implementation", no_wrap=True)
    for column in (*shown, "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for result in results:
        table.add_section()
        for i, tally in enumerate(result.tallies.values()):
            counts = tally.counts()
            cells = [f"[red]{counts[s]}[/]" if counts[s] and s == "failed" else str(counts[s]) for s in shown]
            table.add_row("" if i else result.backend, tally.implementation, *cells, f"{tally.seconds:.1f}")
        if result.reason:
            table.add_row(result.backend, "[red]not tested[/]", *["-"] * (len(shown) + 1))
    print_table(console, table)
    for result in results:
        for line in _remarks(result):
            console.print(f"[red]{result.backend}[/]: {escape(line)}", soft_wrap=True, highlight=False)
    if left_out:
        console.print(f"[dim]{left_out}[/]", soft_wrap=True, highlight=False)
    if all(result.ok for result in results):
        console.print(f"[green]All right on {len(results)} backends.[/]")


def _remarks(result: Result) -> list[str]:
    """Return lines on the cases that did not pass; each reason for skipping occurs once."""
    outcomes = [outcome for tally in result.tallies.values() for outcome in tally.outcomes]
    skipped = dict.fromkeys(f"{o.implementation} skipped: {o.message}" for o in outcomes if o.status == "skipped")
    lines = [*filter(None, [result.reason]), *skipped, *map(str, result.failures[:SHOWN])]
    if (more := len(result.failures) - SHOWN) > 0:
        lines.append(f"... and {more} more failures; --json lists all")
    return lines
