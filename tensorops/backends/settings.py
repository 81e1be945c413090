"""Settings: one immutable object behind one context variable.

A context variable gives every thread and every asyncio task its own view. Where no block is open, it holds a
placeholder for the default in `tensorops.backends.process_default`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from tensorops.backends.trace import Trace
from tensorops.libraries import Backend


class Tuned(NamedTuple):
    """A parameter of a kernel's configuration, and the value that `tensorops.tune` chose for it."""

    operator: str
    provider: str
    parameter: str
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """Where to compute, and where to record it.

    Parameters
    ----------
    backend
        The backend chosen, or ``None``: compute where the arrays live.
    providers
        Names of the only providers to use, in this order, or ``None`` for the usual choice.
    log
        Where to record what ran, or ``None``.
    tuned
        The parameters of kernels that are not left to the kernels.
    plans
        For every operator, the function for each type of array, found on its first call. They belong to these
        settings, so that a call finds its kernel with two look-ups and no decision.
    """

    backend: Backend | None = None
    providers: tuple[str, ...] | None = None
    log: Trace | None = None
    tuned: tuple[Tuned, ...] = ()
    plans: defaultdict[Any, dict[type, Callable[..., Any]]] = field(
        default_factory=lambda: defaultdict(dict), repr=False
    )

    def values_for(self, operator: str, provider: str) -> dict[str, int]:
        """Return the values that were chosen for parameters of a kernel."""
        return {t.parameter: t.value for t in self.tuned if (t.operator, t.provider) == (operator, provider)}


INHERITED = Settings()
"""A placeholder for the process default, where no block is open. It has the plans of that default, so that a call need
not check which it is."""

current: ContextVar[Settings] = ContextVar("tensorops.settings", default=INHERITED)
"""The settings of the innermost block here, or `INHERITED`; see `tensorops.backends.process_default.in_force`."""


@lru_cache(maxsize=128)
def settings_of(
    backend: Backend | None, providers: tuple[str, ...] | None = None, tuned: tuple[Tuned, ...] = ()
) -> Settings:
    """Return one object for equal settings, so that entering a block again reuses its plans."""
    return Settings(backend, providers, tuned=tuned)


def settings_within(
    outer: Settings, backend: Backend | None, providers: tuple[str, ...] | None, tuned: tuple[Tuned, ...]
) -> Settings:
    """Return settings for a block that does not end the trace that is open in `outer`."""
    if outer.log is None:
        return settings_of(backend, providers, tuned)
    return Settings(backend, providers, outer.log, tuned)


@contextmanager
def activate(settings: Settings) -> Iterator[Settings]:
    """Put `settings` in force for the length of a block."""
    before = current.get()
    current.set(settings)
    try:
        yield settings
    finally:
        current.set(before)  # not by a token: a notebook may leave a block in a different context
