"""Steps of a network as functions of arrays: what `tensorops.PersistentKernel` compiles.

Everything that changes from run to run is in arrays: the tokens, their positions, where their keys and values are put,
how many keys there are, and the random numbers. All steps run the same blocks; they differ in what attention sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import tensorops as tp
from tensorops.persistent.ranks import Ranks

from .weights import embed, linear

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .config import LlamaConfig
    from .weights import Matrix

__all__ = ["choose", "decode", "logits_of", "onepass", "prefill", "run_blocks"]

Array = Any
ALONE = Ranks()
Attend: TypeAlias = "Callable[[int, Array, Array, Array], Array]"


def run_blocks(
    config: LlamaConfig,
    weights: dict[str, Any],
    ids: Array,
    positions: Array,
    attend: Attend,
    *,
    batch: int = 1,
    token: int | None = None,
    ranks: Ranks = ALONE,
) -> Array:
    """Return the features that the output matrix turns into logits.

    Parameters
    ----------
    config : LlamaConfig
        The sizes, of several ranks those of one.
    weights : dict
        The result of `arrange`.
    ids : array of int, shape (batch * tokens,)
        The tokens, of one sequence after the other.
    positions : array of int
        Those of the tokens, as `tensorops.rope` takes them.
    attend : callable
        Returns what attention gives, (batch, heads, tokens, head_dim), for the number of a block, queries, and the keys
        and values of the tokens.
    batch : int, optional
        The number of sequences.
    token : int, optional
        The only element of `ids`, as a number, if it is known.
    ranks : Ranks, optional
        Which have parts of the weights and heads, and compute the same at the same time.

    Returns
    -------
    array of float32, shape (batch * tokens, dim)
        The features.
    """
    xp = tp.get_namespace(ids)
    x = embed(ids, weights["embedding"], config.dim, token)
    added = None  # the previous block's last result, which is still to be added to x
    for number, w in enumerate(weights["blocks"]):
        h, x = _add_and_normalize(x, added, w["attn_norm"], config.eps)
        q, k, v = _attention_inputs(xp, config, weights, linear(h, w["attn_qkv"]), positions, batch)
        y = xp.permute_dims(attend(number, q, k, v), (0, 2, 1, 3))
        h = linear(xp.reshape(y, (ids.shape[0], config.heads * config.head_dim)), w["attn_output"])
        h, x = tp.add_rms_norm(ranks.all_reduce(h), x, w["ffn_norm"], config.eps)
        h = linear(h, w["ffn_gate_up"])
        h = linear(tp.swiglu(h[:, : config.hidden_dim], h[:, config.hidden_dim :]), w["ffn_down"])
        added = ranks.all_reduce(h)
    hidden, _ = _add_and_normalize(x, added, weights["norm"], config.eps)
    return hidden


def _attention_inputs(
    xp: Any, config: LlamaConfig, weights: dict[str, Any], qkv: Array, positions: Array, batch: int
) -> tuple[Array, Array, Array]:
    """Return queries, keys and values, each (batch, heads, tokens, head_dim), from features of all of them."""
    tokens, heads, kv_heads = qkv.shape[0] // batch, config.heads, config.kv_heads
    split = xp.reshape(qkv, (batch, tokens, heads + 2 * kv_heads, config.head_dim))
    split = xp.permute_dims(split, (0, 2, 1, 3))
    # GGUF files hold the heads of this architecture with the features of a pair next to each other.
    rotated = tp.rope(
        split[:, : heads + kv_heads, :, :],
        positions,
        base=config.rope_base,
        freqs=weights["frequencies"],
        interleaved=True,
        attention_factor=config.rotation.attention_factor,
    )
    return rotated[:, :heads, :, :], rotated[:, heads:, :, :], split[:, heads + kv_heads :, :, :]


def _add_and_normalize(x: Array, added: Array | None, weight: Array, eps: float) -> tuple[Array, Array]:
    """Return the norm of the sum, and the sum."""
    if added is None:
        return tp.rms_norm(x, weight, eps), x
    return tp.add_rms_norm(added, x, weight, eps)


def logits_of(vocabulary: int, ranks: Ranks, hidden: Array, output: Matrix) -> Array:
    """Return the logits of features; those of the ranks' parts of the vocabulary are put side by side."""
    logits = linear(hidden, output)
    return logits if logits.shape[1] == vocabulary else ranks.all_gather(logits)


def choose(logits: Array, pick: dict[str, Any], ranks: Ranks, numbers: Any) -> Array:
    """Return the token that follows each row of logits, in an array."""
    # That of the first rank is everyone's: others may have other random numbers, and processors that round otherwise.
    return ranks.first(tp.sample(logits, **pick, rng=numbers))


def decode(
    config: LlamaConfig,
    vocabulary: int,
    ranks: Ranks,
    pick: dict[str, Any],
    weights: dict[str, Any],
    output: Matrix,
    ids: Array,
    positions: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    *others: Array,
    paged: bool = False,
) -> tuple[Array, list[Array], list[Array]]:
    """Return the token that follows each of some sequences.

    Parameters
    ----------
    config : LlamaConfig
        The sizes, of several ranks those of one.
    vocabulary : int
        The number of tokens in it.
    ranks : Ranks
        Which compute together.
    pick : dict
        Options of `tensorops.sample`.
    weights, output
        The results of `arrange`.
    ids, positions : array of int32, shape (batch,)
        The last token of each sequence, and its position.
    keys, values : sequence of array, one for each block
        A cache of one sequence, (1, kv_heads, capacity, head_dim), or pages of all sequences,
        (num_pages, kv_heads, page_size, head_dim).
    *others : array
        With pages, a table of int32 and shape (batch, pages), and places of int32 and shape (batch * kv_heads,): where
        the key of each head goes among all keys of a block, ``keys`` without its last axis. Then uniform random numbers
        of float32 and shape (batch,), unless the temperature is 0.
    paged : bool
        Whether there are pages.

    Returns
    -------
    ids : array of int32, shape (batch,)
        The tokens.
    keys, values : list of array
        With the keys and values of the step; where arrays can be written to, the given ones.
    """
    table, places = others[:2] if paged else (None, None)
    (numbers,) = others[2 * paged :] or (None,)
    xp, batch = tp.get_namespace(ids), ids.shape[0]
    cache = _Cache(xp, keys, values, positions, positions + 1, places, table)
    at = xp.reshape(positions, (batch, 1))
    hidden = run_blocks(config, weights, ids, at, cache.attend, batch=batch, ranks=ranks)
    tokens = choose(logits_of(vocabulary, ranks, hidden, output), pick, ranks, numbers)
    return xp.astype(tokens, ids.dtype, copy=False), cache.keys, cache.values


def prefill(
    config: LlamaConfig,
    vocabulary: int,
    ranks: Ranks,
    pick: dict[str, Any],
    weights: dict[str, Any],
    output: Matrix,
    ids: Array,
    start: Array,
    count: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    numbers: Array | None = None,
) -> tuple[Array, list[Array], list[Array]]:
    """Return the token that follows some tokens of one sequence.

    Parameters
    ----------
    config, vocabulary, ranks, pick, weights, output
        As for `decode`.
    ids : array of int32, shape (tokens,)
        The tokens; those after the first `count` have no effect.
    start, count : array of int32, shape (1,)
        The position of the first token, and how many there are.
    keys, values : sequence of array, one for each block
        As for `decode`, with room for all of `ids`.
    numbers : array of float32, shape (1,), optional
        A uniform random number, unless the temperature is 0.

    Returns
    -------
    ids, keys, values
        As for `decode`. What is after the keys and values of the tokens is undefined.
    """
    xp, tokens = tp.get_namespace(ids), ids.shape[0]
    positions = start + xp.arange(tokens, dtype=start.dtype)
    cache = _Cache(xp, keys, values, positions, start + tokens)
    hidden = run_blocks(config, weights, ids, positions, cache.attend, ranks=ranks)
    last = xp.take(hidden, count - 1, axis=0)
    following = choose(logits_of(vocabulary, ranks, last, output), pick, ranks, numbers)
    return xp.astype(following, ids.dtype, copy=False), cache.keys, cache.values


def onepass(
    config: LlamaConfig, vocabulary: int, ranks: Ranks, weights: dict[str, Any], output: Matrix, ids: Array
) -> Array:
    """Return the logits of the token that follows each of some tokens, (tokens, vocabulary), without a cache."""
    xp = tp.get_namespace(ids)

    def attend(number: int, q: Array, k: Array, v: Array) -> Array:
        return tp.scaled_dot_product_attention(q, k, v, is_causal=True)

    positions = xp.arange(ids.shape[0], dtype=ids.dtype)
    hidden = run_blocks(config, weights, ids, positions, attend, ranks=ranks)
    return logits_of(vocabulary, ranks, hidden, output)


class _Cache:
    """Keys and values of a step, with those of its tokens in their places."""

    def __init__(
        self,
        xp: Any,
        keys: Sequence[Array],
        values: Sequence[Array],
        positions: Array,
        lengths: Array,
        places: Array | None = None,
        table: Array | None = None,
    ) -> None:
        self.keys, self.values = list(keys), list(values)
        self._xp, self._positions, self._places = xp, positions, places
        self._where = {"lengths": lengths, "page_table": table}

    def attend(self, number: int, q: Array, k: Array, v: Array) -> Array:
        xp, dtype = self._xp, self.keys[number].dtype
        self.keys[number] = k = self._put(self.keys[number], k)
        self.values[number] = v = self._put(self.values[number], v)
        y = tp.scaled_dot_product_attention(
            xp.astype(q, dtype, copy=False), k, v, is_causal=q.shape[2] > 1, **self._where
        )
        return xp.astype(y, q.dtype, copy=False)

    def _put(self, old: Array, new: Array) -> Array:
        """Return keys or values of a block with those of a step in their places."""
        xp = self._xp
        new = xp.astype(new, old.dtype, copy=False)
        if self._places is None:
            return _assigned(old, (slice(None), slice(None), self._positions, slice(None)), new)
        rows = xp.reshape(new, (self._places.shape[0], old.shape[-1]))
        return xp.reshape(_assigned(xp.reshape(old, (-1, old.shape[-1])), (self._places, slice(None)), rows), old.shape)


def _assigned(old: Array, key: tuple[Any, ...], new: Array) -> Array:
    """Return an array with a part replaced: itself, if it can be written to."""
    at = getattr(old, "at", None) if hasattr(type(old), "at") else None
    if at is not None and hasattr(at[key], "set"):  # without these promises, indices would be compared with lengths
        return at[key].set(new, mode="promise_in_bounds", unique_indices=True)
    old[key] = new
    return old
