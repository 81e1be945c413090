"""Which backends can compute here: each is tried, once, by a tiny computation whose result is looked at.

A package that merely imports proves nothing. And a driver may hang, or take the interpreter down with it; so what
this program has not yet imported itself is tried in a process of its own first, with a limit of time. Only when a
backend is then put to use does it compute in this process, too.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tensorops.backends.configuration import CHOICES, CONFIG, Configuration
from tensorops.backends.registry import Backend, BackendUnavailableError, describe_error, resolve

SECONDS = 60.0
"""How long a backend may take to answer in a process of its own; importing a large library from a slow disk counts."""

_MARK = "tensorops-probe:"
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tensorops.backends.probing import answer; answer(sys.argv[2])"
)
_UNKNOWN = 3  # the child's exit status for a backend that only this process has registered


@dataclass(frozen=True)
class Probe:
    """What came of trying a backend.

    Attributes
    ----------
    reason : str
        Why it cannot compute here; empty if it did.
    remedy : str
        What mends that: a command, where there is one.
    verified : datetime or None
        When it computed correctly.
    here : bool
        Whether it did so in this process.
    misconfigured : bool
        Whether the reason is what was configured for its device.
    """

    reason: str = ""
    remedy: str = ""
    verified: datetime | None = None
    here: bool = False
    misconfigured: bool = False


_probes: dict[str, Probe] = {}
_locks: dict[str, threading.RLock] = {}
_locks_lock = threading.Lock()


def probe(backend: Backend, *, refresh: bool = False, configured: Configuration | None = None) -> Probe:
    """Return what came of trying a backend; tried once and kept, unless `refresh`."""
    found = _probes.get(backend.name)
    if found is not None and not refresh:
        return found
    with _lock_of(backend):
        found = _probes.get(backend.name)
        if found is None or refresh:
            found = _probes[backend.name] = _try(backend, configured)
    return found


def probe_all(backends: Iterable[Backend], *, refresh: bool = False) -> dict[str, Probe]:
    """Try several backends at the same time, as most of the time is spent importing."""
    from concurrent.futures import ThreadPoolExecutor

    rows = list(backends)
    if not refresh and all(b.name in _probes for b in rows):
        return {b.name: _probes[b.name] for b in rows}
    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="tensorops-probe") as pool:
        return dict(zip((b.name for b in rows), pool.map(lambda b: probe(b, refresh=refresh), rows), strict=True))


def unavailable_reason(backend: Backend, *, refresh: bool = False) -> str:
    """Return why a backend cannot compute here, or an empty string if it can."""
    return probe(backend, refresh=refresh).reason


def first_available(backends: Iterable[Backend]) -> Backend:
    """Return the first backend that can compute in this process, which is tried if it was not yet.

    Raises
    ------
    BackendUnavailableError
        If none can: each one's reason and remedy are named.
    """
    failures = []
    for backend in backends:
        found = probe_here(backend)
        if not found.reason:
            return backend
        failures.append(describe(backend, found))
    raise BackendUnavailableError("; ".join(failures))


def describe(backend: Backend, found: Probe) -> str:
    """Return the sentence that errors and warnings say about an unavailable backend."""
    remedy = f"; to mend it: {found.remedy}" if found.remedy else ""
    return f"backend {backend.name!r} is not available: {found.reason}{remedy}"


def probe_here(backend: Backend, configured: Configuration | None = None) -> Probe:
    """Return what came of trying a backend in this very process, its device configured as the file says."""
    found = _probes.get(backend.name)  # the usual case, without a lock
    if found is not None and (found.here or found.reason):
        return found
    found = probe(backend, configured=configured)
    if found.reason or found.here:
        return found
    with _lock_of(backend):
        found = _probes[backend.name]
        if not found.here and not found.reason:
            found = _probes[backend.name] = _compute(backend, configured)
    return found


def _renew_locks() -> None:
    global _locks, _locks_lock
    _locks, _locks_lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_locks)


def _lock_of(backend: Backend) -> threading.RLock:
    with _locks_lock:
        return _locks.setdefault(backend.name, threading.RLock())


def _try(backend: Backend, configured: Configuration | None = None) -> Probe:
    missing = backend.missing or backend.namespace.missing
    if missing:
        return Probe(missing, backend.remedy)
    package = backend.namespace.packages[0]
    importlib.invalidate_caches()  # it may have been installed since
    try:
        installed = backend.namespace.is_installed()
    except Exception as error:  # a package that breaks the search for it
        return Probe(f"looking for {package} failed with {describe_error(error)}", backend.remedy)
    if not installed:
        extra = backend.namespace.extra
        return Probe(
            f"{package} is not installed", f"pip install 'tensorops[{extra}]'" if extra else f"pip install {package}"
        )
    if backend.isolated and package not in sys.modules:
        found = _compute_elsewhere(backend)
        if found is not None:
            return found
    return _compute(backend, configured)


def _configure(backend: Backend, configured: Configuration | None) -> None:
    """Apply what the configuration file says of the backend's device, before the library starts it."""
    from tensorops.backends.settings import process

    if backend.name == "cpu":  # its package does so when it is loaded, as arrays lead there without a backend, too
        return
    if options := (configured or process.configuration).devices.get(backend.name):
        from tensorops.backends.devices import apply_configured

        apply_configured(backend.name, options)


def reconfigure(before: Configuration, after: Configuration) -> None:
    """Apply changed options of devices to the backends that have already been used; all of them or none."""
    from tensorops.backends.devices import apply_configured

    used = [name for name in {**before.devices, **after.devices} if name in _probes and _probes[name].here]
    done = []
    try:
        for name in used:
            apply_configured(name, after.devices.get(name, {}))
            done.append(name)
    except BaseException:
        for name in done:
            apply_configured(name, before.devices.get(name, {}))
        raise


def _compute(backend: Backend, configured: Configuration | None) -> Probe:
    """Compute something tiny on a backend, in this process, and look at the result."""
    try:
        _configure(backend, configured)
    except Exception as error:
        reason = f"its configured device was refused with {describe_error(error)}"
        return Probe(reason, "tensorops config --show", misconfigured=True)
    try:
        reason = _wrong_result(backend)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a broken installation may raise anything at all: it becomes the reason
        reason = f"computing rms_norm with {backend.namespace.name} failed with {describe_error(error)}"
    if reason:
        return Probe(reason, backend.remedy)
    return Probe(verified=datetime.now(UTC), here=True)


def _wrong_result(backend: Backend) -> str:
    import numpy as np

    from tensorops.backends.settings import Settings, activate
    from tensorops.ops.normalization import rms_norm

    with activate(Settings(backend=backend)):
        x = backend.namespace.from_numpy(np.asarray([[3.0, 4.0]], dtype=np.float32), None)
        chosen = rms_norm.explain(x)
        y = backend.namespace.to_numpy(rms_norm(x))
    if not np.allclose(y, np.asarray([[3.0, 4.0]]) / np.sqrt(12.5), rtol=1e-5):
        return f"rms_norm of (3, 4) came back as {np.asarray(y).tolist()}"
    if backend.name == "cpu" and chosen.kernel != "cpu":
        return chosen.refused["cpu"]
    return ""


# ------------------------------------------------------------------------------------ in a process of its own


def _compute_elsewhere(backend: Backend) -> Probe | None:
    """Compute in a process of its own; ``None`` if none can be started, or it does not know this backend."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    import json
    import subprocess

    command = [sys.executable, "-W", "ignore", "-c", _CHILD, json.dumps(sys.path), backend.name]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, with arguments of our own
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"computing rms_norm with {backend.namespace.name} gave no answer within {SECONDS:g} seconds"
        return Probe(reason, backend.remedy)
    except OSError:
        return None
    if done.returncode == _UNKNOWN:
        return None
    answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not answers:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else f"exited with {done.returncode}"
        return Probe(
            f"a process computing rms_norm with {backend.namespace.name} {how} ({last.strip()})", backend.remedy
        )
    said = json.loads(answers[-1].removeprefix(_MARK))
    if said["reason"]:
        return Probe(said["reason"], said["remedy"])
    return Probe(verified=datetime.fromisoformat(said["verified"]))


def _environment() -> dict[str, str]:
    """Return the environment of the process that tries a backend: this one's, without its choice of a backend."""
    kept = {key: value for key, value in os.environ.items() if key not in CHOICES}
    # Trying must not take the memory of a GPU that this program is about to use.
    return kept | {CONFIG: "", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def answer(name: str) -> None:
    """Try a backend and print the outcome; what the process of its own runs."""
    import json

    try:
        backend = resolve(name)
    except ValueError:
        raise SystemExit(_UNKNOWN) from None
    found = _try(replace(backend, isolated=False))
    said = {"reason": found.reason, "remedy": found.remedy}
    if found.verified is not None:
        said["verified"] = found.verified.isoformat()
    print(_MARK + json.dumps(said), flush=True)  # noqa: T201
    os._exit(0)  # what libraries do when a process ends properly takes time, and proves nothing
