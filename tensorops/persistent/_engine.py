"""What replays a step: one file for each array library, in `engines`, has an ``ENGINE``."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from tensorops._trees import map_arrays
from tensorops.libraries import Backend
from tensorops.persistent._captured import Captured, Profile, Statistics

Step: TypeAlias = Callable[..., Any]


class Engine(Protocol):
    """A compiled step."""

    statistics: Statistics

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""

    def captured(self) -> Captured:
        """Return what it runs."""

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Run it once, and return how long each call took."""

    def forget(self) -> None:
        """Let go of the caller's arrays."""


def leaves(tree: Any) -> list[Any]:
    """Return the arrays in nested containers, in order, each once."""
    found: dict[int, Any] = {}
    map_arrays(lambda x: found.setdefault(id(x), x), tree)
    return list(found.values())


def engine_of(library: str) -> type[Any] | None:
    """Return the engine for the arrays of a library, if there is one."""
    module = f"tensorops.persistent.engines.{library}"
    if importlib.util.find_spec(module) is None:
        return None
    engine: type[Any] = importlib.import_module(module).ENGINE
    return engine


def why_not(backend: Backend) -> str:
    """Return why a backend cannot replay steps, or an empty string."""
    if backend.library.name == "numpy" and "cpu" not in (backend.providers or ()):
        return "it has no compiled kernels, whose calls could be recorded"
    if engine_of(backend.library.name) is None:
        return f"there is no way yet to replay steps on {backend.library.name} arrays"
    return ""
