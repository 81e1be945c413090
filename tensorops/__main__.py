"""``python -m tensorops`` is the command ``tensorops``."""

from tensorops.cli import main

main()
