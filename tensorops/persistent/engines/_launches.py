"""Records a step on PyOpenCL arrays as a list of launches that are ready to be enqueued.

The step runs once on arrays of a device that records: nothing is computed, and no memory is allocated. Each launch
then gets a kernel object of its own, whose arguments stay set; only those for the caller's arrays change.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyopencl as cl

from array_api_pyopencl import Array, _launch, _layout
from array_api_pyopencl._devices import Device
from tensorops._operator import Operator
from tensorops._trees import map_arrays
from tensorops.backends.settings import Settings, activate
from tensorops.persistent._arena import arrange, padded
from tensorops.persistent._captured import CapturedCall, CaptureError

_SHIM = "array_api_pyopencl"
_LINE = 128  # a subgroup's 16-byte vectors never share more lines than they must


@dataclass(eq=False)
class Memory:
    """What stands for a buffer while a step is recorded; OpenCL itself refuses it."""

    nbytes: int
    argument: int = -1  # the number of the array among all of the arguments; -1 between calls
    owner: int = -1  # the argument that it is in
    is_donated: bool = False  # whether the step may write to it
    is_result: bool = False
    first: int = -1  # the calls that have it first and last
    last: int = -1
    offset: int = 0  # in the arena
    uses: list[tuple[Callable[[int, Any], object], int]] = field(default_factory=list)

    def set(self, buffer: Any) -> None:
        """Let all calls read and write a buffer in its place."""
        for set_argument, position in self.uses:
            set_argument(position, buffer)


class _Kernel:
    """In place of a kernel object: only notes its arguments."""

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self.arguments: dict[int, Any] = {}

    def _set_arg_multi(self, pairs: Sequence[Any]) -> None:
        self.arguments.update(zip(pairs[::2], pairs[1::2], strict=True))

    _set_arg_buf_multi = _set_arg_multi


@dataclass
class _Call:
    operator: str
    kernel: _Kernel
    arguments: dict[int, Any]  # numbers and buffers, by position
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    seen: dict[int, tuple[str, int, int]] | None  # the operator's arrays by buffer, unless it is an array function

    @property
    def buffers(self) -> dict[int, Any]:
        """Return the buffers by position."""
        return {i: value for i, value in self.arguments.items() if not isinstance(value, bytes | np.generic)}


class RecordingDevice(Device):
    """Stands for a device while a step is recorded."""

    __slots__ = ()
    records = True

    def __init__(self, device: Device, recorder: Recorder) -> None:
        self._queue, self.context, self.cl_device = device._queue, device.context, device.cl_device
        self.plans = {}
        self.lock = threading.Lock()
        self.pool = self  # of which only `allocate` is used
        self.enqueue = recorder.enqueue
        self._device, self._recorder = device, recorder

    @property
    def queue(self) -> NoReturn:
        """Refuse: what is enqueued elsewhere is not recorded."""
        self._recorder.refuse(
            f"the step uses the queue of an array ({_caller()}), and commands on it cannot be recorded; use operators "
            "of tensorops and functions of array_api_pyopencl"
        )

    @property
    def origin(self) -> Device:
        """The device that this one stands for."""
        return self._device

    def allocate(self, nbytes: int) -> Memory:
        """Return what stands for a new buffer."""
        return Memory(nbytes or 1)

    def kernel(self, source: str, name: str) -> _Kernel:
        """Compile a program, and return what stands for a kernel object."""
        self.program(source)
        return _Kernel(source, name)

    def read(self, *_: Any) -> NoReturn:
        """Refuse."""
        self._recorder.refuse(
            f"the step reads values of an array in Python ({_caller()}); they would stay what they are while the step "
            "is recorded"
        )

    def write(self, host: np.ndarray[Any, Any]) -> Any:
        """Return a constant."""
        return self._device.write(host)

    def draw(self, *_: Any) -> NoReturn:
        """Refuse."""
        self._recorder.refuse_generator()

    def before_write(self, buffer: Any) -> None:
        """Refuse to write to what must not change."""
        if not isinstance(buffer, Memory):
            self._recorder.refuse("assignment: the step writes to an array that is not one of its arguments")
        if buffer.argument >= 0 and not buffer.is_donated:
            self._recorder.refuse(f"assignment: the step writes to argument {buffer.owner}, which is not in `donate`")
        for key in list(self.plans):
            if isinstance(key, tuple) and key[0] == "offsets" and any(part[0] is buffer for part in key[1:]):
                del self.plans[key]


@dataclass(eq=False)
class Recorder:
    """The launches of a step."""

    device: Device  # whose queue they will be enqueued on
    settings: Settings  # those in force around the step
    calls: list[_Call] = field(default_factory=list)
    failure: CaptureError | None = None  # the first, which a kernel may take for a reason to decline
    is_open: bool = True
    asked: str = ""  # the operator called last, also one without an array by position
    _operator: str = ""
    _seen: dict[int, tuple[str, int, int]] | None = None
    _known: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recording = RecordingDevice(self.device, self)

    def argument(self, x: Any, number: int, owner: int, is_donated: bool) -> Array:
        """Return what stands for an array of the arguments, contiguous."""
        dtype = self.device.require_stored(np.dtype(x.dtype))
        layout = _layout.contiguous(dtype, tuple(map(int, x.shape)))
        array = Array(Memory(layout.nbytes or 1, number, owner, is_donated), layout, self.recording)
        self._see(array)
        return array

    def refuse(self, message: str) -> NoReturn:
        """Raise an error, and keep it."""
        error = CaptureError(message)
        self.failure = self.failure or error
        raise error

    def refuse_generator(self) -> NoReturn:
        """Raise an error about a generator of random numbers."""
        name = self._operator or self.asked
        self.refuse(f"{name}: numbers of a generator would stay the same; pass an array of them as `rng`")

    def enqueue(
        self,
        kernel: _Kernel,
        global_size: tuple[int, ...] | None,
        local_size: tuple[int, ...] | None,
        offset: None = None,
        wait_for: Sequence[Any] = (),
    ) -> None:
        """Record a launch."""
        if not self.is_open:
            self.refuse("an array of a step that has been recorded is used after it")
        if global_size is None:
            return
        for event in wait_for or ():
            if event is not None:  # of a constant
                event.wait()
        call = _Call(
            self._operator or _caller() or self.asked,
            kernel,
            dict(kernel.arguments),
            global_size,
            local_size,
            self._seen,
        )
        for memory in call.buffers.values():
            if isinstance(memory, Memory):
                memory.first = len(self.calls) if memory.first < 0 else memory.first
                memory.last = len(self.calls)
        self.calls.append(call)

    def call(self, operator: Operator[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, whose launches get its name."""
        values = (*args, *kwargs.values())
        draws = any(isinstance(value, np.random.Generator) for value in values)
        self._operator, self._seen = operator.__name__, {}
        try:
            if draws and any(isinstance(value, Array) and value._device.records for value in values):
                self.refuse_generator()
            map_arrays(self._see, values)
            with activate(self.settings):
                result = operator(*args, **kwargs)
            map_arrays(self._see, result)
        finally:
            self._operator, self._seen = "", None
        return result

    def _see(self, x: Any) -> Any:
        """Note what array is in a buffer."""
        buffer, dtype = (x._buffer, x.dtype) if isinstance(x, Array) else (getattr(x, "base_data", None), x.dtype)
        nbytes = math.prod(x.shape) * dtype.itemsize
        shown = f"{dtype.name}{list(x.shape)}", nbytes, dtype.itemsize
        if self._seen is not None:
            self._seen[id(buffer)] = shown
        if self._known.get(id(buffer), shown)[1] <= nbytes:
            self._known[id(buffer)] = shown
        return x

    def shown(self) -> tuple[CapturedCall, ...]:
        """Return the calls for people."""
        return tuple(self._shown(call) for call in self.calls)

    def _shown(self, call: _Call) -> CapturedCall:
        items, shapes, total = math.prod(call.global_size), [], 0
        buffers = list({id(b): b for b in call.buffers.values()}.values())
        seen = call.seen
        if seen is None:  # array functions write to their first argument
            buffers = [*buffers[1:], *buffers[:1]]
        for buffer in buffers:
            size = buffer.nbytes if isinstance(buffer, Memory) else buffer.size
            known = (seen or self._known).get(id(buffer)) or self._known.get(id(buffer))
            text, nbytes, itemsize = known or (f"{size} B", size, size)
            shapes.append(text)
            # Array functions take one element of each array for each work-item.
            total += min(nbytes, items * itemsize) if seen is None else nbytes
        return CapturedCall(call.operator, call.kernel.name, tuple(shapes), total)

    def prepare(self) -> Prepared:
        """Return the launches with memory for the arrays in between; results have been marked."""
        used = {id(b): b for call in self.calls for b in call.buffers.values() if isinstance(b, Memory)}
        own = [memory for memory in used.values() if memory.argument < 0 and not memory.is_result]
        line = max(int(self.device.cl_device.mem_base_addr_align) // 8, _LINE)
        size = arrange(own, line) if own else 0
        parts: dict[int, Any] = {}
        if own:
            try:
                arena = cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, size)
            except cl.Error as error:
                self.device.report(size, error)
            parts = {id(m): arena.get_sub_region(m.offset, m.nbytes) for m in own}
        kernels = [self._kernel(call, parts) for call in self.calls]
        sizes = [(call.global_size, call.local_size) for call in self.calls]
        kept = [*parts.values(), *(call.buffers for call in self.calls)]
        return Prepared(kernels, sizes, kept, size, sum(padded(m, line) for m in own))

    def _kernel(self, call: _Call, parts: dict[int, Any]) -> Any:
        kernel = self.device.kernel(call.kernel.source, call.kernel.name)
        buffers = call.buffers
        numbers = [x for i, value in call.arguments.items() if i not in buffers for x in (i, value)]
        if numbers:
            _launch.setter(kernel, "_set_arg_buf_multi")(tuple(numbers))
        for position, buffer in buffers.items():
            if not isinstance(buffer, Memory):
                kernel.set_arg(position, buffer)
            elif id(buffer) in parts:
                kernel.set_arg(position, parts[id(buffer)])
            else:
                buffer.uses.append((kernel.set_arg, position))
        return kernel


@dataclass(eq=False)
class Prepared:
    """Launches that are ready."""

    kernels: list[Any]  # a kernel object for each launch
    sizes: list[tuple[tuple[int, ...], tuple[int, ...] | None]]  # its global and local size
    kept: list[Any]  # what must live as long
    arena_bytes: int  # of the arrays in between
    separate_bytes: int  # if they shared no memory


def _caller() -> str:
    """Return the name of the array function that the step has called."""
    frame, name = sys._getframe(1), ""
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == _SHIM:
            name = frame.f_code.co_name
        elif name:
            break
        frame = frame.f_back  # type: ignore[assignment]
    return name
