"""The keys and values of the tokens a model has seen, kept so that a new token attends to them.

Three needs shape this file. JAX compiles anew for every new shape, so the arrays must not grow with every
token: they have room to spare, the spare places are masked, and the room doubles when it is used up.
Where arrays cannot be assigned to, or a compiler traces, a new key is *selected* into place; that costs a pass
over the cache, so elsewhere it is written in place. And a Python integer that changes from token to token
would be a new constant to compile, so what a compiler sees of positions are arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorops as tp

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["KVCache", "Slots", "concat"]

Array = Any


class Slots:
    """Where the tokens of one step belong in a cache, and what they may look at.

    Parameters
    ----------
    positions : array of int, shape (tokens,)
        Consecutive positions in the text; a position is also the slot that holds its key and value.
    capacity : int
        How many slots there are.
    start : int, optional
        The first position, as a number: then new keys and values are written into the old arrays.

    Attributes
    ----------
    mask : array of bool, shape (tokens, capacity)
        True where a token attends: to itself and to those before it.
    """

    def __init__(self, positions: Array, capacity: int, start: int | None = None) -> None:
        self._xp = xp = tp.get_namespace(positions)
        self._count = positions.shape[0]
        self._start = start
        slots = xp.arange(capacity, dtype=positions.dtype)
        self.mask = xp.expand_dims(slots, axis=0) <= xp.expand_dims(positions, axis=1)
        if start is not None:
            return
        offset = slots - positions[:1]
        self._is_new = xp.expand_dims((offset >= 0) & (offset < self._count), axis=1)
        self._source = xp.clip(offset, 0, self._count - 1)

    def place(self, old: Array, new: Array) -> Array:
        """Return `old` (heads, capacity, head_dim) with `new` (heads, tokens, head_dim) in its slots."""
        old = self._xp.asarray(old)
        if self._start is not None:
            old[:, self._start : self._start + self._count, :] = new
            return old
        # A single token is broadcast to all slots; of several, every slot takes the nearest.
        spread = new if self._count == 1 else self._xp.take(new, self._source, axis=1)
        return self._xp.where(self._is_new, spread, old)


class KVCache:
    """Keys and values of every block, with room for more.

    Parameters
    ----------
    keys, values : sequence of array, each of shape (kv_heads, capacity, head_dim)
        Empty slots, one array per block.
    limit : int
        The most tokens the model can see.

    Attributes
    ----------
    keys, values : list of array
        The slots, of which the first `length` are in use.
    length : int
        How many tokens have been seen.
    is_writable : bool
        Whether the arrays can be assigned to; then they change with every token.
    """

    def __init__(self, keys: Sequence[Array], values: Sequence[Array], limit: int) -> None:
        self.keys = list(keys)
        self.values = list(values)
        self.limit = limit
        self.length = 0
        self.is_writable = _accepts_assignment(self.keys[0])

    @property
    def capacity(self) -> int:
        """How many tokens there is room for without growing."""
        return int(self.keys[0].shape[1])

    def require(self, count: int) -> None:
        """Raise ValueError if `count` more tokens would lie past the context length."""
        needed = self.length + count
        if needed > self.limit:
            raise ValueError(f"position {needed - 1} is past the model's context length of {self.limit}")

    def reserve(self, count: int) -> None:
        """Make room for `count` more tokens.

        Raises
        ------
        ValueError
            They would lie past the context length.
        """
        self.require(count)
        while self.capacity < self.length + count:
            self.keys = [_doubled(slots) for slots in self.keys]
            self.values = [_doubled(slots) for slots in self.values]

    def store(self, keys: Sequence[Array], values: Sequence[Array], count: int) -> None:
        """Take over slots in which `count` more tokens are in place."""
        self.keys, self.values = list(keys), list(values)
        self.length += count


def _accepts_assignment(slots: Array) -> bool:
    """Tell by an assignment that changes nothing; the standard leaves it to the library."""
    try:
        slots[0, 0, 0] = 0.0
    except TypeError:
        return False
    return True


def _doubled(slots: Array) -> Array:
    # Zeros, not uninitialised memory: a masked slot counts 0 times, and 0 times NaN is NaN.
    return concat([slots, tp.get_namespace(slots).zeros_like(slots)], axis=1)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays; the result is of the first one's kind."""
    if len(arrays) == 1:
        return arrays[0]
    joined = tp.get_namespace(*arrays).concat(list(arrays), axis=axis)
    # A namespace may compute with wrappers around its library's arrays; a cache holds what its owner gave it.
    return joined if type(joined) is type(arrays[0]) else tp.to_backend(joined, tp.get_backend())
