"""Which tests a short run takes: of every parametrized test, as few as show each value of each of its dimensions.

The whole cross product of operators, libraries, dtypes, implementations and targets takes several times as long, and
finds little that its representatives do not: `pytest --exhaustive` runs it, `pytest -m exhaustive` what is left out.

A dimension is what one ``parametrize`` or one fixture with parameters goes through. A list of tuples made by hand is
one, and ``@pytest.mark.dimensions`` says of a test that each name of its ``parametrize`` is one, for lists that
are products. Of two dimensions every value occurs; of three and more, every pair of values as well. Of a test with
``@pytest.mark.costly``, one that takes seconds for each value, the first occurs; one with ``@pytest.mark.exhaustive``
is left out.
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
    """Return the indices of rows that, together, hold every combination of values in `strength` columns.

    Of the rows that add most, the first is taken, until nothing is missing.
    """

    def combinations(row: tuple[Hashable, ...]) -> set[tuple[tuple[int, Hashable], ...]]:
        return set(itertools.combinations(enumerate(row), strength))

    missing = set().union(*map(combinations, rows))
    # What a row adds never grows: one is taken when it is still on top after it has been counted anew.
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
    """Return the tests that a short run does not take."""
    groups = defaultdict(list)
    out = set()
    for item in items:
        if item.get_closest_marker("exhaustive"):
            out.add(item)
        elif hasattr(item, "callspec"):
            # Tests of a library that is not here are skipped, and represent nothing.
            groups[item.nodeid.partition("[")[0], why_not(item)].append(item)
    return out.union(*map(_left_out_of, groups.values()))


def _left_out_of(group: list[pytest.Function]) -> set[pytest.Item]:
    """Return which tests of one function are not among its representatives."""
    if group[0].get_closest_marker("costly"):
        return set(group[1:])
    rows = [_row(item) for item in group]
    varied = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    if len(varied) < 2:
        return set()
    taken = covering(list(zip(*varied, strict=True)), 1 if len(varied) == 2 else 2)
    return {item for index, item in enumerate(group) if index not in taken}


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
    """Return what tells a value of a dimension from others: 1 is not True."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value


def why_not(item: pytest.Function) -> str:
    """Return why the library that a test is about cannot compute here, or an empty string."""
    named = []
    for value in item.callspec.params.values():
        if isinstance(value, Library | Backend):
            named.append(value.name if isinstance(value, Library) else value.library.name)
        elif isinstance(value, str) and value in LIBRARIES:
            named.append(value)
    return next(filter(None, map(support.why_not, named)), "")
