"""``tensorops backends``: which backends there are, and why the others cannot compute here."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from tensorops._messages import describe_error
from tensorops._providers import PROVIDERS, load
from tensorops.backends.probing import Probe, probe_all
from tensorops.cli._options import configuration_problem, escape, messages, print_table, say, warn
from tensorops.libraries import Backend


def probe_best_first() -> list[tuple[Backend, Probe]]:
    """Return every backend and the outcome of trying it, best first, with a spinner."""
    from tensorops.backends.listing import best_first

    with messages.status("Probing backends …"):
        rows = best_first()
        probes = probe_all(rows)
    return [(backend, probes[backend.name]) for backend in rows]


def providers() -> dict[str, str]:
    """Return every provider of kernels, and why it cannot be loaded, or an empty string."""
    reasons = {}
    for name in tuple(PROVIDERS):
        try:
            reasons[name] = load(name)
        except Exception as error:  # such as an invalid setting of the kernels: a list must not fail
            reasons[name] = describe_error(error)
    return reasons


def had_here(found: list[tuple[Backend, Probe]]) -> list[tuple[Backend, Probe]]:
    """Return those that compute here, or would after their remedies."""
    from tensorops.backends.listing import can_be_had

    return [row for row in found if can_be_had(*row)]


def print_backends(console: Console, found: list[tuple[Backend, Probe]]) -> None:
    """Print the table of those that compute here, and below it the others, with their reasons and remedies."""
    table = Table(title="Backends, best first")
    for column in ("backend", "computes with", "verified here"):
        table.add_column(column)
    for backend, probed in found:
        if probed.verified is not None:
            aliases = f"\n[dim]{', '.join(backend.aliases)}[/]" if backend.aliases else ""
            verdict = f"[green]{probed.verified:%Y-%m-%d %H:%M} UTC[/]"
            table.add_row(f"[bold]{backend.name}[/]{aliases}", escape(backend.summary), verdict)
    print_table(console, table)
    for backend, probed in found:
        if probed.reason:
            print_unavailable(console, backend.name, probed.reason, probed.remedy, indent=0)


def print_unavailable(console: Console, name: str, reason: str, remedy: str | None, *, indent: int) -> None:
    """Print why a backend cannot compute here and, on a separate line, the remedy."""
    say(console, f"{name}: {reason}", label="[yellow]missing[/]  ", indent=indent)
    if remedy:
        say(console, remedy, label="to fix it: ", indent=indent + 4)


def print_hidden(console: Console, count: int, command: str, *, indent: int) -> None:
    """Say how many backends were omitted, and how to see them."""
    if count:
        say(console, f"{count} more are known, but not available here; to see them: {command} --all", indent=indent)


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also show those that are not available here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def backends(everything: bool, as_json: bool) -> None:
    """List the backends, each probed by a tiny computation, and the providers of kernels."""
    found = probe_best_first()
    problem = configuration_problem()
    if as_json:
        from tensorops.backends.listing import describe_row

        rows = [describe_row(backend, probed) for backend, probed in found]
        kernels = [
            {"name": name, "summary": PROVIDERS[name].summary, "available": not why, "reason": why or None}
            for name, why in providers().items()
        ]
        click.echo(json.dumps({"backends": rows, "providers": kernels, "problem": problem or None}, indent=2))
        return
    console = Console()
    shown = found if everything else had_here(found)
    print_backends(console, shown)
    print_hidden(console, len(found) - len(shown), "tensorops backends", indent=0)
    console.print()
    for name, why in providers().items():
        verdict = "[red]unavailable[/]: " if why else "[green]loaded[/]: "
        say(console, why or PROVIDERS[name].summary, label=f"kernels of [bold]{name}[/]: {verdict}")
    if problem:
        warn(f"the configuration is not in force: {problem}")
