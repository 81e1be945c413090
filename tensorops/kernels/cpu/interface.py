"""Where the library for C and C++ is, which the compiled kernels are in."""

from __future__ import annotations

import sys
from pathlib import Path

from tensorops import _providers


def get_include() -> str:
    """Return the folder with the headers for C and C++, ``tensorops/backends.h`` and ``tensorops/backends.hpp``.

    Returns
    -------
    str
        A folder for the compiler's option ``-I``.

    Raises
    ------
    RuntimeError
        If tensorops was installed without its compiled kernels.

    See Also
    --------
    get_library : The library to link.

    Examples
    --------
    >>> import pathlib
    >>> import tensorops
    >>> sorted(header.name for header in pathlib.Path(tensorops.get_include(), "tensorops").iterdir())
    ['backends.h', 'backends.hpp']
    """
    return str(_installed() / "include")


def get_library() -> str:
    """Return the file of the shared library for C and C++, which needs no Python.

    Returns
    -------
    str
        The file to link, or its folder by ``-L`` with ``-ltensorops`` on Linux. When a program starts, it looks for the
        file's name, which has the version of the interface: give the linker its folder by ``-rpath``.

    Raises
    ------
    RuntimeError
        If tensorops was installed without its compiled kernels.

    See Also
    --------
    get_include : The headers.

    Examples
    --------
    >>> import ctypes
    >>> import tensorops
    >>> ctypes.CDLL(tensorops.get_library()).tensorops_interface_version()
    1
    """
    name = {"win32": "tensorops.dll", "darwin": "libtensorops.1.dylib"}.get(sys.platform, "libtensorops.so.1")
    return str(_installed() / "lib" / name)


def _installed() -> Path:
    """Return the folder of the package that the compiled module is in, also if others are in a source tree."""
    if reason := _providers.load("cpu"):
        raise RuntimeError(f"the library for C: {reason}")
    from tensorops.kernels.cpu import _native

    return Path(_native.__file__ or "").parents[2]
