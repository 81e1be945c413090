"""Texts that end a generated text, also where they arrive in pieces.

They are looked for twice: in what is shown, and in what a text is with its control tokens written out. So they may have
control tokens in them, and those that have none are never in what is shown.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["Piece", "require_characters", "stop_finder", "stop_texts", "tokens_until", "until"]

Piece = tuple[bytes, bool]  # what a token stands for, and whether it is shown


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return texts as a tuple, refusing an empty one, which is everywhere, and one that no tokens can be."""
    texts = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(texts):
        raise ValueError("stop has an empty text")
    for text in texts:
        require_characters("stop", text)
    return texts


def require_characters(name: str, text: str) -> None:
    """Raise ValueError if a text has half of a surrogate pair in it, which is no character and has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}"
        raise ValueError(f"{name} has a lone surrogate, {half}, at {error.start}: it is no character") from None


def until(pieces: Iterable[Piece], stops: Sequence[str]) -> Iterator[bytes]:
    """Yield what is shown of a text up to the first of some others, which are left out.

    Parameters
    ----------
    pieces : iterable of (bytes, bool)
        The text in UTF-8, which may be cut anywhere, and whether each piece is shown.
    stops : sequence of str
        The one that is complete first counts; of several that end together, the longest.

    Yields
    ------
    bytes
        A non-empty piece; what may be the beginning of one of `stops` is held back until it is known.
    """
    wanted = [stop.encode() for stop in stops]
    text, places = b"", list[int]()  # what is held back, and where in it are the bytes that are shown
    for piece, is_shown in pieces:
        if is_shown:
            places += range(len(text), len(text) + len(piece))
        text += piece
        shown = bytes(text[i] for i in places)
        ends = [_first(text, wanted)]
        if found := _first(shown, wanted):
            ends.append((places[found[0] - 1] + 1, places[found[1]]))
        first = min((end for end in ends if end is not None), default=None)
        if first is None:
            open_places = [*places, len(text)]
            limit = min(len(text) - _beginning(text, wanted), open_places[len(shown) - _beginning(shown, wanted)])
        else:
            limit = first[1]
        if count := bisect_left(places, limit):
            yield shown[:count]
        if first is not None:
            return
        text, places = text[limit:], [i - limit for i in places[count:]]
    if places:
        yield bytes(text[i] for i in places)


def _first(text: bytes, stops: Sequence[bytes]) -> tuple[int, int] | None:
    """Return where the first stop ends and begins, or None if there is none."""
    return min(((start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0), default=None)


def _beginning(text: bytes, stops: Sequence[bytes]) -> int:
    """Return the number of bytes at the end of a text that may be the beginning of a stop."""
    most = min(len(text), max(map(len, stops)) - 1)
    return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)


def tokens_until(tokens: Iterable[int], bytes_of: Callable[..., bytes], stops: Sequence[str]) -> Iterator[int]:
    """Yield tokens up to the one that completes one of some texts, which is the last."""
    completes = stop_finder(bytes_of, stops)
    for token in tokens:
        yield token
        if completes(token):
            return


def stop_finder(bytes_of: Callable[..., bytes], stops: Sequence[str]) -> Callable[[int], bool]:
    """Return a function that says of each next token of a text whether it completes one of some texts.

    Parameters
    ----------
    bytes_of : callable
        `Tokenizer.bytes_of`.
    stops : sequence of str
        The texts.
    """
    wanted = [stop.encode() for stop in stops]
    longest = max(map(len, wanted), default=0)
    seen = {True: b"", False: b""}  # without control tokens, and with them

    def completes(token: int) -> bool:
        is_complete = False
        for skip_special, before in seen.items():
            text = before + bytes_of(token, skip_special=skip_special)
            is_complete |= any(stop in text for stop in wanted)
            seen[skip_special] = text[max(len(text) - longest + 1, 0) :]
        return is_complete

    return completes
