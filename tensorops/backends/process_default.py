"""The process default, in force wherever no block is open.

It comes from `set_default_backend` or else from the configuration. It is resolved on first use, because that may
require trying backends, which importing must not do.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from types import FrameType

from tensorops.backends import config_file, probing
from tensorops.backends.config_file import AUTO, Configuration
from tensorops.backends.process import UNRESOLVED, process
from tensorops.backends.registry import BackendUnavailableError, resolve
from tensorops.backends.settings import INHERITED, Settings, current, settings_of
from tensorops.libraries import Backend

_lock = threading.Lock()  # held for assignments only
_reloading = threading.Lock()


def _renew_locks() -> None:
    global _lock, _reloading
    _lock, _reloading = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_locks)


def in_force() -> Settings:
    """Return the settings in force here, resolving the process default if necessary."""
    settings = current.get()
    return _default() if settings is INHERITED else settings


def name_of(settings: Settings) -> str:
    """Return the name of the backend in some settings, ``"auto"`` if there is none."""
    return AUTO if settings.backend is None else settings.backend.name


def _default() -> Settings:
    settings = process.settings
    return _resolve_default() if settings is UNRESOLVED else settings


def _replace_default(settings: Settings) -> None:
    """Replace the process default. A call that has begun keeps the settings it began with."""
    process.settings = settings
    object.__setattr__(INHERITED, "plans", settings.plans)


def _resolve_default() -> Settings:
    """Resolve the process default. No lock is held while backends are tried: that is slow, and calls others' code."""
    while True:
        with _lock:
            if process.settings is not UNRESOLVED:
                return process.settings
            configured, chosen, problem = process.configuration, process.chosen, process.problem
        if problem is not None and chosen is None:
            raise problem
        found, warning = _default_of(configured, chosen)
        with _lock:
            if process.settings is not UNRESOLVED or (configured, chosen) != (process.configuration, process.chosen):
                continue  # another thread was faster, or the configuration has changed meanwhile
            _replace_default(found)
        if warning:
            warnings.warn(warning, BackendFallbackWarning, stacklevel=callers_level())
        return found


def _default_of(configured: Configuration, chosen: str | None) -> tuple[Settings, str]:
    """Return the process's settings, and a warning if they are not the preferred ones."""
    name = chosen or configured.force_backend or configured.preferred_backend
    if name == AUTO:
        return Settings(), ""
    preferred = resolve(name)
    found = probing.probe_here(preferred, configured)
    if not found.reason:
        return settings_of(preferred), ""
    failure = probing.describe(preferred, found)
    if chosen:
        raise BackendUnavailableError(failure)
    if configured.force_backend:
        source = configured.sources.get("force_backend", "the configuration")
        way_out = f"unset {source}" if source in config_file.VARIABLES else "tensorops config --no-force"
        raise BackendUnavailableError(f"{failure}; {source} forces it, undo that with: {way_out}")
    return _next_in_priority(preferred, failure, configured)


def _next_in_priority(preferred: Backend, failure: str, configured: Configuration) -> tuple[Settings, str]:
    from tensorops.backends.ranking import ranked  # it detects the hardware, which few programs need

    failures = [failure]
    for name in configured.backend_priority or ranked():
        backend = resolve(name)
        if backend is preferred:
            continue
        found = probing.probe_here(backend, configured)
        if not found.reason:
            source = configured.sources.get("preferred_backend", "the configuration")
            return settings_of(backend), (
                f"{'; '.join(failures)}; {source} prefers {preferred.name!r}, and {backend.name!r} computes instead"
            )
        failures.append(probing.describe(backend, found))
    source = configured.sources.get("backend_priority", "the configuration")
    raise BackendUnavailableError(f"{'; '.join(failures)}; {source} names no other")


class BackendFallbackWarning(UserWarning):
    """The preferred backend cannot compute here, and the next in priority does; issued when that is detected."""


def callers_level() -> int:
    """Return the `stacklevel` that makes a warning point at the line outside tensorops that caused it."""
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
        process.problem = error  # raised as soon as the default is needed


def _is_our_command() -> bool:
    # The command line repairs a configuration, so it must start with a broken one.
    from pathlib import Path

    if sys.argv[:1] == ["-m"]:  # while Python imports the package in order to find its __main__
        arguments = sys.orig_argv
        return "tensorops" in arguments[arguments.index("-m") + 1 :][:1] if "-m" in arguments else False
    return Path(sys.argv[0] if sys.argv else "").stem == "tensorops"


def reload_config() -> None:
    """Read the environment variables and the configuration file again, without a restart.

    The choice of `set_default_backend` or an open `set_backend` block stays in force: both take precedence over the
    configuration. A call that another thread has begun finishes under the settings it began with.

    Raises
    ------
    ValueError
        If a variable or the file has an invalid entry. The configuration is then unchanged.
    BackendUnavailableError
        If a backend is forced and cannot compute here. The configuration is then unchanged.
    ConfigurationError
        If a backend in use cannot honour changed device options. The configuration is then unchanged.

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
        found = config_file.read()
        settings = UNRESOLVED
        try:
            if found.force_backend is not None:
                settings, _ = _default_of(found, None)
            elif found.preferred_backend == AUTO:
                settings = Settings()
            with probing.reconfigured(process.configuration, found), _lock:
                process.configuration, process.problem = found, None
                if process.chosen is None:
                    _replace_default(settings)
        finally:
            probing.forget_misconfigured()


def set_default_backend(name: str | None) -> None:
    """Choose the backend for the whole process, wherever no `set_backend` block is open.

    The choice takes precedence over the environment and the configuration file, and applies to all threads at once. An
    open `trace` block keeps the default that it began under.

    Parameters
    ----------
    name : str or None
        A backend's name or alias; ``"auto"`` computes where the arrays live; ``None`` undoes the choice, so that the
        configuration applies again.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.
    BackendUnavailableError
        If it cannot compute here, with the reason. The default is then unchanged.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.set_default_backend("numpy")
    >>> tensorops.get_backend()
    'numpy'
    >>> tensorops.set_default_backend(None)
    """
    chosen = None if name is None else config_file.backend_name(name)
    settings, _ = (UNRESOLVED, "") if chosen is None else _default_of(process.configuration, chosen)
    with _lock:
        process.chosen = chosen
        _replace_default(settings)


def get_default_backend() -> str:
    """Return the name of the backend in force where no `set_backend` block is open.

    Returns
    -------
    str
        The choice of `set_default_backend`, or else of the configuration; ``"auto"`` without either.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.get_default_backend()
    'auto'
    """
    return name_of(_default())
