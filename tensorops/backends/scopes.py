"""What a block or a function puts in force: `set_backend`, `trace`, `bind_settings`.

Work handed to another thread starts from the process's default, and so does another process from its configuration;
`bind_settings` carries what is in force here along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

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
    """A block that is open here, and what was in force around it."""

    block: set_backend
    before: Settings


_entered: ContextVar[tuple[_Entry, ...]] = ContextVar("tensorops.entered", default=())
"""The blocks that are open here. One object may be entered by several threads, and by a recursive function again and
again."""


def _is(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Tell whether a function is of some kind: itself, what it is a partial of, or its ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return kind(function) or kind(getattr(function, "__call__", None))  # noqa: B004 - an object that can be called


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
    """Choose who computes, for a ``with`` block or a decorated function.

    Inputs of other libraries are taken to the backend, and results come back as the caller's kind of array:
    naming a backend is the consent to move. The choice is bound to the thread or asyncio task, nests, and ends
    with the block even if an error ends it. A generator has no context of its own: a block in its body holds for its
    caller as well, from one ``yield`` to the next. Decorate the generator function instead.

    Parameters
    ----------
    name : str
        A backend's name or alias, see `get_available_backends`; ``"auto"`` computes where the arrays live.
    fallback : sequence of str, optional
        Backends to take instead, in this order, if `name` is not available.
    providers : sequence of str, optional
        Use these providers' kernels only, in this order (``"generic"`` is the operator's own body). An input that
        none of them supports is an error.

    Raises
    ------
    ValueError
        If a name is unknown; the valid ones are listed.
    BackendUnavailableError
        If neither `name` nor a fallback can compute here, with each one's reason. A named choice never goes on
        with something else.

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
            raise TypeError("set_backend: fallback and providers are sequences of names, not one string")
        wanted = [resolve(n) for n in (name, *fallback) if n != AUTO]
        if providers is not None and not providers:
            raise ValueError("set_backend: providers is empty, expected at least one provider's name")
        if providers is not None:
            for provider in providers:
                require_provider(provider)
        backend = None if name == AUTO else first_available(wanted)
        self._settings = settings_of(backend, None if providers is None else tuple(providers))

    def __call__(self, function: F) -> F:
        """Return `function`, with this choice in force whenever it runs; a generator function, in each of its steps."""
        if isclass(function):
            raise TypeError(f"set_backend: {function.__name__} is a class; decorate its methods")
        if _is(isgeneratorfunction, function):
            return cast(F, self._in_each_step(function))
        _require_plain_function("set_backend", function, "write `with tensorops.set_backend(...)` in its body")
        return super().__call__(function)

    def _in_each_step(self, function: Callable[..., Generator[Any, Any, Any]]) -> Callable[..., Any]:
        """Return a generator function whose body runs under this choice, and whose caller does not.

        A `with` block in the body would stay open while the generator is suspended: a generator has no context of its
        own, and its caller would go on under the choice of the generator.
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
                except BaseException as error:  # thrown in by the caller: it is the generator's to handle
                    step, sent = inner.throw, error

        return steps

    def __repr__(self) -> str:
        name = name_of(self._settings)
        return (
            f"<set_backend {name!r}: holds within a `with` block or a decorated function; "
            f"for the whole process: set_default_backend({name!r})>"
        )

    def __enter__(self) -> None:
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
        else:  # entered in a context that is gone, as where each cell of a notebook has its own
            return
        before, later = entered[i].before, entered[i + 1 :]
        if later:  # blocks of generators may end in any order: the next one is now entered from further out
            later = (_Entry(later[0].block, before), *later[1:])
        else:
            current.set(before)
        _entered.set((*entered[:i], *later))


class _Bound(Generic[P, R]):
    """A function together with the settings it is to run under; pickles by the settings' names."""

    def __init__(self, function: Callable[P, R], settings: Settings) -> None:
        self._function, self._settings = function, settings

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with activate(self._settings):
            return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self._settings
        name = settings.backend and settings.backend.name
        return _rebind, (self._function, name, settings.providers, settings.tuned)


def _rebind(
    function: Callable[P, R], name: str | None, providers: tuple[str, ...] | None, tuned: tuple[Tuned, ...]
) -> _Bound[P, R]:
    backend = None if name is None else first_available([resolve(name)])
    return _Bound(function, settings_of(backend, providers, tuned))


def bind_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, bound to the settings in force here: for thread pools and process pools.

    Parameters
    ----------
    function : callable
        What to run elsewhere. For a process pool it must pickle, as always.

    Returns
    -------
    callable
        Takes and returns what `function` does, under the backend, the providers, what `tune` chose and (within one
        process) the trace that were in force when `bind_settings` was called.

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


@contextmanager
def trace() -> Iterator[Trace]:
    """Record what runs: operators, kernels, namespaces, shapes and every transfer.

    Yields
    ------
    Trace
        A sequence of records, in the order in which operators finished; prints as a table. It goes on
        filling while the block runs, in this thread and in functions bound by `bind_settings`. What an inner trace
        records the outer one records, too.

    Examples
    --------
    >>> import numpy as np, tensorops
    >>> with tensorops.set_backend("numpy"), tensorops.trace() as log:
    ...     y = tensorops.silu(np.zeros((2, 3), dtype=np.float32))
    >>> print(log)
    silu: generic on numpy, float32(2, 3)
    """
    outer = in_force()
    with activate(Settings(outer.backend, outer.providers, Trace(outer=outer.log), outer.tuned)) as inner:
        assert inner.log is not None
        yield inner.log


def get_backend() -> str:
    """Return the name of the backend in force here, ``"auto"`` if none was chosen.

    With ``"auto"`` an operator computes where its arrays live. A `set_backend` block goes first, then
    `set_default_backend`, the environment variables, the configuration file.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.get_backend()
    'auto'
    """
    return name_of(in_force())
