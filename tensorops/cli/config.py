"""``tensorops config``: show and change the configuration file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from tensorops._display import shortened
from tensorops.backends import config_file
from tensorops.backends.config_file import AUTO, CONFIG, Configuration
from tensorops.cli._options import apply_configuration, escape, messages, print_table, say, warn

FIELDS = {
    "preferred_backend": "preferred backend",
    "force_backend": "forced backend",
    "backend_priority": "priority",
    "devices": "devices",
    "num_threads": "threads",
}


def _preferred(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else config_file.backend_name(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _priority(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    try:
        return config_file.priority([name.strip() for name in value.split(",") if name.strip()])
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option("--show", is_flag=True, help="Show the configuration, as does the command without options.")
@click.option("--backend", callback=_preferred, metavar="NAME", help="Prefer this backend, or auto.")
@click.option(
    "--force/--no-force", default=None, help="Compute with the preferred backend or not at all; or undo that."
)
@click.option("--priority", callback=_priority, metavar="A,B,C", help="What to use instead, best first; '' clears it.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="Use this file instead of the usual one.")
@click.option("--reset", is_flag=True, help="Start from an empty configuration, whatever the file says.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def config(
    show: bool,
    backend: str | None,
    force: bool | None,
    priority: tuple[str, ...] | None,
    file: Path | None,
    reset: bool,
    as_json: bool,
) -> None:
    """Show the configuration, or change its file and show the result."""
    usual = config_file.config_path()
    path = usual if file is None else file.absolute()
    changes: dict[str, Any] = {"preferred_backend": backend, "backend_priority": priority}
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes or force is not None or reset:
        if path is None:
            raise click.UsageError(f"{CONFIG} is set but empty: there is no file to write; name one with --file PATH")
        changes |= _write(path, changes, force, reset)
        if path != usual:
            warn(f"tensorops reads {usual or 'no file'}; to make it read this one, set {CONFIG}={path}")
    elif file is not None and not config_file.exists(path):
        raise click.ClickException(f"configuration file {shortened(path, 1000)} does not exist")
    with _named_by_environment(file and path):
        _show(path, changes, as_json)


def _write(path: Path, changes: dict[str, Any], force: bool | None, reset: bool) -> dict[str, Any]:
    """Change the file and return what was set."""
    try:
        before = Configuration() if reset else config_file.read_file(path, must_exist=False)
    except ValueError as error:
        raise click.ClickException(f"{error}\nFix the file, or start from an empty one: add --reset.") from None
    if force is not None:
        preferred = changes.get("preferred_backend", before.preferred_backend)
        if force and preferred == AUTO:
            raise click.UsageError("auto cannot be forced; name a backend: --backend=NAME --force")
        changes = changes | {"force_backend": preferred if force else None}
    after = dataclasses.replace(before, **changes)
    try:
        config_file.write_file(path, after)
    except OSError as error:
        said = f"configuration file {shortened(path, 1000)} cannot be written: {error.strerror or error}"
        raise click.ClickException(said) from None
    messages.print(f"Written: {escape(str(path))}", soft_wrap=True, highlight=False)
    if after.force_backend not in (None, after.preferred_backend):
        warn(f"{path} still forces {after.force_backend!r}, whatever is preferred; --no-force undoes that")
    return changes


@contextmanager
def _named_by_environment(file: Path | None) -> Iterator[None]:
    """Temporarily read another file than the usual one: --file acts like TENSOROPS_CONFIG."""
    before = os.environ.get(CONFIG)
    if file is not None:
        os.environ[CONFIG] = str(file)
    try:
        yield
    finally:
        if before is not None:
            os.environ[CONFIG] = before
        elif file is not None:
            del os.environ[CONFIG]


def _show(path: Path | None, changes: dict[str, Any], as_json: bool) -> None:
    try:
        found = config_file.read()
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    name, problem = apply_configuration()
    _warn_of_overrides(found, changes)
    _warn_of_unavailable(found, changes)
    if as_json:
        values = {field: getattr(found, field) for field in FIELDS}
        file = {"file": None if path is None else str(path), "file_exists": config_file.exists(path)}
        rest = {"sources": dict(found.sources), "in_force": name, "problem": problem or None}
        click.echo(json.dumps({**values, **file, **rest}, indent=2))
        return
    console = Console()
    print_table(console, _table(found))
    say(console, _describe_file(path), label="file: ")
    say(console, _verdict(name, problem, found), label="in force: ")


def _verdict(name: str | None, problem: str, found: Configuration) -> str:
    """Return what is in force, or why nothing is."""
    if name is not None:
        return name + (": operators compute where their arrays live" if name == AUTO else "")
    return f"none, {'importing' if found.force_backend else 'using'} tensorops raises: {problem}"


def _table(found: Configuration) -> Table:
    table = Table(title="Configuration")
    for column in ("setting", "value", "comes from"):
        table.add_column(column, overflow="fold")
    for field, words in FIELDS.items():
        table.add_row(words, escape(_describe(getattr(found, field))), escape(found.sources.get(field, "default")))
    return table


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        lines = (f"{name}: {', '.join(f'{k}={json.dumps(v)}' for k, v in row.items())}" for name, row in value.items())
        return "\n".join(lines) or "none"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return "none" if value is None else str(value)


def _describe_file(path: Path | None) -> str:
    if path is None:
        return f"none, because {CONFIG} is set but empty"
    return f"{path} ({'exists' if config_file.exists(path) else 'does not exist'})"


_OVERRIDING = {
    "preferred_backend": ("TENSOROPS_BACKEND",),
    "backend_priority": ("TENSOROPS_PRIORITY",),
    "force_backend": ("TENSOROPS_FORCE", "TENSOROPS_BACKEND"),
}


def _warn_of_overrides(found: Configuration, changes: dict[str, Any]) -> None:
    """Report changes without effect because an environment variable overrides them."""
    for field, value in changes.items():
        if getattr(found, field) != value:
            said = " and ".join(f"{name}={os.environ[name]}" for name in _OVERRIDING[field] if name in os.environ)
            warn(f"{FIELDS[field]}: {said} in the environment overrides the file")


def _warn_of_unavailable(found: Configuration, changes: dict[str, Any]) -> None:
    """Report preferred or just named backends that cannot compute here."""
    from tensorops.backends.probing import describe, probe
    from tensorops.backends.registry import resolve

    preferred = None if found.force_backend else found.preferred_backend
    for name in dict.fromkeys((preferred, changes.get("preferred_backend"), changes.get("force_backend"))):
        if name is None or name == AUTO or not (failed := probe(resolve(name))).reason:
            continue
        forced = "; it is forced, so importing tensorops raises this from now on" if name == found.force_backend else ""
        warn(describe(resolve(name), failed) + forced)
