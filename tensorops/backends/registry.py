"""The table of backends that users name in `set_backend` and in the configuration.

A backend is a library, a device of it, and the order of its providers of kernels. The rows are in the files of
`tensorops.libraries`. Those of other distributions are loaded through the entry points ``tensorops.backends`` when a
user asks for an unknown name, lists all backends, or passes an array of an unknown library.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tensorops import _hooks
from tensorops._display import printable, shortened
from tensorops._messages import describe_error, nearest
from tensorops._providers import (
    PROVIDERS,
    Provider,
    load,
    register_failure,
    register_provider,
    serving_library,
)
from tensorops.libraries import FILES, LIBRARIES, Backend, Library, register_library

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

BACKENDS_GROUP = "tensorops.backends"
PROVIDERS_GROUP = "tensorops.providers"


class BackendUnavailableError(RuntimeError):
    """A backend was requested by name and cannot compute here; the message gives the reason and the remedy."""


_rows: list[Backend] = [backend for file in FILES for backend in file.BACKENDS]
_rows.sort(key=lambda backend: backend.for_tests)  # a stable sort: the order within a file counts

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in _rows}
"""Every backend by name, including those of plug-ins once they are loaded; see `all_backends`."""

_by_any_name = {name: b for b in BACKENDS.values() for name in (b.name, *b.aliases)}
_lock = threading.RLock()
_plugins_loaded = _plugins_loading = False

plugins: dict[str, str] = {}
"""The rows of other distributions, including failed ones, and the name of each one's distribution."""
plugin_failures: dict[str, str] = {}
"""Why a row of `plugins` failed to load."""
provider_plugins: dict[str, str] = {}
"""The providers of other distributions, including failed ones, and the name of each one's distribution."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_lock)


NOT_BACKENDS = {
    "opt_einsum": "the operator tensorops.einsum, which computes on every backend",
    "mha": "the operator tensorops.multi_head_attention, which computes on every backend",
}
"""Names that are requested as backends, and what they are instead."""


def resolve(name: object) -> Backend:
    """Return the backend with the name or alias `name`.

    Raises
    ------
    ValueError
        If there is none: the valid names are listed, and the nearest is suggested.
    """
    if isinstance(name, ModuleType):
        raise ValueError(f"a backend is given by its name, such as 'numpy', not as the module {name.__name__}")
    backend = _by_any_name.get(name) if isinstance(name, str) else None
    if backend is None:
        load_plugins()
        backend = _by_any_name.get(name) if isinstance(name, str) else None
    if backend is None and isinstance(name, str) and name in NOT_BACKENDS:
        raise ValueError(f"{name!r} is not a backend, but {NOT_BACKENDS[name]}")
    if backend is None:
        raise ValueError(
            f"unknown backend {shortened(repr(name))}{nearest(name, _by_any_name)}; "
            f"valid names: {', '.join(_by_any_name)}"
        )
    return backend


def all_backends() -> dict[str, Backend]:
    """Return every backend by name, plug-ins included."""
    load_plugins()
    return dict(BACKENDS)


def register_backend(backend: Backend) -> None:
    """Add your own backend to the table.

    A distribution with a backend names it in its entry-point group ``tensorops.backends`` instead; no call is needed.

    Parameters
    ----------
    backend : tensorops.backends.Backend
        Its library is registered as well, if it is new.

    Raises
    ------
    TypeError
        If it is not a `Backend`.
    ValueError
        If one of its names or its library is already taken, or a provider is unknown.

    Examples
    --------
    >>> import tensorops
    >>> from tensorops.backends import LIBRARIES, Backend
    >>> tensorops.register_backend(Backend("python", LIBRARIES["numpy"], "NumPy once more"))
    Traceback (most recent call last):
        ...
    ValueError: register_backend: the name 'python' already means the backend 'numpy'
    """
    lists = [getattr(backend, name, None) for name in ("aliases", "providers")]
    if not isinstance(getattr(backend, "library", None), Library) or any(isinstance(names, str) for names in lists):
        raise TypeError(
            f"register_backend: expected a tensorops.backends.Backend with a Library, and tuples of "
            f"names, got {backend!r}"
        )
    with _lock:
        names = (backend.name, *backend.aliases)
        for name in names:
            if not isinstance(name, str) or not name.isidentifier() or name == "auto":
                raise ValueError(
                    f"register_backend: {name!r} cannot be a backend's name: it is 'auto' or not a Python identifier"
                )
            if (taken := _by_any_name.get(name)) is not None and taken is not backend:
                raise ValueError(f"register_backend: the name {name!r} already means the backend {taken.name!r}")
        for provider in backend.providers or ():
            if provider not in PROVIDERS:
                raise ValueError(f"register_backend: {backend.name!r} uses an unknown provider, {provider!r}")
        register_library(backend.library)
        BACKENDS[backend.name] = backend
        _by_any_name.update(dict.fromkeys(names, backend))


def load_plugins() -> None:
    """Register the backends of other distributions, once; one that fails becomes a row with the reason.

    A package that this program has not imported is first loaded in a separate process, because it might never finish.
    """
    if not _plugins_loaded:
        with _lock:
            _load_plugins_once(_entry_points(), _refuse)


def _refuse(point: EntryPoint) -> None:
    for refuse in _hooks.refuse_plugin:
        refuse(point)


def load_plugins_of(owner: str) -> None:
    """Register only the backends of one distribution (``""`` for none), in a process that tries one."""
    with _lock:
        _load_plugins_once((found for found in _entry_points() if found[0] == owner), lambda point: None)


def _load_plugins_once(found: Iterable[tuple[str, EntryPoint]], refuse: Callable[[EntryPoint], None]) -> None:
    global _plugins_loaded, _plugins_loading
    if _plugins_loaded or _plugins_loading:  # an entry point's module may itself ask for a backend
        return
    _plugins_loading = True
    try:
        for owner, point in found:
            try:
                refuse(point)
                _register_plugin(point, owner)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # third-party code may raise anything
                _register_failure(point, owner, error)
        _plugins_loaded = True
    finally:
        _plugins_loading = False


def _register_plugin(point: EntryPoint, owner: str) -> None:
    row = made_by(point)
    if point.group == PROVIDERS_GROUP:
        register_provider(row)
        provider_plugins[row.name] = owner
    else:
        register_backend(row)
        plugins[row.name] = owner


def made_by(point: EntryPoint) -> Any:
    """Return the row that an entry point names, or that the function named by it returns."""
    found = point.load()
    kind = Provider if point.group == PROVIDERS_GROUP else Backend
    if isinstance(found, kind):
        return found
    if not callable(found):
        raise TypeError(f"the entry point is neither a {kind.__name__} nor a function that returns one: {found!r}")
    return found()  # registering checks it


def why_unused(provider: Provider) -> tuple[str, str]:
    """Return why no backend asks a provider of another distribution, and what helps; empty strings if one does."""
    if not provider.kernels:
        return load(provider.name), f"pip install --upgrade {provider_plugins[provider.name]}"
    if not LIBRARIES.keys() & provider.libraries:
        said = ", ".join(map(repr, provider.libraries)) or "none"
        hint = nearest(provider.libraries[0], LIBRARIES) if provider.libraries else ""
        return (
            f"no array library here has the name that it supports: {said}{hint}",
            f"its author corrects `libraries`, or names a Backend of that library in the entry points {BACKENDS_GROUP}",
        )
    if not provider.is_installed():
        return f"{provider.distribution} is not installed", f"pip install {provider.distribution}"
    if provider.by_name and not _naming(provider):
        return (
            "it has by_name=True, and no backend names it in its `providers`",
            f"set_backend(..., providers=[{provider.name!r}, 'generic']) in a program; its author names it in the "
            f"`providers` of a Backend in the entry points {BACKENDS_GROUP}",
        )
    return "", ""


def _naming(provider: Provider) -> list[str]:
    return [backend.name for backend in BACKENDS.copy().values() if provider.name in (backend.providers or ())]


def unused_providers(library: str, kernel: str, refused: Collection[str]) -> dict[str, str]:
    """Return the providers of other distributions that a call on a library's arrays does not ask, and why.

    Plug-ins are loaded for the answer. `kernel` is the provider that runs, `refused` are those before it.
    """
    load_plugins()
    reasons = {}
    for name, provider in PROVIDERS.copy().items():
        if provider.ours or name == kernel or name in refused:
            continue
        if library not in provider.libraries and LIBRARIES.keys() & provider.libraries:
            continue
        reason, remedy = why_unused(provider)
        if not reason and provider.by_name:
            reason, remedy = "it is asked by name only", f"set_backend({_naming(provider)[0]!r})"
        elif not reason and {name, kernel} <= {*serving_library(library)}:
            reason, remedy = f"{kernel} is asked before it", f"set_backend(..., providers=[{name!r}, 'generic'])"
        if reason:
            reasons[name] = f"{reason}; to fix it: {remedy}"
    return reasons


def _entry_points() -> Iterator[tuple[str, EntryPoint]]:
    """Return the entry points of these groups and the distribution of each.

    Those of providers come first, so that backends can name them.
    """
    found = _points_by_distribution()
    for group in (PROVIDERS_GROUP, BACKENDS_GROUP):
        yield from ((owner, point) for owner, points in found.items() for point in points if point.group == group)


def misspelt_groups() -> list[tuple[str, str]]:
    """Return the distributions with entry points for tensorops in a group that there is not, and the group's name."""
    found = _points_by_distribution()
    groups = (BACKENDS_GROUP, PROVIDERS_GROUP)
    return [(owner, point.group) for owner, points in found.items() for point in points if point.group not in groups]


def _points_by_distribution() -> dict[str, list[EntryPoint]]:
    """Return the entry points whose groups begin with ``tensorops.``; broken distributions are skipped."""
    from importlib.metadata import distributions

    found: dict[str, list[EntryPoint]] = {}
    for distribution in distributions():
        try:
            if "[tensorops." not in (distribution.read_text("entry_points.txt") or ""):
                continue
            points = [p for p in distribution.entry_points if p.group.startswith("tensorops.")]
            found.setdefault(distribution.metadata["Name"], points)  # the first on the path is the one imported
        except Exception:  # noqa: S112 - an unreadable entry is not a distribution
            continue
    return found


def _register_failure(point: EntryPoint, owner: str, error: BaseException) -> None:
    owner, name = printable(owner), printable(point.name)
    reason = f"the plug-in of {owner} failed to load: {describe_error(error)}"
    if point.group == PROVIDERS_GROUP:
        name = name if name not in PROVIDERS else f"{name}@{owner}"
        register_failure(name, reason)
        provider_plugins[name] = owner
        return
    row = name if name not in _by_any_name else f"{name}@{owner}"
    nowhere = Library.unusable(row, reason)
    backend = Backend(row, nowhere, f"a plug-in of {owner}", missing=reason, remedy=f"pip install --upgrade {owner}")
    BACKENDS[row] = _by_any_name[row] = backend
    plugins[row], plugin_failures[row] = owner, reason


_hooks.load_plugins.append(load_plugins)
