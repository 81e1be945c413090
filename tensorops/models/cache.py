"""The keys and values of the tokens that a model has seen, kept so that new tokens attend to them.

Three requirements shape this file. JAX compiles again for every new shape, so the arrays must not grow with every
token: they have spare slots, which are masked, and their capacity doubles when it is used up. Where arrays are
immutable, or a compiler traces, a new key is put into place by the library's operation for that, which a compiler turns
into a write if it may overwrite the old cache; in a library without it, the key is *selected* into place, which costs a
pass over the cache. Elsewhere it is written in place. And a Python integer that changes with every token would be a new
constant to compile, so a compiler sees positions as arrays.

The dtype of the slots says how keys and values are kept: as they are, in halves, or as bytes of q8_0's blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import tensorops as tp
from tensorops.formats import q8_0

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import ModelConfig

__all__ = [
    "FIRST_CAPACITY",
    "KV_DTYPES",
    "KVCache",
    "Slots",
    "attention",
    "concat",
    "grown",
    "layout",
    "storage",
    "stored",
]

Array = Any
FIRST_CAPACITY = 128  # tokens
KV_DTYPES = ("float32", "float16", "bfloat16", "q8_0")  # in which keys and values may be kept
_UNPACKED_BYTES = 1 << 26  # the most that are made of 8 bits at a time, unless a single head has more


def grown(capacity: int, tokens: int) -> int:
    """Return the capacity of a cache once it has room for some tokens: it doubles when it is full."""
    while capacity < tokens:
        capacity *= 2
    return capacity


def storage(head_dim: int, kv_dtype: str) -> tuple[int, np.dtype[Any]]:
    """Return the length and the dtype of what is kept of a key or a value."""
    if kv_dtype not in KV_DTYPES:
        raise ValueError(f"kv_dtype is {kv_dtype!r}, expected one of {', '.join(KV_DTYPES)}")
    if kv_dtype == "q8_0":
        return -(-head_dim // 32) * 34, np.dtype(np.uint8)
    if kv_dtype == "bfloat16":
        import ml_dtypes

        return head_dim, np.dtype(ml_dtypes.bfloat16)
    return head_dim, np.dtype(kv_dtype)


def layout(config: ModelConfig, capacity: int, kv_dtype: str) -> list[list[tuple[tuple[int, ...], np.dtype[Any]]]]:
    """Return the shapes and dtypes of what the blocks keep of a sequence: first those of keys, then those of values.

    Of a gated delta net, the states take their places; of a block that attends to the keys of another, nothing does.
    """
    convolution = (1, 1, config.conv_width - 1, config.state_channels)
    states = convolution, (1, config.state_heads, config.state_dim, config.state_dim)
    kinds = []
    for number in range(config.blocks):
        block, shapes, dtype = config.of_block(number), states, np.dtype(np.float32)
        if number in config.sources:
            shapes = ((1, 1, 1, 1),) * 2
        elif number not in config.recurrent:
            width, dtype = storage(block.head_dim, kv_dtype)
            shapes = ((1, block.kv_heads, capacity, width),) * 2
        kinds.append([(shape, dtype) for shape in shapes])
    return [list(part) for part in zip(*kinds, strict=True)]


def stored(xp: Any, x: Array, dtype: Any) -> Array:
    """Return keys or values as slots of a dtype keep them."""
    if dtype != xp.uint8:
        return x if x.dtype == dtype else xp.astype(x, dtype)
    if spare := -x.shape[-1] % 32:
        zeros = xp.broadcast_to(xp.zeros_like(x[..., :1]), (*x.shape[:-1], spare))
        x = xp.concat((x, zeros), axis=-1)
    return q8_0.pack(xp, x)


def attention(xp: Any, q: Array, k: Array, v: Array, **options: Any) -> Array:
    """Return what attention gives in the dtype of queries, for keys and values as they are kept."""
    if q.dtype == k.dtype:
        return tp.scaled_dot_product_attention(q, k, v, **options)
    if k.dtype != xp.uint8:
        y = tp.scaled_dot_product_attention(xp.astype(q, k.dtype), k, v, **options)
        return xp.astype(y, q.dtype)
    (_, heads, tokens, dim), group = k.shape, q.shape[1] // k.shape[1]
    together = max(_UNPACKED_BYTES // (8 * tokens * dim), 1)
    sinks, parts = options.pop("sinks", None), []
    for first in range(0, heads, together):
        some, own = slice(first, first + together), slice(first * group, (first + together) * group)
        if sinks is not None:
            options["sinks"] = sinks[own]
        unpacked = (_unpacked(xp, part[:, some, :, :], q.shape[3]) for part in (k, v))
        parts.append(tp.scaled_dot_product_attention(q[:, own, :, :], *unpacked, **options))
    return concat(parts, axis=1)


def _unpacked(xp: Any, blocks: Array, head_dim: int) -> Array:
    rows: Array = tp.dequantize(xp.reshape(blocks, (-1, blocks.shape[3])), format="q8_0")
    return xp.reshape(rows, (*blocks.shape[:3], rows.shape[1]))[..., :head_dim]


class Slots:
    """Keys and values of a step, with those of its tokens in their places, and what attention sees of them.

    Parameters
    ----------
    positions : array of int, shape (tokens,)
        Consecutive positions in the text; a position is also the slot that holds its key and value.
    keys, values : sequence of array, each of shape (1, kv_heads, capacity, head_dim)
        The slots of every block.
    capacity : int
        The number of slots.
    start : int, optional
        The first position, as a number; if given, new keys and values are written into the old arrays.

    Attributes
    ----------
    keys, values : list of array
        With the new tokens in place, of the blocks that have attended.
    """

    def __init__(
        self, positions: Array, keys: Sequence[Array], values: Sequence[Array], capacity: int, start: int | None = None
    ) -> None:
        self.keys, self.values = list(keys), list(values)
        self._xp = tp.get_namespace(positions)
        self._count, self._start = positions.shape[0], start
        if start is not None:
            return
        xp, self._positions, self._updates = self._xp, positions, _has_updates(positions)
        self._masks: dict[int | None, Array] = {}
        slots = xp.arange(capacity, dtype=positions.dtype)
        self._ahead = xp.expand_dims(positions, axis=1) - xp.expand_dims(slots, axis=0)
        if not self._updates:
            offset = slots - positions[:1]
            self._is_new = xp.expand_dims((offset >= 0) & (offset < self._count), axis=1)
            self._source = xp.clip(offset, 0, self._count - 1)

    def attend(self, number: int, q: Array, k: Array | None, v: Array | None, **options: Any) -> Array:
        """Return what attention gives, for the number of a block, queries, keys and values, and its options."""
        if k is not None:
            self.keys[number] = self._placed(self.keys[number], k)
            self.values[number] = self._placed(self.values[number], v)
        k, v = self.keys[number], self.values[number]
        window = options.pop("window", None)
        if self._start is None:  # a compiler needs all slots, as the number of those in use changes with every token
            return attention(self._xp, q, k, v, mask=self._mask(window), **options)
        end = self._start + self._count
        first = 0 if window is None else max(self._start + 1 - window, 0)
        seen = (slots[:, :, first:end, :] for slots in (k, v))
        if self._count == 1:
            return attention(self._xp, q, *seen, **options)
        return attention(self._xp, q, *seen, is_causal=True, window=window, **options)

    def state(self, number: int) -> tuple[Array, Array]:
        """Return the states of a gated delta net, for the number of a block."""
        return self._xp.asarray(self.keys[number]), self._xp.asarray(self.values[number])

    def keep(self, number: int, convolution: Array, state: Array) -> None:
        """Replace them."""
        self.keys[number], self.values[number] = convolution, state

    def _mask(self, window: int | None) -> Array:
        """Return an array of bool, (tokens, slots): to which a token attends, itself and those before it."""
        if window not in self._masks:
            mask = self._ahead >= 0
            self._masks[window] = mask if window is None else mask & (self._ahead < window)
        return self._masks[window]

    def _placed(self, old: Array, new: Array) -> Array:
        """Return `old` (1, heads, capacity, head_dim) with `new` (1, heads, tokens, head_dim) in its slots."""
        old = self._xp.asarray(old)
        new = stored(self._xp, new, old.dtype)
        if self._start is not None:
            old[:, :, self._start : self._start + self._count, :] = new
            return old
        if self._updates:  # without these promises, indices would be compared with the number of slots
            promises = {"mode": "promise_in_bounds", "unique_indices": True, "indices_are_sorted": True}
            return old.at[:, :, self._positions, :].set(new, **promises)
        # A single token is broadcast to all slots; of several tokens, every slot takes the nearest.
        spread = new if self._count == 1 else self._xp.take(new, self._source, axis=2)
        return self._xp.where(self._is_new, spread, old)


def _has_updates(x: Array) -> bool:
    """Return whether ``x.at[index].set(part)`` is `x` with a part in place, also where an index is traced."""
    at = getattr(x, "at", None)
    return at is not None and hasattr(at[...], "set")


class KVCache:
    """Keys and values of every block, with room for more.

    Parameters
    ----------
    keys, values : sequence of array, each of shape (1, kv_heads, capacity, head_dim)
        Empty slots, one array per block.
    limit : int
        The most tokens the model can see.
    states : sequence of int, optional
        The numbers of blocks whose arrays are states, which do not grow with the text.
    unused : sequence of int, optional
        Those of blocks whose arrays are not used, as they attend to the keys of others.

    Attributes
    ----------
    keys, values : list of array
        The slots; the first `length` are in use.
    length : int
        The number of tokens seen.
    is_writable : bool
        Whether the arrays can be assigned to; if so, they change with every token.
    """

    def __init__(
        self,
        keys: Sequence[Array],
        values: Sequence[Array],
        limit: int,
        states: Sequence[int] = (),
        unused: Sequence[int] = (),
    ) -> None:
        self.keys = list(keys)
        self.values = list(values)
        self.limit = limit
        self.length = 0
        self._states = tuple(states)
        self._growing = [number for number in range(len(self.keys)) if number not in (*states, *unused)]
        self.is_writable = _accepts_assignment(self.keys[self._growing[0]])

    @property
    def capacity(self) -> int:
        """The number of tokens that fit without growing."""
        return int(self.keys[self._growing[0]].shape[2])

    def require(self, count: int) -> None:
        """Raise ValueError if `count` more tokens would exceed the context length."""
        needed = self.length + count
        if needed > self.limit:
            raise ValueError(f"position {needed - 1} is past the model's context length of {self.limit}")

    def reserve(self, count: int) -> None:
        """Make room for `count` more tokens.

        Raises
        ------
        ValueError
            They would exceed the context length.
        """
        self.require(count)
        capacity = grown(self.capacity, self.length + count)
        while self.capacity < capacity:
            for number in self._growing:
                self.keys[number], self.values[number] = _doubled(self.keys[number]), _doubled(self.values[number])

    def truncate(self, length: int) -> int:
        """Forget the tokens after the first `length`, or all if there are states; return how many are left."""
        if length < self.length and self._states:
            length = 0
            for number in self._states:
                xp = tp.get_namespace(self.keys[number])
                self.keys[number] = xp.zeros_like(self.keys[number])
                self.values[number] = xp.zeros_like(self.values[number])
        self.length = min(self.length, length)
        return self.length

    def store(self, keys: Sequence[Array], values: Sequence[Array], count: int) -> None:
        """Replace the slots by new ones with `count` more tokens."""
        self.keys, self.values = list(keys), list(values)
        self.length += count


def _accepts_assignment(slots: Array) -> bool:
    """Return whether an assignment that changes nothing succeeds; the standard leaves it to the library."""
    try:
        tp.get_namespace(slots).asarray(slots)[0, 0, 0, 0] = 0  # as `Slots.place` writes
    except TypeError:
        return False
    return True


def _doubled(slots: Array) -> Array:
    # Zeros, not uninitialised memory: a masked slot counts 0 times, and 0 times NaN is NaN.
    return concat([slots, tp.get_namespace(slots).zeros_like(slots)], axis=2)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays; the result has the kind of the first one."""
    if len(arrays) == 1:
        return arrays[0]
    joined = tp.get_namespace(*arrays).concat(list(arrays), axis=axis)
    # A namespace may compute with wrappers around its library's arrays; a cache keeps the caller's kind.
    return joined if type(joined) is type(arrays[0]) else tp.to_backend(joined, tp.get_backend())
