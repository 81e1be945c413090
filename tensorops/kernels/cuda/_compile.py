"""Cubins by NVRTC, which are kept in the user's cache folder.

NVRTC is called through ctypes, in the version that CuPy or torch has loaded or would load. Neither library's own
compiler would do: CuPy's adds ``-ftz=true``, which replaces subnormal numbers by zeros, and torch's takes one kernel
signature at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tensorops._files import cache_folder, write_atomically
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.plans import Launch
from tensorops.kernels.cuda import _driver

PRELUDES = ("cuda.h", "vectors.h")
OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--diag-suppress=177")  # 177: an unused function
_OLDEST = 12  # the first version whose cubins the driver's function for launches is sure to take


class CompileError(Exception):
    """What NVRTC says about a program."""


class Compiled(NamedTuple):
    """A program for one architecture, in binary form and as text, and what the compiler said."""

    cubin: bytes
    ptx: str
    log: str


class Nvrtc:
    """NVRTC as a shared library.

    Parameters
    ----------
    path
        Its path, or a name that the loader finds.
    """

    def __init__(self, path: str, mode: int = ctypes.DEFAULT_MODE) -> None:
        self._library: Any = ctypes.CDLL(path, mode)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"{major.value}.{minor.value}"
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def compile(self, text: str, architecture: str, *options: str) -> Compiled:
        """Compile a program for an architecture such as ``sm_80``.

        Raises
        ------
        CompileError
            If it cannot be compiled, with the compiler's words.
        """
        program = ctypes.c_void_p()
        every = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS, *options)]
        create = self._library.nvrtcCreateProgram
        self._check(create(ctypes.byref(program), text.encode(), b"tensorops.cu", 0, None, None))
        try:
            status = self._library.nvrtcCompileProgram(program, len(every), (ctypes.c_char_p * len(every))(*every))
            log = self._got(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if status:
                raise CompileError(log or self._words(status))
            return Compiled(self._got(program, "CUBIN"), self._got(program, "PTX").rstrip(b"\0").decode(), log)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _got(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        result = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, result))
        return result.raw

    def _check(self, status: int) -> None:
        if status:
            raise CompileError(self._words(status))

    def _words(self, status: int) -> str:
        return str(self._library.nvrtcGetErrorString(status).decode())


def program(launch: Launch) -> str:
    """Return the text that is compiled for a launch."""
    return sources.program(launch.source, tuple(launch.defines.items()), *PRELUDES)


def cubin(text: str, architecture: str) -> bytes:
    """Return the cubin of a program, from the cache folder if it is there.

    Raises
    ------
    CompileError
        If it cannot be compiled, or NVRTC is not installed.
    """
    compiler = nvrtc()
    key = hashlib.sha256("\0".join((compiler.version, architecture, *OPTIONS, text)).encode()).hexdigest()
    path = cache_folder() / "cuda" / f"{key}.cubin"
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            return content[32:]
    made = compiler.compile(text, architecture).cubin
    with contextlib.suppress(OSError):  # a folder that cannot be written only costs time
        write_atomically(path, hashlib.sha256(made).digest() + made)
    return made


@functools.cache
def nvrtc() -> Nvrtc:
    """Return the NVRTC that this process has loaded; else the newest installed one that suits the driver.

    Raises
    ------
    CompileError
        If there is none.
    """
    names = [f"libnvrtc.so.{major}" for major in range(_driver.version(), _OLDEST - 1, -1)]
    for name in names:
        with contextlib.suppress(OSError):
            return Nvrtc(name, os.RTLD_NOLOAD)
    for name in names:
        for path in _places(name):
            with contextlib.suppress(OSError):
                return Nvrtc(path)
    raise CompileError(f"NVRTC is not installed: there is no {' or '.join(names)}; pip install nvidia-cuda-nvrtc")


def _places(name: str) -> Iterator[str]:
    """Yield where a version of NVRTC may be: in the wheels that CuPy and torch require, then in the system."""
    for distribution in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            files = importlib.metadata.files(distribution) or ()
            yield from (str(file.locate()) for file in files if file.name == name)
    yield name
    for folder in (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if folder:
            yield str(Path(folder, "lib64", name))
