"""How the axes of the arrays of a compiled operator correspond, where the operator itself does not declare it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorops._operator import Operator
from tensorops._row_axes import RowAxes, given


def _rows_of_sample(logits: Any, temperature: float, rng: Any, **_: Any) -> RowAxes:
    """Return how axes correspond in `sample`, which needs no numbers at temperature 0."""
    every = tuple(range(logits.ndim))
    drawn = given(rng=(rng if temperature > 0 else None, every[:-1]))
    return RowAxes({"logits": every, **drawn}, every[:-1], every[-1:], sharing=1 + len(drawn), indices=(0,))


ROWS: dict[str, Callable[..., RowAxes]] = {"sample": _rows_of_sample}
"""By the operator's name."""


def rows_of(operator: Operator[..., Any], arguments: dict[str, Any]) -> RowAxes | None:
    """Return how axes correspond in a call with canonical arguments, if that is declared."""
    if rows := ROWS.get(operator.__name__):
        return rows(**arguments)
    return operator.rows(arguments) if operator.divides else None
