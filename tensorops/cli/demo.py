"""``tensorops demo``: one language model, the same text, on every backend that can compute here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import tensorops
from tensorops.cli import _model
from tensorops.cli._options import (
    backend_names,
    configured_backend,
    escape,
    messages,
    model_option,
    model_path,
    print_table,
    require_available,
    require_configuration,
    text,
)
from tensorops.cli.backends import had_here, print_backends, probe_best_first
from tensorops.libraries import Backend

PROMPT = "The capital of France is"


@dataclass(frozen=True)
class Outcome:
    """The result of one backend."""

    backend: str
    ids: list[int]
    text: str
    watch: _model.Stopwatch
    kernels: str


def run(path: Path, backend: Backend, prompt: str, count: int) -> Outcome:
    """Continue the prompt on one backend, greedily."""
    network = _model.load(path, backend)
    assert network.tokenizer is not None
    prompt_ids = network.tokenizer.encode(prompt)
    tokens = _model.generate(network, prompt_ids, max_new_tokens=count)
    with tensorops.trace() as log:  # in a separate run, because recording takes time
        list(_model.generate(network, prompt_ids, max_new_tokens=min(count, 2)))
    watch = _model.Stopwatch()
    ids = list(watch.watch(tokens))
    kernels = sorted(f"{name}: {', '.join(sorted(k))}" for name, k in log.kernels.items() if k - {"generic", "-"})
    return Outcome(backend.name, ids, network.tokenizer.decode(ids), watch, "\n".join(kernels) or "generic bodies")


def why_skipped(backend: Backend) -> str:
    """Return why the demo leaves a backend out, or an empty string."""
    if backend.library.lazy:
        return "lazy: it builds a graph of thousands of tasks for every token"
    return "it checks conformance and is not made for speed" if backend.for_tests else ""


@click.command()
@click.option("--prompt", callback=text, default=PROMPT, show_default=True, help="What to continue.")
@click.option(
    "--backend",
    "named",
    multiple=True,
    callback=backend_names,
    metavar="NAME",
    help="Run this one; may be repeated. By default the configured one, or else all.",
)
@click.option("--all", "everything", is_flag=True, help="Run all, including those that are left out as too slow.")
@click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=24, show_default=True, help="Stop after this many."
)
@model_option
def demo(prompt: str, named: tuple[Backend, ...], everything: bool, model: Path | None, max_new_tokens: int) -> None:
    """Show the backends found, and run one language model on each: same prompt, greedy, same tokens expected."""
    require_configuration()
    for backend in named:
        require_available(backend, option="--backend")
    console = Console()
    found = probe_best_first()
    print_backends(console, had_here(found))
    available = [backend for backend, probed in found if not probed.reason]
    if not available:
        raise click.ClickException("no backend can compute here; `tensorops doctor` says why")
    path = model_path(model)
    file = escape(click.format_filename(path.name))
    console.print(f"\nContinuing [bold]{escape(repr(prompt))}[/] with {file}, greedily:\n")
    outcomes: list[Outcome] = []
    for backend in available if everything and not named else chosen(console, named, available):
        with messages.status(f"{backend.name} …"):
            outcome = run(path, backend, prompt, max_new_tokens)
        outcomes.append(outcome)
        console.print(f"[bold]{backend.name}[/]: {escape(prompt + outcome.text)}\n", highlight=False)
    print_table(console, summary(outcomes))
    different = [o.backend for o in outcomes if o.ids != outcomes[0].ids]
    if different:
        raise click.ClickException(f"other tokens than on {outcomes[0].backend}: {', '.join(different)}")
    if len(outcomes) > 1:
        console.print(f"[green]The same {len(outcomes[0].ids)} tokens on all {len(outcomes)} backends.[/]")


def chosen(console: Console, named: tuple[Backend, ...], available: list[Backend]) -> list[Backend]:
    """Return the backends to run: those named, or else the configured one, or else all but the slow ones."""
    if named:
        return list(named)
    if (configured := configured_backend()) is not None:
        console.print(f"[dim]{configured.name} is configured; --all runs every backend[/]")
        return [configured]
    for backend in available:
        if reason := why_skipped(backend):
            console.print(f"[dim]{backend.name} left out ({reason}); --all runs it[/]")
    return [backend for backend in available if not why_skipped(backend)]


def summary(outcomes: list[Outcome]) -> Table:
    """Return the table of speeds and kernels."""
    table = Table(title="Speed on this machine")
    table.add_column("backend")
    table.add_column("first token", justify="right")
    table.add_column("tokens/s", justify="right")
    table.add_column("kernels that ran")
    for o in outcomes:
        table.add_row(o.backend, f"{o.watch.seconds_to_first:.2f} s", f"{o.watch.tokens_per_second:.1f}", o.kernels)
    return table
