"""What replays a step: one file for each array library, in `engines`, has an ``ENGINE``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from tensorops._dtypes import name_of
from tensorops._trees import map_arrays
from tensorops.backends.settings import Settings, activate
from tensorops.libraries import Backend, library_of
from tensorops.persistent._captured import Captured, CaptureError, Profile, Statistics

Step: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Options:
    """How a step is to be compiled."""

    backend: Backend
    donate: frozenset[int] = frozenset()  # the places of the arguments that it may overwrite
    workers: int | None = None  # the number of threads, if it was chosen
    repack: bool = False  # whether constant weights may be read in another order, from a copy
    # These copies: several steps may share those of weights that never change.
    panels: MutableMapping[Any, Any] = field(default_factory=dict)
    profile: bool = False  # whether `Engine.profiled` will be called instead of `Engine.run`
    world_size: int = 1  # the number of ranks


class Engine:
    """A compiled step.

    Parameters
    ----------
    step : callable
        The function.
    args : tuple
        Example arguments, on the backend.
    options : Options
        None that `refusal` has refused.

    Attributes
    ----------
    statistics : Statistics
        What compiling gave.
    exchanges : tuple
        What ranks exchange in a run, in order; it must be the same on all of them.
    no_workers, no_profile, no_ranks : str
        Why the number of threads cannot be chosen, calls cannot be measured one by one, or a step cannot be shared by
        several ranks; empty if they can.
    """

    statistics: Statistics
    exchanges: tuple[Any, ...] = ()
    no_workers = ""
    no_profile = ""
    no_ranks = "MPI sends NumPy arrays only"
    records = True
    """Whether what it replays was recorded by tensorops, and not compiled by the library itself."""

    def __init__(self, step: Step, args: tuple[Any, ...], options: Options) -> None:
        raise NotImplementedError

    @classmethod
    def refusal(cls, options: Options) -> str:
        """Return which option cannot be honoured, and why; or an empty string."""
        if options.workers is not None and cls.no_workers:
            return f"num_workers: {cls.no_workers}"
        if options.profile and cls.no_profile:
            return f"profile: {cls.no_profile}"
        if options.world_size > 1 and cls.no_ranks:
            return f"world_size: {cls.no_ranks}"
        return ""

    def run(self, args: tuple[Any, ...]) -> Any:
        """Run it once."""
        raise NotImplementedError

    def profiled(self, args: tuple[Any, ...]) -> tuple[Any, Profile]:
        """Run it once; return its results, and how long each call took. Needed unless there is `no_profile`."""
        raise NotImplementedError

    def captured(self) -> Captured:
        """Return what it runs."""
        raise NotImplementedError

    def around_step(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the step itself computes what is replayed."""
        return contextlib.nullcontext()

    def first_difference(self, step: Step, args: tuple[Any, ...]) -> str | None:
        """Return which call gives other numbers than the step's own; empty if that is not known.

        ``None`` is for an index that a call chooses among floating-point numbers, such as a sampled token: rounding may
        decide between two, and all that follows is computed from it.
        """
        return ""

    def forget(self) -> None:
        """Let go of the caller's arrays, if any are kept."""


def leaves(tree: Any) -> list[Any]:
    """Return the arrays in nested containers, in order, each once."""
    found: dict[int, Any] = {}
    map_arrays(lambda x: found.setdefault(id(x), x), tree)
    return list(found.values())


def flatten(tree: Any, arrays: list[Any], others: list[Any], kinds: frozenset[type] = frozenset()) -> None:
    """Append the arrays in lists, tuples and dicts to one list, and what else tells a call from another to the other.

    An array that occurs more than once is appended as often. Arrays of these `kinds` are found faster than others.
    """
    kind = type(tree)
    if kind in kinds:
        arrays.append(tree)
    elif kind is list or kind is tuple:
        others.append((kind, len(tree)))
        if kinds.issuperset(map(type, tree)):
            arrays.extend(tree)
        else:
            for value in tree:
                flatten(value, arrays, others, kinds)
    elif kind is dict:
        others.append((kind, *tree))
        for value in tree.values():
            flatten(value, arrays, others, kinds)
    elif library_of(tree) is not None:
        arrays.append(tree)
    else:
        others.append(tree)


def apart(args: tuple[Any, ...], kinds: frozenset[type] = frozenset()) -> tuple[list[Any], list[int], list[Any]]:
    """Return the arrays in arguments, the number of the argument that each is in, and what `flatten` calls others.

    An array that is among them twice is refused.
    """
    arrays: list[Any] = []
    owners: list[int] = []
    others: list[Any] = []
    for number, arg in enumerate(args):
        flatten(arg, arrays, others, kinds)
        owners += [number] * (len(arrays) - len(owners))
    if len({id(x) for x in arrays}) < len(arrays):
        raise CaptureError("an array is among the arguments twice; later runs might have two")
    return arrays, owners, others


def apart_again(
    args: tuple[Any, ...], count: int, others: list[Any], kinds: frozenset[type] = frozenset()
) -> list[Any]:
    """Return the arrays in the arguments of a run, which must be that many in the same containers."""
    arrays: list[Any] = []
    found: list[Any] = []
    for arg in args:
        flatten(arg, arrays, found, kinds)
    if len(arrays) != count or not _same(found, others):
        raise ValueError("the arguments differ from those when the step was compiled in more than values of arrays")
    return arrays


def require_type(number: int, now: tuple[Any, ...], was: tuple[Any, ...]) -> None:
    """Refuse an array of the arguments whose shape and dtype are not those of the example."""
    if now != was:
        said = (f"{name_of(dtype)} {shape}" for shape, dtype in (was, now))
        raise ValueError("array {} of the arguments was {} when compiled, and is now {}".format(number, *said))


class Expected:
    """What arguments must be but for the numbers in their arrays, where a library would compile again for others."""

    def __init__(self, args: tuple[Any, ...]) -> None:
        arrays: list[Any] = []
        self._others: list[Any] = []
        for arg in args:
            flatten(arg, arrays, self._others)
        self._types = [(tuple(x.shape), x.dtype) for x in arrays]

    def require(self, args: tuple[Any, ...]) -> None:
        """Raise a `ValueError` unless arguments are like those of the example."""
        for i, x in enumerate(apart_again(args, len(self._types), self._others)):
            require_type(i, (tuple(x.shape), x.dtype), self._types[i])


def _same(a: list[Any], b: list[Any]) -> bool:
    """Return whether numbers and containers are the same, and of the same types: 1 is not True, nor 1.0."""
    return len(a) == len(b) and all(type(x) is type(y) and x == y for x, y in zip(a, b, strict=True))


# ------------------------------------------------------------------------------------------ recording


def recording(recorder: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which a recorder's `call` is asked in place of every operator; it has `asked` and `settings`.

    `asked` is the name of the operator called last.
    """
    outer = recorder.settings
    plans: Any = _Plans(recorder)
    return activate(Settings(outer.backend, outer.providers, plans=plans))


class _Plans:
    """In place of the plans in settings."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def __getitem__(self, operator: Any) -> _OfOperator:
        self._recorder.asked = operator.__name__
        return _OfOperator(self._recorder, operator)


class _OfOperator:
    def __init__(self, recorder: Any, operator: Any) -> None:
        self._recorder, self._operator = recorder, operator

    def __getitem__(self, kind: type) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._recorder.call(self._operator, args, kwargs)

    def __setitem__(self, kind: type, plan: Callable[..., Any]) -> None:
        """Forget plans for constants and for calls without an array by position: later settings are not these."""


def arranger(tree: Any) -> Callable[[list[Any]], Any]:
    """Return what puts arrays into the containers in which a tree has their numbers.

    The usual ones have a function of their own, which takes a twentieth of the time of `map_arrays`.
    """
    kind = type(tree)
    if kind is np.ndarray:
        return itemgetter(int(tree))
    if kind is list and len(tree) > 1 and all(type(x) is np.ndarray for x in tree):
        several = itemgetter(*map(int, tree))
        return lambda found: list(several(found))
    if kind is list or kind is tuple:
        parts = [arranger(value) for value in tree]
        return lambda found: kind(part(found) for part in parts)
    return lambda found: map_arrays(lambda number: found[int(number)], tree)


def engine_of(library: str) -> type[Engine] | None:
    """Return the engine for the arrays of a library, if there is one."""
    module = f"tensorops.persistent.engines.{library}"
    if importlib.util.find_spec(module) is None:
        return None
    engine: type[Engine] = importlib.import_module(module).ENGINE
    return engine


def why_not(options: Options) -> str:
    """Return why a step cannot be replayed with these options, or an empty string."""
    library = options.backend.library.name
    if library == "numpy" and "cpu" not in (options.backend.providers or ()):
        return "it has no compiled kernels, whose calls could be recorded"
    engine = engine_of(library)
    return f"there is no way yet to replay steps on {library} arrays" if engine is None else engine.refusal(options)
