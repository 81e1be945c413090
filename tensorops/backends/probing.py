"""Which backends can compute here: each is tried once, by a tiny computation whose result is checked.

A successful import proves nothing, and a driver may hang or crash the interpreter. A library that this program has not
imported is therefore first tried in a separate process with a time limit. It computes in this process only when the
backend is used.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tensorops import _hooks
from tensorops._display import printable
from tensorops._messages import describe_error, installing
from tensorops._providers import PROVIDERS
from tensorops.backends.config_file import CHOICES, CONFIG, Configuration
from tensorops.backends.options import apply_configured
from tensorops.backends.process import process
from tensorops.backends.registry import BackendUnavailableError, load_plugins_of, made_by, plugins, resolve
from tensorops.libraries import Backend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

SECONDS = 60.0
"""How long a backend may take in a separate process, including the import of a large library from a slow disk."""

PLUGIN_SECONDS = 20.0
"""How long a plug-in may take to load in a separate process; its array library is only loaded when it is tried."""

REQUIREMENTS = ("array_api_compat", "ml_dtypes", "opt_einsum")
"""Packages that tensorops needs, besides NumPy; a source tree without an installation may lack them."""

_DONE = 42  # the child's exit status when all of it has run, as libraries that end programs may say 0
_UNKNOWN = 3  # the child's exit status for a backend that only this process has registered
_NO_ANSWER = 2**31  # not a valid exit status


@dataclass(frozen=True)
class Probe:
    """The outcome of trying a backend.

    Attributes
    ----------
    reason : str
        Why it cannot compute here; empty if it did.
    remedy : str
        How to fix that: a command, where there is one.
    verified : datetime or None
        When it computed correctly.
    here : bool
        Whether it did so in this process.
    misconfigured : bool
        Whether the reason is the configuration of its device.
    """

    reason: str = ""
    remedy: str = ""
    verified: datetime | None = None
    here: bool = False
    misconfigured: bool = False


_probes: dict[str, Probe] = {}
_locks: dict[str, threading.RLock] = {}
_locks_lock = threading.Lock()
_searching = threading.Lock()
_applying = threading.RLock()  # device options change together with the configuration that they come from
_used: set[str] = set()  # backends whose devices were configured in this process
_optioned: set[str] = set()  # those among them that ever had configured options


def probe(backend: Backend, *, refresh: bool = False, configured: Configuration | None = None) -> Probe:
    """Return the outcome of trying a backend; it is tried once, unless `refresh`."""
    found = _probes.get(backend.name)
    if found is not None and not refresh:
        return found
    with _lock_of(backend.name):
        found = _probes.get(backend.name)
        if found is None or refresh:
            found = _probes[backend.name] = _try(backend, configured)
    return found


def probe_all(backends: Iterable[Backend], *, refresh: bool = False) -> dict[str, Probe]:
    """Try several backends in parallel, because importing takes most of the time."""
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
    """Return the first backend that can compute in this process, trying each if necessary.

    Raises
    ------
    BackendUnavailableError
        If none can, with each one's reason and remedy.
    """
    failures = []
    for backend in backends:
        found = probe_here(backend)
        if not found.reason:
            return backend
        failures.append(describe(backend, found))
    raise BackendUnavailableError("; ".join(failures))


def describe(backend: Backend, found: Probe) -> str:
    """Return the sentence about an unavailable backend in errors and warnings."""
    remedy = f"; to fix it: {found.remedy}" if found.remedy else ""
    return f"backend {backend.name!r} is not available: {found.reason}{remedy}"


def probe_here(backend: Backend, configured: Configuration | None = None) -> Probe:
    """Return the outcome of trying a backend in this process, with its device configured."""
    found = _probes.get(backend.name)  # the usual case, without a lock
    if found is not None and (found.here or found.reason):
        return found
    found = probe(backend, configured=configured)
    if found.reason or found.here:
        return found
    with _lock_of(backend.name):
        found = _probes[backend.name]
        if not found.here and not found.reason:
            found = _probes[backend.name] = _compute(backend, configured)
    return found


def _renew_locks() -> None:
    global _locks, _locks_lock, _searching, _applying
    _locks, _locks_lock, _searching, _applying = {}, threading.Lock(), threading.Lock(), threading.RLock()


if hasattr(os, "register_at_fork"):  # a lock that another thread held in the parent would never be released
    os.register_at_fork(after_in_child=_renew_locks)


def _lock_of(name: str) -> threading.RLock:
    with _locks_lock:
        return _locks.setdefault(name, threading.RLock())


def _try(backend: Backend, configured: Configuration | None = None) -> Probe:
    missing = backend.missing or backend.library.missing
    if missing:
        return Probe(missing, backend.remedy)
    package = backend.library.packages[0]
    with _searching:  # one of two concurrent threads can fail: Python drops paths without a lock
        importlib.invalidate_caches()  # it may have been installed since
    try:
        installed = backend.library.is_installed()
    except Exception as error:  # a package that breaks the search for it
        return Probe(f"looking for {package} failed with {describe_error(error)}", backend.remedy)
    if not installed:
        extra = backend.library.extra
        return Probe(f"{package} is not installed", installing(extra) if extra else f"pip install {package}")
    if backend.requires in PROVIDERS and not PROVIDERS[backend.requires].is_installed():
        distribution = PROVIDERS[backend.requires].distribution
        return Probe(f"{distribution} is not installed", installing(distribution))
    # That the array library is in use says nothing about the library that a required provider loads.
    if backend.isolated and (backend.requires or package not in sys.modules):
        with _lock_of(f"library {backend.library.name}"):  # a TPU refuses a second process at the same time
            found = _compute_elsewhere(backend, configured)
        if found is not None:
            return found
    return _compute(backend, configured)


def configure_device(backend: Backend, configured: Configuration | None = None) -> None:
    """Apply the configured options of a backend's device, before the library starts it."""
    with _applying:
        _apply(backend.name, configured or process.configuration)
        _used.add(backend.name)


def _apply(name: str, configured: Configuration) -> None:
    options = configured.devices.get(name, {})
    if options or name in _optioned:
        apply_configured(name, options)
        _optioned.add(name)


@contextmanager
def reconfigured(before: Configuration, after: Configuration) -> Iterator[None]:
    """Apply changed options to all devices in use, or to none if this or the block fails.

    The block replaces the process's configuration, so that no device can be configured in between.
    """
    with _applying:
        done = []
        try:
            for name in _used:
                done.append(name)
                _apply(name, after)
            yield
        except BaseException:
            for name in done:
                _apply(name, before)
            raise


def forget_misconfigured() -> None:
    """Allow another trial of backends whose device configuration could not be honoured."""
    for name, found in _probes.copy().items():  # other threads may be trying backends
        if found.misconfigured:
            _probes.pop(name, None)


def _compute(backend: Backend, configured: Configuration | None) -> Probe:
    """Compute something tiny on a backend, in this process, and check the result."""
    try:
        if not backend.requires:  # its kernels do this when loaded, since arrays also lead there without a backend
            configure_device(backend, configured)
    except Exception as error:
        reason = f"its configured device was refused with {describe_error(error)}"
        return Probe(reason, f"change devices.{backend.name} in the configuration file", misconfigured=True)
    try:
        (wrong_result,) = _hooks.wrong_result
        reason = backend.absent() or wrong_result(backend)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a broken installation may raise anything: it becomes the reason
        reason = f"{_what_is_tried(backend)} failed with {describe_error(error)}"
        if isinstance(error, ModuleNotFoundError) and error.name in REQUIREMENTS:
            return Probe(reason, f"pip install {error.name}")
    if reason:
        variable = "TENSOROPS_CPU_TARGET"
        return Probe(reason, f"unset {variable}" if f"environment variable {variable}" in reason else backend.remedy)
    return Probe(verified=datetime.now(UTC), here=True)


def _what_is_tried(backend: Backend) -> str:
    provider = PROVIDERS.get(backend.requires)
    if provider is not None and provider.distribution:
        return f"computing with {provider.distribution}"
    return f"computing rms_norm with {backend.library.name}"


# --------------------------------------------------------------------------------------- in a separate process


_ARGUMENTS = "import json, sys; sys.path[:], *arguments = json.loads(sys.argv[1]); "
_ANSWER = "from tensorops.backends.probing import answer; answer(*arguments)"
_LOAD = "from tensorops.backends.probing import load_plugin; load_plugin(*arguments)"


def _compute_elsewhere(backend: Backend, configured: Configuration | None) -> Probe | None:
    """Compute in a separate process; ``None`` if none can be started, or it does not know this backend."""
    import json
    import tempfile
    from pathlib import Path

    options = (configured or process.configuration).devices.get(backend.name, {})
    with tempfile.TemporaryDirectory(prefix="tensorops-", ignore_cleanup_errors=True) as folder:
        answer_file = Path(folder, "answer")
        arguments = (plugins.get(backend.name, ""), backend.name, json.dumps(options, default=str), str(answer_file))
        status, end = _run(_ANSWER, arguments, SECONDS)
        if status is None or status == _UNKNOWN:
            return None
        with_what = _what_is_tried(backend)
        if status == _NO_ANSWER:
            return Probe(f"{with_what} {end}", backend.remedy)
        if status or not answer_file.exists():
            return Probe(f"a process {with_what} {end}", backend.remedy)
        said_so = json.loads(answer_file.read_text(encoding="utf-8"))
    verified = said_so.pop("verified")
    return Probe(**said_so, verified=verified and datetime.fromisoformat(verified))


def end_elsewhere(code: str, *arguments: str, seconds: float) -> str:
    """Run Python code, which has `arguments`, in a separate process; return a phrase on how it failed.

    The string is empty if it ended well, and if there is no such process.
    """
    unset = {name for name in os.environ if name.startswith("TENSOROPS_")} - {CONFIG}  # whatever is configured
    status, end = _run(code, arguments, seconds, unset)
    return end if status else ""


def _run(code: str, arguments: Sequence[str], seconds: float, unset: Set[str] = frozenset()) -> tuple[int | None, str]:
    """Run Python code, which has `arguments`, in a separate process.

    Returns its exit status, ``None`` if it cannot be started, and how it ended, with its last line of output.
    """
    import contextlib
    import json
    import subprocess
    import tempfile
    from pathlib import Path

    if not sys.executable or getattr(sys, "frozen", False):
        return None, ""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    program = f"{_ARGUMENTS}{code}\nsys.exit({_DONE})"
    environment = {name: value for name, value in _environment().items() if name not in unset}
    with tempfile.TemporaryDirectory(prefix="tensorops-", ignore_cleanup_errors=True) as folder:
        complaints = Path(folder, "complaints")
        try:
            # To a file, not a pipe: a helper process that a library starts would keep a pipe open.
            with complaints.open("wb") as stream:
                child = subprocess.Popen(  # noqa: S603 - this interpreter, with our own arguments
                    [sys.executable, "-W", "ignore", "-c", program, json.dumps([path, *arguments])],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stream,
                    creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
                )
        except OSError:
            return None, ""
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            # A process blocked in a hung driver does not end even then, and must not block us.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1.0)
            if child.returncode is None:
                child.returncode = -9  # it is never waited for; else its destructor would warn
            return _NO_ANSWER, f"gave no answer within {seconds:g} seconds"
        said = complaints.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
        how = f"was ended by signal {-status}" if status < 0 else f"exited with {status}"
        if status == _DONE:
            return 0, ""
        if status == 0:  # something in it ends programs, as if all were well
            return 1, "exited with 0 before its end"
        return status, f"{how} ({printable(said[-1].strip())})"


def _environment() -> dict[str, str]:
    """Return the environment of the process that tries a backend: this one's, without its choice of a backend."""
    kept = {key: value for key, value in os.environ.items() if key not in CHOICES}
    # Trying must not take the memory of a GPU that this program is about to use.
    return kept | {CONFIG: "", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def refuse_hanging_plugin(point: EntryPoint) -> None:
    """Raise the reason if a plug-in hangs while it loads, or ends the process; its own errors are raised later.

    Raises
    ------
    TimeoutError
        If it did not load in time.
    RuntimeError
        If the process that loaded it ended.
    """
    if point.module in sys.modules:
        return
    code = _LOAD
    status, end = _run(code, (point.name, point.value, point.group), PLUGIN_SECONDS)
    if status == _NO_ANSWER:
        raise TimeoutError(f"importing {point.module} took more than {PLUGIN_SECONDS:g} seconds")
    if status:
        raise RuntimeError(f"a process importing {point.module} {end}")


def load_plugin(name: str, value: str, group: str) -> None:
    """Load an entry point, in the separate process. Errors are raised again when it is loaded here."""
    import contextlib
    from importlib.metadata import EntryPoint

    load_plugins_of("")  # if it asks for a backend, do not load the others
    with contextlib.suppress(BaseException):
        made_by(EntryPoint(name, value, group))
    os._exit(_DONE)


def answer(owner: str, name: str, options: str, path: str) -> None:
    """Try a backend and write the outcome to a file, in the separate process."""
    import json
    from pathlib import Path

    load_plugins_of(owner)  # not the others, which may hang
    try:
        backend = resolve(name)
    except ValueError:
        raise SystemExit(_UNKNOWN) from None
    configured = Configuration(devices={name: json.loads(options)})
    found = _try(replace(backend, isolated=False), configured)
    verified = found.verified and found.verified.isoformat()
    said = {"reason": found.reason, "remedy": found.remedy, "misconfigured": found.misconfigured, "verified": verified}
    Path(path).write_text(json.dumps(said), encoding="utf-8")
    os._exit(_DONE)  # the libraries' regular shutdown takes time and proves nothing


_hooks.refuse_plugin.append(refuse_hanging_plugin)
