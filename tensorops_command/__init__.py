"""Where the script ``tensorops`` begins: Ctrl-C ends it without a traceback from its first moment on.

Importing the package takes most of a short command's time, also of a module in it. So this is a module of its own.
"""

import os
import signal


def _end(*_: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(130)  # an exception would reach whatever is being imported, which may take it for its own


def main() -> None:
    """Run the command line."""
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # jobs in the background ignore the signal
    if raises:
        signal.signal(signal.SIGINT, _end)
    from tensorops.cli import main as run

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
