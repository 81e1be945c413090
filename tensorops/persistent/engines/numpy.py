"""Steps on NumPy arrays: a plan of compiled calls, for a team of threads and without the interpreter."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorops._trees import map_arrays
from tensorops.backends import to_backend
from tensorops.backends.process_default import in_force
from tensorops.backends.settings import Settings, activate
from tensorops.libraries import Backend, library_of
from tensorops.persistent._captured import Captured, CaptureError, Profile, Statistics, words_of
from tensorops.persistent._engine import Step, leaves

SMALL = 65536
"""Arguments of at most so many bytes are copied for each run; a plan reads larger ones where they are."""


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
        written = [id(x) for x, donated in zip(given, self._donated, strict=True) if donated]
        if len(set(written)) < len(written):
            raise ValueError("an array that the step writes to is among the arguments twice")
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


ENGINE = NativeEngine
