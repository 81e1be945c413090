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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import ModelConfig

__all__ = [
    "FIRST_CAPACITY",
    "KV_DTYPES",
    "PREFILL_TOKENS",
    "KVCache",
    "Slots",
    "attention",
    "concat",
    "grown",
    "layout",
    "slots_in_windows",
    "storage",
    "stored",
]

Array = Any
FIRST_CAPACITY = 128  # tokens
PREFILL_TOKENS = 256  # a long text is processed in pieces, so that its attention scores stay small
KV_DTYPES = ("float32", "float16", "bfloat16", "q8_0")  # in which keys and values may be kept
_BLOCK = 32  # neighbours that share a scale in q8_0


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
        return -(-head_dim // _BLOCK) * (2 + _BLOCK), np.dtype(np.uint8)
    if kv_dtype == "bfloat16":
        import ml_dtypes

        return head_dim, np.dtype(ml_dtypes.bfloat16)
    return head_dim, np.dtype(kv_dtype)


def layout(
    config: ModelConfig, capacity: int, kv_dtype: str, in_windows: int | None = None
) -> list[list[tuple[tuple[int, ...], np.dtype[Any]]]]:
    """Return the shapes and dtypes of what the blocks keep of a sequence: first those of keys, then those of values.

    Of a gated delta net or Mamba 2, the states take their places, and of a convolution its last inputs; of a block that
    attends to the keys of another, nothing does.

    Parameters
    ----------
    config : ModelConfig
        The sizes.
    capacity : int
        How many slots each block has.
    kv_dtype : str
        One of `KV_DTYPES`.
    in_windows : int, optional
        How many those with a window have, if they are fewer.
    """
    convolution = (1, 1, config.conv_width - 1, config.state_channels)
    key_dim = config.state_key_dim or config.state_dim
    states = convolution, (1, max(config.state_heads, 1), max(key_dim, 1), max(config.state_dim, 1))
    kinds = []
    for number in range(config.blocks):
        block, shapes, dtype = config.of_block(number), states, np.dtype(np.float32)
        if number in config.sources:
            shapes = ((1, 1, 1, 1),) * 2
        elif number not in config.recurrent:
            (width, dtype), (value_width, _) = (storage(dim, kv_dtype) for dim in (block.head_dim, block.value_dim))
            slots = min(capacity, in_windows or capacity) if number in config.windowed else capacity
            shapes = (1, block.kv_heads, slots, width), (1, block.kv_heads, slots, value_width)
        kinds.append([(shape, dtype) for shape in shapes])
    return [list(part) for part in zip(*kinds, strict=True)]


def slots_in_windows(window: int | None, piece: int) -> int:
    """Return the most slots of blocks with a window: what a token sees before itself, and two pieces of a text."""
    return (window or 1) - 1 + 2 * piece


def stored(xp: Any, x: Array, dtype: Any) -> Array:
    """Return keys or values as slots of a dtype keep them."""
    if _is_of_blocks(xp, dtype):
        x = _in_whole_blocks(xp, x)
        blocks, *_ = tp.quantize(xp.reshape(x, (-1, x.shape[-1])), format="q8_0")
        return xp.reshape(blocks, (*x.shape[:-1], blocks.shape[1]))
    return x if x.dtype == dtype else xp.astype(x, dtype)


def _is_of_blocks(xp: Any, dtype: Any) -> bool:
    return bool(xp.uint8 == dtype)  # in this order, as a dtype of MLX itself equals none of the namespace


def _in_whole_blocks(xp: Any, x: Array) -> Array:
    """Return features with zeros after them, up to a whole number of blocks."""
    spare = -x.shape[-1] % _BLOCK
    if not spare:
        return x
    zeros = xp.zeros((1,) * x.ndim, dtype=x.dtype)
    return xp.concat((x, xp.broadcast_to(zeros, (*x.shape[:-1], spare))), axis=-1)


def attention(xp: Any, q: Array, k: Array, v: Array, *, scale: float | None = None, **options: Any) -> Array:
    """Return what attention gives in the dtype of queries, for keys and values as they are kept."""
    if _is_of_blocks(xp, k.dtype):
        dim, whole = q.shape[3], _in_whole_blocks(xp, q)
        scale = dim**-0.5 if scale is None else scale
        y = tp.scaled_dot_product_attention(whole, k, v, scale=scale, kv_format="q8_0", **options)
        return y if y.shape[3] <= dim else y[..., :dim]
    if q.dtype == k.dtype:
        return tp.scaled_dot_product_attention(q, k, v, scale=scale, **options)
    y = tp.scaled_dot_product_attention(xp.astype(q, k.dtype), k, v, scale=scale, **options)
    return xp.astype(y, q.dtype)


class Slots:
    """Keys and values of a step, with those of its tokens in their places, and what attention sees of them.

    Parameters
    ----------
    places : array of int, shape (kinds, tokens)
        The consecutive slots of the tokens. Those in the last row are of blocks with a window, which keep only the end
        of a text; in the other ones, a slot is a position in the text.
    keys, values : sequence of array, each of shape (1, kv_heads, capacity, head_dim)
        The slots of every block.
    windowed : sequence of int
        The numbers of blocks with a window.
    starts : tuple of int, optional
        The first column of `places`, as numbers; if given, new keys and values are written into the old arrays.

    Attributes
    ----------
    keys, values : list of array
        With the new tokens in place, of the blocks that have attended.
    """

    def __init__(
        self,
        places: Array,
        keys: Sequence[Array],
        values: Sequence[Array],
        windowed: Sequence[int] = (),
        starts: tuple[int, ...] | None = None,
    ) -> None:
        self.keys, self.values = list(keys), list(values)
        self._xp, self._places, self._starts, self._windowed = tp.get_namespace(places), places, starts, windowed
        self._kinds: dict[int, _Places] = {}

    def attend(self, number: int, q: Array, k: Array | None, v: Array | None, **options: Any) -> Array:
        """Return what attention gives, for the number of a block, queries, keys and values, and its options."""
        kind = -(number in self._windowed)
        if k is not None:
            self.keys[number] = self._placed(kind, self.keys[number], k)
            self.values[number] = self._placed(kind, self.values[number], v)
        k, v = self.keys[number], self.values[number]
        window, count = options.pop("window", None), self._places.shape[1]
        if self._starts is None:  # a compiler needs all slots, as the number of those in use changes with every token
            return attention(self._xp, q, k, v, mask=self._of(kind, k).mask(window), **options)
        start = self._starts[kind]
        first = 0 if window is None else max(start + 1 - window, 0)
        seen = (slots[:, :, first : start + count, :] for slots in (k, v))
        if count == 1:
            return attention(self._xp, q, *seen, **options)
        return attention(self._xp, q, *seen, is_causal=True, window=window, **options)

    def state(self, number: int) -> tuple[Array, Array]:
        """Return the states of a gated delta net, for the number of a block."""
        return self._xp.asarray(self.keys[number]), self._xp.asarray(self.values[number])

    def keep(self, number: int, convolution: Array, state: Array) -> None:
        """Replace them."""
        self.keys[number], self.values[number] = convolution, state

    def _of(self, kind: int, slots: Array) -> _Places:
        if kind not in self._kinds:
            self._kinds[kind] = _Places(self._xp, self._places[kind, :], slots.shape[2])
        return self._kinds[kind]

    def _placed(self, kind: int, old: Array, new: Array) -> Array:
        """Return `old` (1, heads, capacity, head_dim) with `new` (1, heads, tokens, head_dim) in its slots."""
        old = self._xp.asarray(old)
        new = stored(self._xp, new, old.dtype)
        if self._starts is None:
            return self._of(kind, old).put(old, new)
        start = self._starts[kind]
        old[:, :, start : start + new.shape[2], :] = new
        return old


class _Places:
    """Consecutive slots of tokens for a compiler, which does not know their numbers.

    Parameters
    ----------
    xp : namespace
        Of the arrays.
    places : array of int, shape (tokens,)
        The slots.
    capacity : int
        How many slots there are.
    """

    def __init__(self, xp: Any, places: Array, capacity: int) -> None:
        self._xp, self._places, self._masks = xp, places, dict[int | None, Array]()
        slots = xp.arange(capacity, dtype=places.dtype)
        self._ahead = xp.expand_dims(places, axis=1) - xp.expand_dims(slots, axis=0)
        if not _has_updates(places):
            offset, count = slots - places[:1], places.shape[0]
            self._is_new = xp.expand_dims((offset >= 0) & (offset < count), axis=1)
            self._source = xp.clip(offset, 0, count - 1)

    def mask(self, window: int | None) -> Array:
        """Return an array of bool, (tokens, slots): to which a token attends, itself and those before it."""
        if window not in self._masks:
            mask = self._ahead >= 0
            self._masks[window] = mask if window is None else mask & (self._ahead < window)
        return self._masks[window]

    def put(self, old: Array, new: Array) -> Array:
        """Return slots with new ones in these places."""
        if _has_updates(self._places):  # without these promises, indices would be compared with the number of slots
            promises = {"mode": "promise_in_bounds", "unique_indices": True, "indices_are_sorted": True}
            return old.at[:, :, self._places, :].set(new, **promises)
        # A single token is broadcast to all slots; of several tokens, every slot takes the nearest.
        spread = new if new.shape[2] == 1 else self._xp.take(new, self._source, axis=2)
        return self._xp.where(self._is_new, spread, old)


def _has_updates(x: Array) -> bool:
    """Return whether ``x.at[index].set(part)`` is `x` with a part in place, also where an index is traced."""
    at = getattr(x, "at", None)
    return at is not None and hasattr(at[...], "set")


class KVCache:
    """Keys and values of every block, with room for more.

    Blocks with a window keep the end of a text only: those that the next tokens see, and as many more as a piece of a
    text has, so that as many tokens can be forgotten.

    Parameters
    ----------
    keys, values : sequence of array, each of shape (1, kv_heads, capacity, head_dim)
        Empty slots, one array per block.
    limit : int
        The most tokens the model can see.
    config : ModelConfig
        The sizes: which blocks have states or a window, or attend to the keys of others.
    piece : int
        The most tokens for which room is reserved at once.

    Attributes
    ----------
    keys, values : list of array
        The slots; the first `length` are in use or, in blocks with a window, ``length - base``.
    length : int
        The number of tokens seen.
    base : int
        The position of the first slot of blocks with a window.
    is_writable : bool
        Whether the arrays can be assigned to; if so, they change with every token.
    """

    def __init__(
        self, keys: Sequence[Array], values: Sequence[Array], limit: int, config: ModelConfig, piece: int
    ) -> None:
        self.keys, self.values = list(keys), list(values)
        self.limit = limit
        self.length = self.base = 0
        self._states = config.recurrent
        growing = [number for number in range(config.blocks) if number not in config.without_cache]
        self._windowed = [number for number in growing if number in config.windowed]
        self._whole = [number for number in growing if number not in config.windowed]
        self._seen = (config.window or 1) - 1  # by the next token, besides itself
        self._piece = piece
        self.is_writable = _accepts_assignment(self.keys[growing[0]])

    @property
    def capacity(self) -> int:
        """The number of tokens that fit without growing."""
        whole = [int(self.keys[number].shape[2]) for number in self._whole[:1]]
        return min(whole + [self.base + int(self.keys[number].shape[2]) for number in self._windowed[:1]])

    def places(self, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the slots of the next tokens, (kinds, count); see `Slots`."""
        starts = [self.length, self.length - self.base][: 2 if self._windowed else 1]
        return np.arange(count, dtype=np.int32) + np.asarray(starts, dtype=np.int32)[:, None]

    def require(self, count: int) -> None:
        """Raise ValueError if `count` more tokens would exceed the context length."""
        needed = self.length + count
        if needed > self.limit:
            raise ValueError(f"position {needed - 1} is past the model's context length of {self.limit}")

    def reserve(self, count: int) -> None:
        """Make room for `count` more tokens, at most those of a piece.

        Raises
        ------
        ValueError
            They would exceed the context length.
        """
        self.require(count)
        self._extend(self._whole, 0, self.length + count)
        if not self._windowed:
            return
        most, used = slots_in_windows(self._seen + 1, self._piece), self.length - self.base
        have = self.keys[self._windowed[0]].shape[2]
        first = 0  # that is kept
        if used + count > max(have, most):
            first = used - self._seen - self._piece
        self._extend(self._windowed, first, used + count, most)
        self.base += first

    def _extend(self, numbers: Sequence[int], first: int, needed: int, most: int | None = None) -> None:
        """Let some blocks have that many slots, without the first ones."""
        for number in numbers:
            have = self.keys[number].shape[2]
            if first or needed > have:
                capacity = grown(have, needed - first)
                capacity = max(have, capacity if most is None else min(capacity, most))
                for part in (self.keys, self.values):
                    part[number] = _extended(part[number], first, capacity)

    def truncate(self, length: int) -> int:
        """Forget the tokens after the first `length`; return how many are left.

        None are, if there are states, or if what the next token sees is no longer in blocks with a window.
        """
        if length < self.length and (self._states or self.base > max(length - self._seen, 0)):
            length = self.base = 0
            for number in self._states:
                xp = tp.get_namespace(self.keys[number])
                self.keys[number] = xp.zeros_like(self.keys[number])
                self.values[number] = xp.zeros_like(self.values[number])
        self.length = min(self.length, length)
        return self.length

    def slots_of(self, count: int, base: int) -> list[int]:
        """Return how many slots of each block the first tokens have, for the position of the first in windows.

        Raises
        ------
        ValueError
            What the token after them sees is not among them.
        """
        if not 0 <= base <= max(count - self._seen, 0):
            raise ValueError(f"windows have moved on: what follows the first {count} tokens cannot be computed")
        return [count - base if number in self._windowed else count for number in range(len(self.keys))]

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


def _extended(slots: Array, first: int, capacity: int) -> Array:
    """Return the slots from one on, and empty ones after them."""
    xp, have = tp.get_namespace(slots), slots.shape[2]
    # Zeros, not uninitialised memory: a masked slot counts 0 times, and 0 times NaN is NaN.
    empty = [xp.zeros_like(slots)] * -(-(capacity - have + first) // have)
    if not first and capacity % have == 0:
        return concat([slots, *empty], axis=2)
    made = xp.concat([xp.asarray(slots)[:, :, first:, :], *empty], axis=2)[:, :, :capacity, :]
    return made if type(made) is type(slots) else tp.to_backend(made, tp.get_backend())


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays; the result has the kind of the first one."""
    if len(arrays) == 1:
        return arrays[0]
    joined = tp.get_namespace(*arrays).concat(list(arrays), axis=axis)
    # A namespace may compute with wrappers around its library's arrays; a cache keeps the caller's kind.
    return joined if type(joined) is type(arrays[0]) else tp.to_backend(joined, tp.get_backend())
