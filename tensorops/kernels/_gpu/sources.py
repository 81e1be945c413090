"""The text of programs: a prelude, macros, and a file of ``native/gpu`` with what it includes."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent
# Installed, the sources are next to this file; in an editable installation, where they were written.
_FOLDERS = (_PACKAGE / "native", _PACKAGE.parents[2] / "native" / "gpu")
FOLDER = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])

_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


@functools.cache
def program(source: str, defines: tuple[tuple[str, Any], ...], *preludes: str) -> str:
    """Return the text of a program; each file is included once.

    Macros that it does not name are left out: each text is compiled.
    """
    included: set[str] = set()
    text = "".join(_included(name, included) for name in ("dialect.h", *preludes, f"{source}.cl"))
    words = set(re.findall(r"\w+", text))
    return "".join(f"#define {name} {value}\n" for name, value in sorted(defines) if name in words) + text


def _included(name: str, included: set[str]) -> str:
    if name in included:
        return ""
    included.add(name)
    text = (FOLDER / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _included(found[1], included), text)
