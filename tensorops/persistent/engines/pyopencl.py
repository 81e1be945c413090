"""Steps on PyOpenCL arrays: a list of launches that are ready to be enqueued."""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import repeat
from typing import Any

import numpy as np

from tensorops._messages import describe_error
from tensorops._trees import map_arrays
from tensorops.backends import to_backend
from tensorops.backends.process_default import in_force
from tensorops.libraries import library_of
from tensorops.persistent._captured import Captured, CaptureError, Profile, Statistics
from tensorops.persistent._engine import (
    Engine,
    Options,
    Step,
    apart,
    apart_again,
    arranger,
    leaves,
    recording,
    require_type,
)

MECHANISM = "a list of launches, each ready to be enqueued"
PYTHON = ("arguments that are other arrays than before are set", "memory for results is allocated", "each launch")


class OpenCLEngine(Engine):
    """Steps on PyOpenCL arrays: a list of launches, each with a kernel object whose arguments stay set."""

    no_workers = "the OpenCL driver chooses its threads"

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        import pyopencl.array

        from array_api_pyopencl import Array, _arguments, default_device
        from tensorops.persistent.engines._launches import Memory, Recorder

        started = time.perf_counter()
        self._name, self._library = options.backend.name, options.backend.library
        self._lock = threading.Lock()
        self._kinds: frozenset[type] = frozenset({pyopencl.array.Array, Array})
        given, owners, self._others = apart(args, self._kinds)
        first = _arguments.as_array("PersistentKernel", given[0]) if given else None
        self._device = first.device if first is not None else default_device()
        recorder = Recorder(self._device, in_force())
        recorded: dict[int, Any] = {}
        self._layouts, self._arguments = [], []
        for number, (x, owner) in enumerate(zip(given, owners, strict=True)):
            recorded[id(x)] = made = recorder.argument(x, number, owner, owner in options.donate)
            self._layouts.append(made._layout)
            self._arguments.append(made._buffer)
            if owner in options.donate and (reason := self._unwritable(_arguments.as_array("", x))):
                raise CaptureError(f"argument {owner} is donated, and an array in it {reason}")
        result = _recorded(step, map_arrays(lambda x: recorded[id(x)], args), recorder)
        arrays = leaves(result)
        for y in arrays:
            if not isinstance(y, Array) or not isinstance(y._buffer, Memory):
                raise CaptureError("the step returns an array that does not depend on its arguments")
            y._buffer.is_result = y._buffer.argument < 0
        self._made = list({id(y._buffer): y._buffer for y in arrays if y._buffer.is_result}.values())
        self._results = [(y._buffer, y._layout) for y in arrays]
        order = {id(y): np.asarray(i) for i, y in enumerate(arrays)}
        self._arrange = arranger(map_arrays(lambda y: order[id(y)], result))  # the recorder need not stay
        prepared = recorder.prepare()
        self._prepared, self._calls = prepared, recorder.shown()
        self._enqueued = tuple(zip(*prepared.sizes, strict=True)) or ((), ())
        self._kept: list[Any] = [None] * len(given)  # the caller's arrays
        self._buffers: list[Any] = [None] * len(given)
        self._written: set[int] = set()
        self._done: Any = None
        self.statistics = Statistics(
            time.perf_counter() - started,
            len(self._calls),
            sum(call.bytes for call in self._calls),
            prepared.arena_bytes,
            prepared.separate_bytes,
        )

    def _unwritable(self, x: Any) -> str:
        """Return why the step's launches cannot be given the buffer of an array, or an empty string."""
        if x._device != self._device:
            return "is on another queue than the first array"
        return "" if x._layout.contiguous and not x._layout.offset else "is not contiguous from the start of a buffer"

    # --------------------------------------------------------------------------- a run

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once: enqueue it."""
        return self._run(args, self._device.queue, 1)[0]

    def profiled(self, args: tuple[Any, ...]) -> tuple[Any, Profile]:
        """Run it once; return its results, and how long each call took."""
        import pyopencl as cl

        properties = cl.command_queue_properties.PROFILING_ENABLE
        queue = cl.CommandQueue(self._device.context, self._device.cl_device, properties=properties)
        result, events = self._run(args, queue, None)
        seconds = tuple((event.profile.end - event.profile.start) * 1e-9 for event in events)
        return result, Profile(self._calls, seconds)

    def _run(self, args: tuple[Any, ...], queue: Any, most: int | None) -> tuple[Any, Any]:
        """Enqueue the launches on a queue; return the results, and the last `most` events."""
        from pyopencl import enqueue_nd_range_kernel

        with self._lock:
            given = self._give(args)
            made = {}
            for memory in self._made:
                made[id(memory)] = buffer = self._device.allocate(memory.nbytes)
                memory.set(buffer)
            own = queue is self._device.queue
            if not own:
                self._device.queue.finish()
            launches = map(enqueue_nd_range_kernel, repeat(queue), self._prepared.kernels, *self._enqueued)
            events: deque[Any] = deque(launches, maxlen=most)
            if not own:
                queue.finish()
            if own and events:
                self._done = events[-1]
            return self._finished(given, made, list(events)[-1:] if own else []), events

    def _give(self, args: tuple[Any, ...]) -> list[Any]:
        """Set the arguments that are other arrays than in the last run; return all arrays, on the device."""
        from array_api_pyopencl._arguments import wait_for

        given = apart_again(args, len(self._kept), self._others, self._kinds)
        buffers, kept = self._buffers.copy(), self._kept.copy()
        changed = [i for i, x in enumerate(given) if x is not kept[i]]
        for i in changed:
            given[i], buffers[i], is_copy = self._placed(i, given[i])
            kept[i] = None if is_copy else given[i]  # of a copy, the values may be others next time
        if any(self._arguments[i].is_donated for i in changed) or not self._written.isdisjoint(
            _pointer(buffers[i]) for i in changed
        ):
            self._written = self._require_apart(buffers)
        for i in changed:
            self._arguments[i].set(buffers[i])
        self._buffers, self._kept = buffers, kept
        for x in given:
            events = getattr(x, "events", None)  # of PyOpenCL's own arrays
            if events and events[-1] is not self._done:
                wait_for(events, self._device.queue)
        return given

    def _placed(self, i: int, x: Any) -> tuple[Any, Any, bool]:
        """Return an array of the arguments, on the device, the buffer in which it is contiguous, and if that is a copy.

        An array of another library becomes another one each time.
        """
        import array_api_pyopencl as xp

        layout, is_donated = self._layouts[i], self._arguments[i].is_donated
        if library_of(x) is not self._library:
            x = xp.asarray(to_backend(x, "numpy"), device=self._device).cl_array
        wrapped = xp.asarray(x)
        require_type(i, (wrapped.shape, wrapped.dtype), (layout.shape, layout.dtype))
        reason = self._unwritable(wrapped)
        if reason and is_donated:
            raise ValueError(f"array {i} of the arguments {reason}")
        placed = xp.asarray(wrapped, device=self._device, copy=True) if reason else wrapped
        return x, placed._buffer, bool(reason)

    def _require_apart(self, buffers: list[Any]) -> set[int]:
        """Raise if what the step writes to is another argument, too; return the pointers to it."""
        pointers = [_pointer(b) for b in buffers]
        written = [p for p, memory in zip(pointers, self._arguments, strict=True) if memory.is_donated]
        read = {p for p, memory in zip(pointers, self._arguments, strict=True) if not memory.is_donated}
        if len(set(written)) < len(written) or not read.isdisjoint(written):
            raise ValueError("an array that the step writes to is among the arguments twice")
        return set(written)

    def _finished(self, given: list[Any], made: dict[int, Any], events: list[Any]) -> Any:
        """Return the step's results."""
        from array_api_pyopencl import Array
        from array_api_pyopencl._arguments import attributes, raw_of

        device = self._device
        wrapped = any(type(x) is Array for x in given)
        for x, memory in zip(given, self._arguments, strict=True):
            if memory.is_donated and type(x) is not Array:
                x.events[:] = events

        results = []
        for memory, layout in self._results:
            if memory.argument >= 0 and layout is self._layouts[memory.argument]:
                results.append(given[memory.argument])
                continue
            buffer = self._buffers[memory.argument] if memory.argument >= 0 else made[id(memory)]
            if wrapped:
                results.append(Array(buffer, layout, device))
            else:
                results.append(raw_of(attributes(layout, device), buffer, events.copy()))
        return self._arrange(results)

    # ----------------------------------------------------------------------- what it is

    def captured(self) -> Captured:
        """Return what it runs."""
        return Captured(self._name, MECHANISM, self._calls, self.statistics, PYTHON)

    def forget(self) -> None:
        """Let go of the caller's arrays."""
        with self._lock:
            self._kept = [None] * len(self._kept)
            self._buffers = [None] * len(self._buffers)
            self._written = set()


def _recorded(step: Step, args: Any, recorder: Any) -> Any:
    """Run a step while its launches are recorded, and return its results."""
    import pyopencl as cl

    try:
        with recording(recorder):
            result = step(*args)
    except CaptureError:
        raise
    except (AttributeError, TypeError, cl.Error) as error:  # such as a method of PyOpenCL's arrays
        raise recorder.failure or CaptureError(f"the step cannot be recorded: {describe_error(error)}") from error
    finally:
        recorder.is_open = False
    if recorder.failure is not None:
        raise recorder.failure
    return result


def _pointer(buffer: Any) -> int:
    """Return what tells a buffer from others; shared virtual memory has no handle."""
    return int(buffer.int_ptr) if hasattr(buffer, "int_ptr") else id(buffer)


ENGINE = OpenCLEngine
