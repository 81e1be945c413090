"""Settings for a block or a function: `set_backend`, `trace`, `bind_settings`.

Work in another thread starts from the process default, and another process from its configuration; `bind_settings`
carries the settings in force along.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from tensorops._pickling import Stamp, Unpicklable
from tensorops._providers import require_provider
from tensorops.backends.config_file import AUTO
from tensorops.backends.probing import first_available
from tensorops.backends.process_default import in_force, name_of
from tensorops.backends.registry import resolve
from tensorops.backends.settings import Settings, Tuned, activate, current, settings_of, settings_within
from tensorops.backends.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class _Entry:
    """A block that is open here, and the settings in force around it."""

    block: set_backend
    before: Settings


_entered: ContextVar[tuple[_Entry, ...]] = ContextVar("tensorops.entered", default=())
"""The blocks that are open here. One object may be entered by several threads, and repeatedly by a recursive
function."""


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Return whether a function is of some kind: itself, the function it is a partial of, or its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 - a callable object


def _require_plain_function(caller: str, function: Callable[..., Any], advice: str) -> None:
    """Raise `TypeError` for a function whose body would run later than its call."""
    if any(_is(kind, function) for kind in (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)):
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__name__", repr(function))
        raise TypeError(
            f"{caller}: {name} is a generator or coroutine function, whose body would run after the choice has "
            f"ended; {advice}"
        )


class set_backend(ContextDecorator):  # noqa: N801 - reads like a function, as contextlib.suppress does
    """Choose the backend for a ``with`` block or a decorated function.

    Inputs of other libraries are moved to the backend, and results come back as the caller's kind of array. The choice
    belongs to the thread or asyncio task, can be nested, and ends with the block, even by an error. A generator does
    not have its own context: a block in its body also affects its caller, from one ``yield`` to the next. Decorate the
    generator function instead.

    Parameters
    ----------
    name : str
        A backend's name or alias, see `get_available_backends`; ``"auto"`` computes where the arrays live.
    fallback : sequence of str, optional
        Backends to use instead, in this order, if `name` is not available.
    providers : sequence of str, optional
        Use only these providers' kernels, in this order (``"generic"`` is the operator's own body). An input that
        none of them supports is an error.

    Raises
    ------
    ValueError
        If a name is unknown; the valid ones are listed.
    BackendUnavailableError
        If neither `name` nor a fallback can compute here, with the reason of each. A named choice is never replaced
        silently.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> x = np.asarray([3.0, 4.0])
    >>> with tensorops.set_backend("numpy"):
    ...     tensorops.get_backend(), tensorops.rms_norm.explain(x).kernel
    ('numpy', 'generic')
    """

    def __init__(self, name: str, *, fallback: Sequence[str] = (), providers: Sequence[str] | None = None) -> None:
        if isinstance(fallback, str) or isinstance(providers, str):
            raise TypeError("set_backend: fallback and providers must be sequences of names, not one string")
        wanted = [resolve(n) for n in (name, *fallback) if n != AUTO]
        if providers is not None and not providers:
            raise ValueError("set_backend: providers is empty, expected at least one provider name")
        if providers is not None:
            for provider in providers:
                require_provider(provider)
        backend = None if name == AUTO else first_available(wanted)
        self._settings = settings_of(backend, None if providers is None else tuple(providers))
        self._unused = f"set_backend({name!r})"  # until it is entered, or decorates

    def __del__(self) -> None:
        if unused := getattr(self, "_unused", ""):
            warnings.warn(
                f"{unused} had no effect, as it was never entered: write `with tensorops.{unused}:`, decorate a "
                f"function with it, or call tensorops.set_default_backend",
                UserWarning,
                stacklevel=2,
            )

    def __call__(self, function: F) -> F:
        """Return `function` with this choice in force whenever it runs; for a generator function, in each step."""
        self._unused = ""
        if isclass(function):
            raise TypeError(f"set_backend: {function.__name__} is a class; decorate its methods")
        if _is(isgeneratorfunction, function):
            return cast(F, self._in_each_step(function))
        _require_plain_function("set_backend", function, "write `with tensorops.set_backend(...)` in its body")
        return super().__call__(function)

    def _in_each_step(self, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
        """Return a generator function whose body runs under this choice, but whose caller does not.

        A `with` block in the body would stay open while the generator is suspended: a generator does not have its own
        context, so its caller would continue under the choice of the generator.
        """

        @functools.wraps(function)
        def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            inner = function(*args, **kwargs)
            step, sent = inner.send, None
            while True:
                try:
                    with self:
                        value = step(sent)
                except StopIteration as end:
                    return end.value
                try:
                    step, sent = inner.send, (yield value)
                except GeneratorExit:
                    with self:
                        inner.close()
                    raise
                except BaseException as error:  # thrown in by the caller, for the generator to handle
                    step, sent = inner.throw, error

        return steps

    def __reduce__(self) -> tuple[Any, ...]:
        self._unused = ""  # it has an effect elsewhere
        return _chosen, (Stamp(), name_of(self._settings), self._settings.providers)

    def __repr__(self) -> str:
        name = name_of(self._settings)
        return (
            f"<set_backend {name!r}: applies to a `with` block or a decorated function; "
            f"for the whole process: set_default_backend({name!r})>"
        )

    def __enter__(self) -> None:
        self._unused = ""
        before = current.get()
        inside = self._settings
        if before.log is not None or before.tuned:
            inside = settings_within(before, inside.backend, inside.providers, before.tuned)
        _entered.set((*_entered.get(), _Entry(self, before)))
        current.set(inside)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        entered = _entered.get()
        for i in reversed(range(len(entered))):
            if entered[i].block is self:
                break
        else:  # entered in a context that is gone, for example if each notebook cell has its own
            return
        before, later = entered[i].before, entered[i + 1 :]
        if later:  # blocks of generators may end in any order: the next one is now entered from further out
            later = (_Entry(later[0].block, before), *later[1:])
        else:
            current.set(before)
        _entered.set((*entered[:i], *later))


def _chosen(_: Stamp, name: str, providers: tuple[str, ...] | None) -> set_backend:
    """Return the choice of another process, by its names; the backend must be available here as well."""
    return set_backend(name, providers=providers)


class _Bound(Generic[P, R]):
    """A function with the settings under which to run it; pickles by the settings' names."""

    def __init__(self, function: Callable[P, R], settings: Settings) -> None:
        self._function, self._settings = function, settings

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with activate(self._settings):
            return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self._settings
        name = settings.backend and settings.backend.name
        return _rebind, (Stamp(), self._function, name, settings.providers, settings.tuned)


def _rebind(
    _: Stamp, function: Callable[P, R], name: str | None, providers: tuple[str, ...] | None, tuned: tuple[Tuned, ...]
) -> _Bound[P, R]:
    backend = None if name is None else first_available([resolve(name)])
    return _Bound(function, settings_of(backend, providers, tuned))


def bind_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, bound to the settings in force here: for thread pools and process pools.

    Parameters
    ----------
    function : callable
        What to run elsewhere. For a process pool it must be picklable, as always.

    Returns
    -------
    callable
        Like `function`, but runs under the backend, the providers, the values of `tune` and (within one process) the
        trace that were in force when `bind_settings` was called.

    Raises
    ------
    TypeError
        If it is a generator or coroutine function, whose body would run later than its call.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import tensorops
    >>> with tensorops.set_backend("numpy"), ThreadPoolExecutor(1) as pool:
    ...     pool.submit(tensorops.get_backend).result()
    ...     pool.submit(tensorops.bind_settings(tensorops.get_backend)).result()
    'auto'
    'numpy'
    """
    _require_plain_function("bind_settings", function, "bind a function that runs it to its end, such as list")
    return _Bound(function, in_force())


def trace() -> AbstractContextManager[Trace]:
    """Record what runs: operators, kernels, namespaces, shapes and every transfer.

    Returns
    -------
    context manager of Trace
        Can be entered once. The trace is a sequence of records, in the order in which operators finished; prints as a
        table. It grows while the block runs, in this thread and in functions bound by `bind_settings`. An outer trace
        also records what an inner one records.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> with tensorops.set_backend("numpy"), tensorops.trace() as log:
    ...     y = tensorops.silu(np.zeros((2, 3), dtype=np.float32))
    >>> print(log)
    silu: generic on numpy, float32(2, 3)
    """
    return _Tracing()


class _Tracing(ContextDecorator, Unpicklable):
    """A block whose calls are recorded."""

    _refusal = (
        "a block of trace cannot be pickled: call trace in the other process, and pickle the Trace that its block gives"
    )

    def __init__(self) -> None:
        self._block: AbstractContextManager[Settings] | None = None

    def _recreate_cm(self) -> _Tracing:
        return _Tracing()  # for each call of a decorated function

    def __enter__(self) -> Trace:
        if self._block is not None:
            raise RuntimeError("trace: what it returns can be entered once; call trace again")
        outer = in_force()
        log = Trace(outer=outer.log)
        self._block = activate(Settings(outer.backend, outer.providers, log, outer.tuned))
        self._block.__enter__()
        return log

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._block is not None
        self._block.__exit__(kind, error, tb)


def get_backend() -> str:
    """Return the name of the backend in force here, ``"auto"`` if none was chosen.

    With ``"auto"`` an operator computes where its arrays live. The order of precedence is: a `set_backend` block,
    `set_default_backend`, the environment variables, the configuration file.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.get_backend()
    'auto'
    """
    return name_of(in_force())
