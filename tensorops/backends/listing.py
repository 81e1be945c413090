"""Lists of backends: which can compute here, best first, and why the others cannot."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from dataclasses import replace
from typing import Any

from tensorops._display import Displayed, Table
from tensorops._providers import serving
from tensorops.backends.config_file import AUTO
from tensorops.backends.probing import Probe, probe, probe_all, probe_here
from tensorops.backends.process import process
from tensorops.backends.process_default import in_force
from tensorops.backends.registry import all_backends, plugin_failures, resolve
from tensorops.backends.scopes import get_backend
from tensorops.libraries import Backend


def best_first() -> tuple[Backend, ...]:
    """Return every backend: the configured priority first, then by how well each suits this hardware."""
    from tensorops.backends.ranking import ranked

    rows = all_backends()
    return tuple(rows[name] for name in ranked(priority=process.configuration.backend_priority))


def get_available_backends(*, refresh: bool = False) -> tuple[str, ...]:
    """Return the names of the backends that can compute here, best first.

    Each was tried once, by a tiny checked computation. A library that this program has not imported was tried in a
    separate process with a time limit, because its driver might hang.

    Parameters
    ----------
    refresh : bool, default False
        Try each of them again.

    Returns
    -------
    tuple of str
        The configured `backend_priority` first, then by how well each suits this hardware, see `get_optimal_backend`.

    Examples
    --------
    >>> import tensorops
    >>> "numpy" in tensorops.get_available_backends()
    True
    """
    rows = best_first()
    probes = probe_all(rows, refresh=refresh)
    return tuple(b.name for b in rows if not probes[b.name].reason)


def is_backend_available(name: str, *, refresh: bool = False) -> bool:
    """Return whether a backend can compute here.

    Parameters
    ----------
    name : str
        Its name or an alias.
    refresh : bool, default False
        Try it again.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.is_backend_available("numpy")
    True
    """
    return not probe(resolve(name), refresh=refresh).reason


def get_backend_info(name: str | None = None) -> dict[str, Any]:
    """Return information about a backend and its device.

    Parameters
    ----------
    name : str, optional
        A backend's name or alias; by default the backend in force, or with ``"auto"`` the backend ``cpu``.

    Returns
    -------
    dict
        ``backend`` (name), ``config`` (``preferred_backend``, ``force_backend`` and ``backend_priority``, and what was
        configured for its device), ``available_backends``, ``compute_capability`` (int, 90 means 9.0),
        ``compute_units``, ``max_memory`` and ``max_shared_memory`` (bytes), ``device_count``, ``device_name``,
        ``dtypes``, ``versions``, ``simd`` and ``openmp`` (of the kernels for processors); of these, what is not known
        is left out. ``verified`` (when it computed correctly here, in ISO 8601), ``reason`` (why it is unavailable),
        ``remedy``, ``aliases``, ``library``, ``providers``, ``summary`` and ``tested`` are ``None`` if there is none.

    Raises
    ------
    ValueError
        If there is no backend of that name; the valid ones are listed.

    Examples
    --------
    >>> import tensorops
    >>> info = tensorops.get_backend_info("numpy")
    >>> info["backend"], info["device_count"], info["reason"]
    ('numpy', 1, None)
    """
    from tensorops.backends.options import get_config
    from tensorops.libraries import DeviceFacts, runtime_of

    if name is None:
        in_use = in_force().backend
        backend = resolve("cpu") if in_use is None else in_use
    else:
        backend = resolve(name)
    found = probe_here(backend)  # not in another process: querying a library's device starts it in this one
    try:
        facts = DeviceFacts() if found.reason else runtime_of(backend).facts()
    except RuntimeError as error:  # it computes, but fails to describe itself
        found, facts = replace(found, reason=str(error)), DeviceFacts()
    config, configured = get_config(backend.name), process.configuration
    return {
        "backend": backend.name,
        "config": {
            "preferred_backend": configured.preferred_backend,
            "force_backend": configured.force_backend,
            "backend_priority": list(configured.backend_priority),
            **({} if config is None else dataclasses.asdict(config)),
        },
        "available_backends": list(get_available_backends()),
        **{name: value for name, value in dataclasses.asdict(facts).items() if value is not None},
        **describe_row(backend, found),
    }


def describe_row(backend: Backend, found: Probe) -> dict[str, Any]:
    """Return a backend's row of the table and the outcome of trying it, for programs."""
    return {
        "name": backend.name,
        "aliases": list(backend.aliases),
        "summary": backend.summary,
        "library": backend.library.name,
        "providers": list(serving(backend)),
        "tested": backend.tested or None,
        "available": not found.reason,
        "verified": None if found.verified is None else found.verified.isoformat(timespec="seconds"),
        "reason": found.reason or None,
        "remedy": found.remedy or None,
    }


def can_be_had(backend: Backend, found: Probe) -> bool:
    """Return whether a backend computes here, or would after its remedy.

    Planned backends do not count, nor do those for hardware that this machine lacks. A failed plug-in counts: it was
    installed to be used.
    """
    if not found.reason or backend.name in plugin_failures:
        return True
    if backend.missing or not backend.needs:
        return not backend.missing
    from tensorops.hardware import detect_hardware
    from tensorops.hardware.nvidia import NO_DRIVER

    hardware = detect_hardware()
    there = {a.kind for a in hardware.accelerators} | ({"cuda"} if NO_DRIVER in hardware.notes else set())
    return backend.needs in there


class BackendList(Displayed, str):
    """A table of backends: a text, and HTML in notebooks."""

    _shown: Table

    def __new__(cls, table: Table) -> BackendList:
        """Return the table's text for the width of the terminal."""
        made = super().__new__(cls, table.to_text(shutil.get_terminal_size().columns))
        made._shown = table
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return BackendList, (self._shown,)

    def _table(self) -> Table:
        return self._shown


def list_backends(verbose: bool = False) -> BackendList:
    """Return a table of the backends for people, best first.

    It lists those that can compute here, with the time at which each last computed correctly, and those that could,
    with the reason why they do not and the remedy.

    Parameters
    ----------
    verbose : bool, default False
        Show all, including those that are not written yet or need other hardware, and print them. An interactive
        session shows what the function returns, so nothing is printed there.

    Returns
    -------
    str
        Lines of text; a notebook shows them as a table.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.list_backends().splitlines()[0].split()
    ['backend', 'verified', '(UTC)', 'computes', 'with']
    """
    rows = best_first()
    probes = probe_all(rows)
    shown = [backend for backend in rows if verbose or can_be_had(backend, probes[backend.name])]
    chosen = get_backend()
    notes = [
        "* in force here" if chosen != AUTO else "No backend is in force: operators compute where their arrays live."
    ]
    if hidden := len(rows) - len(shown):
        notes.append(
            f"{hidden} more are known by name, but not available here: list_backends(verbose=True) shows them."
        )
    cells = tuple(_cells(backend, probes[backend.name], backend.name == chosen) for backend in shown)
    listed = BackendList(Table("", ("  backend", "verified (UTC)", "computes with"), cells, tuple(notes)))
    if verbose and not hasattr(sys, "ps1"):  # which interactive sessions have
        sys.stdout.write(f"{listed}\n")
    return listed


def _cells(backend: Backend, found: Probe, in_force_here: bool) -> tuple[str, str, str]:
    name = f"{'*' if in_force_here else ' '} {backend.name}"
    if found.verified is not None:
        return name, f"{found.verified:%Y-%m-%d %H:%M}", backend.summary
    remedy = f"\nto fix it: {found.remedy}" if found.remedy else ""
    return name, "no", f"{backend.summary}\nnot available: {found.reason}{remedy}"
