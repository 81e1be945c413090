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


_OTHER_NAMES = {
    "axis": ("axes", "dim", "dims"),
    "eps": ("epsilon",),
    "keepdims": ("keepdim", "keep_dims"),
    "is_causal": ("causal",),
    "mask": ("attn_mask", "attention_mask", "bias"),
    "num_groups": ("groups",),
    "rng": ("seed", "key", "generator", "random_state"),
    "weight": ("gamma", "scale", "kernel"),
    "bias": ("beta", "offset"),
    "x": ("input", "a"),
}
"""Names that other libraries have for parameters."""


def meant(name: str, valid: Iterable[str]) -> str:
    """Return which parameter an unknown keyword means, by its name elsewhere or a similar one, or an empty string."""
    for ours in valid:
        if name.lower() in _OTHER_NAMES.get(ours, ()):
            return f" (did you mean {ours!r}?)"
    return nearest(name, valid)


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
    return f"pip install -e '.[{extra}]'" if installed_from() is None else f"pip install 'tensorops[{extra}]'"
