"""The records of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from tensorops._display import Displayed, Table


@dataclass(frozen=True)
class Transfer:
    """One array that moved from one library to another."""

    source: str
    target: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.source} → {self.target} {self.nbytes} bytes"


@dataclass(frozen=True)
class Record:
    """One operator that ran, or one explicit transfer (``operator="to_backend"``)."""

    operator: str
    kernel: str
    library: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    transfers: tuple[Transfer, ...] = ()

    @property
    def inputs(self) -> str:
        """The dtypes and shapes of the arrays, as text."""
        return ", ".join(f"{d}{s}" for d, s in zip(self.dtypes, self.shapes, strict=True))

    def __str__(self) -> str:
        moved = "; ".join(str(t) for t in self.transfers)
        return f"{self.operator}: {self.kernel} on {self.library}, {self.inputs}" + (f" [{moved}]" if moved else "")


@dataclass(eq=False, repr=False)
class Trace(Displayed, Sequence[Record]):
    """The records of one ``with tensorops.trace()`` block, in order; prints as one line each."""

    records: list[Record] = field(default_factory=list)
    outer: Trace | None = field(default=None, repr=False)

    def append(self, record: Record) -> None:
        """Add a record; safe from several threads, as `list.append` is."""
        self.records.append(record)
        if self.outer is not None:
            self.outer.append(record)

    @property
    def kernels(self) -> dict[str, set[str]]:
        """The kernels that ran, by operator."""
        found: dict[str, set[str]] = {}
        for record in self.records:
            found.setdefault(record.operator, set()).add(record.kernel)
        return found

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self.records))

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return str(self) or "<trace: no operator has run>"

    def _table(self) -> Table:
        rows = tuple((r.operator, r.kernel, r.library, r.inputs, "\n".join(map(str, r.transfers))) for r in self)
        return Table("", ("operator", "kernel", "on", "inputs", "transfers"), rows)
