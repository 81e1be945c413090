"""What every library's class has in common: the figures, the errors, and changes that are undone if one fails."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorops import _dtypes
from tensorops._messages import describe_error
from tensorops.libraries._options import ConfigurationError, DeviceConfig
from tensorops.libraries._rows import Backend, Library


@dataclass(frozen=True)
class DeviceFacts:
    """What is known of the device that a backend computes on; ``None`` where it is not known.

    Attributes
    ----------
    compute_capability : int or None
        Of an NVIDIA GPU; 90 means 9.0.
    compute_units : int or None
        Processors that this process may use, or a GPU's multiprocessors.
    max_memory, max_shared_memory : int or None
        Bytes of the device's memory, and of the memory that a group of threads on a GPU shares.
    device_count : int or None
        How many such devices the library sees.
    device_name : str or None
        What its maker calls it.
    dtypes : tuple of str
        The floating and integer dtypes that the library holds there.
    versions : dict of str to str
        Of the library and of what it runs on.
    """

    compute_capability: int | None = None
    compute_units: int | None = None
    max_memory: int | None = None
    max_shared_memory: int | None = None
    device_count: int | None = None
    device_name: str | None = None
    dtypes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryStats:
    """A backend's memory, in bytes; ``None`` where the library does not tell.

    Attributes
    ----------
    backend, device : str
        Whose memory this is.
    in_use : int or None
        What arrays hold now.
    peak : int or None
        The highest `in_use` since the library started to count.
    cached : int or None
        What is kept for later arrays.
    limit : int or None
        What the library allows itself: for `cpu` of `cached`, for the others of both together.
    total : int or None
        What the device has.
    """

    backend: str
    device: str
    in_use: int | None = None
    peak: int | None = None
    cached: int | None = None
    limit: int | None = None
    total: int | None = None


# What settings were before tensorops changed them, by their names; they are put back from here.
_original: dict[str, Any] = {}


@dataclass(frozen=True)
class Change:
    """One setting of a library and the value it is to have.

    Parameters
    ----------
    name : str
        The setting, in the library's own words.
    read, write : callable
        How to get and to set it.
    value
        What it is to be; ``None`` for what it was before tensorops first changed it.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    value: Any

    def apply(self) -> Callable[[], object]:
        """Make the change, see that it holds, and return what undoes it."""
        if self.value is None and self.name not in _original:
            return lambda: None  # tensorops never changed it
        before = self.read()
        remembered = dict(_original)
        wanted = _original.pop(self.name) if self.value is None else self.value
        if self.value is not None:
            _original.setdefault(self.name, before)

        def undo() -> None:
            _original.clear()
            _original.update(remembered)
            if self.read() != before:
                self.write(before)

        try:
            if before != wanted:
                self.write(wanted)
            if (found := self.read()) != wanted:
                raise ConfigurationError(f"{self.name} is {found!r} after it was set to {wanted!r}")
        except BaseException:
            undo()
            raise
        return undo


def is_loaded(row: Library) -> bool:
    """Tell whether a row's library has been imported into this process."""
    return row.array_type.partition(":")[0] in sys.modules


class Runtime:
    """A library's device and memory, as far as they are known of any library.

    The default for libraries without a class of their own: it assumes that they compute eagerly, so that there is
    nothing to wait for, and knows no figures. A subclass overrides the methods that begin with ``do_``; whatever these
    raise reaches the user as a `RuntimeError` that names the backend.

    Parameters
    ----------
    backend : Backend
        Libraries may serve several backends, which differ in what they use.
    """

    before_use = False
    """Whether some of its options must be set before the library computes, so that trying it would be too early."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name
        self.row = backend.library

    # ------------------------------------------------------------------------------------- for callers

    @property
    def loaded(self) -> bool:
        """Whether the library has been imported into this process."""
        return is_loaded(self.row)

    @property
    def memory(self) -> str:
        """Whose memory it counts; the same for backends that share it."""
        return self.row.name

    def load(self) -> None:
        """Import the library.

        Raises
        ------
        RuntimeError
            If it cannot be imported.
        """
        with self._naming("importing it"):
            importlib.import_module(self.row.array_type.partition(":")[0])

    def facts(self) -> DeviceFacts:
        """Return what is known of the device.

        Raises
        ------
        RuntimeError
            If the library fails, with its reason.
        """
        with self._naming("describing its device"):
            return self.do_facts()

    def synchronize(self) -> None:
        """Wait until everything that was submitted to the library has been computed.

        Raises
        ------
        RuntimeError
            If the library fails, with its reason.
        """
        with self._naming("waiting for it"):
            self.do_synchronize()

    def memory_stats(self) -> MemoryStats:
        """Return the library's own figures of its memory.

        Raises
        ------
        RuntimeError
            If the library fails, with its reason.
        """
        with self._naming("reading its memory"):
            return self.do_memory_stats()

    def empty_cache(self) -> int | None:
        """Free what is kept for later, and return how many bytes that was, ``None`` if nobody knows.

        Raises
        ------
        RuntimeError
            If the library fails, with its reason.
        """
        with self._naming("emptying its cache"):
            return self.do_empty_cache()

    def reset_peak(self) -> bool:
        """Let the library count its peak afresh; tell whether it counts one.

        Raises
        ------
        RuntimeError
            If the library fails, with its reason.
        """
        with self._naming("resetting its peak"):
            return self.do_reset_peak()

    def gauge(self) -> Callable[[], int | None]:
        """Return a quick reading of the bytes in use, on the device that is current now, for any thread.

        Raises
        ------
        RuntimeError
            If the library fails, with its reason; the reading raises it as well.
        """
        with self._naming("reading its memory"):
            read = self.do_gauge()

        def named() -> int | None:
            with self._naming("reading its memory"):
                return read()

        return named

    def configure(self, config: DeviceConfig) -> None:
        """Apply a device's configuration: all of it, or nothing.

        Raises
        ------
        ConfigurationError
            If something of it cannot be honoured, with the reason.
        """
        undo: list[Callable[[], object]] = []
        try:
            for change in self.do_changes(config):
                undo.append(change.apply())  # noqa: PERF401 - those before a failure must be in the list
        except BaseException as error:
            for step in reversed(undo):
                step()
            if isinstance(error, ConfigurationError):
                raise ConfigurationError(f"backend {self.name!r}: {error}") from error.__cause__
            if isinstance(error, Exception):
                raise ConfigurationError(f"backend {self.name!r} refused: {describe_error(error)}") from error
            raise

    # -------------------------------------------------------------------------------------- for subclasses

    def do_facts(self) -> DeviceFacts:
        """Return the facts; here those that the library's own interface tells."""
        return DeviceFacts(dtypes=self.held_dtypes(), versions=self.version())

    def do_synchronize(self) -> None:
        """Wait; here nothing, as results of an eager library are there when it returns them."""

    def do_memory_stats(self) -> MemoryStats:
        """Return the figures; here none is known."""
        return MemoryStats(self.name, self.row.name)

    def do_empty_cache(self) -> int | None:
        """Free what is kept; here nothing is known to be."""
        return None

    def do_reset_peak(self) -> bool:
        """Reset the peak; here none is counted."""
        return False

    def do_gauge(self) -> Callable[[], int | None]:
        """Return a reading of the bytes in use."""
        return lambda: self.do_memory_stats().in_use

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        """Check a configuration without touching anything, and return what to change, in this order."""
        raise ConfigurationError("its library has no options that tensorops knows of")

    def version(self) -> dict[str, str]:
        """Return the library's version, by the name of its package."""
        import importlib.metadata  # takes as long to import as all of this package

        package = self.row.packages[0]
        found = getattr(sys.modules.get(package), "__version__", None)
        if found is None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found = importlib.metadata.version(package)
        return {} if found is None else {package: str(found)}

    def held_dtypes(self) -> tuple[str, ...]:
        """Return the dtypes that the library holds, by taking a value of each there."""
        return tuple(name for name in (*_dtypes.FLOATING, *_dtypes.INTEGER) if self._holds(name))

    def _holds(self, dtype: str) -> bool:
        import ml_dtypes
        import numpy as np

        value = np.ones(1, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a library may warn that it takes a narrower type instead
            try:
                return _dtypes.dtype_name(self.row.from_numpy(value, None)) == dtype
            except Exception:  # how a library refuses a dtype is its own choice
                return False

    @contextlib.contextmanager
    def _naming(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise RuntimeError(f"backend {self.name!r}: {doing} failed with {describe_error(error)}") from error
