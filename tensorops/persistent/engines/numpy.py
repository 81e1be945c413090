"""Steps on NumPy arrays: a plan of compiled calls, for a team of threads and without the interpreter."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorops._trees import map_arrays
from tensorops.backends import to_backend
from tensorops.backends.process_default import in_force
from tensorops.persistent._captured import Captured, CaptureError, Profile, Statistics, times, words_of
from tensorops.persistent._comparison import agree
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
from tensorops.persistent._results import NewResult, PartOfArgument

if TYPE_CHECKING:
    from tensorops.kernels.cpu._native import Replay
    from tensorops.persistent._recorder import Recorder

_OWN: frozenset[type] = frozenset({np.ndarray})
ALONE = "each rank would compute without the others"
SMALL = 65536
"""Arguments of at most that many bytes are copied for each run; a plan reads larger ones where they are."""


class NativeEngine(Engine):
    """Steps on NumPy arrays: a plan that a team of threads runs without the interpreter."""

    no_ranks = ""

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        from tensorops.libraries._known import learn_types
        from tensorops.persistent import _recorded

        started = time.perf_counter()
        learn_types(_recorded.LIBRARY)
        self._name, donate = options.backend.name, options.donate
        self._lock = threading.Lock()
        given, owners, self._others = apart(args, _OWN)
        self._options = options
        self._donated = [owner in donate for owner in owners]
        recorder, self._kept, result = _recorded_step(step, args, given, owners, options)
        kept_results = leaves(result)
        if any(not isinstance(x, _recorded.Recorded) for x in kept_results):
            raise CaptureError("the step returns an array that does not depend on its arguments")
        self._planned = recorder.plan(kept_results, options.workers or 0)
        order = {id(x): np.asarray(i) for i, x in enumerate(kept_results)}
        self._arrange = arranger(map_arrays(lambda x: order[id(x)], result))  # the recorder need not stay
        if options.world_size > 1 and not self._planned.exchanges:
            raise CaptureError(f"world_size is {options.world_size}, but the step calls no all_reduce: {ALONE}")
        self.exchanges = tuple(
            (self._planned.calls[e.index].operator, *_type(e.given)) for e in self._planned.exchanges
        )
        facts = self._planned.statistics
        self.statistics = Statistics(
            time.perf_counter() - started, facts.calls, facts.bytes, facts.arena_bytes, facts.separate_bytes
        )
        self._require_separate(given)
        self._types = [(x.shape, x.dtype) for x in self._kept]
        self._seen = [_facts(x) for x in self._kept]
        self._in_place = [i for i, x in enumerate(self._kept) if self._donated[i] or x.nbytes > SMALL]
        self._copied = [i for i in range(len(self._kept)) if i not in self._in_place]
        self._move(range(len(self._kept)))
        self._returned = self._returned_arguments()
        self._made_anew = [i for i, x in enumerate(self._returned) if x is None]
        self._new: dict[int, np.ndarray[Any, Any]] = {}  # the large results of the present run
        self._large = [(i, y) for i, y in enumerate(self._planned.results) if isinstance(y, NewResult)]
        self._can_replay_natively = not self._planned.exchanges and not self._large
        self._native_replay: Replay | None = None
        _engines.add(self)

    def _move(self, numbers: Sequence[int]) -> None:
        for i in numbers:
            for array, offset in self._planned.arguments.get(i, ()):
                self._planned.plan.move_array(array, self._kept[i], offset)

    def _returned_arguments(self) -> list[Any]:
        """Return the results that are arguments which the step writes, and ``None`` for those that are made anew."""
        return [
            y.of(self._kept[y.number]) if isinstance(y, PartOfArgument) and self._donated[y.number] else None
            for y in self._planned.results
        ]

    def _give(self, args: tuple[Any, ...]) -> bool:
        """Copy small arguments, and let the plan read large and donated ones where they are.

        Return whether those are where they were.
        """
        given = apart_again(args, len(self._kept), self._others, _OWN)
        if not _OWN.issuperset(map(type, given)):
            given = [x if type(x) is np.ndarray else to_backend(x, "numpy") for x in given]
        for i in self._copied:
            require_type(i, (given[i].shape, given[i].dtype), self._types[i])
        changed = [i for i in self._in_place if given[i] is not self._kept[i] or _facts(given[i]) != self._seen[i]]
        self._require_separate(given)
        if changed:
            self._place(given, changed)
        for i in self._copied:
            self._kept[i][...] = given[i]
        return not changed

    def _require_separate(self, given: list[Any]) -> None:
        """Raise unless nothing else among the arguments has memory of what the step writes to."""
        ranges = [(x.__array_interface__["data"][0], x.nbytes, i) for i, x in enumerate(given) if x.nbytes]
        if not any(self._donated):
            return
        end, last = 0, -1
        for begin, nbytes, i in sorted(ranges):
            if begin < end and (self._donated[i] or self._donated[last]):
                one, other = sorted((i, last))
                raise ValueError(
                    f"arrays {one} and {other} of the arguments share memory, and the step writes to one of them"
                )
            if begin + nbytes > end:
                end, last = begin + nbytes, i

    def _place(self, given: list[Any], changed: list[int]) -> None:
        """Let the plan read and write arguments where they are."""
        self._native_replay = None
        for i in changed:
            require_type(i, (given[i].shape, given[i].dtype), self._types[i])
            if not given[i].flags.c_contiguous or (self._donated[i] and not given[i].flags.writeable):
                kind = "contiguous and writable" if self._donated[i] else "contiguous"
                raise ValueError(f"array {i} of the arguments is not {kind}")
        for i in changed:
            self._kept[i], self._seen[i] = given[i], _facts(given[i])
        self._move(changed)
        self._returned = self._returned_arguments()

    def forget(self) -> None:
        """Let go of the caller's arrays."""
        with self._lock:
            self._native_replay = None
            for i in self._in_place:
                self._kept[i] = None
            self._returned = [None] * len(self._returned)

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        with self._lock:
            if self._native_replay is not None:
                try:
                    results = self._native_replay(args)
                except ValueError as error:
                    raise self._named(error) from None
                if results is not NotImplemented:
                    return results
            stay = self._give(args)
            self._replay(self._planned.plan.run)
            if stay and self._can_replay_natively:
                self._native_replay = self._make_native_replay(args)
            return self._results()

    def _make_native_replay(self, args: tuple[Any, ...]) -> Replay | None:
        """Return what runs the plan again on these arguments, if they and the results are arrays in sequences."""
        from tensorops.kernels.cpu._native import Replay

        found = [self._made(i) if x is None else x for i, x in enumerate(self._returned)]
        made = {id(found[i]) for i in self._made_anew}
        tree = self._arrange(found)
        results = _arrays_in_sequences(tree)
        if _arrays_in_sequences(args) is None or results is None or len(set(map(id, results))) < len(results):
            self._can_replay_natively = False
            return None
        copied = [x if i in self._copied else None for i, x in enumerate(self._kept)]
        written = [x for x, donated in zip(self._kept, self._donated, strict=True) if donated and x.nbytes]
        return Replay(self._planned.plan, args, copied, tree, [id(x) in made for x in results], written)

    def _made(self, i: int) -> np.ndarray[Any, Any]:
        """Return where the plan has a result, of which the caller gets a copy."""
        y = self._planned.results[i]
        return y.of(self._kept[y.number]) if isinstance(y, PartOfArgument) else y

    def profiled(self, args: tuple[Any, ...]) -> tuple[Any, Profile]:
        """Run it once; return its results, and how long each call took."""
        seconds: list[float] = []
        with self._lock:
            self._give(args)
            self._replay(lambda *part: seconds.extend(self._planned.plan.profile(*part)), seconds)
            return self._results(), Profile(self._planned.calls, tuple(seconds))

    def _replay(self, run: Callable[..., Any], seconds: list[float] | None = None) -> None:
        """Run the calls; between them, let the ranks exchange arrays."""
        self._make_large_results()
        begin = 0
        try:
            for exchange in self._planned.exchanges:
                run(begin, exchange.before)
                begin = exchange.before
                started = time.perf_counter()
                exchange.function(exchange.given, exchange.made)
                if seconds is not None:
                    seconds.append(time.perf_counter() - started)
            run(begin)
        except ValueError as error:
            raise self._named(error) from None

    def _make_large_results(self) -> None:
        from tensorops.kernels.cpu._native import empty_like

        for i, result in self._large:
            self._new[i] = empty_like(result.like)
            for number, offset in result.arrays:
                self._planned.plan.move_array(number, self._new[i], offset)

    def _named(self, error: ValueError) -> ValueError:
        number = self._planned.native[int(str(error).partition(" ")[0])]
        return ValueError(f"call {number}, {self._planned.calls[number].operator}: {words_of(error)}")

    def _results(self) -> Any:
        found = self._returned.copy()
        for i in self._made_anew:
            found[i] = self._new.pop(i) if i in self._new else self._made(i).copy()
        return self._arrange(found)

    def first_difference(self, step: Step, args: tuple[Any, ...]) -> str | None:
        """Return which call gives other numbers than the step's own; empty if none does, or ``None`` as there.

        The step is recorded again on these arguments, and all results of its calls are compared with those of a plan
        that keeps them.
        """
        given, owners, _ = apart(args, _OWN)
        before = [np.array(x) for x in given]
        recorder, kept, _ = _recorded_step(step, args, given, owners, self._options)
        names, wanted, results = recorder.results_of_calls()
        planned = recorder.plan(results, self._options.workers or 0)
        for i, x in enumerate(kept):
            if owners[i] in self._options.donate:
                x[...] = before[i]
            for part, offset in planned.arguments.get(i, ()):
                planned.plan.move_array(part, x, offset)
        found: list[np.ndarray[Any, Any]] = []
        for y in planned.results:
            found.append(np.empty(y.like.shape, y.like.dtype) if isinstance(y, NewResult) else y)
            for part, offset in y.arrays if isinstance(y, NewResult) else ():
                planned.plan.move_array(part, found[-1], offset)
        planned.plan.run()
        for (number, operator, chooses), a, b in zip(names, found, wanted, strict=True):
            if not agree(a, b):
                return None if chooses else f"call {number}, {operator},"
        # With repacked weights, the step itself computes numbers that are rounded otherwise.
        return None if self._options.repack and any(chooses for _, _, chooses in names) else ""

    def captured(self) -> Captured:
        """Return what it runs."""
        python = ["arguments of at most 64 KiB are copied in", "results of less than 1 MiB are copied out"]
        sent = Counter(self._planned.calls[exchange.index].operator for exchange in self._planned.exchanges)
        python += [f"{name} over the ranks, {times(count)} a run" for name, count in sent.items()]
        facts = (self._planned.calls, self.statistics, tuple(python))
        by_rows = tuple(map(str, self._planned.groups))
        return Captured(self._name, "a native plan, run without the interpreter", *facts, by_rows=by_rows)


def _recorded_step(
    step: Step,
    args: tuple[Any, ...],
    given: list[np.ndarray[Any, Any]],
    owners: list[int],
    options: Options,
) -> tuple[Recorder, list[Any], Any]:
    """Run a step on recorded arrays; return the recorder, the arrays it was run on, and its results."""
    from tensorops.persistent._recorder import Recorder

    donate = options.donate
    recorder = Recorder(in_force(), donate, options.repack, options.panels)
    recorded, kept = {}, []
    for x, owner in zip(given, owners, strict=True):
        if owner in donate and not x.flags.c_contiguous:
            raise CaptureError(f"argument {owner} is donated, so its arrays must be contiguous")
        # The step runs on copies of what it may write.
        stays = owner not in donate and x.nbytes > SMALL
        kept.append(np.ascontiguousarray(x).reshape(x.shape) if stays else np.array(x, order="C"))
        recorded[id(x)] = recorder.argument(len(kept) - 1, owner, kept[-1])
    traced = map_arrays(lambda x: recorded[id(x)], args)
    with recording(recorder):
        return recorder, kept, step(*traced)


def _arrays_in_sequences(tree: Any) -> list[Any] | None:
    """Return the NumPy arrays in lists and tuples, or ``None`` if there is anything else."""
    if type(tree) is np.ndarray:
        return [tree]
    if type(tree) is not list and type(tree) is not tuple:
        return None
    parts = [_arrays_in_sequences(value) for value in tree]
    return None if None in parts else [x for part in parts for x in part or ()]


def _facts(x: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return what an array is besides its values: its owner may resize it, or assign to its shape or dtype."""
    return x.__array_interface__["data"], x.shape, x.dtype, x.flags.c_contiguous


def _type(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.shape, array.dtype.name


def _renew_locks() -> None:
    """In a forked process, no thread is left that could release a lock."""
    for engine in list(_engines):
        engine._lock = threading.Lock()


_engines: weakref.WeakSet[NativeEngine] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

ENGINE = NativeEngine
