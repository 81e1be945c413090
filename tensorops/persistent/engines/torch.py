"""Steps on torch tensors: CUDA graphs in the memory of a GPU, the plans of NumPy arrays in that of the host.

The CUDA graphs are written, and not yet run on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from tensorops import _providers
from tensorops._trees import map_arrays
from tensorops.backends import set_backend
from tensorops.backends.registry import BACKENDS
from tensorops.libraries import LIBRARIES, library_of
from tensorops.persistent._captured import Captured, Profile
from tensorops.persistent._engine import Engine, Options, Step, leaves
from tensorops.persistent._graphs import GraphEngine, Place

_failed: list[Any] = []
"""Graphs whose capture has failed: before version 2.12, torch goes on asking them when memory is allocated."""


class TorchEngine(Engine):
    """Steps on torch tensors, as an engine replays them where the arguments are."""

    @classmethod
    def refusal(cls, options: Options) -> str:
        """Return which option cannot be honoured, and why; or an empty string."""
        import torch

        if not torch.cuda.is_available() and (reason := _providers.load("cpu")):
            return f"tensors in the host's memory need compiled kernels, whose calls could be recorded: {reason}"
        return super().refusal(options)

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        tensors = [x for x in leaves(list(args)) if library_of(x) is LIBRARIES["torch"]]
        if all(x.is_cuda for x in tensors):
            kind: type[Engine] = TorchGraphs
        elif all(x.is_cpu for x in tensors):
            kind = TorchPlans
        else:
            raise ValueError("the arguments must be tensors on one GPU, or all in the host's memory")
        if reason := kind.refusal(options):
            raise ValueError(reason)
        self._engine = kind(step, args, options)
        self.statistics = self._engine.statistics

    def around_step(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context without gradients, which are not recorded."""
        import torch

        context: contextlib.AbstractContextManager[Any] = torch.no_grad()
        return context

    def first_difference(self, step: Step, args: tuple[Any, ...]) -> str | None:
        """Return which call gives other numbers than the step's own, as the engine of the arrays tells it."""
        return self._engine.first_difference(step, args)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        return self._engine.run(args)

    def profiled(self, args: tuple[Any, ...]) -> tuple[Any, Profile]:
        """Run it once; return its results, and how long each call took."""
        return self._engine.profiled(args)

    def captured(self) -> Captured:
        """Return what it runs."""
        return self._engine.captured()

    def forget(self) -> None:
        """Let go of the caller's arrays, if any are kept."""
        self._engine.forget()


class TorchPlans(Engine):
    """Steps on tensors in the host's memory: the plan of a step on NumPy arrays that share it."""

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        from tensorops.persistent.engines.numpy import NativeEngine

        self._torch, self._name = LIBRARIES["torch"], options.backend.name
        given = map_arrays(self._there, args)
        with set_backend("cpu"):  # constants that require gradients are refused, unless none are recorded now
            there = dataclasses.replace(options, backend=BACKENDS["cpu"])
            self._engine = NativeEngine(step, given, there)
        self.statistics = self._engine.statistics

    def _there(self, x: Any) -> Any:
        return self._torch.to_numpy(x) if library_of(x) is self._torch else x

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        return self._run(args, self._engine.run)

    def profiled(self, args: tuple[Any, ...]) -> tuple[Any, Profile]:
        """Run it once; return its results, and how long each call took."""
        profiles: list[Profile] = []

        def run(args: tuple[Any, ...]) -> Any:
            result, profile = self._engine.profiled(args)
            profiles.append(profile)
            return result

        return self._run(args, run), profiles[0]

    def _run(self, args: tuple[Any, ...], run: Step) -> Any:
        tensors: dict[int, Any] = {}

        def there(x: Any) -> Any:
            a = self._there(x)
            tensors[id(a)] = x
            return a

        result = run(map_arrays(there, args))
        return map_arrays(lambda y: tensors[id(y)] if id(y) in tensors else self._torch.from_numpy(y, None), result)

    def first_difference(self, step: Step, args: tuple[Any, ...]) -> str | None:
        """Return which call gives other numbers than the step's own, as the engine of the arrays tells it."""
        import torch

        with set_backend("cpu"), torch.no_grad():
            return self._engine.first_difference(step, map_arrays(self._there, args))

    def captured(self) -> Captured:
        """Return what it runs."""
        return dataclasses.replace(self._engine.captured(), backend=self._name)

    def forget(self) -> None:
        """Let go of the caller's arrays, if any are kept."""
        self._engine.forget()


class TorchGraphs(GraphEngine):
    """Steps on tensors in the memory of a GPU: CUDA graphs."""

    def _place(self, x: Any) -> Place:
        strides = tuple(stride * x.element_size() for stride in x.stride())
        return Place(x.data_ptr(), tuple(x.shape), strides, x.dtype, x.get_device())

    def _is_there(self, x: Any) -> bool:
        return bool(x.is_cuda)

    def _copy(self, x: Any) -> Any:
        return self._plain(x).clone(memory_format=self._torch.contiguous_format)

    def _is_equal(self, x: Any, y: Any) -> bool:
        x, y = (each.detach().reshape(-1).view(self._torch.uint8) for each in (x, y))
        return bool(self._torch.equal(x, y))

    def _empty(self, x: Any) -> Any:
        return self._torch.empty(x.shape, dtype=x.dtype, device=x.device)

    def _write(self, target: Any, source: Any) -> None:
        target.copy_(self._plain(source))

    def _plain(self, x: Any) -> Any:
        if x.requires_grad and self._torch.is_grad_enabled():
            raise TypeError("a step that is replayed has no gradient: pass x.detach(), or run it under torch.no_grad()")
        return x.detach()

    def _view(self, x: Any, place: Place, offset: int) -> Any:
        size = place.dtype.itemsize
        start = x.storage_offset() * x.element_size() + offset
        strides = [stride // size for stride in place.strides]
        made = self._torch.empty(0, dtype=place.dtype, device=x.device)
        return made.set_(x.untyped_storage(), start // size, place.shape, strides)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        import torch

        self._torch, self._cuda = torch, torch.cuda
        context: contextlib.AbstractContextManager[Any] = torch.cuda.device(self._device)
        return context

    def _prepare(self) -> None:
        self._stream, self._done = self._cuda.Stream(), self._cuda.Event()
        self._bytes = (0, 0)

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        self._stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._stream), self._torch.no_grad():
            yield

    def _join(self) -> None:
        self._stream.synchronize()

    def _counted(self) -> tuple[int, int]:
        counts = self._cuda.memory_stats()
        return counts.get("reserved_bytes.all.current", 0), counts.get("allocated_bytes.all.allocated", 0)

    def _begin(self) -> Any:
        graph, self._before = self._cuda.CUDAGraph(), self._counted()
        # Other threads may use the GPU meanwhile.
        graph.capture_begin(capture_error_mode="thread_local")
        return graph

    def _end(self, begun: Any) -> Any:
        try:
            begun.capture_end()
        except BaseException:
            _failed.append(begun)
            raise
        reserved, asked = (max(0, now - was) for now, was in zip(self._counted(), self._before, strict=True))
        self._bytes = reserved, asked
        return begun

    def _launch(self, graph: Any) -> None:
        graph.replay()

    def _mark(self) -> None:
        self._done.record()

    def _wait(self) -> None:
        self._cuda.current_stream().wait_event(self._done)

    def _finish(self) -> None:
        self._done.synchronize()

    def _memory(self) -> tuple[int, int]:
        return self._bytes


ENGINE = TorchEngine
