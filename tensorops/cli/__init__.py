"""The command ``tensorops``; each subcommand has its own file."""

from __future__ import annotations

import sys
from io import TextIOWrapper

from tensorops._messages import installing

INTERRUPTED = 130  # the exit code of shells after Ctrl-C


def main() -> None:
    """Run the command line; if packages are missing, say how to install them."""
    if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="backslashreplace")  # models write characters that latin-1 does not have
    try:
        from tensorops.cli._app import app
    except ImportError as error:
        print(f"tensorops: {error}; {installing('cli')}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # importing takes most of the time before the command runs
        print("Interrupted.", file=sys.stderr)  # noqa: T201
        raise SystemExit(INTERRUPTED) from None
    app(prog_name="tensorops")
