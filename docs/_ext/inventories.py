"""Inventories of the names of other projects that these pages link, for builds that cannot reach theirs.

The names are few, and their addresses do not change; Sphinx's own inventories, where they can be fetched, have all.
"""

from __future__ import annotations

import zlib
from pathlib import Path

ADDRESSES = {"python": "https://docs.python.org/3/", "numpy": "https://numpy.org/doc/stable/"}

_CLASSES = {
    "python": {
        **dict.fromkeys(("bool", "bytes", "float", "int"), "library/functions.html"),
        **dict.fromkeys(("dict", "list", "str", "tuple"), "library/stdtypes.html"),
        "slice": "library/functions.html",
        "concurrent.futures.ThreadPoolExecutor": "library/concurrent.futures.html",
    },
    "numpy": {
        "numpy.ndarray": "reference/generated/numpy.ndarray.html",
        "numpy.dtype": "reference/generated/numpy.dtype.html",
        "numpy.random.Generator": "reference/random/generator.html",
    },
}
_EXCEPTIONS = ("IndexError", "KeyError", "MemoryError", "OSError", "RuntimeError", "TypeError", "ValueError")


def write(folder: Path) -> None:
    """Write one inventory for each project into a folder, in Sphinx's format, version 2."""
    folder.mkdir(exist_ok=True)
    for project, names in _CLASSES.items():
        rows = [f"{name} py:class 1 {page}#$ -" for name, page in names.items()]
        if project == "python":
            rows += [f"{name} py:exception 1 library/exceptions.html#$ -" for name in _EXCEPTIONS]
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        content = zlib.compress("".join(f"{row}\n" for row in sorted(rows)).encode())
        (folder / f"{project}.inv").write_bytes(head.encode() + content)
