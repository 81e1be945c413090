"""The configuration from the environment and the configuration file; the environment takes precedence.

The file is JSON, at ``$TENSOROPS_CONFIG`` or else ``config.json`` in the user's configuration folder::

    {
      "preferred_backend": "jax",
      "backend_priority": ["jax", "cpu"],
      "force_backend": null,
      "devices": {"cpu": {"num_threads": 2}}
    }

Every key is optional. An unknown key or name or an invalid value is an error that gives its position and what is
valid.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorops._display import shortened
from tensorops._files import read_regular, write_atomically
from tensorops._messages import nearest
from tensorops.backends.options import device_config
from tensorops.backends.registry import resolve

if TYPE_CHECKING:
    from pathlib import Path

AUTO = "auto"
MOST_BYTES = 1 << 20  # of a configuration file

CONFIG = "TENSOROPS_CONFIG"
CHOICES = ("TENSOROPS_BACKEND", "TENSOROPS_PRIORITY", "TENSOROPS_FORCE", CONFIG)
VARIABLES: dict[str, str] = {
    "TENSOROPS_BACKEND": "the preferred backend, or auto",
    "TENSOROPS_PRIORITY": "backends to use if the preferred one is unavailable, best first, separated by commas",
    "TENSOROPS_FORCE": "1: the preferred backend, or an error",
    CONFIG: "the path of the configuration file; empty for none",
    "TENSOROPS_NUM_THREADS": "the maximum number of threads of the compiled kernels",
    "TENSOROPS_CPU_TARGET": "the instruction set that the compiled kernels use",
    "TENSOROPS_MODEL": "the model file that the command line runs",
}
"""Every environment variable that tensorops reads, and its meaning."""
# Kubernetes sets these in every container next to a service called tensorops.
_OF_KUBERNETES = ("TENSOROPS_SERVICE_", "TENSOROPS_PORT")


@dataclass(frozen=True)
class Configuration:
    """The configuration of the whole process.

    Parameters
    ----------
    preferred_backend : str
        The backend to compute with, or ``"auto"``: where the arrays live.
    backend_priority : tuple of str
        What to use, in this order, if the preferred backend is unavailable; if empty, the best available one.
    force_backend : str or None
        The backend to compute with; if it is unavailable, the import fails.
    devices : mapping
        The device options of each backend; see `DeviceConfig` and its subclasses.
    num_threads : int or None
        The maximum number of threads of the compiled kernels.
    sources : mapping
        The environment variable or file that each value comes from, by the name of the field.
    """

    preferred_backend: str = AUTO
    backend_priority: tuple[str, ...] = ()
    force_backend: str | None = None
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    num_threads: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


def config_path() -> Path | None:
    """Return the path of the configuration file, or ``None`` if ``TENSOROPS_CONFIG`` is set but empty."""
    from pathlib import Path

    path = _path()
    return Path(path) if path else None


def _path() -> str:
    named = os.environ.get(CONFIG)
    if named is None:
        return os.path.join(_user_folder(), "tensorops", "config.json")  # noqa: PTH118 - see _user_folder
    return os.path.expanduser(named) if named.strip() else ""  # noqa: PTH111


def _user_folder() -> str:
    # The folder that platformdirs gives. Every import of tensorops needs it, and importing platformdirs and pathlib
    # takes a sixth of the time that NumPy takes.
    if sys.platform == "win32":
        return os.environ.get("LOCALAPPDATA") or os.path.expanduser(r"~\AppData\Local")  # noqa: PTH111
    if sys.platform == "darwin":
        return os.path.expanduser("~/Library/Application Support")  # noqa: PTH111
    return os.environ.get("XDG_CONFIG_HOME", "").strip() or os.path.expanduser("~/.config")  # noqa: PTH111


def read() -> Configuration:
    """Return the configuration from the environment and the file.

    Raises
    ------
    ValueError
        If either has an invalid entry; the message names the variable, or the file and the line.
    """
    environment = _from_environment(os.environ)
    file = Configuration()
    named = CONFIG in os.environ
    path = config_path() if named or _exists(_path()) else None
    if path is not None:
        file = read_file(path, must_exist=named)
    return _merged(environment, file)


def exists(path: Path | None) -> bool:
    """Return whether there is a configuration file; if its name is too long to check, there is none."""
    return path is not None and os.path.exists(path)  # noqa: PTH110 - Path.exists raises for some names


def _exists(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass  # something exists that cannot be checked: reading it will raise the reason
    return True


# ----------------------------------------------------------------------------------------- the environment


def _from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that the environment sets, and ``force`` if it sets that."""
    unknown = [
        name
        for name in variables
        if name.startswith("TENSOROPS_") and name not in VARIABLES and not name.startswith(_OF_KUBERNETES)
    ]
    if unknown:
        raise ValueError(
            f"unknown environment variable {shortened(unknown[0])}{nearest(unknown[0], VARIABLES)}; those that "
            f"tensorops reads: {', '.join(VARIABLES)}"
        )
    found: dict[str, Any] = {}
    variables = {name: value for name, value in variables.items() if value.strip()}  # empty counts as unset
    if "TENSOROPS_BACKEND" in variables:
        found["preferred_backend"] = _in("TENSOROPS_BACKEND", lambda: backend_name(variables["TENSOROPS_BACKEND"]))
    if "TENSOROPS_PRIORITY" in variables:
        names = [name.strip() for name in variables["TENSOROPS_PRIORITY"].split(",")]
        found["backend_priority"] = _in("TENSOROPS_PRIORITY", lambda: priority(names))
    if "TENSOROPS_FORCE" in variables:
        if variables["TENSOROPS_FORCE"] not in ("0", "1"):
            said = shortened(repr(variables["TENSOROPS_FORCE"]))
            raise ValueError(f"environment variable TENSOROPS_FORCE is {said}, valid: 1, 0")
        found["force"] = variables["TENSOROPS_FORCE"] == "1"
    if "TENSOROPS_NUM_THREADS" in variables:
        text = variables["TENSOROPS_NUM_THREADS"]
        # Python refuses to convert thousands of digits, with its own message.
        if not text.isascii() or not text.isdigit() or len(text) > 100 or not 1 <= int(text) <= 2**16:
            said = shortened(repr(text))
            raise ValueError(f"environment variable TENSOROPS_NUM_THREADS is {said}, expected a number from 1 to 65536")
        found["num_threads"] = int(text)
    return found


def _in(variable: str, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except ValueError as error:
        raise ValueError(f"environment variable {variable}: {error}") from None


def _merged(environment: dict[str, Any], file: Configuration) -> Configuration:
    sources = dict(file.sources)
    sources.update({name: f"TENSOROPS_{v}" for name, v in _VARIABLE_OF.items() if name in environment})
    named = "preferred_backend" in environment
    preferred = environment.get("preferred_backend", file.preferred_backend)
    forced = None if named and preferred != file.force_backend else file.force_backend  # naming another lifts it
    if "force" in environment:
        forced = None
        if environment["force"]:
            forced = preferred if named or file.force_backend is None else file.force_backend
            if forced == AUTO:
                raise ValueError(
                    "environment variable TENSOROPS_FORCE is 1, but no backend is named: set TENSOROPS_BACKEND"
                )
            sources["force_backend"] = "TENSOROPS_FORCE"
    if forced is None:
        sources.pop("force_backend", None)
    devices = dict(file.devices)
    if "num_threads" in environment:
        devices["cpu"] = {**devices.get("cpu", {}), "num_threads": environment["num_threads"]}
    return Configuration(
        preferred_backend=preferred,
        backend_priority=environment.get("backend_priority", file.backend_priority),
        force_backend=forced,
        devices=devices,
        num_threads=environment.get("num_threads"),
        sources=sources,
    )


_VARIABLE_OF = {"preferred_backend": "BACKEND", "backend_priority": "PRIORITY", "num_threads": "NUM_THREADS"}


# ------------------------------------------------------------------------------------------------ the file


def backend_name(name: object, *, auto: bool = True) -> str:
    """Return the canonical name of a backend, or ``"auto"``; unknown names are errors."""
    if auto and name == AUTO:
        return AUTO
    try:
        return resolve(name).name
    except ValueError as error:
        raise ValueError(f"{error}, auto" if auto else str(error)) from None


def priority(names: object) -> tuple[str, ...]:
    """Return the canonical names of a list of backends; a repeated name is an error."""
    if not isinstance(names, list | tuple):
        raise ValueError(f"expected a list of backend names, got {shortened(repr(names))}")
    found = [backend_name(name, auto=False) for name in names]
    for name in found:
        if found.count(name) > 1:
            raise ValueError(f"backend {name!r} is listed twice")
    return tuple(found)


def _force(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise ValueError(f"expected a backend name or null, got {shortened(repr(name))}")
    return None if name is None else backend_name(name, auto=False)


class _MistakeAtError(ValueError):
    """An error below a key of the file, and the keys that lead to it."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def _devices(options: object) -> dict[str, dict[str, Any]]:
    if not isinstance(options, dict):
        raise ValueError(f"expected an object with backend names as keys, got {shortened(repr(options))}")
    found = {}
    for name, values in options.items():
        keys = [name]
        try:
            backend = backend_name(name, auto=False)
            for key in values if isinstance(values, dict) else ():
                keys[1:] = [key]
                device_config(backend, {key: values[key]})  # its errors name the option and what is valid
            device_config(backend, values)
        except ValueError as error:
            raise _MistakeAtError(str(error), *keys) from None
        found[backend] = dict(values)
    return found


KEYS: dict[str, Callable[[Any], Any]] = {
    "preferred_backend": backend_name,
    "backend_priority": priority,
    "force_backend": _force,
    "devices": _devices,
}
"""The keys of the file and the functions that read their values."""


def read_file(path: Path, *, must_exist: bool = True) -> Configuration:
    """Return the configuration in a file; an empty one if there is no file and it need not exist.

    Raises
    ------
    ValueError
        If it cannot be read or has an invalid entry; the message has the path, the line and the valid values.
    """
    text = _read_text(path, must_exist=must_exist)
    if text is None:
        return Configuration()
    where = _describe(path)
    entries = _parse(where, text)
    found = {}
    for key, value in entries.items():
        if key not in KEYS:
            raise ValueError(
                f"{where}, line {_line_of(text, key)}: unknown key {shortened(repr(key))}{nearest(key, KEYS)}; "
                f"valid keys: {', '.join(KEYS)}"
            )
        try:
            found[key] = KEYS[key](value)
        except ValueError as error:
            line = _line_of(text, key, *getattr(error, "keys", ()))
            raise ValueError(f"{where}, line {line}: {key}: {shortened(error, 2000)}") from None
    return Configuration(**found, sources=dict.fromkeys(found, shortened(path, 1000)))


def _describe(path: Path) -> str:
    return f"configuration file {shortened(path, 1000)}"


def _read_text(path: Path, *, must_exist: bool) -> str | None:
    """Return the text of a file; ``None`` if there is no file and it need not exist."""
    try:
        return read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        if not must_exist:
            return None
        raise ValueError(
            f"{_describe(path)} does not exist; {CONFIG} names it: unset it, or write the file with "
            f"`tensorops config --backend=auto`"
        ) from None
    except OSError as error:
        raise ValueError(f"{_describe(path)} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{_describe(path)} cannot be read: {error}") from None


def _parse(where: str, text: str) -> dict[str, Any]:
    import json

    def whole_number(digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python limits the number of digits, and its message has no position
            line = _line_at(text, text.index(digits))
            raise ValueError(f"line {line}: a number of {len(digits)} digits is too long") from None

    try:
        entries = json.loads(text, parse_int=whole_number)
        _refuse_repeated_keys(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{where}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}; "
            "`tensorops config --reset` rewrites it"
        ) from None
    except RecursionError:
        raise ValueError(f"{where}: its lists and objects are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{where}, {error}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"{where}, line 1: expected an object with the keys {', '.join(KEYS)}")
    return entries


def _keys(text: str) -> Iterator[tuple[int, tuple[str, ...], int]]:
    r"""Yield the keys of a JSON text: the start of the object, the path of keys up to this one, and its own start.

    The parser reports no positions, and a key may be written in several ways: ``"a"`` is ``"\u0061"``.
    """
    import json
    import re

    inside: list[tuple[int, str]] = []  # the open lists and objects, and the latest key of each
    for token in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?|[][{}]', text):
        string, colon = token.groups()
        if token[0] in "[{":
            inside.append((token.start(), ""))
        elif token[0] in "]}":
            inside.pop()
        elif colon:
            inside[-1] = (inside[-1][0], json.loads(string, strict=False))
            yield inside[-1][0], tuple(key for _, key in inside), token.start()


def _refuse_repeated_keys(text: str) -> None:
    seen = set()
    for start, path, place in _keys(text):
        if (start, path[-1]) in seen:
            raise ValueError(f"line {_line_at(text, place)}: the key {shortened(repr(path[-1]))} is listed twice")
        seen.add((start, path[-1]))


def _line_of(text: str, *keys: str) -> int:
    """Return the line of the key with the given path; the first line if there is no such key."""
    return next((_line_at(text, place) for _, path, place in _keys(text) if path == keys), 1)


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def write_file(path: Path, configuration: Configuration) -> None:
    """Write the configuration atomically: concurrent readers see the old file or the new one.

    Raises
    ------
    OSError
        If the folder or the file cannot be written; the old file is then unchanged.
    """
    import json

    entries: dict[str, Any] = {
        "preferred_backend": configuration.preferred_backend,
        "backend_priority": list(configuration.backend_priority),
        "force_backend": configuration.force_backend,
    }
    if configuration.devices:
        entries["devices"] = {name: dict(options) for name, options in configuration.devices.items()}
    write_atomically(path, json.dumps(entries, indent=2) + "\n")
