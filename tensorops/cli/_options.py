"""Options and helpers that several subcommands share."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich import markup
from rich.console import Console
from rich.text import Text

from tensorops._display import Table, printable, printable_lines, without_controls, wrapped
from tensorops._messages import describe_error, nearest
from tensorops.backends.registry import all_backends, resolve
from tensorops.libraries import Backend

if TYPE_CHECKING:
    import rich.table

C = TypeVar("C", bound=Callable[..., Any])

messages = Console(stderr=True)  # messages about the work; results go to standard output


def escape(text: object) -> str:
    """Return external text escaped, so that neither Rich nor the terminal interprets anything in it."""
    return markup.escape(printable_lines(text))


def write(text: str) -> None:
    """Write a text of a model to standard output: a terminal gets no control characters, a pipe all bytes."""
    sys.stdout.write(without_controls(text) if sys.stdout.isatty() else text)  # click would write UTF-8 where it is not
    sys.stdout.flush()


def write_json(value: Any, indent: int | None = None) -> None:
    """Write a line of JSON to standard output, without the control characters that JSON allows."""
    is_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    text = json.dumps(value, ensure_ascii=not is_unicode, indent=indent)
    click.echo(re.sub(r"[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text))


def say(console: Console, text: object, *, label: str = "", indent: int = 0) -> None:
    """Print a text after a label in Rich's markup; lines break between words and never within a command."""
    mark = Text.from_markup(label)
    # The label takes up space, and the line must not break after it.
    first, *rest = wrapped("\0" * len(mark) + printable(text), max(console.width - indent - 4, 1))
    line = Text(" " * indent).append_text(mark).append(first[len(mark) :])
    for each in (line, *(Text(" " * (indent + 4) + more) for more in rest)):
        console.print(each, soft_wrap=True, highlight=False)


def print_table(console: Console, table: rich.table.Table) -> None:
    """Print a table with columns at least as wide as their longest word; without room, print rows as paragraphs."""

    def plain(cell: object) -> str:
        return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)

    columns = [[plain(column.header), *map(plain, column.cells)] for column in table.columns]
    least = [max(len(word) for cell in column for word in ("", *cell.split())) for column in columns]
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    room = console.width - 3 * len(columns) - 1  # two spaces and a border each
    if sum(least) > room:
        head, *rows = zip(*columns, strict=True)
        text = Table(plain(table.title or ""), head, tuple(rows)).to_text(console.width)
        console.print(Text(text), soft_wrap=True, highlight=False)
        return
    while sum(widths) > room:  # Rich would narrow the widest column, whatever its words
        widths[max(range(len(widths)), key=lambda i: widths[i] - least[i])] -= 1
    for column, width in zip(table.columns, widths, strict=True):
        column.width, column.no_wrap = width, False
    console.print(table)


def warn(text: object) -> None:
    """Print a warning to standard error; lines are not broken, so commands in them can be copied."""
    messages.print(f"[yellow]Warning:[/] {escape(text)}", soft_wrap=True, highlight=False)


def checked_text(value: str) -> str:
    """Refuse text that is empty or not UTF-8: its bytes reach Python as characters that no encoder accepts.

    Where Python takes the language's encoding for ASCII, as with LC_ALL=C, the bytes of all other characters do.
    """
    if not value:
        raise ValueError("the text is empty")
    try:
        return value.encode("utf-8", "surrogateescape").decode()
    except UnicodeError:
        place = next(i for i, character in enumerate(value) if "\ud800" <= character <= "\udfff")
        raise ValueError(f"character {place} of {value!r:.80} is not UTF-8") from None


def text(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse what `checked_text` does."""
    try:
        return checked_text(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


TEXT_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


def content_of(path: Path, name: str) -> str:
    """Return the text of a file, or of standard input for -; bytes that are not UTF-8 are kept as surrogates."""
    try:
        with click.open_file(str(path), "rb") as stream:
            return str(stream.read().decode("utf-8-sig", "surrogateescape"))
    except OSError as error:
        raise click.BadParameter(f"{path}: {describe_error(error)}", param_hint=name) from None


def text_of(path: Path, name: str) -> str:
    """Return the text of a file without the end of its last line; refuse what is not text."""
    try:
        return checked_text(content_of(path, name).removesuffix("\n").removesuffix("\r"))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from None


def lines_of(path: Path, name: str) -> list[str]:
    """Return the lines of a file that are not blank."""
    return [line for line in content_of(path, name).splitlines() if line.strip()]


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN and infinities, which click's ranges accept."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number")
    return value


def backend_name(context: click.Context, parameter: click.Parameter, value: str | None) -> Backend | None:
    """Convert a backend's name to the backend; an unknown name is a usage error (exit code 2)."""
    return None if value is None else _known(value)


def backend_names(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Backend, ...]:
    """Convert backends' names to the backends, each once; an unknown name is a usage error (exit code 2)."""
    return tuple(dict.fromkeys(map(_known, values)))


def _known(name: str) -> Backend:
    try:
        return resolve(name)
    except ValueError:
        names = [known for backend in all_backends().values() for known in (backend.name, *backend.aliases)]
        message = f"unknown backend {name!r}{nearest(name, names)}; {available_here()}"
        raise click.BadParameter(message) from None


def available_here() -> str:
    """Return the words that list the backends that can compute here, best first."""
    from tensorops.backends.listing import get_available_backends

    with messages.status("Probing backends ..."):
        names = ", ".join(get_available_backends())
    return f"available here: {names} (`tensorops backends` has the reasons for the others)"


def configuration_problem() -> str:
    """Return why the configuration cannot be applied, or an empty string."""
    from tensorops.backends.process import process

    return "" if process.problem is None else str(process.problem)


def apply_configuration() -> tuple[str | None, str]:
    """Read the configuration again and apply it; return the name of the backend in force, or none and the reason."""
    from tensorops.backends.process_default import BackendFallbackWarning, reload_config
    from tensorops.backends.scopes import get_backend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackendFallbackWarning)  # the caller reports what is unavailable, and why
        try:
            reload_config()
            return get_backend(), ""
        except (ValueError, RuntimeError) as error:
            return None, str(error)


def require_configuration() -> None:
    """Refuse to compute under a configuration that could not be applied; `config` and `doctor` continue with one."""
    if problem := configuration_problem():
        raise click.ClickException(f"{problem}\n`tensorops doctor` says how to fix it.")


def require_available(backend: Backend, *, option: str = "") -> None:
    """Refuse a backend that cannot compute here, with the reason and the remedy; `option` is where it was named."""
    from tensorops.backends.probing import first_available

    try:
        first_available([backend])
    except (RuntimeError, ValueError) as error:  # its options in the configuration may be at fault as well
        raise click.ClickException(f"{option}: {error}; {available_here()}" if option else str(error)) from None


def configured_backend() -> Backend | None:
    """Return the backend that the configuration puts in force, if it names one; report a fallback."""
    from tensorops.backends.process_default import BackendFallbackWarning, in_force

    with warnings_told(BackendFallbackWarning):
        try:
            chosen = in_force().backend
        except (RuntimeError, ValueError) as error:
            raise click.ClickException(str(error)) from None
    return chosen


@contextlib.contextmanager
def warnings_told(category: type[Warning] = UserWarning) -> Iterator[None]:
    """Print Python's warnings of a category as the program's own."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", category)
        yield
    for warning in said:
        warn(warning.message)


class ModelPath(click.Path):
    """The path of a model; an error says how to get one of a name that is none."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.path.exists(value):  # noqa: PTH110 - which may be bytes
            self.fail(_no_path(os.fspath(value)), param, ctx)
        return super().convert(value, param, ctx)


def _no_path(name: str) -> str:
    is_file = name.endswith((".gguf", ".safetensors", ".bin", ".json"))
    if not is_file and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        folder = name.rpartition("/")[2]
        remedy = f"one of huggingface.co, `hf download {name} --local-dir {folder}` fetches it: then pass {folder}"
    elif not is_file and re.fullmatch(r"[\w-][\w.-]*(:[\w.-]+)?", name):
        remedy = f"one of ollama's, pass the GGUF file that `ollama show {name} --modelfile` has after FROM"
    else:
        return f"Path {click.format_filename(name)!r} does not exist."
    return f"{name} is not here, and names are not looked up: if it is {remedy}"


def model_option(command: C) -> C:
    """Add the option of commands that run a language model."""
    return click.option(
        "-m",
        "--model",
        type=ModelPath(),
        envvar="TENSOROPS_MODEL",
        show_envvar=True,  # in errors as well
        help="A GGUF file or a folder of Hugging Face; by default SmolLM2-135M-Instruct, downloaded once.",
    )(command)


def model_path(given: Path | None) -> Path:
    """Return the model to run: the one given, or the default one, downloaded with a progress bar if necessary."""
    if given is not None:
        return given
    try:
        from tensorops.models.files.download import DownloadError, cached_model_path, fetch_model
    except ImportError as error:  # an installation without the extra
        raise click.ClickException(str(error)) from None
    try:
        if cached_model_path().is_file():
            return fetch_model()  # checks it
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=messages) as bar:
            task = bar.add_task("SmolLM2-135M-Instruct", total=None)
            return fetch_model(lambda done, total: bar.update(task, completed=done, total=total))
    except (DownloadError, ImportError, OSError) as error:
        raise click.ClickException(
            f"{error}\nTo run your own model file, pass --model PATH or set TENSOROPS_MODEL to its path."
        ) from None
