"""What holds for the whole process: one object, whose fields `tensorops.backends.process_default` replaces."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorops.backends.config_file import Configuration
from tensorops.backends.settings import Settings

UNRESOLVED = Settings()
"""Stands for a default that nobody has asked for yet."""


@dataclass
class Process:
    """What holds for the whole process. Each field is replaced as a whole, so no thread sees half of a change."""

    settings: Settings = UNRESOLVED
    configuration: Configuration = field(default_factory=Configuration)
    chosen: str | None = None  # by set_default_backend
    problem: Exception | None = None  # what kept the configuration from being applied; the command line goes on


process = Process()
