"""Calls of a plan that are run by rows: blocks of rows go through all of them while they are in the caches.

Calls that follow each other often have the same rows, such as a norm, an activation and a sum. Run one after another,
each would read its arrays from memory, write them back, and wait for all threads. Instead, a thread takes a block of
rows through all of these calls. Arrays that only these calls see need no memory for all rows: each thread has a block
of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tensorops._row_axes import RowAxes

BLOCK_BYTES = 256 * 1024
"""What the rows of a block may take: it stays in the second-level cache, and is worth calling each kernel for it."""
LEAST_BYTES = 128 * 1024
"""What a call moves at least: less is in the caches anyway, and a kernel is called for each block."""
MOST_CALLS = 16
"""How many calls share a block: with more, each would get few rows."""
MOST_WHOLE_BYTES = 64 * 1024
"""What may be needed for all rows, such as weights of a norm, as it is read again for each block."""
BLOCKS_PER_THREAD = 4
"""So that threads finish at about the same time."""

Shape = tuple[int, ...]


class Memory(Protocol):
    """A block of memory, and, if it is only used between calls, the first and last call that use it."""

    is_own: bool
    first: int
    last: int
    each_thread: int
    reserved: int

    @property
    def nbytes(self) -> int:
        """The number of bytes."""


class Rows(NamedTuple):
    """How an array of a call goes through the rows."""

    axis: int  # the axis of the rows
    start: int  # where the first row is in its memory, in bytes
    step: int  # the bytes from one row to the next; 0 if all rows need the whole array
    size: int  # the bytes from the beginning of a row to its end


class Use(NamedTuple):
    """An array of a call."""

    memory: Memory
    rows: Rows
    is_written: bool


@dataclass(frozen=True)
class Call:
    """The number of rows of a call, and its arrays. Without rows it cannot be divided."""

    count: int = 0
    uses: tuple[Use, ...] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of all rows."""
        return self.count * sum(use.rows.size for use in self.uses if use.rows.step)


WHOLE = Call()


@dataclass(eq=False)
class Group:
    """Calls that are run by rows."""

    begin: int  # the first call
    end: int  # the one after the last
    rows: int  # how many they have
    block: int  # how many a thread takes at a time
    threads: int  # how many there is memory for
    calls: Sequence[Call] = field(repr=False, default=())

    @property
    def arrays(self) -> list[list[tuple[int, int, int]]]:
        """For each array of each call, the axis of its rows, the bytes between them, and the bytes for each thread."""
        return [[(use.rows.axis, use.rows.step, use.memory.each_thread) for use in call.uses] for call in self.calls]

    def __str__(self) -> str:
        last = self.end - 1
        return f"calls {self.begin} to {last}: {self.block} of {self.rows} rows at a time go through all of them"


def row_axis_of(rows: RowAxes, arrays: Sequence[Shape], results: Sequence[Shape]) -> tuple[int | None, ...]:
    """Return along which axis of each array, and then of each result, a call can be divided into rows.

    ``None`` is an array that all rows need. The result is empty if the call cannot be divided. Axes before that of the
    rows have the length 1, so that the rows of a contiguous array follow each other.
    """
    first = arrays[0]
    number = next((axis for axis, n in enumerate(first) if n > 1), None)
    bound = {*rows.whole, *rows.shortened, *itertools.chain(*rows.together)}
    if number is None or number in bound:
        return ()
    found: list[int | None] = []
    for axes, shape in [*zip(rows.arrays.values(), arrays, strict=True), *((rows.result, shape) for shape in results)]:
        place = axes.index(number) if number in axes else None
        if place is not None and shape[place] == first[number]:
            if any(n != 1 for n in shape[:place]):
                return ()
        elif place is not None and shape[place] != 1:
            return ()
        else:
            place = None
        found.append(place)
    return () if None in found[len(arrays) :] else tuple(found)


def call_of(count: int, uses: Sequence[Use]) -> Call:
    """Return what is known of a call with these arrays."""
    if all(_agree(a, b, count) for a, b in itertools.combinations(uses, 2)):
        return Call(count, tuple(uses))
    return WHOLE


def find_groups(calls: Sequence[Call], threads: int) -> Iterator[Group]:
    """Find calls to run by rows, and let memory that only they use be blocks of the threads."""
    calls = [call if call.nbytes >= LEAST_BYTES else WHOLE for call in calls]
    begin = 0
    while begin < len(calls):
        end = begin + 1
        while end < len(calls) and _fits(calls[begin:end], calls[end]):
            end += 1
        group = _group(calls, begin, end, threads)
        if group:
            yield group
        begin = end if group else begin + 1


def _fits(before: Sequence[Call], call: Call) -> bool:
    """Return whether a call can follow others row by row."""
    if not call.count or call.count != before[0].count or len(before) == MOST_CALLS:
        return False
    if _row_bytes([*before, call]) > BLOCK_BYTES:
        return False
    earlier = [use for each in before for use in each.uses]
    return all(_agree(a, b, call.count) for a in earlier for b in call.uses)


def _agree(a: Use, b: Use, count: int) -> bool:
    """Return whether rows of two arrays depend on each other only if they have the same number."""
    if a.memory is not b.memory or not (a.is_written or b.is_written):
        return True
    if a.rows.step != b.rows.step or not a.rows.step:
        return False
    (first, of_first), (second, of_second) = sorted((use.rows.start, use.rows.size) for use in (a, b))
    is_in_same_rows = max(first + of_first, second + of_second) <= first + a.rows.step
    return is_in_same_rows or first + (count - 1) * a.rows.step + of_first <= second


def _row_bytes(calls: Sequence[Call]) -> int:
    """Return the number of bytes of a row in the caches."""
    sizes: dict[int, int] = {}
    for use in (use for call in calls for use in call.uses):
        if use.rows.step:
            sizes[id(use.memory)] = max(sizes.get(id(use.memory), 0), use.rows.size)
    return sum(sizes.values())


def _group(calls: Sequence[Call], begin: int, end: int, threads: int) -> Group | None:
    """Return the group of some calls, unless it is not worth it."""
    inside, rows = calls[begin:end], calls[begin].count
    if end - begin < 2 or rows < BLOCKS_PER_THREAD * threads:
        return None
    block = min(BLOCK_BYTES // _row_bytes(inside), rows // (BLOCKS_PER_THREAD * threads))
    uses: dict[int, list[Use]] = {}
    for use in (use for call in inside for use in call.uses):
        uses.setdefault(id(use.memory), []).append(use)
    for each in uses.values():
        memory = each[0].memory
        if _is_between(memory, each, begin, end, rows):
            memory.each_thread = block * each[0].rows.step
            memory.reserved = threads * memory.each_thread
        memory.first, memory.last = min(memory.first, begin), max(memory.last, end - 1)
    return Group(begin, end, rows, block, threads, inside)


def _is_between(memory: Memory, uses: Sequence[Use], begin: int, end: int, rows: int) -> bool:
    """Return whether only these calls use some memory, and each row a part of it for itself."""
    step = uses[0].rows.step
    if not memory.is_own or memory.first < begin or memory.last >= end or memory.nbytes != rows * step:
        return False
    return all(use.rows.step == step and use.rows.start + use.rows.size <= step for use in uses)


def rows_of(axis: int | None, start: int, shape: Shape, strides: Shape, itemsize: int) -> Rows | None:
    """Return how an array goes through the rows along an axis, or ``None`` if its rows are not one after another."""
    if axis is None:
        return Rows(0, start, 0, 0)
    if strides[axis] == 0 or any(step < 0 for step in strides):
        return None
    others = [(n, step) for place, (n, step) in enumerate(zip(shape, strides, strict=True)) if place != axis]
    size = itemsize + sum((n - 1) * step for n, step in others)
    return Rows(axis, start, strides[axis], size)
