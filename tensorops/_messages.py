"""Common parts of messages: the nearest valid name, the name of a type, an exception as one line, a command."""

from __future__ import annotations

from collections.abc import Iterable

from tensorops._display import printable


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return `` (did you mean 'numpy'?)`` if one of the valid names is similar, else an empty string."""
    import difflib  # only after a mistake

    by_lower = {v.lower(): v for v in valid}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1) if isinstance(name, str) else []
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def describe_type(x: object) -> str:
    """Return the name that errors use for the type of something that is not an array."""
    cls = type(x)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"


def describe_error(error: BaseException) -> str:
    """Return an exception as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {printable(lines[0]) if lines else 'no message'}"


def installed_from() -> str | None:
    """Return the address of the source tree that pip installed in place, ``""`` for a copy, ``None`` for nothing."""
    import json
    from importlib import metadata  # only after a mistake, or for a report

    try:
        origin = json.loads(metadata.distribution("tensorops").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return None
    return str(origin["url"]) if origin.get("dir_info", {}).get("editable") else ""


def installing(extra: str) -> str:
    """Return the command that installs an extra.

    In a source tree that was never installed, pip must take the tree, and would look for the name in an index.
    """
    return f"pip install --editable '.[{extra}]'" if installed_from() is None else f"pip install 'tensorops[{extra}]'"
