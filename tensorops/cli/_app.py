"""The group of subcommands; a subcommand is imported when it is run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from tensorops import __version__
from tensorops._display import printable_lines
from tensorops._messages import installing
from tensorops.cli import INTERRUPTED

COMMANDS = {
    "backends": "List the backends, each probed by a tiny computation, and the providers of kernels.",
    "bench": "Time OPERATORS, by default all, on every available backend, compared with NumPy's generic bodies.",
    "chat": "Talk with a language model: MODEL is a GGUF file or a folder, by default SmolLM2-135M-Instruct.",
    "config": "Show the configuration, or change its file and show the result.",
    "demo": "Show the backends found, and run one language model on each: same prompt, greedy, same tokens expected.",
    "doctor": "Examine the installation, the configuration and every backend; say how to fix what is missing.",
    "embed": "Write TEXTS as vectors: the features of a language model, a line of JSON for each text.",
    "generate": "Continue PROMPT, where - is standard input; the text streams to standard output.",
    "models": "List what loads as a language model, or describe PATH, a GGUF file or a folder; or say why it does not.",
    "perplexity": "Measure how well a language model predicts the text of FILE, where - is standard input.",
    "run": "Talk with a language model, or with a PROMPT have one reply to it; as `ollama run`.",
    "selftest": "Compare every operator on every backend that computes here with its float64 reference.",
}
"""The subcommands, and the first sentence of their help. Each is in the module with its name."""


class _MissingPackageError(click.ClickException):
    exit_code = 2


class _Group(click.Group):
    """Subcommands that are imported when needed, and that end with the exit code of shells on Ctrl-C."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        try:
            module = import_module(f"tensorops.cli.{cmd_name}")
        except ImportError as error:
            raise _MissingPackageError(f"{error}; {installing('cli')}") from None
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Names and texts of files are in it; no other attribute is what all kinds of errors show.
            error.message = printable_lines(error.message)  # type: ignore[misc]
            raise
        except ModuleNotFoundError as error:
            from tensorops.backends.probing import REQUIREMENTS

            if error.name in REQUIREMENTS:
                raise _MissingPackageError(f"{error}; pip install {error.name}") from None
            raise
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tensorops")
def app() -> None:
    """Fused, numerically careful tensor operators for every Python array library."""
