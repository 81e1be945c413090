"""What `prepare_model` did to each module."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorops._display import Displayed, Table


@dataclass(frozen=True)
class PreparedModule:
    """What became of a module.

    Attributes
    ----------
    name : str
        Its name in the model.
    kind : str
        The name of its class.
    operator : str
        What computes now; empty if the module was left alone.
    reason : str
        Why it was left alone, or in which calls it computes itself; may be empty.
    error : float or None
        The largest difference between its own results and the new ones, gradients included, relative to the largest
        result. ``None`` if nothing was compared.
    before, after : float or None
        Microseconds of a call on the random input, if they were asked for.
    """

    name: str
    kind: str
    operator: str = ""
    reason: str = ""
    error: float | None = None
    before: float | None = None
    after: float | None = None


@dataclass(repr=False)
class PreparedReport(Displayed):
    """What `prepare_model` did; printed as a table, in which layers with the same outcome share a line.

    As a context manager, it restores the model at the end.

    Attributes
    ----------
    modules : list of PreparedModule
        The modules that compute something themselves, in the model's order: not those that only call others.
    """

    modules: list[PreparedModule] = field(default_factory=list)
    _undo: list[Callable[[], None]] = field(default_factory=list)

    @property
    def replaced(self) -> list[PreparedModule]:
        """The modules that an operator computes now."""
        return [module for module in self.modules if module.operator]

    def restore(self) -> None:
        """Give the modules their own `forward` back, but for those that somebody else has replaced since."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> PreparedReport:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def __str__(self) -> str:
        return self._table().to_text()

    def _table(self) -> Table:
        lines: dict[tuple[str, ...], list[PreparedModule]] = {}
        for module in self.modules:
            anywhere = re.sub(r"(?<![^.])\d+(?![^.])", "*", module.name)
            lines.setdefault((anywhere, module.kind, module.operator, module.reason), []).append(module)
        timed = any(module.before is not None for module in self.modules)
        head = ("module", "", "class", "operator", "error", *(("before", "after") if timed else ()), "note")
        named = [(ms[0].name if len(ms) == 1 else names[0], *names[1:]) for names, ms in lines.items()]
        rows = tuple(_cells(names, ms, timed) for names, ms in zip(named, lines.values(), strict=True))
        title = f"{len(self.replaced)} of {len(self.modules)} modules are computed by operators"
        return Table(title, head, rows)


def _cells(names: tuple[str, ...], modules: list[PreparedModule], timed: bool) -> tuple[str, ...]:
    name, kind, operator, reason = names
    count = f"x{len(modules)}" if len(modules) > 1 else ""
    errors = [module.error for module in modules if module.error is not None]
    error = f"{max(errors):.1e}" if errors else ""
    times: tuple[str, ...] = ()
    if timed:
        times = tuple(_time([getattr(module, which) for module in modules]) for which in ("before", "after"))
    return (name or "(the model)", count, kind, operator or "-", error, *times, reason)


def _time(values: list[Any]) -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.1f} us" if known else ""
