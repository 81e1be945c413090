"""Keys and values of many sequences in pages: given out as sequences grow, shared where they begin alike.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
https://arxiv.org/abs/2309.06180. `tensorops.scaled_dot_product_attention` reads the pages in place.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp

from .cache import KV_DTYPES, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import ModelConfig

__all__ = ["OutOfPagesError", "PagedKVCache", "assigned"]

Array = Any
_ROOT = -1  # what comes before the first page


class OutOfPagesError(RuntimeError):
    """A sequence needs a page, and all pages are in use; the message says by how many sequences."""


@dataclass
class _Sequence:
    tokens: list[int]  # those whose keys are in pages
    pages: list[int] = field(default_factory=list)
    row: int = 0  # of states


class PagedKVCache:
    """Keys and values of many sequences in pages of equal size.

    Parameters
    ----------
    config : ModelConfig
        The sizes of the network.
    page_size : int
        How many tokens a page holds.
    max_num_pages : int
        How many pages there are.
    max_sequences : int, optional
        How many sequences may have states, if blocks of the network keep some: those of gated delta nets.
    dtype : {"float32", "float16", "bfloat16", "q8_0"}
        How keys and values are kept: in this dtype or, with "q8_0", as blocks of that format in uint8.
    backend : str, optional
        The backend whose arrays they are; by default the one in force, or ``numpy``.

    Attributes
    ----------
    keys, values : list of array, each of shape (max_num_pages + 1, kv_heads, page_size, head_dim)
        The pages of every block, of which "q8_0" has ``ceil(head_dim / 32) * 34`` bytes in place of `head_dim`; of one
        with states, a row for each sequence, (max_sequences + 1, ...). The last page and row belong to no sequence:
        what is written there is never read.

    Raises
    ------
    ValueError
        If a number is less than 1, or there is no such dtype.

    Notes
    -----
    Full pages are kept after their sequences have left, until they are needed: a sequence that begins with the same
    tokens uses them again. Pages are never copied, as only full ones are shared. If there are states, none are shared:
    the states after a page are not kept.

    Methods raise KeyError for the number of a sequence that never joined or has left.

    Examples
    --------
    >>> from tensorops.models import ModelConfig, PagedKVCache
    >>> sizes = {"dim": 8, "hidden_dim": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "vocab_size": 10}
    >>> cache = PagedKVCache(ModelConfig(blocks=1, context_length=64, **sizes), 4, 3)
    >>> first, known = cache.join([1, 2, 3, 4, 5, 6])
    >>> cache.append(first, [1, 2, 3, 4, 5, 6])
    >>> known, cache.free_pages
    (0, 1)
    >>> second, known = cache.join([1, 2, 3, 4, 9])
    >>> known
    4
    """

    def __init__(
        self,
        config: ModelConfig,
        page_size: int,
        max_num_pages: int,
        *,
        max_sequences: int = 8,
        dtype: str = "float32",
        backend: str | None = None,
    ) -> None:
        sizes = {"page_size": page_size, "max_num_pages": max_num_pages, "max_sequences": max_sequences}
        for name, value in sizes.items():
            if isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}, expected at least 1")
        if dtype not in KV_DTYPES:
            raise ValueError(f"dtype is {dtype!r}, expected one of {', '.join(KV_DTYPES)}")
        self.page_size, self.max_num_pages = page_size, max_num_pages
        self.dtype, self.max_sequences, self._config = dtype, max_sequences, config
        in_force = tp.get_backend()
        backend = backend or ("numpy" if in_force == "auto" else in_force)
        first = [max_sequences + 1 if i in config.recurrent else max_num_pages + 1 for i in range(config.blocks)]
        first = [1 if i in config.sources else number for i, number in enumerate(first)]
        empty = [
            [np.zeros((number, *shape[1:]), kept) for number, (shape, kept) in zip(first, part, strict=True)]
            for part in layout(config, page_size, dtype)
        ]
        self.keys, self.values = tp.to_backend(empty, backend)
        self._free_rows = list(range(max_sequences))
        self._sequences: OrderedDict[int, _Sequence] = OrderedDict()  # the oldest first
        self._next = 0
        self._never_used = list(range(max_num_pages - 1, -1, -1))
        self._users = [0] * max_num_pages
        self._idle: OrderedDict[int, None] = OrderedDict()  # full pages without a sequence, the longest unused first
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}  # by the page before it, and its own tokens
        self._key_of: dict[int, tuple[int, tuple[int, ...]]] = {}

    def __repr__(self) -> str:
        used = self.max_num_pages - self.free_pages
        return f"<PagedKVCache: {len(self._sequences)} sequences, {used} of {self.max_num_pages} pages in use>"

    @property
    def free_pages(self) -> int:
        """How many pages no sequence uses."""
        return len(self._never_used) + len(self._idle)

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences, the oldest first."""
        return tuple(self._sequences)

    def length(self, sequence: int) -> int:
        """Return how many tokens of a sequence are in pages."""
        return len(self._find(sequence).tokens)

    def _find(self, sequence: int) -> _Sequence:
        try:
            return self._sequences[sequence]
        except KeyError:
            raise KeyError(f"there is no sequence {sequence}: it has not joined, or has left") from None

    def join(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Let a sequence begin.

        Parameters
        ----------
        tokens : sequence of int
            Its first tokens.

        Returns
        -------
        sequence : int
            Its number.
        known : int
            How many of the tokens are in pages already. It is less than their number: the last one is always computed,
            as its features choose the next.

        Raises
        ------
        OutOfPagesError
            There are states, and all rows of these are in use.
        """
        made = _Sequence([], self._shared(tokens))
        if self._config.recurrent:
            if not self._free_rows:
                raise OutOfPagesError(f"all {self.max_sequences} rows of states are in use: max_sequences is too small")
            made.row = self._free_rows.pop(0)
            self._clear(made.row)
        for page in made.pages:
            self._use(page)
        made.tokens += (int(token) for token in tokens[: len(made.pages) * self.page_size])
        number, self._next = self._next, self._next + 1
        self._sequences[number] = made
        return number, len(made.tokens)

    def known(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of a sequence that begins with these would be in pages already.

        Parameters
        ----------
        tokens : sequence of int
            Its first tokens.

        Returns
        -------
        int
            What `join` would return.
        """
        return len(self._shared(tokens)) * self.page_size

    def row(self, sequence: int) -> int:
        """Return which row of states a sequence has."""
        return self._find(sequence).row

    def _clear(self, row: int) -> None:
        for part in (self.keys, self.values):
            for i in self._config.recurrent:
                part[i] = assigned(part[i], (row,), np.zeros(part[i].shape[1:], np.float32))

    def _shared(self, tokens: Sequence[int]) -> list[int]:
        """Return the pages with which a sequence can begin."""
        pages: list[int] = []
        if self._config.recurrent:
            return pages
        before = _ROOT
        for start in range(0, len(tokens) - self.page_size, self.page_size):
            own = tuple(int(token) for token in tokens[start : start + self.page_size])
            page = self._known.get((before, own))
            if page is None:
                break
            pages.append(page)
            before = page
        return pages

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        """Give pages to tokens that a sequence goes on with; their keys and values are to be written.

        Parameters
        ----------
        sequence : int
            From `join`.
        tokens : sequence of int
            The tokens after those that are in pages.

        Raises
        ------
        OutOfPagesError
            If fewer pages are free. Nothing has changed then.
        """
        this = self._find(sequence)
        needed = -(-(len(this.tokens) + len(tokens)) // self.page_size) - len(this.pages)
        if needed > self.free_pages:
            raise OutOfPagesError(
                f"sequence {sequence} needs {needed} more of {self.max_num_pages} pages, of which {self.free_pages} "
                f"are free; {len(self._sequences) - 1} other sequences have pages"
            )
        this.pages += [self._take() for _ in range(needed)]
        for token in tokens:
            this.tokens.append(int(token))
            if len(this.tokens) % self.page_size == 0:
                self._remember(this, len(this.tokens) // self.page_size - 1)

    def leave(self, sequence: int) -> None:
        """Take back the pages of a sequence; full ones stay known until they are needed."""
        this = self._find(sequence)
        del self._sequences[sequence]
        if self._config.recurrent:
            self._free_rows.append(this.row)
        for page in reversed(this.pages):  # of a beginning, the end goes first
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._key_of:
                self._idle[page] = None
            else:
                self._never_used.append(page)

    def _use(self, page: int) -> None:
        self._users[page] += 1
        self._idle.pop(page, None)

    def _take(self) -> int:
        if self._never_used:
            page = self._never_used.pop()
        else:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
        self._users[page] = 1
        return page

    def _remember(self, this: _Sequence, index: int) -> None:
        """Let later sequences find a page that is now full."""
        before = this.pages[index - 1] if index else _ROOT
        own = tuple(this.tokens[index * self.page_size :])
        page = this.pages[index]
        if (before, own) not in self._known and (before == _ROOT or before in self._key_of):
            self._known[before, own] = page
            self._key_of[page] = (before, own)

    def _forget(self, page: int) -> None:
        """Forget the contents of a page and of the pages that follow it, which no sequence uses either."""
        del self._known[self._key_of.pop(page)]
        for following in [following for key, following in self._known.items() if key[0] == page]:
            self._forget(following)
            del self._idle[following]
            self._never_used.append(following)

    def table(self, sequences: Sequence[int], pages: int | None = None) -> np.ndarray[Any, Any]:
        """Return the pages of some sequences, for `tensorops.scaled_dot_product_attention`.

        Parameters
        ----------
        sequences : sequence of int
            The sequences, one for each row.
        pages : int, optional
            The number of columns; by default the most pages that one of them has.

        Returns
        -------
        numpy.ndarray of int32, shape (sequences, pages)
            Where a sequence has no page, the one that belongs to none.

        Raises
        ------
        ValueError
            If a sequence has more pages.
        """
        rows = [self._find(sequence).pages for sequence in sequences]
        most = max(map(len, rows), default=0)
        if pages is not None and pages < most:
            raise ValueError(f"a sequence has {most} pages, more than {pages}")
        table = np.full((len(rows), most if pages is None else pages), self.max_num_pages, np.int32)
        for row, own in zip(table, rows, strict=True):
            row[: len(own)] = own
        return table

    def places(self, sequence: int, start: int, stop: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return where some tokens of a sequence are.

        Parameters
        ----------
        sequence : int
            From `join`.
        start, stop : int
            The tokens' positions.

        Returns
        -------
        pages, offsets : numpy.ndarray of int32, shape (stop - start,)
            The page of each, and its place in it.
        """
        at = np.arange(start, stop)
        pages = np.asarray(self._find(sequence).pages, np.int32)[at // self.page_size]
        return pages, (at % self.page_size).astype(np.int32)

    def step(
        self,
        sequences: Sequence[int],
        pages: int,
        batch: int | None = None,
        positions: Sequence[int] | None = None,
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return where tokens of some sequences are, for a step of `LanguageModel.persistent`.

        Parameters
        ----------
        sequences : sequence of int
            The sequences, one for each row. Several tokens of one, a prompt's, may be in the same step.
        pages : int
            The most pages of a sequence: its most tokens by the size of a page, rounded up.
        batch : int, optional
            The number of rows; those without a sequence write to the page that belongs to none. By default, there are
            none of these.
        positions : sequence of int, optional
            Those of the tokens; by default each sequence's last one's.

        Returns
        -------
        positions, table, places : numpy.ndarray of int32
            The positions of the tokens, the pages of each sequence, and the places of keys and values.

        Raises
        ------
        ValueError
            If a sequence has no token at a position, or more pages, or there are more sequences than rows.
        """
        batch = len(sequences) if batch is None else batch
        if len(sequences) > batch:
            raise ValueError(f"there are {len(sequences)} sequences, more than {batch}")
        table = np.full((batch, pages), self.max_num_pages, np.int32)
        table[: len(sequences)] = self.table(sequences, pages)
        # Lists: with few numbers, arrays would take several times as long.
        spare = batch - len(sequences)
        at, own, offsets = [], [], []
        for row, sequence in enumerate(sequences):
            this = self._find(sequence)
            if not this.tokens:
                raise ValueError(f"sequence {sequence} has no token yet")
            position = len(this.tokens) - 1 if positions is None else positions[row]
            if not 0 <= position < len(this.tokens):
                raise ValueError(
                    f"position {position} is not in sequence {sequence}, which has {len(this.tokens)} tokens"
                )
            at.append(position)
            own.append(this.pages[position // self.page_size])
            offsets.append(position % self.page_size)
        rows = [*(self._find(sequence).row for sequence in sequences), *[self.max_sequences] * spare]
        places = self._places([*own, *[self.max_num_pages] * spare], [*offsets, *[0] * spare], rows)
        return np.asarray([*at, *[0] * spare], np.int32), table, places

    def _places(self, pages: Sequence[int], offsets: Sequence[int], rows: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return the places of each head's key among all keys of a block, and the rows of states if there are any."""
        found = [
            (page * heads + head) * self.page_size + offset
            for heads in self._config.kv_head_counts
            for page, offset in zip(pages, offsets, strict=True)
            for head in range(heads)
        ]
        return np.asarray([*found, *rows] if self._config.recurrent else found, np.int32)


def assigned(old: Array, key: tuple[Any, ...], new: np.ndarray[Any, Any]) -> Array:
    """Return an array with a part replaced, in place where that is possible."""
    if hasattr(type(old), "at"):
        return old.at[key].set(new)
    xp = tp.get_namespace(old)
    shared = xp.asarray(old)  # of a kind that can be indexed by arrays
    there = tuple(xp.asarray(part) if isinstance(part, np.ndarray) else part for part in key)
    shared[there] = xp.astype(xp.asarray(new), shared.dtype, copy=False)
    return old
