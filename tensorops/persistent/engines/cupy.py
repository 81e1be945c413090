"""Steps on CuPy arrays: CUDA graphs.

CuPy refuses calls of cuBLAS and of other libraries while a stream captures, so a step can use what has kernels of its
own: those of tensorops, and CuPy's elementwise ones and sums. Written, and not yet run on a GPU.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tensorops.persistent._graphs import GraphEngine, Place


class CupyEngine(GraphEngine):
    """Steps on CuPy arrays: CUDA graphs."""

    def _place(self, x: Any) -> Place:
        return Place(int(x.data.ptr), tuple(x.shape), tuple(x.strides), x.dtype, int(x.data.device_id))

    def _is_there(self, x: Any) -> bool:
        return True

    def _copy(self, x: Any) -> Any:
        return x.copy()

    def _is_equal(self, x: Any, y: Any) -> bool:
        x, y = (each.ravel().view("uint8") for each in (x, y))
        return not (x != y).any()

    def _empty(self, x: Any) -> Any:
        return self._cupy.empty(x.shape, x.dtype)

    def _write(self, target: Any, source: Any) -> None:
        target[...] = source

    def _view(self, x: Any, place: Place, offset: int) -> Any:
        return self._cupy.ndarray(place.shape, place.dtype, x.data + offset, place.strides)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        import cupy

        context: contextlib.AbstractContextManager[Any] = cupy.cuda.Device(self._device)
        return context

    def _prepare(self) -> None:
        import cupy

        self._cupy, cuda = cupy, cupy.cuda
        self._stream = cuda.Stream(
            non_blocking=True
        )  # the legacy default stream cannot capture, nor one that waits for it
        self._done = cuda.Event(disable_timing=True)
        self._blocks: list[Any] = []
        self._asked = 0
        self._pool = cuda.MemoryPool(self._new_block)

    def _new_block(self, size: int) -> Any:
        """Return memory for the pool, which stays: a pool that is short of it would free what the graph uses."""
        self._blocks.append(self._cupy.cuda.MemoryPointer(self._cupy.cuda.Memory(size), 0))
        return self._blocks[-1]

    def _malloc(self, size: int) -> Any:
        self._asked += size
        return self._pool.malloc(size)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        cuda = self._cupy.cuda
        self._stream.wait_event(cuda.get_current_stream().record())
        with self._stream, cuda.using_allocator(self._malloc):
            yield

    def _join(self) -> None:
        self._stream.synchronize()

    def _begin(self) -> Any:
        self._asked = 0
        self._refuse_the_host()
        try:
            self._stream.begin_capture()
        except BaseException:
            self._admit_the_host()
            raise

    def _end(self, begun: Any) -> Any:
        self._admit_the_host()
        return self._stream.end_capture()

    def _refuse_the_host(self) -> None:
        """Refuse copies from the host, which come from pinned memory: a replay would read what is there by then."""
        capturing, pool = threading.get_ident(), self._cupy.get_default_pinned_memory_pool()

        def malloc(size: int) -> Any:
            if threading.get_ident() == capturing:
                raise RuntimeError("an array is copied from the host; make it before the step, or pass it")
            return pool.malloc(size)

        self._cupy.cuda.set_pinned_memory_allocator(malloc)

    def _admit_the_host(self) -> None:
        """Let CuPy's own pool give pinned memory again; CuPy does not tell whether the program had chosen another."""
        self._cupy.cuda.set_pinned_memory_allocator(self._cupy.get_default_pinned_memory_pool().malloc)

    def _launch(self, graph: Any) -> None:
        graph.launch()

    def _mark(self) -> None:
        self._done.record(self._cupy.cuda.get_current_stream())

    def _wait(self) -> None:
        self._cupy.cuda.get_current_stream().wait_event(self._done)

    def _finish(self) -> None:
        self._done.synchronize()

    def _memory(self) -> tuple[int, int]:
        return int(self._pool.total_bytes()), self._asked


ENGINE = CupyEngine
