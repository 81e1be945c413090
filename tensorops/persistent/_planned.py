"""Makes the plan of a recorded step: one arena for arrays in between, and calls that run without the interpreter.

Results whose lives do not overlap are given the same memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorops.kernels.cpu import _native
from tensorops.persistent import _row_blocks
from tensorops.persistent._arena import arrange, padded
from tensorops.persistent._calls import Call, Memory, Place
from tensorops.persistent._captured import CapturedCall, Statistics
from tensorops.persistent._results import NewResult, PartOfArgument

_LINE = 64
_LARGE = 1024 * 1024  # bytes of a result that is not copied
_FOREVER = 2**62


@dataclass(frozen=True, eq=False)
class Exchange:
    """What ranks do together between two calls of a plan."""

    before: int  # which of the plan's calls
    index: int  # among all calls, with exchanges
    function: Callable[..., Any]
    given: np.ndarray[Any, Any]
    made: np.ndarray[Any, Any]


@dataclass(eq=False)
class Planned:
    """A plan, with everything that it reads and writes."""

    plan: Any  # the compiled object
    arena: np.ndarray[Any, Any]  # memory that it keeps, as are the constants
    arguments: dict[int, list[tuple[int, int]]]  # which arrays of the plan are in an argument, and at which offset
    constants: list[np.ndarray[Any, Any]]
    results: list[Any]  # views of the arena, constants, parts of arguments, or what is made anew
    calls: tuple[CapturedCall, ...]
    statistics: Statistics
    native: list[int]  # the places of the plan's calls among all calls
    exchanges: list[Exchange]  # what happens between them in Python
    groups: tuple[_row_blocks.Group, ...]  # which of all calls are run by rows


def make_plan(calls: Sequence[Call], blocks: Sequence[Memory], outputs: Sequence[Place], threads: int) -> Planned:
    """Make a plan of calls; `outputs` are the results of the step, in memory that stays."""
    started = time.perf_counter()
    for place in outputs:
        place.memory.last = _FOREVER
    used = {id(p.memory) for c in calls for p in (*c.arguments, *c.results)} | {id(p.memory) for p in outputs}
    exchanged = {id(p.memory) for c in calls if c.exchange for p in (*c.arguments, *c.results)}
    made = _made_anew([place for place in outputs if id(place.memory) not in exchanged])
    own = [m for m in blocks if m.is_own and id(m) in used and id(m) not in made]
    separate = sum(padded(memory, _LINE) for memory in own)
    plan = _native.Plan(threads)
    groups = tuple(_row_blocks.find_groups([call.by_rows for call in calls], plan.threads))
    size = arrange(own, _LINE)
    arena = np.empty(size + _LINE, np.uint8)
    arena = arena[-arena.__array_interface__["data"][0] % _LINE :][:size]
    numbers: dict[Any, int] = {}
    arguments: dict[int, list[tuple[int, int]]] = {}
    constants = []

    def number(place: Place) -> int:
        memory = place.memory
        key = (id(memory), place.offset, place.shape, place.strides, place.value.dtype)
        if key not in numbers:
            numbers[key] = given = plan.add_array(place.value, list(place.shape))
            if id(memory) in made:
                made[id(memory)].arrays.append((given, place.offset))
            elif memory.is_own:
                plan.move_array(given, arena, memory.offset + place.offset)
            elif memory.argument is not None:
                arguments.setdefault(memory.argument, []).append((given, place.offset))
            else:
                constants.append(memory.array)
        return numbers[key]

    native: list[int] = []
    exchanges: list[Exchange] = []
    for index, call in enumerate(calls):
        if call.exchange is not None:
            sent, received = (in_arena(arena, place) for place in (*call.arguments, *call.results))
            exchanges.append(Exchange(len(native), index, call.exchange, sent, received))
            continue
        native.append(index)
        read, written = ([number(place) for place in places] for places in (call.arguments, call.results))
        call.add_to(plan, read, written)
    for group in groups:
        plan.run_by_rows(native.index(group.begin), group.rows, group.block, group.threads, group.arrays)
    views: list[Any] = []
    for place in outputs:
        memory, value = place.memory, place.value
        if id(memory) in made:
            views.append(made[id(memory)])
        elif memory.is_own:
            views.append(in_arena(arena, place))
        elif memory.argument is None:
            views.append(value)
        else:
            views.append(PartOfArgument(memory.argument, place.offset, value.shape, value.dtype))
    shown = tuple(call.shown for call in calls)
    seconds = time.perf_counter() - started
    statistics = Statistics(seconds, len(native), sum(c.bytes for c in shown), size, separate)
    return Planned(plan, arena, arguments, constants, views, shown, statistics, native, exchanges, groups)


def in_arena(arena: np.ndarray[Any, Any], place: Place) -> np.ndarray[Any, Any]:
    start, value = place.memory.offset + place.offset, place.value
    found: np.ndarray[Any, Any] = arena[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    return found


def _made_anew(outputs: Sequence[Place]) -> dict[int, NewResult]:
    """Return the large results, by the memory that each has for itself: each run puts them where they stay."""
    found: dict[int, NewResult] = {}
    alone = Counter(id(place.memory) for place in outputs)
    for place in outputs:
        memory, value = place.memory, place.value
        if memory.is_own and alone[id(memory)] == 1 and value.nbytes == memory.nbytes >= _LARGE:
            found[id(memory)] = NewResult(np.broadcast_to(np.zeros((), value.dtype), value.shape), [])
    return found
