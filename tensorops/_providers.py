"""Providers of kernels: families of code that override operators. Each describes itself.

A package in `tensorops.kernels`, or of another distribution, has a ``PROVIDER`` that describes it; importing the
package costs almost nothing. The module that `Provider.kernels` names registers the kernels. It is imported when the
first array that the provider may support arrives.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tensorops import _hooks
from tensorops._messages import nearest
from tensorops.libraries import FILES, Backend

GENERIC = "generic"
"""The name of the operator's own body in `explain` and `set_backend(..., providers=[…])`."""


@dataclass(frozen=True)
class Provider:
    """The description of a provider of kernels.

    Parameters
    ----------
    name : str
        Its name in `explain` and ``set_backend(..., providers=[…])``.
    libraries : tuple of str
        The names of the libraries whose arrays it supports.
    kernels : str
        The module whose import registers the kernels, or raises `ImportError` with the reason why there are none. It
        must not import an array library itself; the kernels do, when they run.
    summary : str
        A one-line description.
    rank : int
        Providers of one library are asked in ascending order of rank.
    by_name : bool
        Whether only backends that name it in their `Backend.providers` use it. This is required for a provider of
        another distribution for arrays of tensorops' own libraries: what runs must not depend on whether plug-ins have
        been loaded.
    operators : tuple of str
        The names of the operators that it has kernels for, if these are few: it is not loaded for others. Empty if the
        kernels themselves say so.
    distribution : str
        The distribution on PyPI that holds what computes, if it is not an array library. An extra of tensorops of the
        same name installs it. Where it is not installed, the provider is only asked by name, to give the reason.
    devices : dict of str to str
        By library, the device that its arrays must be on, where that is not the default one. Tests put them there.
    """

    name: str
    libraries: tuple[str, ...]
    kernels: str
    summary: str
    rank: int = 0
    by_name: bool = False
    operators: tuple[str, ...] = ()
    distribution: str = ""
    devices: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def ours(self) -> bool:
        """Whether its kernels are a part of tensorops, not of another distribution."""
        return self.kernels.partition(".")[0] == "tensorops"

    def is_installed(self) -> bool:
        """Return whether what it needs besides array libraries is installed, without loading it."""
        if not self.distribution:
            return True
        from importlib import metadata

        try:
            metadata.distribution(self.distribution)
        except metadata.PackageNotFoundError:
            return False
        return True


PROVIDERS: dict[str, Provider] = {}
"""Every known provider by name."""

_reasons: dict[str, str] = {}


def register_provider(provider: Provider) -> None:
    """Register a provider of kernels.

    A distribution with a provider names it in its entry-point group ``tensorops.providers`` instead.

    Raises
    ------
    TypeError
        If it is not a `Provider`.
    ValueError
        If its name is taken, or it supports tensorops' own libraries without `by_name`.
    """
    if not isinstance(provider, Provider):
        raise TypeError(f"register_provider: expected a tensorops Provider, got {provider!r}")
    if provider.name == GENERIC or PROVIDERS.get(provider.name, provider) != provider:
        raise ValueError(f"register_provider: the name {provider.name!r} is taken")
    taken = {file.LIBRARY.name for file in FILES}.intersection(provider.libraries)
    if taken and not (provider.ours or provider.by_name):
        served = ", ".join(sorted(taken))
        raise ValueError(
            f"register_provider: {provider.name!r} supports arrays of {served}, which needs by_name=True, "
            "and a Backend that names it in its `providers`"
        )
    PROVIDERS[provider.name] = provider
    serving_library.cache_clear()


def register_failure(name: str, reason: str) -> None:
    """Register a provider that cannot be loaded, with the reason."""
    _reasons[name] = reason
    register_provider(Provider(name, (), "", "a plug-in that failed to load"))


def register_package(package: str, path: Iterable[str]) -> None:
    """Register the ``PROVIDER`` of every public package in a folder."""
    for info in pkgutil.iter_modules(path):
        if info.ispkg and not info.name.startswith("_"):
            register_provider(importlib.import_module(f"{package}.{info.name}").PROVIDER)


def serving(backend: Backend) -> tuple[str, ...]:
    """Return the names of the providers that a backend uses, in the order in which they are asked."""
    return serving_library(backend.library.name) if backend.providers is None else backend.providers


@functools.cache
def serving_library(library: str) -> tuple[str, ...]:
    """Return the names of the providers that support a library's arrays, in the order in which they are asked."""
    found = [row for row in PROVIDERS.copy().values() if library in row.libraries and not row.by_name]
    found = [row for row in found if row.is_installed()]
    return tuple(row.name for row in sorted(found, key=lambda row: (row.rank, row.name)))


def require_provider(name: object) -> None:
    """Raise `ValueError` unless `name` is valid in ``set_backend(..., providers=[…])``."""
    if name not in (*PROVIDERS, GENERIC):
        for load_plugins in _hooks.load_plugins:
            load_plugins()
    valid = (*PROVIDERS, GENERIC)
    if name not in valid:
        raise ValueError(f"unknown provider of kernels {name!r}{nearest(name, valid)}; valid names: {', '.join(valid)}")


def require_kernels(name: str, operator: str) -> None:
    """Raise `ValueError` if an operator's kernel of a provider would never be asked."""
    require_provider(name)
    if name == GENERIC:
        raise ValueError(f"{operator}: {GENERIC!r} is the operator's own body, and no provider of kernels")
    few = PROVIDERS[name].operators
    if few and operator not in few:
        raise ValueError(
            f"{operator}: the provider {name!r} is asked for {', '.join(few)} only; add {operator!r} to its `operators`"
        )


def are_apart(one: str, other: str, library: str) -> bool:
    """Return whether two providers compute on different devices of a library, so that none takes the other's calls."""
    return PROVIDERS[one].devices.get(library) != PROVIDERS[other].devices.get(library)


def load(name: str) -> str:
    """Register a provider's kernels, once; return why it cannot be loaded, or an empty string."""
    reason = _reasons.get(name)
    if reason is None:
        reason = ""
        module = PROVIDERS[name].kernels
        try:
            importlib.import_module(module)
        except ImportError as error:
            reason = str(error)
        except Exception as error:
            if PROVIDERS[name].ours:
                raise
            reason = f"{type(error).__name__}: {error}"  # a third-party package may raise anything
        # After a first failure, the attempt of a thread that waited for it may fail in another way.
        reason = _reasons.setdefault(name, reason)
    return reason
