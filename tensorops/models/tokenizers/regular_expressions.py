r"""How often Oniguruma may try again before a regular expression fits or fails.

A search goes back to each choice it made, as long as something after it can fail: ``(a+)+$`` has twice as many ways
through each further ``a``. A pattern is therefore refused unless the choices before everything that can fail allow one
repeat of any length, as in those of published tokenizers: ``\s*[\r\n]+``, ``\s+(?!\S)``, ``\p{Lu}*\p{Ll}+``. A search
takes time in proportion to the text then, at each position of the text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["check_regular_expression"]

ANY = float(1 << 20)  # the choices of a repeat of any length
MOST_CHOICES = 64 * ANY
FEW = 64.0  # what a part that is repeated may try each time
DEEPEST = 50
MOST_TIMES = 100
GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|<[^\W\d]\w*>|[im-]*(?P<flags>[:)])))?")
REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9a-fA-F]+\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|[0-7]{1,3}|[^\W\d]|\W)", re.DOTALL
)
OTHER_ESCAPES = "gkcCMKXR"  # calls and references, controls, and what may be repeated in itself


@dataclass(frozen=True)
class _Part:
    """A part of a pattern: in how many ways it fits, how often it tries before it fits or fails, whether it fails."""

    ways: float = 1.0
    tries: float = 1.0
    can_fail: bool = True


def check_regular_expression(pattern: str) -> None:
    """Raise ValueError for a pattern whose time may not be in proportion to the text, or with unusual syntax."""
    part, end = _alternatives(pattern, 0, 0)
    if end < len(pattern):
        raise ValueError("unmatched )")
    if part.tries > MOST_CHOICES:
        raise ValueError("it may take time out of proportion to the text")


def _alternatives(pattern: str, at: int, depth: int) -> tuple[_Part, int]:
    """Return the alternatives that begin at a place, and where they end."""
    if depth > DEEPEST:
        raise ValueError("groups are nested too deeply")
    alternatives: list[list[_Part]] = [[]]
    while at < len(pattern) and pattern[at] != ")":
        if pattern[at] == "|":
            alternatives.append([])
            at += 1
            continue
        part, at = _atom(pattern, at, depth)
        while at < len(pattern) and (times := _times(pattern, at)) is not None:
            least, most, at = times
            part = _repeated(part, least, most)
        alternatives[-1].append(part)
    parts = list(map(_in_turn, alternatives))
    ways, tries = (sum(getattr(part, name) for part in parts) for name in ("ways", "tries"))
    return _Part(ways, tries, all(part.can_fail for part in parts)), at


def _atom(pattern: str, at: int, depth: int) -> tuple[_Part, int]:
    """Return a group, a class or a character, and where it ends."""
    letter = pattern[at]
    if letter == "(":
        group = GROUP.match(pattern, at)
        if group is None or pattern[group.end() - 1 : group.end() + 1] in ("(?", "(*"):
            raise ValueError(f"the group at {at} is not supported")
        if group["flags"] == ")":  # for what follows in the group around it, which may be alternatives
            return _alternatives(pattern, group.end(), depth + 1)
        inside, at = _alternatives(pattern, group.end(), depth + 1)
        if at == len(pattern):
            raise ValueError("unmatched (")
        looks = group[0][2:] in ("=", "!", "<=", "<!")
        return (_Part(1.0, inside.tries) if looks else inside), at + 1
    if letter == "[":
        return _Part(), _class_end(pattern, at)
    if letter == "\\":
        return _Part(), _escape_end(pattern, at)
    return _Part(), at + 1


def _escape_end(pattern: str, at: int) -> int:
    escape = ESCAPE.match(pattern, at)
    if escape is None or escape[0][1] in OTHER_ESCAPES:
        raise ValueError(f"the escape at {at} is not supported")
    return escape.end()


def _class_end(pattern: str, at: int) -> int:
    """Return where a class ends, which may have others in it."""
    start, depth = at, 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at = _escape_end(pattern, at)
            continue
        at += 1
        if letter == "[":
            if pattern.startswith(":", at) and (end := pattern.find(":]", at)) >= 0 and pattern[at + 1 : end].isalpha():
                at = end + 2
                continue
            depth += 1
            at += pattern.startswith("^", at)
            at += pattern.startswith("]", at)  # the first of a class stands for itself
        elif letter == "]":
            depth -= 1
            if not depth:
                return at
    raise ValueError(f"the class at {start} has no end")


def _times(pattern: str, at: int) -> tuple[int, float, int] | None:
    """Return how often a part is repeated at least and at most, and where that ends; None if it is not said."""
    simple = {"*": (0, math.inf), "+": (1, math.inf), "?": (0, 1.0)}.get(pattern[at])
    if simple is not None:
        at += 1
        return *simple, at + pattern.startswith(("?", "+"), at)
    repeat = REPEAT.match(pattern, at)
    if repeat is None or not (repeat[1] or repeat[3]):
        return None
    least = int(repeat[1] or 0)
    most = float(repeat[3]) if repeat[3] else math.inf if repeat[2] else float(least)
    least, most = sorted((least, most))  # type: ignore[assignment] # the other way round it is another notation
    # A question mark makes it take as few as it can; after {n} it makes it optional.
    return least, most, at + repeat.end() - repeat.start()


def _repeated(part: _Part, least: int, most: float) -> _Part:
    if part.ways == 1:
        ways = min(most - least + 1, ANY)
    elif most <= MOST_TIMES:
        ways = sum(_power(part.ways, times) for times in range(least, int(most) + 1))
    else:
        ways = math.inf
    tries = _power(part.ways, max(least - 1, 0)) * part.tries
    if most > 1 and part.tries > FEW:
        tries *= min(most, ANY)
    return _Part(ways, tries, part.can_fail and least > 0)


def _power(ways: float, times: int) -> float:
    return 1.0 if ways == 1 else math.inf if times > MOST_TIMES else min(ways, ANY**2) ** times


def _in_turn(parts: list[_Part]) -> _Part:
    """Return parts that follow each other: those before one that can fail are tried in all their ways."""
    last = max((i for i, part in enumerate(parts) if part.can_fail), default=-1)
    ways, tries = 1.0, 1.0
    for i, part in enumerate(parts):
        tries += part.tries * (ways if i <= last else 1.0)
        ways *= part.ways
    return _Part(ways, tries, last >= 0)
