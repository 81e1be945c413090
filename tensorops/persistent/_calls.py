"""What a recorded step consists of: memory, places in it, and calls of compiled operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorops.kernels.cpu import _native
from tensorops.persistent import _row_blocks
from tensorops.persistent._captured import CapturedCall, CaptureError, words_of
from tensorops.persistent._comparison import agree


@dataclass(eq=False)
class Memory:
    """One block of memory that calls read or write."""

    array: np.ndarray[Any, Any]  # contiguous
    is_own: bool = False  # between calls: it goes to the arena
    argument: int | None = None
    owner: int = -1  # the argument that has it
    first: int = 0  # the calls that write it first and read it last
    last: int = 0
    each_thread: int = 0  # if it is only used by rows of calls that are run by rows
    reserved: int = 0  # by all threads then
    offset: int = 0  # in the arena

    @property
    def nbytes(self) -> int:
        return self.reserved or self.array.nbytes

    @property
    def address(self) -> int:
        return int(self.array.__array_interface__["data"][0])


@dataclass(frozen=True, eq=False)
class Place:
    """An array in a block of memory; if it is to have another shape than `value`, that is contiguous."""

    memory: Memory
    value: np.ndarray[Any, Any]
    shape: tuple[int, ...]

    @property
    def offset(self) -> int:
        return int(self.value.__array_interface__["data"][0]) - self.memory.address

    @property
    def strides(self) -> tuple[int, ...]:
        if not self.value.flags.c_contiguous:
            return self.value.strides
        size = self.value.itemsize
        return tuple(size * math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))


@dataclass(frozen=True)
class Call:
    operator: str  # as users know it
    compiled: str
    names: tuple[str, ...]  # the parameters that are arrays
    arguments: tuple[Place, ...]
    results: tuple[Place, ...]
    options: tuple[tuple[str, Any], ...]
    exchange: Callable[..., Any] | None = None  # in Python, instead of a compiled operator
    by_rows: _row_blocks.Call = _row_blocks.WHOLE

    @property
    def alike(self) -> tuple[Any, ...]:
        """Everything but the values: what calls have in common that their kernel computes in the same way."""
        every = (*self.arguments, *self.results)
        layouts = ((place.shape, place.strides, place.value.dtype) for place in every)
        return self.compiled, self.names, self.options, *layouts

    @property
    def shown(self) -> CapturedCall:
        every = (*self.arguments, *self.results)
        shapes = tuple(f"{p.value.dtype.name}{list(p.shape)}" for p in every)
        return CapturedCall(self.operator, self.compiled, shapes, sum(bytes_touched(self, p) for p in every))

    def add_to(self, plan: Any, read: Sequence[int], written: Sequence[int]) -> None:
        """Add the call to a plan in which the arrays have these numbers."""
        try:
            plan.add_call(self.compiled, list(zip(self.names, read, strict=True)), list(written), dict(self.options))
        except ValueError as error:
            raise CaptureError(f"{self.operator}: {error}") from None


def bytes_touched(call: Call, place: Place) -> int:
    """Return how many bytes a call touches of an array: for take, embedding and put, only about the selected rows."""
    if call.compiled == "embedding" and place is call.arguments[1]:
        return int(call.results[0].value.nbytes)
    if call.compiled == "take" and place is call.arguments[0]:
        return int(call.results[0].value.nbytes)
    if call.compiled == "put" and place is call.results[0]:
        return int(call.arguments[0].value.nbytes)
    return int(place.value.nbytes)


def try_alone(call: Call) -> None:
    """Run a call by itself, and compare its results with the operator's."""
    plan = _native.Plan(1)
    read = [plan.add_array(place.value, list(place.shape)) for place in call.arguments]
    scratch = [np.empty_like(place.value) for place in call.results]
    written = [plan.add_array(y, list(p.shape)) for y, p in zip(scratch, call.results, strict=True)]
    call.add_to(plan, read, written)
    try:
        plan.run()
    except ValueError as error:
        raise CaptureError(f"{call.operator}: {words_of(error)}") from None
    for y, place in zip(scratch, call.results, strict=True):
        if not agree(y, place.value):
            raise CaptureError(f"{call.operator}: its kernel does not take these options")
