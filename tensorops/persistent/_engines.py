"""What replays a step on each library: a plan of compiled calls for NumPy, the library's own compiler elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tensorops._messages import describe_error
from tensorops._trees import map_arrays
from tensorops.backends import to_backend
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings, activate
from tensorops.libraries import Backend, library_of
from tensorops.persistent._captured import Captured, CaptureError, Profile, Statistics, words_of

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

    def forget(self) -> None:
        """Let go of the caller's arrays."""


def leaves(tree: Any) -> list[Any]:
    """Return the arrays in nested containers, in order, each once."""
    found: dict[int, Any] = {}
    map_arrays(lambda x: found.setdefault(id(x), x), tree)
    return list(found.values())


def flatten(tree: Any, arrays: list[Any], others: list[Any]) -> None:
    """Append the arrays in lists, tuples and dicts to one list, and what else tells a call from another to the other.

    An array that occurs more than once is appended as often.
    """
    kind = type(tree)
    if kind is np.ndarray:
        arrays.append(tree)
    elif kind is list or kind is tuple:
        others.append((kind, len(tree)))
        for value in tree:
            flatten(value, arrays, others)
    elif kind is dict:
        others.append((kind, *tree))
        for value in tree.values():
            flatten(value, arrays, others)
    elif library_of(tree) is not None:
        arrays.append(to_backend(tree, "numpy"))
    else:
        others.append(tree)


class NativeEngine:
    """Steps on NumPy arrays: a plan that a team of threads runs without the interpreter."""

    def __init__(
        self,
        step: Step,
        args: tuple[Any, ...],
        donate: frozenset[int],
        backend: Backend,
        workers: int | None,
        repack: bool,
    ) -> None:
        from tensorops.libraries._known import learn_types
        from tensorops.persistent import _recorded
        from tensorops.persistent._recorder import Plans, Recorder

        started = time.perf_counter()
        learn_types(_recorded.LIBRARY)
        self._backend = backend
        self._lock = threading.Lock()
        outer = in_force()
        given: list[np.ndarray[Any, Any]] = []
        owners: list[int] = []
        self._others: list[Any] = []
        for number, arg in enumerate(args):
            flatten(arg, given, self._others)
            owners += [number] * (len(given) - len(owners))
        if len({id(x) for x in given}) < len(given):
            raise CaptureError("an array is among the arguments twice; later runs might have two")
        self._donated = [owner in donate for owner in owners]
        recorder = Recorder(outer, frozenset(donate), repack)
        recorded = {}
        self._kept: list[Any] = []
        for x, owner, donated in zip(given, owners, self._donated, strict=True):
            if donated and not x.flags.c_contiguous:
                raise CaptureError(f"argument {owner} is donated, so its arrays must be contiguous")
            # The step runs on copies of what it may write.
            stays = not donated and x.nbytes > SMALL
            self._kept.append(np.ascontiguousarray(x).reshape(x.shape) if stays else np.array(x, order="C"))
            recorded[id(x)] = recorder.argument(len(self._kept) - 1, owner, self._kept[-1])
        inside: Any = Settings(outer.backend, outer.providers, plans=Plans(recorder))  # type: ignore[arg-type]
        traced = map_arrays(lambda x: recorded[id(x)], args)
        with activate(inside):
            result = step(*traced)
        kept_results = leaves(result)
        if any(not isinstance(x, _recorded.Recorded) for x in kept_results):
            raise CaptureError("the step returns an array that does not depend on its arguments")
        self._planned = recorder.plan(kept_results, workers or 0)
        order = {id(x): np.asarray(i) for i, x in enumerate(kept_results)}
        self._tree = map_arrays(lambda x: order[id(x)], result)  # of the results' numbers: the recorder need not stay
        facts = self._planned.statistics
        self.statistics = Statistics(
            time.perf_counter() - started, facts.calls, facts.bytes, facts.arena_bytes, facts.separate_bytes
        )
        self._types = [(x.shape, x.dtype) for x in self._kept]
        self._nbytes = [x.nbytes for x in self._kept]
        self._move(range(len(self._kept)))

    def _move(self, numbers: Sequence[int]) -> None:
        for i in numbers:
            for array, offset in self._planned.arguments.get(i, ()):
                self._planned.plan.move_array(array, self._kept[i], offset)

    def _give(self, args: tuple[Any, ...]) -> None:
        """Copy small arguments, and let the plan read large and donated ones where they are."""
        given: list[Any] = []
        others: list[Any] = []
        for arg in args:
            flatten(arg, given, others)
        if len(given) != len(self._kept) or others != self._others:
            raise ValueError("the arguments differ from those when the step was compiled in more than values of arrays")
        for i, x in enumerate(given):
            kept = self._kept[i]
            if x is kept:
                continue
            if (x.shape, x.dtype) != self._types[i]:
                was, now = (f"{dtype.name} {shape}" for shape, dtype in (self._types[i], (x.shape, x.dtype)))
                raise ValueError(f"array {i} of the arguments was {was} when compiled, and is now {now}")
            if not self._donated[i] and x.nbytes <= SMALL:
                kept[...] = x
            elif not x.flags.c_contiguous or (self._donated[i] and not x.flags.writeable):
                raise ValueError(f"array {i} of the arguments is not contiguous and writable")
            else:
                self._kept[i] = x
                self._move([i])

    def forget(self) -> None:
        """Let go of the caller's arrays."""
        with self._lock:
            self._kept = [
                None if donated or nbytes > SMALL else kept
                for kept, donated, nbytes in zip(self._kept, self._donated, self._nbytes, strict=True)
            ]

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        with self._lock:
            self._give(args)
            try:
                self._planned.plan.run()
            except ValueError as error:
                raise self._named(error) from None
            return self._results()

    def _named(self, error: ValueError) -> ValueError:
        number = str(error).partition(" ")[0]
        return ValueError(f"call {number}, {self._planned.calls[int(number)].operator}: {words_of(error)}")

    def _results(self) -> Any:
        def found(number: Any) -> Any:
            y = self._planned.results[int(number)]
            return y.copy() if isinstance(y, np.ndarray) else y.of(self._kept[y.number])

        return map_arrays(found, self._tree)

    def captured(self) -> Captured:
        """Return what it runs."""
        python = ("arguments of at most 64 KiB are copied in", "results are copied out")
        facts = (self._planned.calls, self.statistics, python)
        return Captured(self._backend.name, "a native plan, run without the interpreter", *facts)

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Run it once, and return how long each call took."""
        with self._lock:
            self._give(args)
            return Profile(self._planned.calls, tuple(self._planned.plan.profile()))


class JaxEngine:
    """Steps on JAX arrays: `jax.jit`, which writes results into donated arguments."""

    def __init__(
        self,
        step: Step,
        args: tuple[Any, ...],
        donate: frozenset[int],
        backend: Backend,
        workers: int | None,
        repack: bool,
    ) -> None:
        import jax

        if workers is not None:
            raise ValueError("num_workers: XLA chooses its threads; set it when JAX starts")
        started = time.perf_counter()
        self._backend, self._settings = backend, in_force()
        copied = tuple(
            jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else x, arg) if i in donate else arg
            for i, arg in enumerate(args)
        )
        try:
            self._constants, run = _without_constants(step, args)
            self._compiled = jax.jit(run, donate_argnums=tuple(i + 1 for i in sorted(donate)))
            jax.block_until_ready(self._compiled(self._constants, *copied))
        except jax.errors.JAXTypeError as error:  # a value decides, or leaves the program
            raise CaptureError(f"the step cannot be compiled: {describe_error(error)}") from error
        self._example = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) if isinstance(x, jax.Array) else x,
            (self._constants, *args),
        )
        self.statistics = Statistics(time.perf_counter() - started)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        return self._compiled(self._constants, *args)

    def captured(self) -> Captured:
        """Return what it runs."""
        with activate(self._settings):
            text = self._compiled.lower(*self._example).compile().as_text()
        python = ("the call itself",)
        return Captured(self._backend.name, "a program of XLA", (), self.statistics, python, text)

    def profile(self, args: tuple[Any, ...]) -> Profile:
        """Refuse: XLA's own profiler knows."""
        raise ValueError("XLA runs the program as one; use jax.profiler for the times within it")

    def forget(self) -> None:
        """Let go of the caller's arrays: there are none."""


def _without_constants(step: Step, args: tuple[Any, ...]) -> tuple[list[Any], Step]:
    """Return the arrays that a step closes over, and the step with a list of them as its first argument.

    As constants, XLA would have copies of them in the program.
    """
    import jax
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    closed, shapes = jax.make_jaxpr(step, return_shape=True)(*args)
    results = jax.tree.structure(shapes)

    def run(constants: list[Any], *args: Any) -> Any:
        function = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, constants))
        return jax.tree.unflatten(results, function(*jax.tree.leaves(args)))

    return list(closed.consts), run


class MlxEngine:
    """Steps on MLX arrays: `mlx.core.compile`."""

    def __init__(
        self,
        step: Step,
        args: tuple[Any, ...],
        donate: frozenset[int],
        backend: Backend,
        workers: int | None,
        repack: bool,
    ) -> None:
        import mlx.core as mx

        if workers is not None:
            raise ValueError("num_workers: MLX chooses its threads")
        started = time.perf_counter()
        self._backend = backend

        def pure(*args: Any) -> Any:
            """Run the step on other array objects in place of those that it may assign to; return no wrappers."""
            given = (map_arrays(lambda x: x[...], arg) if i in donate else arg for i, arg in enumerate(args))
            return map_arrays(backend.library.unwrap, step(*given))

        self._compiled = mx.compile(pure)
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

    def forget(self) -> None:
        """Let go of the caller's arrays: there are none."""


ENGINES: dict[str, type[Any]] = {"numpy": NativeEngine, "jax": JaxEngine, "mlx": MlxEngine}
"""By the library of the arrays."""


def why_not(backend: Backend) -> str:
    """Return why a backend cannot replay steps, or an empty string."""
    if backend.library.name == "numpy" and "cpu" not in (backend.providers or ()):
        return "it has no compiled kernels, whose calls could be recorded"
    if backend.library.name not in ENGINES:
        return f"there is no way yet to replay steps on {backend.library.name} arrays"
    return ""
