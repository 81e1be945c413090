"""``tensorops backends``: which backends there are, and why the others cannot compute here."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tensorops.backends.registry import BACKENDS, unavailable_reason
from tensorops.kernels import PROVIDERS, load


def backends_table() -> Table:
    """Return the table that people see."""
    table = Table(title="Backends, best first")
    table.add_column("backend (aliases)", no_wrap=True)
    table.add_column("computes with")
    table.add_column("available here")
    for backend in BACKENDS.values():
        aliases = f" [dim]({', '.join(backend.aliases)})[/]" if backend.aliases else ""
        reason = unavailable_reason(backend)
        verdict = f"[red]no[/]: {escape(reason)}" if reason else "[green]yes[/]"
        table.add_row(backend.name + aliases, backend.summary, verdict)
    return table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def backends(as_json: bool) -> None:
    """List the backends, each probed by a tiny computation, and the providers of kernels."""
    if as_json:
        rows = [
            {
                "name": b.name,
                "aliases": list(b.aliases),
                "summary": b.summary,
                "available": not unavailable_reason(b),
                "reason": unavailable_reason(b),
            }
            for b in BACKENDS.values()
        ]
        providers = [{"name": name, "available": not load(name), "reason": load(name)} for name in PROVIDERS]
        click.echo(json.dumps({"backends": rows, "providers": providers}, indent=2))
        return
    console = Console()
    console.print(backends_table())
    for name in PROVIDERS:
        reason = load(name)
        console.print(
            f"kernels of [bold]{name}[/]: "
            + (f"[red]unavailable[/]: {escape(reason)}" if reason else "[green]loaded[/]")
        )
