"""What replays a step on each library: a plan of compiled calls for NumPy, the library's own compiler elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tensorops._messages import describe_error
from tensorops._trees import map_arrays
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings, activate
from tensorops.libraries import Backend
from tensorops.persistent._captured import Captured, CaptureError, Profile, Statistics

Step = Callable[..., Any]
SMALL = 65536
"""Arguments of at most so many bytes are copied for each run; a plan reads larger ones where they are."""


class Engine(Protocol):
    """A compiled step."""

    statistics: Statistics

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""

    def captured(self) -> Captured:
        """Return what it runs."""

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Run it once, and return how long each call took."""


def leaves(tree: Any) -> list[Any]:
    """Return the arrays in nested containers, in order, each once."""
    found: list[Any] = []
    map_arrays(lambda x: found.append(x) or x, tree)
    return found


class NativeEngine:
    """Steps on NumPy arrays: a plan that a team of threads runs without the interpreter."""

    def __init__(
        self, step: Step, args: tuple[Any, ...], donate: frozenset[int], backend: Backend, workers: int | None
    ) -> None:
        from tensorops.libraries._known import learn_types
        from tensorops.persistent import _recorded
        from tensorops.persistent._recorder import Plans, Recorder

        started = time.perf_counter()
        learn_types(_recorded.LIBRARY)
        self._backend = backend
        outer = in_force()
        self._kept: list[np.ndarray[Any, Any]] = []
        self._donated: list[bool] = []
        groups = [leaves(arg) for arg in args]
        owners = [number for number, group in enumerate(groups) for _ in group]
        recorder = Recorder(outer, frozenset(i for i, owner in enumerate(owners) if owner in donate))
        recorded = {}
        for i, x in enumerate(x for group in groups for x in group):
            donated = owners[i] in donate
            if donated and not x.flags.c_contiguous:
                raise CaptureError(f"argument {owners[i]} is donated, so its arrays must be contiguous")
            stays = donated or x.nbytes > SMALL
            kept = np.ascontiguousarray(x).reshape(x.shape) if stays else np.array(x, order="C")
            self._kept.append(kept)
            self._donated.append(donated)
            recorded[id(x)] = recorder.argument(i, kept)
        inside: Any = Settings(outer.backend, outer.providers, plans=Plans(recorder))  # type: ignore[arg-type]
        traced = map_arrays(lambda x: recorded[id(x)], args)
        with activate(inside):
            result = step(*traced)
        self._tree = result
        kept_results = leaves(result)
        if foreign := [x for x in kept_results if not isinstance(x, _recorded.Recorded)]:
            raise CaptureError(f"the step returns {len(foreign)} arrays that do not depend on its arguments")
        self._planned = recorder.plan(kept_results, workers or 0)
        self._order = {id(x): i for i, x in enumerate(kept_results)}
        facts = self._planned.statistics
        self.statistics = Statistics(
            time.perf_counter() - started, facts.calls, facts.bytes, facts.arena_bytes, facts.separate_bytes
        )
        self._last: list[Any] = [None] * len(self._kept)
        self._shapes = [(x.shape, x.dtype) for x in self._kept]
        self._example = args
        self._move(range(len(self._kept)))

    def _move(self, numbers: Sequence[int]) -> None:
        for i in numbers:
            for array, offset in self._planned.arguments.get(i, ()):
                self._planned.plan.move_array(array, self._kept[i], offset)

    def _give(self, args: tuple[Any, ...]) -> None:
        """Copy small arguments, and let the plan read large and donated ones where they are."""
        given = leaves(args)
        if len(given) != len(self._kept):
            raise ValueError(f"the step was compiled for {len(self._kept)} arrays, and is given {len(given)}")
        for i, x in enumerate(given):
            if x is self._last[i]:
                if self._kept[i] is not x:
                    self._kept[i][...] = x
                continue
            if (x.shape, x.dtype) != self._shapes[i]:
                (shape, dtype), now = self._shapes[i], f"{x.dtype} {x.shape}"
                raise ValueError(f"array {i} of the arguments was {dtype} {shape} when compiled, and is now {now}")
            if not self._donated[i] and x.nbytes <= SMALL:
                self._kept[i][...] = x
            elif not x.flags.c_contiguous:
                raise ValueError(f"array {i} of the arguments is not contiguous")
            else:
                self._kept[i] = x
                self._move([i])
            self._last[i] = x

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        self._give(args)
        try:
            self._planned.plan.run()
        except ValueError as error:
            raise self._named(error) from None
        return self._results()

    def _named(self, error: ValueError) -> ValueError:
        number, _, words = str(error).partition(" ")
        call = self._planned.calls[int(number)]
        return ValueError(f"call {number}, {call.operator}: {words.removeprefix('tensorops: ')}")

    def _results(self) -> Any:
        def found(x: Any) -> Any:
            y = self._planned.results[self._order[id(x)]]
            return self._kept[y] if isinstance(y, int) else y.copy()

        return map_arrays(found, self._tree)

    def captured(self) -> Captured:
        """Return what it runs."""
        python = ("arguments of at most 64 KiB are copied in", "results are copied out")
        facts = (self._planned.calls, self.statistics, python)
        return Captured(self._backend.name, "a native plan, run without the interpreter", *facts)

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Run it once, and return how long each call took."""
        self._give(args)
        return Profile(self._planned.calls, tuple(self._planned.plan.profile()))


class JaxEngine:
    """Steps on JAX arrays: `jax.jit`, which writes results into donated arguments."""

    def __init__(
        self, step: Step, args: tuple[Any, ...], donate: frozenset[int], backend: Backend, workers: int | None
    ) -> None:
        import jax

        if workers is not None:
            raise ValueError("num_workers: XLA chooses its threads; set it when JAX starts")
        started = time.perf_counter()
        self._backend, self._settings = backend, in_force()
        self._compiled = jax.jit(step, donate_argnums=tuple(sorted(donate)))
        copied = tuple(
            jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, arg) if i in donate else arg
            for i, arg in enumerate(args)
        )
        self._example = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x, args
        )
        try:
            jax.block_until_ready(self._compiled(*copied))
        except jax.errors.JAXTypeError as error:  # a value decides, or leaves the program
            raise CaptureError(f"the step cannot be compiled: {describe_error(error)}") from error
        self.statistics = Statistics(time.perf_counter() - started)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        return self._compiled(*args)

    def captured(self) -> Captured:
        """Return what it runs."""
        with activate(self._settings):
            text = self._compiled.lower(*self._example).compile().as_text()
        python = ("the call itself",)
        return Captured(self._backend.name, "a program of XLA", (), self.statistics, python, text)

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Refuse: XLA's own profiler knows."""
        raise ValueError("XLA runs the program as one; use jax.profiler for the times within it")


class MlxEngine:
    """Steps on MLX arrays: `mlx.core.compile`."""

    def __init__(
        self, step: Step, args: tuple[Any, ...], donate: frozenset[int], backend: Backend, workers: int | None
    ) -> None:
        import mlx.core as mx

        if workers is not None:
            raise ValueError("num_workers: MLX chooses its threads")
        started = time.perf_counter()
        self._backend = backend
        self._compiled = mx.compile(step)
        try:
            mx.eval(self._compiled(*args))
        except ValueError as error:  # a value is needed while it traces
            raise CaptureError(f"the step cannot be compiled: {describe_error(error)}") from error
        self.statistics = Statistics(time.perf_counter() - started)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once; MLX computes when a result is read."""
        return self._compiled(*args)

    def captured(self) -> Captured:
        """Return what it runs."""
        python = ("the call itself", "MLX starts its kernels one after another when a result is read")
        return Captured(self._backend.name, "a graph compiled by MLX", (), self.statistics, python)

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Refuse: MLX runs the graph as one."""
        raise ValueError("MLX runs the graph as one; use mlx.core.metal.start_capture for the times within it")


ENGINES: dict[str, type[Any]] = {"numpy": NativeEngine, "jax": JaxEngine, "mlx": MlxEngine}
"""By the library of the arrays."""


def why_not(backend: Backend) -> str:
    """Return why a backend cannot replay steps, or an empty string."""
    if backend.library.name == "numpy" and "cpu" not in backend.providers:
        return "it has no compiled kernels, whose calls could be recorded"
    if backend.library.name not in ENGINES:
        return f"there is no way yet to replay steps on {backend.library.name} arrays"
    return ""
