"""Encoders that merge characters: byte-level BPE, BPE of text, and SentencePiece's BPE with scores."""

from __future__ import annotations

import re
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar

from tensorops.models._errors import missing

from .vocabulary import BYTE_LETTERS, SPACE

try:
    from tokenizers import NormalizedString, Regex
except ImportError as error:
    raise missing("tokenizers") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .pretokenizers import Rule

    Rank = Callable[[str, str], float | None]

Item = TypeVar("Item")

__all__ = ["ByteEncoder", "SpecialTokens", "TextEncoder", "merge"]

CACHED_WORDS = 1 << 15
LONGEST_CACHED_WORD = 64


def merge(symbols: list[str], rank: Rank) -> list[str]:
    """Merge neighbours, those of the lowest rank first, and the leftmost of these.

    Takes O(n log n) steps.

    Parameters
    ----------
    symbols : list of str
        What to merge, such as the characters of a word; overwritten.
    rank : callable
        Returns the rank of two neighbours, or None if they stay apart.

    Returns
    -------
    list of str
        What is left.
    """
    count = len(symbols)
    following, preceding = list(range(1, count + 1)), list(range(-1, count - 1))
    queue = [
        (found, i, symbols[i], symbols[i + 1])
        for i in range(count - 1)
        if (found := rank(symbols[i], symbols[i + 1])) is not None
    ]
    heapify(queue)
    while queue:
        _, i, left, right = heappop(queue)
        j = following[i]
        if j == count or symbols[i] != left or symbols[j] != right:
            continue  # one of them has been merged meanwhile
        symbols[i] = merged = left + right
        symbols[j] = ""
        following[i] = j = following[j]
        if j < count:
            preceding[j] = i
            if (found := rank(merged, symbols[j])) is not None:
                heappush(queue, (found, i, merged, symbols[j]))
        if (h := preceding[i]) >= 0 and (found := rank(symbols[h], merged)) is not None:
            heappush(queue, (found, h, symbols[h], merged))
    return [symbol for symbol in symbols if symbol]


def remember(function: Callable[[str], list[Item]]) -> Callable[[str], list[Item]]:
    """Return a function that computes the result for a short word once: a text has few different ones."""
    cached = lru_cache(CACHED_WORDS)(function)
    return lambda word: cached(word) if len(word) <= LONGEST_CACHED_WORD else function(word)


class ByteEncoder:
    """Byte-level BPE: a rule cuts a text into words, and bytes of a word are merged.

    Parameters
    ----------
    ids : mapping of str to int
        Tokens, written with GPT-2's letters for bytes.
    ranks : mapping of str to int
        The rank of two tokens with a space between them.
    rule : Rule
        Where words end.
    """

    def __init__(self, ids: Mapping[str, int], ranks: Mapping[str, int], rule: Rule) -> None:
        self._id_of = ids
        self._rank: Rank = lambda left, right: ranks.get(f"{left} {right}")
        self._whole_words = rule.whole_words
        self._cuts = [_cut(pattern) for pattern in rule.patterns]
        self._ids = remember(self._word_ids)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens; bytes that are no token are left out."""
        return [token for word in self.words(text) for token in self._ids(word)]

    def words(self, text: str) -> list[str]:
        """Return the words of a text, which together are the text."""
        words = [text]
        for cut in self._cuts:
            words = [part for word in words for part in cut(word)]
        return words

    def _word_ids(self, word: str) -> list[int]:
        letters = "".join(BYTE_LETTERS[byte] for byte in word.encode())
        if self._whole_words and letters in self._id_of:
            return [self._id_of[letters]]
        return [self._id_of[part] for part in merge(list(letters), self._rank) if part in self._id_of]


def _cut(pattern: str) -> Callable[[str], list[str]]:
    """Return a function that cuts a word at the matches of a pattern."""
    compiled = Regex(pattern)
    return remember(lambda word: [str(part) for part in NormalizedString(word).split(compiled, "isolated")])


class TextEncoder:
    """BPE of characters, as SentencePiece does it: ``▁`` for spaces, and bytes where a character is no token.

    Parameters
    ----------
    ids : mapping of str to int
        Tokens.
    rank : callable
        As of `merge`.
    byte_ids : mapping of int to int
        The token for each byte.
    unknown : int, optional
        The token for a character that is none and whose bytes are none either.
    space_before : bool
        A text begins with a space, also after a special token.
    lines : bool
        Nothing is merged across the ends of lines, and several ends of lines may be one token.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        rank: Rank,
        byte_ids: Mapping[int, int],
        unknown: int | None,
        *,
        space_before: bool,
        lines: bool,
    ) -> None:
        self._id_of = ids
        self._rank = rank
        self._byte_ids = byte_ids
        self._unknown = [] if unknown is None else [unknown]
        self._space_before = space_before
        # Before a space nothing can be merged, except after the few characters that some token has there: pieces
        # between such spaces are independent of each other.
        spaced = (token for token in ids if SPACE in token.lstrip(SPACE))
        glued = {SPACE, *(before for token in spaced for before in re.findall(f"(.){SPACE}", token, re.S))}
        cut = f"(?<=[^{re.escape(''.join(sorted(glued)))}])(?={SPACE})"
        self._cut = re.compile(rf"{cut}|(?<=\n)(?=[^\n])|(?<=[^\n])(?=\n)" if lines else cut)
        self._lines = lines
        self._ids = remember(self._word_ids)

    def encode(self, text: str, *, after_special: bool) -> list[int]:
        """Return the ids of a text without special tokens."""
        if self._space_before and after_special:
            text = " " + text
        words = self._cut.split(text.replace(" ", SPACE))
        return [token for word in words for token in self._ids(word)]

    def _word_ids(self, word: str) -> list[int]:
        if self._lines and word in self._id_of and not word.strip("\n"):
            return [self._id_of[word]]
        ids: list[int] = []
        for symbol in merge(list(word), self._rank):
            if symbol in self._id_of:
                ids.append(self._id_of[symbol])
            else:
                of_bytes = [self._byte_ids[byte] for byte in symbol.encode() if byte in self._byte_ids]
                ids += of_bytes or self._unknown
        return ids


class SpecialTokens:
    """Finds tokens that a text has written out, longest first; between them lies ordinary text.

    Parameters
    ----------
    ids : mapping of str to int
        Tokens.
    strip_after : callable, optional
        Returns whether spaces after a token are left out.
    """

    def __init__(self, ids: Mapping[str, int], strip_after: Callable[[str], bool] = lambda _: False) -> None:
        self._ids = ids
        self._strip_after = strip_after
        lengths: dict[str, set[int]] = {}
        for token in ids:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(found) for first, found in lengths.items()}
        self._first = re.compile(f"[{re.escape(''.join(lengths))}]" if lengths else "(?!)")

    def split(self, text: str) -> list[str | int]:
        """Return the ids of special tokens and the texts between them, none of them empty."""
        parts: list[Any] = [text]
        for token in sorted(self._occurring(text), key=lambda token: (-len(token.encode()), self._ids[token])):
            parts = [piece for part in parts for piece in self._cut_out(token, part)]
        return [part for part in parts if part != ""]

    def _occurring(self, text: str) -> set[str]:
        # A vocabulary has thousands of special tokens and a text few, so each place is tried, not each token.
        places = (match.start() for match in self._first.finditer(text))
        pieces = (text[start : start + length] for start in places for length in self._lengths[text[start]])
        return {piece for piece in pieces if piece in self._ids}

    def _cut_out(self, token: str, part: str | int) -> Iterable[str | int]:
        if isinstance(part, int):
            return [part]
        first, *rest = part.split(token)
        pieces: list[str | int] = [first]
        for piece in rest:
            pieces += [self._ids[token], piece.lstrip(" \t\n\v\f\r") if self._strip_after(token) else piece]
        return pieces
