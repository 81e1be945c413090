"""What `Operator.explain` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tensorops._display import Displayed, Table
from tensorops.backends.registry import unused_providers
from tensorops.backends.trace import Transfer


def stored_formats(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a call that name the format of blocks, as all such options are called."""
    named = {name: value for name, value in arguments.items() if name == "format" or name.endswith("_format")}
    return {name: value for name, value in named.items() if value not in (None, "affine")}


@dataclass(frozen=True, repr=False)
class Explanation(Displayed):
    """What a call of an operator would do, and why; prints as text.

    Attributes
    ----------
    operator : str
        The operator's name.
    kernel : str
        The provider whose kernel would run, or ``"generic"`` for the operator's own body.
    backend : str
        The backend in force, ``"auto"`` if none was chosen.
    library : str
        The array library that would compute.
    refused : dict of str to str
        The providers that come before `kernel`, each with the reason why its kernel would not run.
    transfers : tuple of Transfer
        The arrays that would move there first.
    deviation : str
        How the kernel's results deviate from what the operator promises; empty unless its provider was named.
    prepared : str
        The arguments that `tensorops.prepare` repacked for the kernel, if any.
    configuration : dict of str to int
        The numbers that the kernel would compute with, such as sizes of blocks: its own choice for these arguments, or
        what `tune` says. Empty if it has none.
    calls : tuple of str
        The operators that the body calls, each of which chooses its own kernel. Empty if a kernel would run.
    gradients : str
        What computes gradients through the kernel: the name of a compiled function, a library, or ``"the body"``. Empty
        if a body would run, whose gradients are the library's, or if such arrays have no gradients.
    formats : dict of str to str
        The formats of weights in blocks, by the name of the option that says them, such as ``{"format": "q4_k"}``.
    """

    operator: str
    kernel: str
    backend: str
    library: str
    refused: dict[str, str]
    transfers: tuple[Transfer, ...]
    deviation: str = ""
    prepared: str = ""
    configuration: dict[str, int] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    gradients: str = ""
    formats: dict[str, str] = field(default_factory=dict)

    @cached_property
    def unused(self) -> dict[str, str]:
        """The providers of other distributions that such a call does not ask, each with the reason and what helps.

        Plug-ins are loaded for the answer, when it is read or printed.
        """
        return unused_providers(self.library, self.kernel, self.refused)

    def __str__(self) -> str:
        lines = [self._title(), *(f"  {line}" for line in self._configured())]
        if self.prepared:
            lines.append(f"  with {self.prepared} prepared")
        if self.deviation:
            lines.append(f"  {self.deviation}")
        lines += [f"  not {provider}: {reason}" for provider, reason in (self.refused | self.unused).items()]
        lines += [f"  moves {transfer}" for transfer in self.transfers]
        return "\n".join(lines)

    def _title(self) -> str:
        return f"{self.operator}: {self.kernel} on {self.library} (backend {self.backend})"

    def _configured(self) -> tuple[str, ...]:
        values = ", ".join(f"{name}={value}" for name, value in (self.formats | self.configuration).items())
        calls = f"calls {', '.join(self.calls)}, which choose their own kernels" if self.calls else ""
        gradients = f"gradients by {self.gradients}" if self.gradients else ""
        return tuple(filter(None, (f"with {values}" if values else "", calls, gradients)))

    def _table(self) -> Table:
        rows = [(provider, "no", reason) for provider, reason in (self.refused | self.unused).items()]
        notes = (*self._configured(), *(f"moves {transfer}" for transfer in self.transfers))
        chosen = (self.kernel, "yes", self.deviation or (f"with {self.prepared} prepared" if self.prepared else ""))
        return Table(self._title(), ("implementation", "runs", "reason"), (*rows, chosen), notes)
