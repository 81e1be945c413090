"""CUDA graphs on fakes: what is launched while a stream captures is only noted, and is done when a graph is replayed.

Torch's tensors in host memory say that they are on a GPU; CuPy's are those of `fake_cupy`. Nothing is computed while
a stream captures: results are NaN then, so that what a replay does not compute is seen. `Fake.log` has what was called.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import types
from typing import Any

import numpy as np

from tensorops.kernels.cuda import _driver


class Fake:
    """The streams of a GPU, of which one may capture."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.nodes: list[Any] | None = None  # of the capture under way: functions without arguments
        self.broken = False  # whether the capture has been invalidated
        self.memory: list[Any] = []  # that graphs have
        self.bytes = 0  # that steps have asked for while they were captured
        self.stream: Any = None
        self._names = itertools.count()

    def note(self, *words: Any) -> None:
        self.log.append(words)

    def begin(self) -> None:
        assert self.nodes is None, "two captures at a time"
        assert self.stream.name, "the default stream cannot capture"
        self.nodes, self.broken = [], False
        self.note("begin", self.stream.name)

    def end(self) -> list[Any]:
        assert self.nodes is not None, "no capture has begun"
        nodes, self.nodes = self.nodes, None
        self.note("end", self.stream.name)
        if self.broken:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        return nodes

    def forbid(self) -> None:
        """Invalidate a capture, as what waits for the GPU does."""
        if self.nodes is not None:
            self.broken = True
            raise RuntimeError("operation not permitted when stream is capturing\nmore words")

    def replay(self, nodes: list[Any]) -> None:
        self.note("launch", self.stream.name)
        for node in nodes:
            node()

    def install(self, monkeypatch: Any) -> None:
        """Let launches of kernels be nodes of a graph, while one is captured."""
        own = _driver.Step._enqueuer

        def enqueuer(step: Any, *args: Any) -> Any:
            enqueue = own(step, *args)

            def noted(stream: int, pointers: list[int]) -> None:
                assert stream == self.stream.ptr
                if self.nodes is None:
                    enqueue(stream, pointers)
                else:
                    addresses = list(pointers)
                    self.nodes.append(lambda: enqueue(stream, addresses))

            return noted

        monkeypatch.setattr(_driver.Step, "_enqueuer", enqueuer)

    def streams(self) -> Any:
        """Return the classes of streams and events of this GPU."""
        fake = self

        class Event:
            def __init__(self, **options: Any) -> None:
                self.name = f"event {next(fake._names)}"

            def record(self, stream: Any = None) -> None:
                assert fake.nodes is None
                assert stream in (None, fake.stream)
                fake.note("record", self.name, fake.stream.name)

            def synchronize(self) -> None:
                fake.forbid()
                fake.note("synchronize", self.name)

        class Stream:
            def __init__(self, name: str | None = None, non_blocking: bool = True) -> None:
                assert non_blocking
                self.name = f"stream {next(fake._names)}" if name is None else name
                self.ptr = 9000 + next(fake._names)

            def __enter__(self) -> None:
                self.outer, fake.stream = fake.stream, self

            def __exit__(self, *_: object) -> None:
                fake.stream = self.outer

            def record(self) -> Any:
                event = Event()
                fake.note("record", event.name, self.name)
                return event

            def wait_event(self, event: Any) -> None:
                fake.note("wait", event.name, self.name)

            def wait_stream(self, other: Any) -> None:
                self.wait_event(other.record())

            def synchronize(self) -> None:
                fake.forbid()
                fake.note("synchronize", self.name)

        self.stream = Stream("")
        return types.SimpleNamespace(Event=Event, Stream=Stream)


# --- torch ---------------------------------------------------------------------------------------------


def take_torch(monkeypatch: Any) -> Fake:
    """Let torch have a GPU in the host's memory, with streams and graphs; return these."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from tensorops.kernels.cuda import _arrays
    from tensorops.libraries import torch as ours

    fake = Fake()
    made, streams = torch.ops.aten, fake.streams()
    fresh = {made.empty.memory_format, made.empty_strided.default, made.empty_like.default, made.new_empty.default}

    class Capturing(TorchDispatchMode):
        """Notes what torch computes."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func in (made._local_scalar_dense.default, made.is_nonzero.default, made.equal.default):
                fake.forbid()
            node = lambda: func(*args, **kwargs)  # noqa: E731
            if func._schema.is_mutable:  # of what there is already
                fake.nodes.append(node)
                return kwargs.get("out", args[0])
            y = func(*args, **kwargs)
            if func.is_view or func in fresh:
                fake.bytes += 0 if func.is_view else y.nbytes
                fake.memory.append(y)
                return y
            several = y if isinstance(y, list | tuple) else (y,)
            for each in several:
                each.fill_(float("nan") if each.is_floating_point() else 0)
                fake.bytes += each.nbytes
            fake.memory.append(y)

            def compute() -> None:
                again = node()
                for target, source in zip(several, again if isinstance(again, list | tuple) else (again,), strict=True):
                    target.copy_(source)

            fake.nodes.append(compute)
            return y

    class CUDAGraph:
        def capture_begin(self, *, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            fake.begin()
            self._mode = Capturing()
            self._mode.__enter__()

        def capture_end(self) -> None:
            self._mode.__exit__(None, None, None)
            self._nodes = fake.end()

        def replay(self) -> None:
            fake.replay(self._nodes)

    cuda = {
        "CUDAGraph": CUDAGraph,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "stream": lambda stream: stream,
        "current_stream": lambda: fake.stream,
        "device": lambda index: contextlib.nullcontext(),
        "is_available": lambda: True,
        "memory_stats": lambda: {"reserved_bytes.all.current": 512, "allocated_bytes.all.allocated": fake.bytes},
    }
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(ours, "observers", lambda torch: (lambda: None, *[lambda: 0] * 3))  # the mode above is a fake's
    own = _arrays.arrays_of(torch.Tensor)
    monkeypatch.setattr(own, "_observers", ours.observers(torch))
    monkeypatch.setattr(own, "stream", lambda device: fake.stream.ptr)
    fake.install(monkeypatch)
    return fake


# --- CuPy ----------------------------------------------------------------------------------------------


def take_cupy(cupy: Any, monkeypatch: Any) -> Fake:
    """Give a fake CuPy streams, graphs and pools of memory; return the first two."""
    fake = Fake()
    streams, cuda, pinned = fake.streams(), cupy.cuda, lambda size: size
    default, base = cupy.empty, cupy.ndarray
    base.__module__ = "cupy"  # by which tensorops knows whose arrays they are
    assign = base.__setitem__
    state = types.SimpleNamespace(allocator=None, pinned=pinned)

    class Graph:
        def __init__(self, nodes: list[Any]) -> None:
            self._nodes = nodes

        def launch(self) -> None:
            fake.replay(self._nodes)

    class Stream(streams.Stream):
        def begin_capture(self) -> None:
            assert fake.stream is self
            fake.begin()

        def end_capture(self) -> Graph:
            assert fake.stream is self
            return Graph(fake.end())

    class MemoryPool:
        def __init__(self, allocator: Any) -> None:
            self._allocator, self._bytes = allocator, 0

        def malloc(self, size: int) -> Any:
            self._bytes += size
            return self._allocator(size)

        def total_bytes(self) -> int:
            return self._bytes

    @contextlib.contextmanager
    def using_allocator(allocator: Any) -> Any:
        state.allocator, outer = allocator, state.allocator
        try:
            yield
        finally:
            state.allocator = outer

    def empty(shape: Any, dtype: Any) -> Any:
        y = default(shape, dtype)
        if state.allocator is not None:
            state.allocator(y.nbytes)
        if fake.nodes is not None:
            assert state.allocator is not None, "memory of a graph would be given to others"
            np.asarray(y).view(np.uint8).fill(255)
            fake.memory.append(y)
        return y

    class Pointer(types.SimpleNamespace):
        def __add__(self, offset: int) -> Any:
            return Pointer(ptr=self.ptr + offset, device_id=self.device_id)

    def new(kind: Any, shape: Any, dtype: Any, memory: Any, strides: Any) -> Any:
        end = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + dtype.itemsize
        return np.ndarray.__new__(kind, shape, dtype, (ctypes.c_char * end).from_address(memory.ptr), 0, strides)

    def setitem(x: Any, key: Any, value: Any) -> None:
        if fake.nodes is None:
            assign(x, key, value)
        else:
            fake.nodes.append(lambda: assign(x, key, value))

    def asarray(a: Any) -> Any:
        if type(a) is np.ndarray:
            state.pinned(a.nbytes)
        return np.asarray(a).view(base)

    def matmul(a: Any, b: Any) -> Any:
        if fake.nodes is not None:
            raise NotImplementedError("calling cuBLAS API during stream capture is currently unsupported")
        return np.matmul(a, b)

    def get(x: Any) -> Any:
        fake.forbid()
        return np.array(x, subok=False)

    cuda.Stream, cuda.Event, cuda.MemoryPool, cuda.using_allocator = Stream, streams.Event, MemoryPool, using_allocator
    cuda.Memory, cuda.MemoryPointer = bytearray, lambda memory, offset: memory
    cuda.get_current_stream = lambda: fake.stream
    cuda.set_pinned_memory_allocator = lambda allocator: setattr(state, "pinned", allocator)
    cupy.get_default_pinned_memory_pool = lambda: types.SimpleNamespace(malloc=pinned)
    base.data = property(lambda x: Pointer(ptr=x.ctypes.data, device_id=x.on))
    base.__new__, base.__setitem__ = new, setitem
    cupy.empty, cupy.asarray, cupy.matmul, cupy.asnumpy = empty, asarray, matmul, get
    fake.stream = Stream("")
    fake.state = state
    fake.install(monkeypatch)
    return fake
