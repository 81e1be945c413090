"""The state of the whole process: one object, whose fields `tensorops.backends.process_default` replaces."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorops.backends.config_file import Configuration
from tensorops.backends.settings import Settings

UNRESOLVED = Settings()
"""A placeholder for a default that has not been resolved yet."""


@dataclass
class Process:
    """The state of the whole process. Each field is replaced as a whole, so no thread sees half of a change."""

    settings: Settings = UNRESOLVED
    configuration: Configuration = field(default_factory=Configuration)
    chosen: str | None = None  # by set_default_backend
    problem: Exception | None = None  # why the configuration could not be applied; the command line continues


process = Process()
