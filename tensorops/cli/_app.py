"""The group of subcommands."""

from __future__ import annotations

from typing import Any

import click

from tensorops import __version__
from tensorops.cli import INTERRUPTED, backends, bench, config, demo, doctor, generate, ratios, selftest


class _Group(click.Group):
    """Subcommands that Ctrl-C ends with the exit code of shells, which is not that of a failure."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tensorops")
def app() -> None:
    """Fused, numerically careful tensor operators for every Python array library."""


app.add_command(backends.backends)
app.add_command(bench.bench)
app.add_command(config.config)
app.add_command(demo.demo)
app.add_command(doctor.doctor)
app.add_command(generate.generate)
app.add_command(ratios.ratios)
app.add_command(selftest.selftest)
