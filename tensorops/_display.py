"""What people are shown: text from elsewhere made harmless."""

from __future__ import annotations


def printable(text: object) -> str:
    r"""Return a text with everything that cannot be printed written as Python writes it: an escape is ``\x1b``.

    Names, paths and messages come from files, drivers and the environment, and a terminal obeys what they contain.

    Examples
    --------
    >>> from tensorops._display import printable
    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def printable_lines(text: object) -> str:
    """Return a text as `printable` does, but for the ends of its lines."""
    return "\n".join(map(printable, str(text).split("\n")))


def shortened(text: object, length: int = 200) -> str:
    """Return a printable text whose middle is left out if it is too long for a message.

    Examples
    --------
    >>> from tensorops._display import shortened
    >>> shortened("1" * 5000, 20)
    '11111111...111111111'
    """
    whole = printable(text)
    half = (length - 3) // 2
    return whole if len(whole) <= length else f"{whole[:half]}...{whole[-(length - 3 - half) :]}"
