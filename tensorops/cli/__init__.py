"""The command ``tensorops``; each subcommand has a file of its own."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # the exit code that shells give to what Ctrl-C ended


def main() -> None:
    """Run the command line; without the packages it needs, say how to install them."""
    try:
        from tensorops.cli._app import app
    except ImportError as error:
        print(f"tensorops: {error}; pip install 'tensorops[cli]'", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # most of the time until the command runs is spent importing
        print("Interrupted.", file=sys.stderr)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None
    app(prog_name="tensorops")
