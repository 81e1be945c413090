"""What is in force: one immutable object behind one context variable, and one for the process beneath it.

A context variable gives every thread and every asyncio task its own view, nests, and is restored when a block
ends in an error. Where no block says otherwise the process's default is in force: what `set_default_backend` chose, or
else what the configuration says. Work handed to another thread starts from that default, and so does another process
from its configuration; `bind_settings` carries what is in force here along.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import FrameType, TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from tensorops import kernels
from tensorops.backends import configuration
from tensorops.backends.configuration import AUTO, Configuration
from tensorops.backends.probing import describe, first_available, probe_here, reconfigure
from tensorops.backends.registry import Backend, BackendUnavailableError, resolve
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


INHERITED = Settings()
"""Stands for the process's default wherever no block says otherwise. Its plans are those of that default, so that a
call need not ask which it is."""

current: ContextVar[Settings] = ContextVar("tensorops.settings", default=INHERITED)
"""What the innermost block put in force here, or `INHERITED`; see `in_force`."""

UNRESOLVED = Settings()
"""Stands for a default that nobody has asked for yet: finding it may try backends, and import does not."""


@dataclass
class _Process:
    """What holds for the whole process. Each field is replaced as a whole, so no thread sees half of a change."""

    settings: Settings = UNRESOLVED
    configuration: Configuration = field(default_factory=Configuration)
    chosen: str | None = None  # by set_default_backend
    problem: Exception | None = None  # what kept the configuration from being applied; the command line goes on


process = _Process()
_lock = threading.Lock()  # held for assignments only
_reloading = threading.Lock()


def _renew_locks() -> None:
    global _lock, _reloading
    _lock, _reloading = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_locks)


def in_force() -> Settings:
    """Return what is in force here; the first time it finds the process's default."""
    settings = current.get()
    return _default() if settings is INHERITED else settings


def _default() -> Settings:
    settings = process.settings
    return _resolve_default() if settings is UNRESOLVED else settings


def _replace_default(settings: Settings) -> None:
    """Make other settings the process's default. A call that has begun keeps those that it began with."""
    process.settings = settings
    object.__setattr__(INHERITED, "plans", settings.plans)


def _resolve_default() -> Settings:
    """Find the process's default. No lock is held while backends are tried: that takes long, or calls others' code."""
    while True:
        with _lock:
            if process.settings is not UNRESOLVED:
                return process.settings
            configured, chosen = process.configuration, process.chosen
        found, warning = _default_of(configured, chosen)
        with _lock:
            if process.settings is not UNRESOLVED or (configured, chosen) != (process.configuration, process.chosen):
                continue  # another thread was faster, or the configuration has changed meanwhile
            _replace_default(found)
        if warning:
            warnings.warn(warning, BackendFallbackWarning, stacklevel=_callers_level())
        return found


@lru_cache(maxsize=128)
def _shared(backend: Backend, kernels: tuple[str, ...] | None) -> Settings:
    """Return one object for equal settings, so that entering a block again finds its plans made."""
    return Settings(backend, kernels)


def _default_of(configured: Configuration, chosen: str | None) -> tuple[Settings, str]:
    """Return the process's settings, and what to warn of if they are not the preferred ones."""
    name = chosen or configured.force_backend or configured.preferred_backend
    if name == AUTO:
        return Settings(), ""
    preferred = resolve(name)
    found = probe_here(preferred, configured)
    if not found.reason:
        return _shared(preferred, None), ""
    failure = describe(preferred, found)
    if chosen or configured.force_backend:
        raise BackendUnavailableError(failure)
    return _next_in_priority(preferred, failure, configured)


def _next_in_priority(preferred: Backend, failure: str, configured: Configuration) -> tuple[Settings, str]:
    failures = [failure]
    for name in configured.backend_priority or _best_first():
        backend = resolve(name)
        if backend is preferred:
            continue
        found = probe_here(backend, configured)
        if not found.reason:
            source = configured.sources.get("preferred_backend", "the configuration")
            return _shared(backend, None), (
                f"{'; '.join(failures)}; {source} prefers {preferred.name!r}, and {backend.name!r} computes instead"
            )
        failures.append(describe(backend, found))
    raise BackendUnavailableError("; ".join(failures))


def _best_first() -> tuple[str, ...]:
    from tensorops.backends.optimal import ranked

    return ranked()


class BackendFallbackWarning(UserWarning):
    """The preferred backend cannot compute here, and the next in priority does; said once."""


def _callers_level() -> int:
    """Return the `stacklevel` that makes a warning point at the line outside of tensorops that led to it."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and _package_of(frame) in ("tensorops", "contextlib"):
        level, frame = level + 1, frame.f_back
    return level


def _package_of(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def start() -> None:
    """Apply the configuration when tensorops is imported; nothing is tried unless a backend is forced."""
    try:
        reload_config()
    except (ValueError, BackendUnavailableError) as error:
        if not _is_our_command():
            raise
        process.problem = error


def _is_our_command() -> bool:
    # The command line is what mends a configuration, so that it has to start with a broken one.
    from pathlib import Path

    return Path(sys.argv[0] if sys.argv else "").stem == "tensorops" or (
        sys.argv[:1] == ["-m"] and "tensorops" in sys.orig_argv
    )


def reload_config() -> None:
    """Read the environment variables and the configuration file again, without a restart.

    What `set_default_backend` or an open `set_backend` block chose goes on: both come before the configuration. A call
    that another thread has begun ends under the settings that it began with.

    Raises
    ------
    ValueError
        If a variable or the file says something that means nothing. The configuration is then as it was.
    BackendUnavailableError
        If a backend is forced and cannot compute here. The configuration is then as it was.
    ConfigurationError
        If a backend that is in use cannot honour changed options of its device. The configuration is then as it was.

    Examples
    --------
    >>> import os, tensorops
    >>> os.environ["TENSOROPS_BACKEND"] = "numpy"
    >>> tensorops.reload_config()
    >>> tensorops.get_default_backend()
    'numpy'
    >>> del os.environ["TENSOROPS_BACKEND"]
    >>> tensorops.reload_config()
    >>> tensorops.get_default_backend()
    'auto'
    """
    with _reloading:
        found = configuration.read()
        settings = UNRESOLVED
        if found.force_backend is not None:
            settings, _ = _default_of(found, None)
        elif found.preferred_backend == AUTO:
            settings = Settings()
        reconfigure(process.configuration, found)
        with _lock:
            process.configuration, process.problem = found, None
            if process.chosen is None:
                _replace_default(settings)
    kernels.configure_loaded()


def set_default_backend(name: str | None) -> None:
    """Choose who computes in the whole process, wherever no `set_backend` block says otherwise.

    It comes before the environment and the configuration file, and holds in all threads at once.

    Parameters
    ----------
    name : str or None
        A backend's name or alias; ``"auto"`` computes where the arrays live; ``None`` takes the choice back, so that
        the configuration is in force again.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.
    BackendUnavailableError
        If it cannot compute here, with the reason. The default is then as it was.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.set_default_backend("numpy")
    >>> tensorops.get_backend()
    'numpy'
    >>> tensorops.set_default_backend(None)
    """
    chosen = None if name is None else configuration.backend_name(name)
    settings, _ = (UNRESOLVED, "") if chosen is None else _default_of(process.configuration, chosen)
    with _lock:
        process.chosen = chosen
        _replace_default(settings)


def get_default_backend() -> str:
    """Return the name of the backend in force where no `set_backend` block says otherwise.

    Returns
    -------
    str
        What `set_default_backend` chose, or else what the configuration says; ``"auto"`` without either.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.get_default_backend()
    'auto'
    """
    return _name_of(_default())


def _name_of(settings: Settings) -> str:
    return AUTO if settings.backend is None else settings.backend.name


@contextmanager
def activate(settings: Settings) -> Iterator[Settings]:
    """Put `settings` in force for the length of a block."""
    token = current.set(settings)
    try:
        yield settings
    finally:
        _take_back(token)


def _take_back(token: Token[Settings]) -> None:
    try:
        current.reset(token)
    except (ValueError, RuntimeError):
        # Entered in another context: a notebook may run each cell in a copy, and a copy may be left as well.
        current.set(INHERITED if token.old_value is Token.MISSING else token.old_value)


_entered: ContextVar[tuple[tuple[set_backend, Token[Settings]], ...]] = ContextVar("tensorops.entered", default=())
"""The blocks that are open here and what takes each back. One object may be entered by several threads, and by a
recursive function again and again."""


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
        _entered.set((*_entered.get(), (self, current.set(inherited))))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        entered = _entered.get()
        for i in reversed(range(len(entered))):
            block, token = entered[i]
            if block is self:
                _entered.set(entered[:i] + entered[i + 1 :])
                _take_back(token)
                return
        # Entered in a context that is gone, as where each cell of a notebook has its own: nothing to take back.


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
    with activate(Settings(outer.backend, outer.kernels, Trace(outer=outer.log))) as inner:
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
    return _name_of(in_force())
