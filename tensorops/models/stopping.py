"""Texts that end a generated text, also where they arrive in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["stop_finder", "stop_texts", "tokens_until", "until"]


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return texts as a tuple, refusing an empty one, which is everywhere."""
    texts = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(texts):
        raise ValueError("stop has an empty text")
    return texts


def until(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield a text up to the first of some others, which are left out.

    Parameters
    ----------
    pieces : iterable of str
        The text.
    stops : sequence of str
        The one that is complete first counts; of several that end together, the longest.

    Yields
    ------
    str
        A non-empty piece; what may be the beginning of one of `stops` is held back until it is known.
    """
    held = ""
    for piece in pieces:
        held += piece
        if (end := _first(held, stops)) is not None:
            if end:
                yield held[:end]
            return
        known = len(held) - _beginning(held, stops)
        if known:
            yield held[:known]
            held = held[known:]
    if held:
        yield held


def _first(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop begins, or None if there is none."""
    found = [(start + len(stop), start) for stop in stops if (start := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _beginning(text: str, stops: Sequence[str]) -> int:
    """Return the number of characters at the end of a text that may be the beginning of a stop."""
    most = min(len(text), max(map(len, stops)) - 1)
    return next((n for n in range(most, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)


def tokens_until(tokens: Iterable[int], bytes_of: Callable[[int], bytes], stops: Sequence[str]) -> Iterator[int]:
    """Yield tokens up to the one that completes one of some texts, which is the last."""
    completes = stop_finder(bytes_of, stops)
    for token in tokens:
        yield token
        if completes(token):
            return


def stop_finder(bytes_of: Callable[[int], bytes], stops: Sequence[str]) -> Callable[[int], bool]:
    """Return a function that says of each next token of a text whether it completes one of some texts."""
    wanted = [stop.encode() for stop in stops]
    longest = max(map(len, wanted))
    seen = b""

    def completes(token: int) -> bool:
        nonlocal seen
        seen += bytes_of(token)
        found = any(stop in seen for stop in wanted)
        seen = seen[max(len(seen) - longest + 1, 0) :]
        return found

    return completes
