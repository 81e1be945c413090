"""Output for people: tables, and safe printing of external text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest


def printable(text: object) -> str:
    r"""Return a text with non-printable characters escaped as in Python, such as ``\x1b``.

    Names, paths and messages come from files, drivers and the environment, and a terminal would obey control
    characters.

    Examples
    --------
    >>> from tensorops._display import printable
    >>> print(printable("red: \x1b[31m"))
    red: \x1b[31m
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def printable_lines(text: object) -> str:
    """Return a text as `printable` does, but keep its line ends."""
    return "\n".join(map(printable, str(text).split("\n")))


def without_controls(text: str) -> str:
    r"""Return a text whose control characters, other than line ends and tabs, are escaped as in Python.

    What is not printable for other reasons stays, such as the joiners inside of emoji.

    Examples
    --------
    >>> from tensorops._display import without_controls
    >>> print(without_controls("\x1b[2J\x9b2J \N{WOMAN}\N{ZERO WIDTH JOINER}\N{ROCKET}"))
    \x1b[2J\x9b2J 👩‍🚀
    """
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shortened(text: object, length: int = 200) -> str:
    """Return a printable text, without its middle if it is too long for a message.

    Examples
    --------
    >>> from tensorops._display import shortened
    >>> shortened("1" * 5000, 20)
    '11111111...111111111'
    """
    whole = printable(text)
    half = (length - 3) // 2
    return whole if len(whole) <= length else f"{whole[:half]}...{whole[-(length - 3 - half) :]}"


# A command in a sentence, to be copied: lines must not break inside it.
_COMMAND = re.compile(
    r"(?:pip|apt-get) install(?: -[\w-]+)* (?:'[^']+'|[\w\[\].+-]*[\w+\]])"
    r"|tensorops [a-z]+(?: --[\w-]+(?:=\w+)?)+"
    r"|unset [A-Z_]+"
)
_HELD = "\N{NO-BREAK SPACE}"


def wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines between words; a word or command that is too long for a line gets its own line.

    Examples
    --------
    >>> from tensorops._display import wrapped
    >>> wrapped("to fix it: pip install 'tensorops[jax]'", 30)
    ['to fix it:', "pip install 'tensorops[jax]'"]
    """
    held = _COMMAND.sub(lambda command: command[0].replace(" ", _HELD), text.replace(_HELD, " "))
    lines: list[str] = []
    for word in filter(None, held.split(" ")):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [line.replace(_HELD, " ") for line in lines] or [""]


@dataclass(frozen=True)
class Table:
    """Rows of text for people: aligned in a terminal, HTML in a notebook.

    Parameters
    ----------
    title : str
        A line above; may be empty.
    head : tuple of str
        The column names.
    rows : tuple of tuple of str
        The cells, with any characters and any number of lines.
    notes : tuple of str
        Lines below.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def to_text(self, width: int | None = None) -> str:
        """Return lines of at most `width` characters if words and commands allow it, else each row as a paragraph."""
        rows = [tuple(printable_lines(cell).split("\n") for cell in row) for row in (self.head, *self.rows)]
        lines = self._aligned(rows, width)
        if lines is None:
            assert width is not None
            lines = self._paragraphs(rows[1:], width)
        title, *notes = (
            [printable(text)] if width is None else wrapped(printable(text), width)
            for text in (self.title, *self.notes)
        )
        return "\n".join([*(title if self.title else ()), *lines, *(line for note in notes for line in note)])

    def _aligned(self, rows: Sequence[tuple[list[str], ...]], width: int | None) -> list[str] | None:
        """Return the lines of the columns, wrapping only the last; ``None`` if they do not fit."""
        *widths, last = (max(len(line) for row in rows for line in row[i]) for i in range(len(self.head)))
        indent = sum(widths) + 2 * len(widths)
        if width is not None and indent + last > width:
            longest = max(len(word) for row in rows for line in row[-1] for word in wrapped(line, 1))
            if indent + longest > width:
                return None
            rows = [(*row[:-1], [w for line in row[-1] for w in wrapped(line, width - indent)]) for row in rows]
        widths.append(0)
        return [
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
            for row in rows
            for line in zip_longest(*row, fillvalue="")
        ]

    def _paragraphs(self, rows: Sequence[tuple[list[str], ...]], width: int) -> list[str]:
        lines = []
        for row in rows:
            cells = [(name, *cell) for name, cell in zip(self.head, row, strict=True) if cell != [""]]
            named = [line for name, first, *rest in cells for line in (f"{name}: {first}" if name else first, *rest)]
            first, *rest = (wrapped(text, width - 2) for text in named or [""])
            lines += [*first, *(f"  {line}" for text in rest for line in text)]
        return lines

    def to_html(self) -> str:
        """Return HTML without its own colours, so it works in a notebook's light and dark theme."""

        def cells(tag: str, row: Iterable[str]) -> str:
            return "<tr>" + "".join(f'<{tag} style="{_LEFT}">{_escaped(cell)}</{tag}>' for cell in row) + "</tr>"

        caption = f'<caption style="{_LEFT}">{_escaped(self.title)}</caption>' if self.title else ""
        body = "".join(cells("td", row) for row in self.rows)
        notes = "".join(f"<div>{_escaped(note)}</div>" for note in self.notes)
        return f"<table>{caption}<thead>{cells('th', self.head)}</thead><tbody>{body}</tbody></table>{notes}"


_LEFT = "text-align: left; white-space: pre-wrap; vertical-align: top"


def _escaped(text: str) -> str:
    from html import escape

    return escape(printable_lines(text))


class Displayed:
    """An object that a notebook shows as a table, and everything else as the text that `print` shows."""

    def _table(self) -> Table:
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._table().to_html()
