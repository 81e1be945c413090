"""Run the command ``tensorops`` by ``python -m tensorops``."""

from tensorops.cli import main

main()
