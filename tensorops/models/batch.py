"""Many sequences in one step: they join and leave between steps, and each gets the tokens that it would get alone.

Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", 2022: sequences are batched
for one step at a time. The weights are read once for all of them. A step also has tokens of prompts, in rows that no
sequence needs to go on: Agrawal et al., "Sarathi-Serve", 2024.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp
from tensorops.persistent.ranks import OtherRankError

from .cache import FIRST_CAPACITY, grown
from .pages import OutOfPagesError, PagedKVCache, assigned
from .penalties import NONE, Penalties
from .persistent import StepOptions, persistent, step_of
from .stopping import stop_finder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .language_model import LanguageModel

__all__ = ["Batch"]

Array = Any
_MOST_STEPS = 16  # that a model keeps compiled
# Prompts of more tokens than this many steps have are read at once: a step computes each row's attention by itself, and
# has a result for each row, which only the last one of a prompt needs.
_STEPS_OF_PROMPT = 4


@dataclass(eq=False)
class _Request:
    number: int
    ids: list[int]  # of the prompt, and the tokens that followed
    left: int
    rng: np.random.Generator
    completes: Callable[[int], bool]  # whether a next token ends the text
    sequence: int = -1


@dataclass(frozen=True)
class _Token:
    """A row of a step."""

    request: _Request
    position: int

    @property
    def id(self) -> int:
        return self.request.ids[self.position]

    @property
    def is_last(self) -> bool:
        return self.position == len(self.request.ids) - 1


def _rows(tokens: int) -> int:
    """Return the number of rows of a step for that many tokens: each one has to be compiled."""
    return int(1 << (tokens - 1).bit_length())


@dataclass(eq=False)
class Batch:
    """Sequences that are continued together.

    Parameters
    ----------
    llama : LanguageModel
        The model; its arrays are NumPy's, JAX's or PyOpenCL's.
    cache : PagedKVCache
        The pages of all sequences.
    max_batch : int
        The most sequences in one step. Others wait.
    max_seq_length : int
        The most tokens of a sequence.
    pick : dict
        Options of `tensorops.sample`.
    seed : int or None
        Makes sampling repeatable: each sequence draws the same numbers as it would alone.
    on_end : callable, optional
        Called with the number of each sequence that has ended, after its last token was handed over.
    penalties : Penalties, optional
        Of tokens that a sequence has, and biases.
    stops : tuple of str, optional
        Texts that end a sequence.
    """

    llama: LanguageModel
    cache: PagedKVCache
    max_batch: int
    max_seq_length: int
    pick: dict[str, Any]
    seed: int | None
    on_end: Callable[[int], object] | None = None
    penalties: Penalties = NONE
    stops: tuple[str, ...] = ()
    _waiting: deque[_Request] = field(default_factory=deque)
    _running: list[_Request] = field(default_factory=list)
    _count: int = 0

    def __post_init__(self) -> None:
        tokenizer = self.llama.tokenizer
        self._end_ids = tokenizer.end_ids if tokenizer else frozenset()

    def add(self, ids: Sequence[int], max_new_tokens: int) -> int:
        """Let a sequence wait for its turn.

        Parameters
        ----------
        ids : sequence of int
            Its tokens.
        max_new_tokens : int
            The most tokens to add.

        Returns
        -------
        int
            Its number.

        Raises
        ------
        ValueError
            If there is no token, an id is not in the vocabulary, or the sequence would be too long.
        """
        checked = [int(token) for token in self.llama._check_ids(ids)]
        if (total := len(checked) + max_new_tokens) > self.max_seq_length:
            raise ValueError(
                f"{len(checked)} tokens of prompt and {max_new_tokens} new ones make {total}, more than max_seq_length "
                f"({self.max_seq_length})"
            )
        tokenizer = self.llama.tokenizer
        completes = stop_finder(tokenizer.bytes_of, self.stops) if self.stops and tokenizer else lambda token: False
        request = _Request(self._count, checked, max_new_tokens, np.random.default_rng(self.seed), completes)
        self._count += 1
        self._waiting.append(request)
        return request.number

    def run(self) -> Iterator[tuple[int, int]]:
        """Continue all sequences until the model ends them, or they have all their tokens.

        Returns
        -------
        iterator of (int, int)
            The number of a sequence and its next token, as it becomes known; not the token that ends a text.

        Raises
        ------
        OutOfPagesError
            If a sequence needs a page, and there is none, even if it is the only one.
        """
        try:
            yield from self._run_all()
        finally:
            for step in self.llama._batch_steps.values():
                if isinstance(step, tp.PersistentKernel):
                    step.release()

    def _run_all(self) -> Iterator[tuple[int, int]]:
        while self._waiting or self._running:
            most = _rows(min(self.max_batch, len(self._running) + len(self._waiting)))
            # Before pages are given to tokens of the step: others could share them, and nothing is in them yet.
            yield from self._note(self._read_long_prompts(most))
            tokens = self._go_on(most)
            self._fill(tokens, most)
            yield from self._note(self._step(tokens))

    def _begin(self, wanted: Callable[[_Request], bool], begin: Callable[[_Request], object]) -> None:
        """Let waiting sequences begin while the next one is wanted, and there are a place and pages for it."""
        while self._waiting and len(self._running) < self.max_batch:
            request = self._waiting[0]
            if not request.left:
                self._end(self._waiting.popleft())
                continue
            if not wanted(request):
                return
            request.sequence, _ = self.cache.join(request.ids)
            try:
                begin(request)
            except OutOfPagesError:
                self.cache.leave(request.sequence)
                if not self._running:
                    raise
                return  # until another one leaves
            self._running.append(self._waiting.popleft())

    def _is_long(self, request: _Request, most: int) -> bool:
        """Return whether a prompt is read apart from steps, which have at most that many rows; with states, all are."""
        if self.llama.config.recurrent:
            return True
        return len(request.ids) - self.cache.known(request.ids) > _STEPS_OF_PROMPT * most

    def _note(self, found: list[tuple[_Request, int]]) -> Iterator[tuple[int, int]]:
        """Add tokens to sequences, of which those that end leave."""
        for request, token in found:
            if ends := token in self._end_ids:
                request.left = 0
            else:
                request.ids.append(token)
                request.left = 0 if request.completes(token) else request.left - 1
            if not request.left:
                self._running.remove(request)
                self.cache.leave(request.sequence)
            if not ends:
                yield request.number, token
            if not request.left:
                self._end(request)

    def _end(self, request: _Request) -> None:
        if self.on_end is not None:
            self.on_end(request.number)

    # ------------------------------------------------------------------------------- the tokens of a step

    def _go_on(self, most: int) -> list[_Token]:
        """Return the next token of each running sequence; of one that is in its prompt, as many as there are rows.

        Without pages, the youngest waits and begins again later.
        """
        tokens: list[_Token] = []
        for request in list(self._running):
            while request in self._running:
                try:
                    tokens += self._append(request, 1 + most - len(self._running))
                except OutOfPagesError:
                    youngest = self._running[-1]
                    if youngest is self._running[0]:
                        raise
                    self._running.remove(youngest)
                    self.cache.leave(youngest.sequence)
                    self._waiting.appendleft(youngest)
                else:
                    break
        return tokens

    def _fill(self, tokens: list[_Token], most: int) -> None:
        """Let waiting sequences begin in a step, while it has rows for their tokens."""
        self._begin(
            lambda request: len(tokens) < most and not self._is_long(request, most),
            lambda request: tokens.extend(self._append(request, most - len(tokens))),
        )

    def _append(self, request: _Request, most: int) -> list[_Token]:
        """Give pages to the next tokens of a sequence, which are computed in this step: others may share the pages."""
        start = self.cache.length(request.sequence)
        stop = min(start + most, len(request.ids))
        self.cache.append(request.sequence, request.ids[start:stop])
        return [_Token(request, position) for position in range(start, stop)]

    # ----------------------------------------------------------------------------------------- long prompts

    def _read_long_prompts(self, most: int) -> list[tuple[_Request, int]]:
        """Let waiting sequences with long prompts begin, apart from steps; return what follows the prompts."""
        found: list[tuple[_Request, int]] = []
        self._begin(
            lambda request: self._is_long(request, most),
            lambda request: found.append((request, self._read(request))),
        )
        return found

    def _read(self, request: _Request) -> int:
        """Read a prompt into pages, apart from what is in pages already, and return the token that follows."""
        llama, ids, sequence = self.llama, request.ids, request.sequence
        known = self.cache.length(sequence)
        self.cache.append(sequence, ids[known:])
        # Pages have all tokens, also in blocks with a window, as others may share them.
        alone = llama.new_cache(grown(FIRST_CAPACITY, len(ids)), kv_dtype=self.cache.dtype)
        pages, offsets = self.cache.places(sequence, 0, len(ids))
        if known:
            self._copy_from_pages(alone, pages[:known], offsets[:known])
        for hidden in llama._read(ids[known:], alone):
            last = hidden
        for paged, own in ((self.cache.keys, alone.keys), (self.cache.values, alone.values)):
            for i in self._kept:
                rows = tp.to_backend(own[i], "numpy")[0, :, known : len(ids)].transpose(1, 0, 2)
                paged[i] = assigned(paged[i], (pages[known:], slice(None), offsets[known:]), rows)
            for i in llama.config.recurrent:
                paged[i] = assigned(paged[i], (self.cache.row(sequence),), tp.to_backend(own[i], "numpy")[0])
        token = llama._pick(last, {**self.pick, "rng": request.rng}, self.penalties, ids)
        return int(np.asarray(tp.to_backend(token, "numpy"))[0])

    @property
    def _kept(self) -> list[int]:
        """The numbers of blocks whose keys and values are in pages."""
        return [i for i in range(self.llama.config.blocks) if i not in self.llama.config.without_cache]

    def _copy_from_pages(self, alone: Any, pages: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> None:
        count = len(pages)
        for paged, own in ((self.cache.keys, alone.keys), (self.cache.values, alone.values)):
            for i in self._kept:
                rows = tp.to_backend(paged[i], "numpy")[pages, :, offsets].transpose(1, 0, 2)
                own[i] = assigned(own[i], (0, slice(None), slice(0, count)), rows)
        alone.length = count

    # --------------------------------------------------------------------------------------- one step

    def _step(self, tokens: list[_Token]) -> list[tuple[_Request, int]]:
        """Compute some tokens; return what follows those that are the last of their sequence."""
        if not tokens:
            return []
        size = _rows(len(tokens))
        spare = [0] * (size - len(tokens))
        pages = -(-self.max_seq_length // self.cache.page_size)
        sequences, at = [token.request.sequence for token in tokens], [token.position for token in tokens]
        positions, table, places = self.cache.step(sequences, pages, size, at)
        arrays = [np.asarray([*(token.id for token in tokens), *spare], np.int32), positions, table, places]
        if self.pick["temperature"]:
            drawn = [token.request.rng.random(dtype=np.float32) if token.is_last else 0 for token in tokens]
            arrays.append(np.asarray([*drawn, *spare], np.float32))
        if self.penalties:
            texts = [*(token.request.ids[: token.position + 1] for token in tokens), *([] for _ in spare)]
            arrays += self.penalties.arrays(texts, self.llama.config.vocab_size)
        following = self._run(size, *tp.to_backend(arrays, self.llama.backend))
        found = zip(tokens, following.tolist(), strict=False)
        return [(token.request, next_id) for token, next_id in found if token.is_last]

    def _run(self, size: int, ids: Any, positions: Any, *others: Any) -> np.ndarray[Any, Any]:
        """Run a step for that many sequences."""
        cache, steps = self.cache, self.llama._batch_steps
        sizes = (cache.page_size, cache.max_num_pages, cache.max_sequences, cache.dtype)
        kind = (size, self.max_seq_length, *sizes, self.penalties, tuple(self.pick.items()))
        with self.llama._scope():
            if kind not in steps:
                if len(steps) >= _MOST_STEPS:
                    steps.clear()
                steps[kind] = self._compiled(size)
            tokens, cache.keys, cache.values = steps[kind](ids, positions, cache.keys, cache.values, *others)
        return np.asarray(tp.to_backend(tokens, "numpy"))

    def _compiled(self, size: int) -> Callable[..., Any]:
        """Return a step that runs without Python, where that is possible."""
        cache = self.cache
        sizes = (None, self.max_seq_length, cache.page_size, cache.max_num_pages)
        options = StepOptions("decode", size, *sizes, cache.dtype, self.pick, cache.max_sequences, self.penalties)
        try:
            kernel = persistent(self.llama, options, repack=True)
            kernel.compile()
        except (ValueError, OtherRankError):  # the backend cannot, or a body computes an operator
            return step_of(self.llama, options)
        return kernel
