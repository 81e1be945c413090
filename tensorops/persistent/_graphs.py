"""Steps in the memory of a GPU: what a stream is given while it captures becomes a CUDA graph.

The graph has the addresses of arrays in it. Arguments that are not donated are copied into arrays of its own in each
run; donated ones are read and written where they are, and the step is captured again if they are somewhere else. All
that the step allocates is in memory of the graph's own, from which results are copied.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tensorops._messages import describe_error
from tensorops._operator import OPERATORS, Operator
from tensorops._trees import map_arrays
from tensorops.backends import to_backend, trace
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import activate
from tensorops.backends.trace import Record, Trace
from tensorops.libraries import library_of
from tensorops.persistent._captured import Captured, CapturedCall, CaptureError, Statistics
from tensorops.persistent._engine import Engine, Options, Step, apart, apart_again, leaves, require_type

_one_at_a_time = threading.RLock()
"""Captures are one at a time in a process: torch's allocator and what CuPy's is told meanwhile are of all threads."""


class Place(NamedTuple):
    """Where an array is, and what it is: two arrays with the same place are the same to a graph."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    dtype: Any
    device: int


class Part(NamedTuple):
    """A result that is a donated array, or a part of one."""

    number: int
    offset: int  # in bytes
    place: Place | None  # None if it is the whole array


@dataclass(frozen=True, eq=False)
class _Graph:
    """A step that has been captured."""

    graph: Any  # the library's
    inputs: list[Any]  # arrays in the graph's memory for the arguments that are not donated
    places: list[Place | None]  # where the donated arrays are
    results: list[Any]  # arrays in the graph's memory, or parts of donated arrays
    tree: Any  # what the step returns, with the numbers of results in place of arrays


class GraphEngine(Engine):
    """Steps in the memory of a GPU. A library's engine says how it captures, copies and tells where arrays are."""

    no_workers = "each kernel has as many threads of the GPU as it needs"
    no_profile = "CUDA runs the graph as one; use Nsight Systems for the times within it"

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        started = time.perf_counter()
        self._step, self._backend, self._settings = step, options.backend, in_force()
        self._lock = threading.Lock()
        given, owners, self._others = apart(args)
        numbers = {id(x): np.asarray(i) for i, x in enumerate(given)}
        self._tree = map_arrays(lambda x: numbers[id(x)], args)  # of the arrays' numbers
        self._places = [self._place(x) for x in given]
        devices = {place.device for place in self._places}
        if len(devices) != 1:
            raise ValueError(
                "the arguments must be arrays on one GPU" + (f", not on {sorted(devices)}" * bool(devices))
            )
        self._device = devices.pop()
        self._donated = [owner in options.donate for owner in owners]
        self._captured: _Graph | None = None
        with self._on_device():
            self._prepare()
            self._warm_up(given, owners)
            self._captured = self._capture(given)
            self._mark()
        calls = tuple(_shown(record) for record in self._log if not _is_composed(record))
        moved = sum(call.bytes for call in calls)
        self._calls = calls
        self.statistics = Statistics(time.perf_counter() - started, len(calls), moved, *self._memory())

    # ------------------------------------------------------------------- capturing

    def _arguments(self, arrays: list[Any]) -> Any:
        return map_arrays(lambda number: arrays[int(number)], self._tree)

    def _warm_up(self, given: list[Any], owners: list[int]) -> None:
        """Run the step once on copies, which compiles its kernels and shows what it writes to."""
        copies = [self._copy(x) for x in given]
        with self._aside(), activate(self._settings):
            self._step(*self._arguments(copies))
        self._join()
        for x, copy, donated, owner in zip(given, copies, self._donated, owners, strict=True):
            if not donated and not self._is_equal(x, copy):
                raise CaptureError(f"the step writes to argument {owner}, which is not in `donate`")

    def _capture(self, given: list[Any]) -> _Graph:
        """Capture the step with the caller's donated arrays; nothing is computed meanwhile."""
        log = Trace()
        try:
            with _one_at_a_time, self._aside(), activate(self._settings), trace() as log:
                graph, inputs, result = self._record(given)
        except Exception as error:
            where = _where(error, log)
            raise CaptureError(f"the step cannot be captured, {where}: {describe_error(error)}") from error
        self._log = log.records
        kept = leaves(result)
        for y in kept:
            if library_of(y) is not self._backend.library or not self._is_there(y):
                raise CaptureError(
                    f"the step returns an array that is not on the GPU, a {type(y).__name__}; it would stay what it is"
                )
        places = [self._place(x) if donated else None for x, donated in zip(given, self._donated, strict=True)]
        numbers = {id(y): np.asarray(i) for i, y in enumerate(kept)}
        results = [self._part_of(self._place(y), places) or y for y in kept]
        return _Graph(graph, inputs, places, results, map_arrays(lambda y: numbers[id(y)], result))

    def _record(self, given: list[Any]) -> tuple[Any, list[Any], Any]:
        """Return the graph of the step, its inputs and what it returns; the capture ends, whatever happens."""
        graph = self._begin()
        try:
            inputs = [None if donated else self._empty(x) for x, donated in zip(given, self._donated, strict=True)]
            result = self._step(*self._arguments([x if y is None else y for x, y in zip(given, inputs, strict=True)]))
        except BaseException:
            with contextlib.suppress(Exception):  # that the capture was invalidated, which is known
                self._end(graph)
            raise
        return self._end(graph), inputs, result

    def _part_of(self, place: Place, donated: list[Place | None]) -> Part | None:
        """Return which donated array has a result in it."""
        for number, other in enumerate(donated):
            if other is not None and other.address <= place.address < other.address + max(_reach(other), 1):
                return Part(number, place.address - other.address, None if place == other else place)
        return None

    # --------------------------------------------------------------------- running

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        with self._lock:
            given, places = self._checked(args)
            with self._on_device():
                captured = self._captured_for(given, places)
                self._wait()  # for the run before, which may be on another stream
                for y, x in zip(captured.inputs, given, strict=True):
                    if y is not None:
                        self._write(y, x)
                self._launch(captured.graph)
                made = [
                    self._given_back(y, given[y.number]) if isinstance(y, Part) else self._copy(y)
                    for y in captured.results
                ]
                self._mark()
                return map_arrays(lambda number: made[int(number)], captured.tree)

    def _captured_for(self, given: list[Any], places: list[Place | None]) -> _Graph:
        """Return the graph for donated arrays that are at some places."""
        if self._captured is None or self._captured.places != places:
            self._finish()
            self._captured = None  # whose memory the next one takes
            self._captured = self._capture(given)
        return self._captured

    def _given_back(self, part: Part, x: Any) -> Any:
        return x if part.place is None else self._view(x, part.place, part.offset)

    def _checked(self, args: tuple[Any, ...]) -> tuple[list[Any], list[Place | None]]:
        """Return the arrays among the arguments of a run, which must be as when the step was compiled.

        Also returns where those that are donated are.
        """
        given = apart_again(args, len(self._places), self._others)
        places: list[Place | None] = []
        for i, (x, expected, donated) in enumerate(zip(given, self._places, self._donated, strict=True)):
            places.append(self._place_there(i, x) if donated else None)
            if library_of(x) is not self._backend.library:
                given[i] = x = to_backend(x, self._backend.name)
            require_type(i, (tuple(x.shape), x.dtype), (expected.shape, expected.dtype))
        written = [id(x) for x, donated in zip(given, self._donated, strict=True) if donated]
        if len(set(written)) < len(written):
            raise ValueError("an array that the step writes to is among the arguments twice")
        return given, places

    def _place_there(self, number: int, x: Any) -> Place:
        if library_of(x) is self._backend.library and self._is_there(x):
            place = self._place(x)
            if place.device == self._device:
                return place
        raise ValueError(f"array {number} of the arguments is donated, so it must be on the GPU {self._device}")

    def forget(self) -> None:
        """Let go of the caller's arrays: there are none, only their addresses."""

    def captured(self) -> Captured:
        """Return what it runs."""
        python = ("arguments that are not donated are copied in", "results are copied out")
        bodies = sorted({call.operator for call in self._calls if call.kernel == "generic"})
        several = f", in which each call of {', '.join(bodies)} is several kernels of {self._backend.library.name}"
        mechanism = "a CUDA graph" + several * bool(bodies)
        return Captured(self._backend.name, mechanism, self._calls, self.statistics, python)

    # ---------------------------------------------------------- what a library does

    def _place(self, x: Any) -> Place:
        """Return where an array is."""
        raise NotImplementedError

    def _is_there(self, x: Any) -> bool:
        """Return whether an array is on a GPU."""
        raise NotImplementedError

    def _copy(self, x: Any) -> Any:
        """Return a contiguous copy, on the current stream."""
        raise NotImplementedError

    def _is_equal(self, x: Any, y: Any) -> bool:
        """Return whether arrays have the same bytes."""
        raise NotImplementedError

    def _empty(self, x: Any) -> Any:
        """Return a contiguous array like another one, without its values."""
        raise NotImplementedError

    def _write(self, target: Any, source: Any) -> None:
        """Copy values, on the current stream."""
        raise NotImplementedError

    def _view(self, x: Any, place: Place, offset: int) -> Any:
        """Return a part of an array, which begins that many bytes after it."""
        raise NotImplementedError

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which the GPU is the current one."""
        raise NotImplementedError

    def _prepare(self) -> None:
        """Make the stream that captures, and an event."""
        raise NotImplementedError

    def _aside(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context with the stream that captures, after what the current one has been given."""
        raise NotImplementedError

    def _join(self) -> None:
        """Wait for the stream that captures."""
        raise NotImplementedError

    def _begin(self) -> Any:
        """Begin to capture."""
        raise NotImplementedError

    def _end(self, begun: Any) -> Any:
        """End the capture that has begun, and return the graph."""
        raise NotImplementedError

    def _launch(self, graph: Any) -> None:
        """Launch a graph on the current stream."""
        raise NotImplementedError

    def _mark(self) -> None:
        """Note on the current stream that a run has ended."""
        raise NotImplementedError

    def _wait(self) -> None:
        """Let the current stream wait for the end of the last run."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Wait for the end of the last run."""
        raise NotImplementedError

    def _memory(self) -> tuple[int, int]:
        """Return how many bytes the graph has of its own, and how many the step asked for."""
        raise NotImplementedError


def _reach(place: Place) -> int:
    """Return how many bytes there are from an array's address to the end of its last element."""
    if 0 in place.shape:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(place.shape, place.strides, strict=True))
    return last + int(place.dtype.itemsize)


def _where(error: BaseException, log: Trace) -> str:
    """Return which operator an error is from, or which one was the last before."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if isinstance(found := frame.f_locals.get("self"), Operator):
            return f"in {found.__name__}"
    return f"after {log[-1].operator}" if log else "before the first operator"


def _is_composed(record: Record) -> bool:
    """Return whether an operator only called others, which have records of their own."""
    found = OPERATORS.get(record.operator)
    return found is not None and bool(found.calls) and record.kernel == "generic"


def _shown(record: Record) -> CapturedCall:
    """Return a call; the trace knows the arrays that it reads, but not what it writes."""
    shapes = tuple(f"{dtype}{list(shape)}" for dtype, shape in zip(record.dtypes, record.shapes, strict=True))
    sizes = [math.prod(shape) * _item_size(name) for name, shape in zip(record.dtypes, record.shapes, strict=True)]
    return CapturedCall(record.operator, record.kernel, shapes, sum(sizes))


def _item_size(name: str) -> int:
    return 2 if name == "bfloat16" else np.dtype(name).itemsize
