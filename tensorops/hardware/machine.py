"""The machine as the hardware detectors see it: only files, commands and libraries.

Tests describe simulated machines: a folder with ``/proc``, ``/sys`` and ``/dev``, and functions that answer as the
commands would. Anything missing from the description is absent from that machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorops import _hooks

SECONDS = 5.0
"""How many seconds a command may take to answer; nvidia-smi needs two if it must wake the driver."""


class DetectionError(Exception):
    """A query about the hardware failed; the message becomes a note."""


def _no_command(command: Sequence[str], seconds: float) -> str | None:
    return None


def _no_library(name: str) -> Any:
    raise OSError(f"no library {name}")


@dataclass(frozen=True)
class Machine:
    """A machine to examine.

    Parameters
    ----------
    system : str
        As in `platform.system`: "Linux", "Darwin", "Windows".
    architecture : str
        As in `platform.machine`.
    root : Path
        The folder with its ``proc``, ``sys`` and ``dev``.
    environment : mapping
        Its environment variables.
    run : callable
        Takes a command and a limit in seconds; returns the command's output, or ``None`` if there is no such command;
        raises `DetectionError` if it failed or did not answer in time.
    load_library : callable
        Returns a shared library as `ctypes.CDLL` does, or raises `OSError`.
    is_installed : callable
        Returns whether a Python package can be found.
    modules : mapping
        The Python modules that are already imported.
    processor : str
        The processor's name, if no file has it.
    usable_cpus : frozenset of int or None
        The logical cores that this process may run on, ``None`` if it may run on all.
    cpu_features : frozenset of str
        The features that the compiled module, if any, found the processor and the operating system to support.
    memory : int or None
        Bytes of main memory, if no file has it.
    """

    system: str
    architecture: str
    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    run: Callable[[Sequence[str], float], str | None] = _no_command
    load_library: Callable[[str], Any] = _no_library
    is_installed: Callable[[str], bool] = lambda name: False
    modules: Mapping[str, Any] = field(default_factory=dict)
    processor: str = ""
    usable_cpus: frozenset[int] | None = None
    cpu_features: frozenset[str] = frozenset()
    memory: int | None = None

    @classmethod
    def here(cls) -> Machine:
        """Return the machine that this process runs on."""
        return cls(
            system=platform.system(),
            architecture=platform.machine(),
            environment=os.environ,
            run=run_command,
            load_library=ctypes.CDLL,
            is_installed=_is_installed,
            modules=sys.modules,
            processor=_processor_name(),
            usable_cpus=usable_cpus(),
            cpu_features=_compiled_cpu_features(),
            memory=_main_memory(),
        )

    def read(self, path: str | Path) -> str:
        """Return the text of a file, given by its path from the root; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").replace("\0", "").strip()
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        """Return the files that match a pattern from the root, in the order of the numbers in their names."""
        try:
            return sorted(self.root.glob(pattern), key=_natural)
        except OSError:
            return []


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    return [(not s.isdecimal(), int(s) if s.isdecimal() else 0, s) for s in re.split(r"([0-9]+)", str(path))]


def sysctl(machine: Machine, *keys: str) -> dict[str, str]:
    """Return macOS's values for some keys, without unknown ones."""
    said = machine.run(("/usr/sbin/sysctl", "-i", *keys), SECONDS) or ""
    pairs = (line.partition(":") for line in said.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs if value.strip()}


def as_int(text: str | None) -> int | None:
    """Return a text as a number, ``None`` if it is not one, or an absurdly long one."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 100 else None


# ------------------------------------------------------------------------------------------------ this machine


def run_command(command: Sequence[str], seconds: float = SECONDS) -> str | None:
    """Return the output of a command, ``None`` if there is no such command.

    Raises
    ------
    DetectionError
        If it cannot be started, fails, or does not answer in time.
    """
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(  # noqa: S603 - our own commands, without a shell
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DetectionError(f"{name} could not be started: {error.strerror}") from None
    try:
        printed, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _abandon(process)
        raise DetectionError(f"{name} did not answer within {seconds:g} s") from None
    if process.returncode:
        said = (complaint.strip() or printed.strip() or "no output").splitlines()[-1]
        raise DetectionError(f"{name} failed with status {process.returncode}: {said[:200]}")
    return printed


def _abandon(process: subprocess.Popen[str]) -> None:
    process.kill()
    # A process blocked in a hung driver does not end even then, and must not block us.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def usable_cpus() -> frozenset[int]:
    """Return the logical cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return frozenset(affinity(0) if affinity else range(os.cpu_count() or 1))


def _compiled_cpu_features() -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for ask in _hooks.cpu_features:
        with contextlib.suppress(Exception):  # not compiled, or misconfigured: operators will say so
            found |= ask()
    return found


def _processor_name() -> str:
    name = ""  # elsewhere a file or sysctl has it
    if sys.platform == "win32":
        import winreg

        name = platform.processor()
        path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with contextlib.suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            name = str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    return name


class _MemoryStatus(ctypes.Structure):
    """The structure that GlobalMemoryStatusEx fills in."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "free", "paged", "paged_free", "virtual", "virtual_free")),
        ("extended_free", ctypes.c_uint64),
    )


def _main_memory() -> int | None:
    if sys.platform == "win32":
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        return int(status.total) if ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else None
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # the system has no such value
        return None
