"""Select the tests of a short run: for each parametrized test, as few as cover each value of each dimension.

The full cross product of operators, libraries, dtypes, implementations and targets takes several times as long and
finds little more: `pytest --exhaustive` runs all of it, `pytest -m exhaustive` only what the short run leaves out.

Each ``parametrize``, and each fixture with parameters, is a dimension, of which every value occurs. A list of tuples is
one dimension; with ``@pytest.mark.dimensions``, for products of operators, libraries, dtypes and implementations, each
name of a ``parametrize`` is one, and every pair of values occurs if there are three or more. A test with
``@pytest.mark.costly`` takes seconds per value and runs only the first, with ``@pytest.mark.costly(3)`` every third of
those that it would run without; a test with ``@pytest.mark.exhaustive`` is left out.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest

import support
from tensorops.libraries import LIBRARIES, Backend, Library


def covering(rows: Sequence[tuple[Hashable, ...]], strength: int) -> set[int]:
    """Return the indices of rows that together hold every combination of values in `strength` columns.

    Repeatedly takes the first of the rows that add most, until nothing is missing.
    """

    def combinations(row: tuple[Hashable, ...]) -> set[tuple[tuple[int, Hashable], ...]]:
        return set(itertools.combinations(enumerate(row), strength))

    missing = set().union(*map(combinations, rows))
    # What a row adds never grows: a row is taken if it is still on top after a recount.
    queue = [(-len(combinations(row)), index) for index, row in enumerate(rows)]
    heapq.heapify(queue)
    taken = set()
    while missing:
        _, index = heapq.heappop(queue)
        entry = (-len(combinations(rows[index]) & missing), index)
        if queue and entry > queue[0]:
            heapq.heappush(queue, entry)
        else:
            taken.add(index)
            missing -= combinations(rows[index])
    return taken


def left_out(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that a short run leaves out."""
    groups = defaultdict(list)
    out = set()
    for item in items:
        if item.get_closest_marker("exhaustive"):
            out.add(item)
        elif hasattr(item, "callspec"):
            # Tests of a missing library are skipped and represent nothing.
            groups[item.nodeid.partition("[")[0], why_not(item)].append(item)
    return out.union(*map(_left_out_of, groups.values()))


def _left_out_of(group: list[pytest.Function]) -> set[pytest.Item]:
    """Return the tests of one function that are not representatives."""
    costly = group[0].get_closest_marker("costly")
    if costly and not costly.args:
        return set(group[1:])
    rows = [_row(item) for item in group]
    varied = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    taken = range(len(group))
    if len(varied) >= 2:
        pairs = len(varied) > 2 and group[0].get_closest_marker("dimensions")
        taken = sorted(covering(list(zip(*varied, strict=True)), 2 if pairs else 1))
    return set(group) - {group[index] for index in (taken[:: costly.args[0]] if costly else taken)}


def _row(item: pytest.Function) -> tuple[Hashable, ...]:
    """Return a test's value in each dimension."""
    params = item.callspec.params
    dimensions = [(name,) for name in params]
    if item.get_closest_marker("dimensions") is None:
        for marker in item.iter_markers("parametrize"):
            names = marker.args[0].split(",") if isinstance(marker.args[0], str) else marker.args[0]
            together = tuple(name.strip() for name in names)
            dimensions = [together, *(d for d in dimensions if d[0] not in together)]
    return tuple(tuple(_key(params[name]) for name in sorted(names)) for names in sorted(dimensions))


def _key(value: object) -> Hashable:
    """Return a key that distinguishes a value of a dimension from others: 1 is not True."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def why_not(item: pytest.Function) -> str:
    """Return why the library under test cannot compute here, or an empty string."""
    named = []
    for value in item.callspec.params.values():
        if isinstance(value, Library | Backend):
            named.append(value.name if isinstance(value, Library) else value.library.name)
        elif isinstance(value, str) and value in LIBRARIES:
            named.append(value)
    return next(filter(None, map(support.why_not, named)), "")
