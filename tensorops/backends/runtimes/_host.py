"""The machine's and this process's memory, from the operating system; ``None`` where it does not tell."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path


def resident_bytes() -> int | None:
    """Return how much of the machine's memory this process occupies."""
    try:
        return _resident()
    except (OSError, ValueError, AttributeError, IndexError):  # no such file or function: an unusual system
        return None


def physical_bytes() -> int | None:
    """Return how much memory the machine has."""
    try:
        return _physical()
    except (OSError, ValueError, AttributeError):
        return None


def processors() -> int | None:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def processor_name() -> str | None:
    """Return what the processor's maker calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None


if sys.platform == "win32":

    class _Counters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS
        _fields_ = (
            ("cb", ctypes.c_ulong),
            ("page_faults", ctypes.c_ulong),
            ("peak_working_set", ctypes.c_size_t),
            ("working_set", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 6),
        )

    class _Status(ctypes.Structure):  # MEMORYSTATUSEX
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            ("total", ctypes.c_ulonglong),
            ("others", ctypes.c_ulonglong * 6),
        )

    def _resident() -> int | None:
        counters = _Counters(cb=ctypes.sizeof(_Counters))
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulong)
        done = kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb)
        return int(counters.working_set) if done else None

    def _physical() -> int | None:
        status = _Status(length=ctypes.sizeof(_Status))
        done = ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.total) if done else None

else:

    def _physical() -> int | None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    if sys.platform == "darwin":

        class _Usage(ctypes.Structure):  # rusage_info_v0; getrusage knows only the highest resident size
            _fields_ = (
                ("uuid", ctypes.c_uint8 * 16),
                ("before", ctypes.c_uint64 * 6),
                ("resident", ctypes.c_uint64),
                ("after", ctypes.c_uint64 * 3),
            )

        def _resident() -> int | None:
            usage = _Usage()
            failed = ctypes.CDLL(None).proc_pid_rusage(os.getpid(), 0, ctypes.byref(usage))
            return None if failed else int(usage.resident)

    else:

        def _resident() -> int | None:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
