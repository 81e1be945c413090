"""References, cases, refusals and workloads of every operator, collected from the family modules.

A test that iterates over `CASES` covers a new operator or case without an edit:

>>> from tensorops.testing import REFERENCES, assert_matches, cases, cast
>>> for case in cases("silu"):
...     for dtype_name in case.dtypes:
...         args, kwargs = case.build(dtype_name=dtype_name)
...         expected = REFERENCES[case.operator](*args, **kwargs)
...         actual = cast(expected, dtype_name)  # here: convert args, call the operator, convert back
...         tolerance = case.tolerance_for(dtype_name)
...         assert_matches(actual, expected, dtype_name, tolerance=tolerance, scale_axis=case.scale_axis)

The reference must get the arguments after the cast to the dtype under test, as above; otherwise the comparison
measures the rounding of the input.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

from tensorops import ops
from tensorops.testing.entries import InvalidCase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tensorops.testing.entries import Arguments, Case, Entry, Maker, Workload

__all__ = ["BENCHMARK_SHAPES", "CASES", "INVALID", "REFERENCES", "WORKLOADS", "cases"]

BENCHMARK_SHAPES: tuple[tuple[int, int], ...] = (
    (1, 64),
    (1, 4096),
    (16, 4096),
    (128, 4096),
    (2048, 4096),
    (8192, 4096),
)
"""Shapes (rows, features) of the benchmarks, from those bound by call overhead to those bound by memory."""

_FAMILIES = [importlib.import_module(f"tensorops.testing.{name}") for name in ops.families()]
T = TypeVar("T")


class _ByOperator(dict[str, T]):
    """A table by operator name."""

    def __missing__(self, name: str) -> T:
        families = ", ".join(ops.families())
        raise LookupError(
            f"tensorops.testing has no Entry for the operator {name!r}: add its reference, cases, refusals and "
            f"workload to the ENTRIES of its family in tensorops/testing ({families})"
        )


_ENTRIES: dict[str, Entry] = {entry.reference.__name__: entry for family in _FAMILIES for entry in family.ENTRIES}

REFERENCES: Mapping[str, Callable[..., Any]] = _ByOperator({name: entry.reference for name, entry in _ENTRIES.items()})
"""The float64 reference of every operator, by operator name."""

CASES: Mapping[str, tuple[Case, ...]] = _ByOperator({name: entry.cases for name, entry in _ENTRIES.items()})
"""The cases of every operator."""


def _invalid(
    operator: str, name: str, exception: type[Exception], message: str, arguments: Callable[[], Arguments]
) -> InvalidCase:
    """Return the case of a refusal; a message of argument names joined by ``|`` is completed."""
    if message.replace("|", "").isidentifier():
        message = rf"^{operator}: ({message})\b"
    return InvalidCase(operator, name, arguments, exception, message)


INVALID: Mapping[str, tuple[InvalidCase, ...]] = _ByOperator(
    {name: tuple(_invalid(name, *refusal) for refusal in entry.refusals) for name, entry in _ENTRIES.items()}
)
"""Arguments that every operator must refuse."""

WORKLOADS: Mapping[str, Callable[[Maker], Workload]] = _ByOperator(
    {name: entry.workload for name, entry in _ENTRIES.items()}
)
"""For every operator, a function that makes its benchmark arguments."""


def cases(operator: str) -> tuple[Case, ...]:
    """Return the cases of an operator, by name.

    Raises
    ------
    ValueError
        If there is no such operator; the message lists the valid names.
    """
    if operator not in CASES:
        raise ValueError(f"no cases for {operator!r}; there are cases for {', '.join(CASES)}")
    return CASES[operator]
