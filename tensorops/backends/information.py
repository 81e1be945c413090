"""What there is to know about backends: which can compute here, best first, and why the others cannot."""

from __future__ import annotations

import dataclasses
import textwrap
from dataclasses import replace
from typing import Any

from tensorops.backends.blocks import get_backend
from tensorops.backends.configuration import AUTO
from tensorops.backends.default import in_force, process
from tensorops.backends.probing import Probe, probe, probe_all, probe_here
from tensorops.backends.registry import Backend, all_backends, resolve


def best_first() -> tuple[Backend, ...]:
    """Return every backend: the configured priority first, then what suits this hardware best."""
    from tensorops.backends.optimal import ranked

    rows = all_backends()
    return tuple(rows[name] for name in ranked(priority=process.configuration.backend_priority))


def get_available_backends(*, refresh: bool = False) -> tuple[str, ...]:
    """Return the names of the backends that can compute here, best first.

    Each was tried by a tiny checked computation, once. What this program has not imported itself was tried in a process
    of its own, with a limit of time, as its driver might hang.

    Parameters
    ----------
    refresh : bool, default False
        Try each of them again.

    Returns
    -------
    tuple of str
        A configured `backend_priority` goes first, then what suits this hardware best, see `get_optimal_backend`.

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
    """Tell whether a backend can compute here.

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
    """Return what is known about a backend and its device.

    Parameters
    ----------
    name : str, optional
        A backend's name or alias; by default the backend in force, or with ``"auto"`` NumPy's, ``cpu``.

    Returns
    -------
    dict
        ``backend`` (name), ``config`` (what was configured for its device), ``available_backends``,
        ``compute_capability`` (int, 90 means 9.0), ``compute_units``, ``max_memory`` and ``max_shared_memory`` (bytes),
        ``device_count``, ``device_name``, ``dtypes``, ``versions``, ``verified`` (when it computed correctly here, in
        ISO 8601), ``reason`` (why it is unavailable), ``remedy``; besides ``aliases``, ``namespace``, ``providers``,
        ``summary`` and ``tested``. What is unknown is ``None``.

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
    from tensorops.backends.devices import get_config
    from tensorops.backends.runtimes import DeviceFacts, runtime_of

    if name is None:
        in_use = in_force().backend
        backend = resolve("cpu") if in_use is None else in_use
    else:
        backend = resolve(name)
    found = probe_here(backend)  # and not elsewhere: asking a library for its device starts it in this process
    try:
        facts = DeviceFacts() if found.reason else runtime_of(backend).facts()
    except RuntimeError as error:  # it computes, and yet fails to describe itself
        found, facts = replace(found, reason=str(error)), DeviceFacts()
    config = get_config(backend.name)
    return {
        "backend": backend.name,
        "config": None if config is None else dataclasses.asdict(config),
        "available_backends": list(get_available_backends()),
        **dataclasses.asdict(facts),
        **describe_row(backend, found),
    }


def describe_row(backend: Backend, found: Probe) -> dict[str, Any]:
    """Return a backend's row of the table and what came of trying it, for programs."""
    return {
        "name": backend.name,
        "aliases": list(backend.aliases),
        "summary": backend.summary,
        "namespace": backend.namespace.name,
        "providers": list(backend.providers),
        "tested": backend.tested or None,
        "available": not found.reason,
        "verified": None if found.verified is None else found.verified.isoformat(timespec="seconds"),
        "reason": found.reason or None,
        "remedy": found.remedy or None,
    }


def list_backends(verbose: bool = False) -> str:
    """Return a table of the backends for people, best first.

    Parameters
    ----------
    verbose : bool, default False
        Show those that cannot compute here as well, each with its reason and what mends it, and when the others
        were seen to compute correctly.

    Returns
    -------
    str
        Lines of text, to be printed.

    Examples
    --------
    >>> import tensorops
    >>> tensorops.list_backends().splitlines()[0].split()
    ['backend', 'verified', 'computes', 'with']
    """
    rows = best_first()
    probes = probe_all(rows)
    chosen = get_backend()
    lines = [f"  {'backend':<18}{'verified':<25}computes with"]
    for backend in rows:
        found = probes[backend.name]
        mark = "* " if backend.name == chosen else "  "
        if not found.reason:
            assert found.verified is not None
            lines.append(f"{mark}{backend.name:<18}{found.verified:%Y-%m-%d %H:%M:%S} UTC  {backend.summary}")
        elif verbose:
            lines.append(f"{mark}{backend.name:<18}{'no':<25}{backend.summary}")
            lines += _indented("not available: " + found.reason)
            lines += _indented("to mend it: " + found.remedy) if found.remedy else []
    if chosen == AUTO:
        lines.append("No backend is in force: operators compute where their arrays live.")
    else:
        lines.append("* in force here")
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, width=100, initial_indent=" " * 6, subsequent_indent=" " * 10, break_on_hyphens=False)
