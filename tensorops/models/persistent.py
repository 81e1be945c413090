"""Steps of a model as `tensorops.PersistentKernel`: their arguments, and what is checked before each run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp
from tensorops.persistent import MODES
from tensorops.persistent.ranks import MPIRanks

from .network import decode, onepass, prefill
from .penalties import NONE, Penalties
from .ranks import HEADS, WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from .language_model import LanguageModel

__all__ = ["ModelStep", "StepOptions", "persistent"]


@dataclass(frozen=True)
class StepOptions:
    """The arguments of `LanguageModel.persistent` that say what the step is."""

    mode: str
    batch: int
    length: int | None
    max_seq_length: int | None
    page_size: int | None
    max_num_pages: int | None
    kv_dtype: str | None
    pick: dict[str, Any]
    max_sequences: int | None = None  # that have states; by default as many as the batch
    penalties: Penalties = NONE

    def check(self, context_length: int) -> None:
        """Raise ValueError if they contradict each other or the model."""
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}, expected one of {', '.join(MODES)}")
        numbers = ("batch", "length", "max_seq_length", "page_size", "max_num_pages")
        for name in numbers:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or value < 1):
                raise ValueError(f"{name} is {value!r}, expected at least 1")
        if self.capacity(context_length) > context_length:
            raise ValueError(
                f"max_seq_length is {self.max_seq_length}, expected 1 to the context length, {context_length}"
            )
        self._check_mode(context_length)
        if self.page_size is None and (self.batch > 1 or self.max_num_pages or self.kv_dtype):
            name = "batch" if self.batch > 1 else "max_num_pages" if self.max_num_pages else "kv_dtype"
            raise ValueError(f"{name} is {getattr(self, name)!r}, which needs pages: give page_size")

    def _check_mode(self, context_length: int) -> None:
        if self.mode == "decode":
            if self.length is not None:
                raise ValueError("length is the number of tokens of modes 'prefill' and 'onepass'; 'decode' has one")
            return
        if self.length is None:
            raise ValueError(f"mode {self.mode!r} needs length, the number of tokens in a run")
        if self.page_size is not None:
            raise ValueError(f"page_size is for mode 'decode'; mode {self.mode!r} has no pages")
        if self.length > self.capacity(context_length):
            raise ValueError(f"length is {self.length}, but a sequence has at most {self.capacity(context_length)}")
        if self.mode == "onepass" and (self.max_seq_length is not None or any(self.pick.values())):
            raise ValueError("mode 'onepass' has no cache and chooses no token: max_seq_length and options of sampling "
                             "are for the other modes")  # fmt: skip

    def capacity(self, context_length: int) -> int:
        """Return the most tokens of a sequence."""
        return context_length if self.max_seq_length is None else self.max_seq_length

    def pages(self, capacity: int) -> int:
        """Return how many pages there are; by default, enough for all sequences."""
        return self.max_num_pages or self.batch * -(-capacity // (self.page_size or 1))


class ModelStep(tp.PersistentKernel):
    """A step of a model, whose positions are checked before each run.

    Parameters
    ----------
    capacity : int
        The most tokens of a sequence.
    length : int
        How many tokens a run has.
    move : callable or None
        Returns an array of NumPy where the model's are, if that is elsewhere.
    panels : mutable mapping
        The model's weights in another order, which its steps share.
    *args, **options
        As for `tensorops.PersistentKernel`.
    """

    def __init__(
        self,
        capacity: int,
        length: int,
        move: Callable[[Any], Any] | None,
        panels: MutableMapping[Any, Any],
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._options = replace(self._options, panels=panels)
        self._capacity, self._length, self._move = capacity, length, move

    def __call__(self, *args: Any) -> Any:
        """Run the step.

        Parameters
        ----------
        *args
            See `LanguageModel.persistent`. Those that are not in lists may be arrays of NumPy with any backend. Of
            positions and counts, they are better than others: nothing waits for a device to check them.

        Returns
        -------
        same as the step's
            See `LanguageModel.persistent`.

        Raises
        ------
        ValueError
            If the cache has no place for a token, or as for `tensorops.PersistentKernel`.
        """
        if self.mode == "decode" and len(args) > 1:
            self._check_positions(on_host(args[1]))
        elif self.mode == "prefill" and len(args) > 2:
            self._check_piece(on_host(args[1]), on_host(args[2]))
        if self._move is not None:
            args = tuple(self._move(x) if isinstance(x, np.ndarray) else x for x in args)
        return super().__call__(*args)

    def _check_positions(self, positions: list[int]) -> None:
        for position in positions:
            if not 0 <= position < self._capacity:
                raise ValueError(f"position {position} is not in the cache, which has {self._capacity} places")

    def _check_piece(self, start: list[int], count: list[int]) -> None:
        for first, number in zip(start, count, strict=False):
            if not 1 <= number <= self._length:
                raise ValueError(f"count is {number}, expected 1 to {self._length}, the length of a run")
            if first < 0 or first + self._length > self._capacity:
                raise ValueError(
                    f"{self._length} tokens from position {first} on are not in the cache, which has {self._capacity} "
                    "places; those after the count need places, too"
                )


def on_host(x: Any) -> list[int]:
    """Return integers of an array, of NumPy's at once: after a step, `to_backend` takes 0.1 ms to come from memory."""
    found: list[int] = (x if isinstance(x, np.ndarray) else tp.to_backend(x, "numpy")).ravel().tolist()
    return found


def step_of(llama: LanguageModel, options: StepOptions) -> Callable[..., Any]:
    """Return a step as a function of its arguments."""
    ranks, sizes = llama._ranks, (llama._part, llama._ranks)
    given, axes = (llama._weights, llama._output), [llama._weights, llama._output]
    numbers = [WHOLE] if options.pick["temperature"] else []
    results: Any = (WHOLE, HEADS, HEADS)
    if options.mode == "onepass":
        step: Callable[..., Any] = partial(onepass, *sizes)
        return partial(ranks.spread(step, (*axes, WHOLE), WHOLE), *given)
    if options.mode == "prefill":
        step, own = partial(prefill, *sizes, options.pick), [WHOLE, WHOLE, WHOLE, HEADS, HEADS, *numbers]
    else:
        paged, penalties = options.page_size is not None, options.penalties
        step = partial(decode, *sizes, options.pick, paged=paged, penalties=penalties)
        own = [WHOLE, WHOLE, HEADS, HEADS, *[WHOLE] * 2 * paged, *numbers, *[WHOLE] * penalties.count]
    return partial(ranks.spread(step, (*axes, *own), results), *given)


def persistent(llama: LanguageModel, options: StepOptions, **others: Any) -> ModelStep:
    """Return the step of a model; see `LanguageModel.persistent`."""
    options.check(llama.config.context_length)
    if options.mode == "prefill" and llama.config.recurrent:
        raise ValueError("mode 'prefill' has tokens without effect, but states keep all: read the text with the model")
    capacity, ranks = options.capacity(llama.config.context_length), llama._ranks
    if isinstance(ranks, MPIRanks):
        others |= {"world_size": ranks.size, "mpi_rank": ranks.rank}
    if options.mode != "onepass":
        others["max_seq_length"] = capacity
    if options.page_size is not None:
        others |= {"page_size": options.page_size, "max_num_pages": options.pages(capacity)}
    args = _example(llama, options, capacity)
    donate = [place for place, arg in enumerate(args) if isinstance(arg, list)]  # keys and values
    move = None if isinstance(args[0], np.ndarray) else llama._move
    others |= {"mode": options.mode, "backend": llama.backend, "donate": donate}
    return ModelStep(capacity, options.length or 1, move, llama._panels, step_of(llama, options), args, **others)


def _example(llama: LanguageModel, options: StepOptions, capacity: int) -> list[Any]:
    """Return arguments of one run; keys and values are lists."""

    def integers(*arrays: Any) -> list[Any]:
        return list(llama._move([np.asarray(a, np.int32) for a in arrays]))

    numbers = llama._move([np.zeros(options.batch, np.float32)]) if options.pick["temperature"] else []
    tokens = np.zeros(options.length or options.batch)
    if options.mode == "onepass":
        return integers(tokens)
    if options.page_size is not None:
        sequences = options.max_sequences or options.batch
        pages = llama.new_paged_cache(
            options.page_size, options.pages(capacity), dtype=options.kv_dtype, max_sequences=sequences
        )
        places = pages.step((), -(-capacity // options.page_size), options.batch)  # of no sequence
        ids, positions, *nowhere = integers(tokens, *places)
        penalised = llama._move(options.penalties.arrays([()] * options.batch, llama.config.vocab_size))
        return [ids, positions, pages.keys, pages.values, *nowhere, *numbers, *penalised]
    cache = llama.new_cache(capacity)
    where = [[0], [1]] if options.mode == "prefill" else [[0]]
    return [*integers(tokens, *where), cache.keys, cache.values, *numbers]
