"""``tensorops backends``: which backends there are, and why the others cannot compute here."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from tensorops.backends.probing import Probe, probe_all
from tensorops.backends.registry import Backend, describe_error
from tensorops.cli._options import configuration_problem, escape, messages, warn


def probe_best_first() -> list[tuple[Backend, Probe]]:
    """Return every backend and what came of trying it, best first; a spinner turns meanwhile."""
    from tensorops.backends.information import best_first

    with messages.status("Probing backends …"):
        rows = best_first()
        probes = probe_all(rows)
    return [(backend, probes[backend.name]) for backend in rows]


def providers() -> dict[str, str]:
    """Return every provider of kernels, and why it cannot be loaded, or an empty string."""
    from tensorops import kernels

    reasons = {}
    for name in tuple(kernels.PROVIDERS):
        try:
            reasons[name] = kernels.load(name)
        except Exception as error:  # such as a setting of the kernels that means nothing: a list must not fail
            reasons[name] = describe_error(error)
    return reasons


def backends_table(found: list[tuple[Backend, Probe]]) -> Table:
    """Return the table that people see."""
    table = Table(title="Backends, best first")
    table.add_column("backend")
    table.add_column("computes with")
    table.add_column("verified here")
    for backend, probed in found:
        aliases = f"\n[dim]{', '.join(backend.aliases)}[/]" if backend.aliases else ""
        table.add_row(f"[bold]{backend.name}[/]{aliases}", escape(backend.summary), _verdict(probed))
    return table


def _verdict(probed: Probe) -> str:
    if probed.verified is not None:
        return f"[green]{probed.verified:%Y-%m-%d %H:%M} UTC[/]"
    remedy = f"\nto mend it: {escape(probed.remedy)}" if probed.remedy else ""
    return f"[red]no[/]: {escape(probed.reason)}{remedy}"


def print_planned(console: Console, found: list[tuple[Backend, Probe]]) -> None:
    """Print a line for each backend that this version knows by name only."""
    console.print("\nKnown by name, but not to be had in this version (--all tells what to use instead):")
    for backend, probed in found:
        aliases = f" ({', '.join(backend.aliases)})" if backend.aliases else ""
        console.print(f"  [bold]{backend.name}[/]{aliases}: {escape(probed.reason)}", highlight=False)


@click.command()
@click.option("--all", "everything", is_flag=True, help="Show those planned for other versions in the table, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def backends(everything: bool, as_json: bool) -> None:
    """List the backends, each probed by a tiny computation, and the providers of kernels."""
    found = probe_best_first()
    problem = configuration_problem()
    if as_json:
        from tensorops.backends.information import describe_row

        rows = [describe_row(backend, probed) for backend, probed in found]
        kernels = [{"name": name, "available": not why, "reason": why or None} for name, why in providers().items()]
        click.echo(json.dumps({"backends": rows, "providers": kernels, "problem": problem or None}, indent=2))
        return
    console = Console()
    planned = [] if everything else [row for row in found if row[0].missing]
    console.print(backends_table([row for row in found if row not in planned]))
    if planned:
        print_planned(console, planned)
    console.print()
    for name, why in providers().items():
        verdict = f"[red]unavailable[/]: {escape(why)}" if why else "[green]loaded[/]"
        console.print(f"kernels of [bold]{name}[/]: {verdict}", highlight=False)
    if problem:
        warn(f"the configuration is not in force: {problem}")
