"""The base class of every library's `Runtime`: statistics, errors, and changes that are undone if one fails."""

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
    """Information about the device that a backend computes on; ``None`` for unknown values.

    Attributes
    ----------
    compute_capability : int or None
        The compute capability of an NVIDIA GPU; 90 means 9.0.
    compute_units : int or None
        Processors that this process may use, or a GPU's multiprocessors.
    max_memory, max_shared_memory : int or None
        Bytes of the device's memory, and of the memory that a group of threads on a GPU shares.
    device_count : int or None
        The number of such devices that the library sees.
    device_name : str or None
        The manufacturer's name.
    dtypes : tuple of str
        The floating and integer dtypes that the library supports there.
    versions : dict of str to str
        The versions of the library and of what it runs on.
    simd : str or None
        The instruction set of tensorops' kernels for processors: "v3", "v4_bf16", "neon".
    openmp : bool or None
        Whether OpenMP runs their threads.
    """

    compute_capability: int | None = None
    compute_units: int | None = None
    max_memory: int | None = None
    max_shared_memory: int | None = None
    device_count: int | None = None
    device_name: str | None = None
    dtypes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    simd: str | None = None
    openmp: bool | None = None


@dataclass(frozen=True)
class MemoryStats:
    """A backend's memory, in bytes; ``None`` where the library does not report it.

    Attributes
    ----------
    backend, device : str
        Whose memory this is.
    in_use : int or None
        Memory of live arrays.
    peak : int or None
        The highest `in_use` since the library started to count.
    cached : int or None
        Memory kept for later arrays.
    limit : int or None
        The library's limit: for `cpu` on `cached`, for the others on both together.
    total : int or None
        Memory of the device.
    """

    backend: str
    device: str
    in_use: int | None = None
    peak: int | None = None
    cached: int | None = None
    limit: int | None = None
    total: int | None = None


# The values of settings before tensorops changed them, by name; they are restored from here.
_original: dict[str, Any] = {}


@dataclass(frozen=True)
class Change:
    """One setting of a library and its new value.

    Parameters
    ----------
    name : str
        The setting, in the library's own words.
    read, write : callable
        Functions that get and set it.
    value
        The new value; ``None`` restores the value from before tensorops first changed it.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    value: Any

    def apply(self) -> Callable[[], object]:
        """Make the change, verify it, and return a function that undoes it."""
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
    """Return whether a row's library has been imported into this process."""
    return row.array_type.partition(":")[0] in sys.modules


class Runtime:
    """A library's device and memory, as far as they are known for any library.

    This default for libraries without their own class assumes that they compute eagerly, so there is nothing to wait
    for, and has no statistics. A subclass overrides the methods that begin with ``do_``; their errors reach the user
    as a `RuntimeError` that names the backend.

    Parameters
    ----------
    backend : Backend
        A library may have several backends, which differ in what they use.
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
        """Import the library."""
        with self._naming("importing it"):
            importlib.import_module(self.row.array_type.partition(":")[0])

    def facts(self) -> DeviceFacts:
        """Return information about the device."""
        with self._naming("describing its device"):
            return self.do_facts()

    def synchronize(self) -> None:
        """Wait until all work submitted to the library has been computed."""
        with self._naming("waiting for it"):
            self.do_synchronize()

    def memory_stats(self) -> MemoryStats:
        """Return the library's own memory statistics."""
        with self._naming("reading its memory"):
            return self.do_memory_stats()

    def empty_cache(self) -> int | None:
        """Free cached memory and return the number of bytes freed, ``None`` if unknown."""
        with self._naming("emptying its cache"):
            return self.do_empty_cache()

    def reset_peak(self) -> bool:
        """Reset the library's peak; return whether it tracks one."""
        with self._naming("resetting its peak"):
            return self.do_reset_peak()

    def gauge(self) -> Callable[[], int | None]:
        """Return a function that any thread may call to read the bytes in use on the current device."""
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
            If an option cannot be honoured, with the reason.
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
        """Return the information that the library's standard interface provides."""
        return DeviceFacts(dtypes=self.held_dtypes(), versions=self.version())

    def do_synchronize(self) -> None:
        """Wait; does nothing by default, because an eager library returns finished results."""

    def do_memory_stats(self) -> MemoryStats:
        """Return the statistics; all unknown by default."""
        return MemoryStats(self.name, self.row.name)

    def do_empty_cache(self) -> int | None:
        """Free cached memory; does nothing by default."""
        return None

    def do_reset_peak(self) -> bool:
        """Reset the peak; not tracked by default."""
        return False

    def do_gauge(self) -> Callable[[], int | None]:
        """Return a function that reads the bytes in use."""
        return lambda: self.do_memory_stats().in_use

    def do_changes(self, config: DeviceConfig) -> Sequence[Change]:
        """Check a configuration without side effects, and return the changes in order."""
        raise ConfigurationError("its library has no options that tensorops can set")

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
        """Return the dtypes that the library supports, by moving a value of each there."""
        return tuple(name for name in (*_dtypes.FLOATING, *_dtypes.INTEGER) if self._holds(name))

    def _holds(self, dtype: str) -> bool:
        import ml_dtypes
        import numpy as np

        value = np.ones(1, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a library may warn that it uses a narrower type instead
            try:
                return _dtypes.dtype_name(self.row.from_numpy(value, None)) == dtype
            except Exception:  # libraries refuse a dtype in different ways
                return False

    @contextlib.contextmanager
    def _naming(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise RuntimeError(f"backend {self.name!r}: {doing} failed with {describe_error(error)}") from error
