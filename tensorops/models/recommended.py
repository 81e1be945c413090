"""How the files of a model recommend to choose tokens."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .files.gguf import GGUFFile

__all__ = ["recommended_sampling"]

FILE = "generation_config.json"
OF_FOLDERS = {"repetition_penalty": "repeat_penalty"}  # other names are the same
OF_GGUF = {"temp": "temperature", "penalty_repeat": "repeat_penalty", "penalty_last_n": "repeat_last_n"}
# Which numbers have a meaning, and which of them change nothing
OPTIONS: dict[str, tuple[Callable[[float], bool], Callable[[float], bool]]] = {
    "temperature": (lambda x: x == 0 or x >= 2.0**-126, lambda x: False),  # that float32 can divide by
    "top_k": (lambda x: x == int(x), lambda x: x <= 0),
    "top_p": (lambda x: x > 0, lambda x: x >= 1),
    "min_p": (lambda x: x <= 1, lambda x: x <= 0),
    "repeat_penalty": (lambda x: x > 0, lambda x: x == 1),
    "repeat_last_n": (lambda x: x == int(x) and x >= -1, lambda x: False),
}


def recommended_sampling(file: GGUFFile) -> dict[str, Any]:
    """Return options of `LanguageModel.generate_ids` that a model's files recommend.

    In a folder, ``do_sample`` false is temperature 0, and true is 1 where none is written; a penalty looks at the whole
    text, as in transformers. What cannot be used is left out with a warning.

    Parameters
    ----------
    file : GGUFFile
        The file, or the folder.
    """
    if file.is_folder:
        from .files.folder import read_json

        path = Path(file.path, FILE)
        where, content = str(path), read_json(path) if path.exists() else {}
        written = {key: value for key, value in content.items() if value is not None}
        if written.get("do_sample") is False:
            written["temperature"] = 0.0
        elif written.get("do_sample") is True:
            written.setdefault("temperature", 1.0)
        if "repetition_penalty" in written:
            written["repeat_last_n"] = -1
        names = OF_FOLDERS
    else:
        prefix = "general.sampling."
        where, names = f"{file.path}: {prefix}*", OF_GGUF
        written = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    found: dict[str, Any] = {}
    for key, value in written.items():
        name = names.get(key, key)
        if name not in OPTIONS:
            continue
        is_valid, is_neutral = OPTIONS[name]
        if type(value) not in (int, float) or not math.isfinite(value) or not is_valid(value):
            warnings.warn(f"{where}: {key}: {value!r:.40} is ignored", stacklevel=2)
        elif not is_neutral(value):
            # Of float32 in a file, the number that was meant
            found[name] = int(value) if name in ("top_k", "repeat_last_n") else float(f"{value:.6g}")
    if "repeat_penalty" not in found:
        found.pop("repeat_last_n", None)
    return found
