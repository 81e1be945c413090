"""What is in force: one immutable object behind one context variable.

A context variable gives every thread and every asyncio task its own view, nests, and is restored when a block
ends in an error. Work handed to another thread or process starts from the process's default; `bind_settings`
carries what is in force here along.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from tensorops.backends.registry import Backend, first_available, resolve
from tensorops.backends.trace import Trace

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """Who computes, and who is told about it.

    Parameters
    ----------
    backend
        The backend chosen, or ``None``: compute where the arrays live.
    kernels
        Names of the only providers to use, in this order, or ``None`` for the usual choice.
    log
        Where to record what ran, or ``None``.
    plans
        For every operator, the function that a type of array leads to, found on its first call. They belong
        to these settings, so that a call finds its kernel with two look-ups and no decision.
    """

    backend: Backend | None = None
    kernels: tuple[str, ...] | None = None
    log: Trace | None = None
    plans: defaultdict[Any, dict[type, Callable[..., Any]]] = field(
        default_factory=lambda: defaultdict(dict), repr=False
    )


def _from_environment() -> Settings:
    name = os.environ.get("TENSOROPS_BACKEND", "auto")
    if name == "auto":
        return Settings()
    try:
        return Settings(backend=resolve(name))
    except ValueError as error:
        raise ValueError(f"environment variable TENSOROPS_BACKEND: {error}") from None


# Settings compare by identity; the plans in them are a cache.
current: ContextVar[Settings] = ContextVar("tensorops.settings", default=_from_environment())  # noqa: B039


@lru_cache(maxsize=128)
def _shared(backend: Backend, kernels: tuple[str, ...] | None) -> Settings:
    """Return one object for equal settings, so that entering a block again finds its plans made."""
    return Settings(backend, kernels)


@contextmanager
def activate(settings: Settings) -> Iterator[Settings]:
    """Put `settings` in force for the length of a block."""
    token = current.set(settings)
    try:
        yield settings
    finally:
        current.reset(token)


class set_backend(ContextDecorator):  # noqa: N801 - reads like a function, as contextlib.suppress does
    """Choose who computes, for a ``with`` block or a decorated function.

    Inputs of other libraries are taken to the backend, and results come back as the caller's kind of array:
    naming a backend is the consent to move. The choice is bound to the thread or asyncio task, nests, and ends
    with the block even if an error ends it.

    Parameters
    ----------
    name : str
        A backend's name or alias, see `get_available_backends`.
    fallback : sequence of str, optional
        Backends to take instead, in this order, if `name` is not available.
    kernels : sequence of str, optional
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

    def __init__(self, name: str, *, fallback: Sequence[str] = (), kernels: Sequence[str] | None = None) -> None:
        if isinstance(fallback, str) or isinstance(kernels, str):
            raise TypeError("set_backend: fallback and kernels are sequences of names, not one string")
        wanted = [resolve(n) for n in (name, *fallback)]
        if kernels is not None and not kernels:
            raise ValueError("set_backend: kernels is empty, expected at least one provider's name")
        if kernels is not None:
            from tensorops._operator import require_provider

            for kernel in kernels:
                require_provider(kernel)
        self._settings = _shared(first_available(wanted), None if kernels is None else tuple(kernels))
        # A decorator's one object may be entered by several threads, and by a recursive function again and
        # again: each entry's token is kept in its own context.
        self._tokens: ContextVar[tuple[Token[Settings], ...]] = ContextVar("tensorops.tokens", default=())

    def __call__(self, function: F) -> F:
        """Return `function`, with this choice in force whenever it runs."""
        if isgeneratorfunction(function) or iscoroutinefunction(function) or isasyncgenfunction(function):
            raise TypeError(
                f"set_backend: {function.__name__} is a generator or coroutine function, whose body would run after "
                "the choice has ended; write `with tensorops.set_backend(...)` in its body"
            )
        return super().__call__(function)

    def __enter__(self) -> None:
        inherited = self._settings
        if (log := current.get().log) is not None:
            inherited = Settings(inherited.backend, inherited.kernels, log)
        self._tokens.set((*self._tokens.get(), current.set(inherited)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        *outer, token = self._tokens.get()
        self._tokens.set(tuple(outer))
        current.reset(token)


class _Bound(Generic[P, R]):
    """A function together with the settings it is to run under; pickles by the settings' names."""

    def __init__(self, function: Callable[P, R], settings: Settings) -> None:
        self._function, self._settings = function, settings

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with activate(self._settings):
            return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        backend = self._settings.backend
        return _rebind, (self._function, backend and backend.name, self._settings.kernels)


def _rebind(function: Callable[P, R], backend: str | None, kernels: tuple[str, ...] | None) -> _Bound[P, R]:
    if backend is None:
        return _Bound(function, Settings(kernels=kernels))
    return _Bound(function, _shared(first_available([resolve(backend)]), kernels))


def bind_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function`, bound to the settings in force here: for thread pools and process pools.

    Parameters
    ----------
    function : callable
        What to run elsewhere. For a process pool it must pickle, as always.

    Returns
    -------
    callable
        Takes and returns what `function` does, under the backend, the kernels and (within one process) the
        trace that were in force when `bind_settings` was called.

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
    return _Bound(function, current.get())


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
    outer = current.get()
    if outer.backend is not None:  # the environment may have named it, and nobody asked yet whether it works
        first_available([outer.backend])
    with activate(Settings(outer.backend, outer.kernels, Trace(outer=outer.log))) as inner:
        assert inner.log is not None
        yield inner.log


def get_backend() -> str:
    """Return the name of the backend in force here, ``"auto"`` if none was chosen.

    With ``"auto"`` an operator computes where its arrays live.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.get_backend()
    'auto'
    """
    backend = current.get().backend
    return "auto" if backend is None else backend.name
