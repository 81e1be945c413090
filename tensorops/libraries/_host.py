"""The processor, its memory, and the memory use of this process; ``None`` where the system does not report it."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorops.hardware import CPU


def resident_bytes() -> int | None:
    """Return the resident memory of this process, in bytes."""
    try:
        return _resident()
    except (OSError, ValueError, AttributeError, IndexError):  # no such file or function: an unusual system
        return None


def memory_bytes() -> int | None:
    """Return the memory that this process may use: the machine's, or its container's if that is less."""
    return _processor().memory


def processors() -> int:
    """Return the number of processors that this process may use, by its affinity and its container's quota."""
    return _processor().logical_cores


def processor_name() -> str | None:
    """Return the manufacturer's name of the processor."""
    return _processor().name or None


def _processor() -> CPU:
    from tensorops.hardware import detect_processor  # only on demand: it reads system files

    return detect_processor()


if sys.platform == "win32":

    class _Counters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS
        _fields_ = (
            ("cb", ctypes.c_ulong),
            ("page_faults", ctypes.c_ulong),
            ("peak_working_set", ctypes.c_size_t),
            ("working_set", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 6),
        )

    def _resident() -> int | None:
        counters = _Counters(cb=ctypes.sizeof(_Counters))
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulong)
        done = kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(counters), counters.cb)
        return int(counters.working_set) if done else None

elif sys.platform == "darwin":

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
