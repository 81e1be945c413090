"""The network of every architecture: steps as functions of arrays.

All steps run the same blocks; they differ in what attention sees. `forward` runs some tokens eagerly or under a
compiler. The others are what `tensorops.PersistentKernel` compiles: everything that changes from run to run is in
arrays, the tokens, their positions, where their keys and values are put, how many keys there are, and the random
numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorops as tp
from tensorops.persistent.ranks import Ranks

from . import architectures
from .cache import Slots, attention, stored
from .layer import Layer, Step, normalized
from .matrices import embed, linear
from .penalties import NONE, Penalties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import ModelConfig
    from .layer import Memory
    from .matrices import Matrix

__all__ = ["choose", "decode", "forward", "logits_of", "onepass", "prefill", "run_blocks"]

Array = Any
ALONE = Ranks()


def run_blocks(
    config: ModelConfig,
    weights: dict[str, Any],
    ids: Array,
    positions: Array,
    memory: Memory,
    *,
    batch: int = 1,
    token: int | None = None,
    ranks: Ranks = ALONE,
) -> Array:
    """Return the features that the output matrix turns into logits.

    Parameters
    ----------
    config : ModelConfig
        The sizes, of several ranks those of one.
    weights : dict
        The result of `arrange`.
    ids : array of int, shape (batch * tokens,)
        The tokens, of one sequence after the other.
    positions : array of int
        Those of the tokens, as `tensorops.rope` takes them.
    memory : Memory
        What blocks keep of the tokens before.
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
    xp, block = tp.get_namespace(ids), architectures.get(config.architecture).block
    growth = weights["growth"]
    if growth is not None:
        growth = xp.reshape(xp.take(growth, xp.reshape(positions, (-1,)), axis=0), (batch, 1, -1, 1))
    rotations = [_rope(config, freqs, i == 1) for i, freqs in enumerate(weights["frequencies"])]
    step = Step(xp, config, rotations, growth, positions, memory, batch, ids.shape[0] // batch, ranks)
    x = embed(ids, weights["embedding"], config.dim, token)
    if config.embedding_scale != 1.0:
        x = x * config.embedding_scale
    inputs = None
    if config.per_layer_dim:
        inputs = _per_layer_inputs(xp, config, weights["others"], ids, x, token)
    added = None  # the previous block's last result, which is still to be added to x
    for number, w in enumerate(weights["blocks"]):
        x, added = block(Layer(step, number, w, inputs), x, added)
    return normalized(config, added, x, weights["norm"])[0]


def _per_layer_inputs(
    xp: Any, config: ModelConfig, w: dict[str, Any], ids: Array, x: Array, token: int | None
) -> Array:
    """Return what each block multiplies by its own matrices and adds, (tokens, blocks, per_layer_dim)."""
    dim, shape = config.per_layer_dim, (x.shape[0], config.blocks, config.per_layer_dim)
    own = embed(ids, w["per_layer_token_embd"], config.blocks * dim, token) * dim**0.5
    common = linear(x, w["per_layer_model_proj"]) * config.dim**-0.5
    common = tp.rms_norm(xp.reshape(common, shape), w["per_layer_proj_norm"], config.eps)
    return (common + xp.reshape(own, shape)) * 2**-0.5


def _rope(config: ModelConfig, freqs: Array | None, is_windowed: bool) -> dict[str, Any]:
    """Return arguments of `tensorops.rope` besides positions, for blocks with a window or without."""
    is_local = is_windowed and config.local_rope_base is not None
    return {
        "base": config.local_rope_base if is_local else config.rope_base,
        "freqs": freqs,
        "interleaved": config.interleaved,
        "dims": config.rope_dims,
        "attention_factor": 1.0 if is_local else config.rotation.attention_factor,
    }


def forward(
    config: ModelConfig,
    weights: dict[str, Any],
    ids: Array,
    places: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    *,
    starts: tuple[int, ...] | None = None,
    token: int | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Array, list[Array], list[Array]]:
    """Run the network on some tokens without reading values, so that a compiler may trace it.

    Parameters
    ----------
    config, weights, ids, ranks
        As for `run_blocks`, of one sequence.
    places : array of int, shape (kinds, tokens)
        Their positions and, in blocks with a window, slots; see `Slots`.
    keys, values : sequence of array, each of shape (1, kv_heads, capacity, head_dim)
        The arrays of a `KVCache`, with room for the tokens.
    starts : tuple of int, optional
        The first of the `places`, as numbers; if given, `keys` and `values` are written to. Do not pass it under a
        compiler, for which they would be new constants for every token.
    token : int, optional
        The only element of `ids`, as a number; for this, too.

    Returns
    -------
    hidden : array of float32, shape (tokens, dim)
        The features that the output matrix turns into logits.
    keys, values : list of array
        With the new tokens in place.
    """
    xp, kind = tp.get_namespace(ids), type(ids)
    ids, places = xp.asarray(ids), xp.asarray(places)  # the kind that the namespace computes with
    slots = Slots(places, keys, values, config.windowed, starts)
    hidden = run_blocks(config, weights, ids, places[0, :], slots, token=token, ranks=ranks)
    if type(hidden) is kind:
        return hidden, slots.keys, slots.values
    if starts is not None:  # the arrays of a cache may stay wrapped, as the next step would wrap them again
        return tp.to_backend(hidden, tp.get_backend()), slots.keys, slots.values
    return tp.to_backend((hidden, slots.keys, slots.values), tp.get_backend())  # the caller's kind


def logits_of(config: ModelConfig, ranks: Ranks, hidden: Array, output: Matrix) -> Array:
    """Return the logits of features; those of the ranks' parts of the vocabulary are put side by side."""
    logits = linear(hidden, output)
    if config.logit_scale != 1.0:
        logits = logits * config.logit_scale
    if config.logit_softcap is not None:  # c tanh(x / c), by an operator that has kernels
        cap = config.logit_softcap
        logits = tp.sigmoid(logits * (2.0 / cap)) * (2.0 * cap) - cap
    return logits if logits.shape[1] == config.vocab_size else ranks.all_gather(logits)


def choose(logits: Array, pick: dict[str, Any], ranks: Ranks, numbers: Any) -> Array:
    """Return the token that follows each row of logits, in an array."""
    # That of the first rank is everyone's: others may have other random numbers, and processors that round otherwise.
    return ranks.first(tp.sample(logits, **pick, rng=numbers))


def decode(
    config: ModelConfig,
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
    penalties: Penalties = NONE,
) -> tuple[Array, list[Array], list[Array]]:
    """Return the token that follows each of some sequences.

    Parameters
    ----------
    config, ranks
        As for `run_blocks`.
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
        the key of each head goes among all keys of a block, ``keys`` without its last axis. If blocks differ in heads,
        there are places for each of `kv_head_counts`; if some have states, rows of these follow, of shape (batch,).
        Then uniform random numbers of float32 and shape (batch,), unless the temperature is 0, and what the penalties
        need, `Penalties.arrays` of all sequences.
    paged : bool
        Whether there are pages.
    penalties : Penalties
        Of tokens that a sequence has, and biases.

    Returns
    -------
    ids : array of int32, shape (batch,)
        The tokens.
    keys, values : list of array
        With the keys and values of the step; where arrays can be written to, the given ones.
    """
    left = list(others)
    table, places = (left.pop(0), left.pop(0)) if paged else (None, None)
    numbers = left.pop(0) if pick["temperature"] else None
    xp, batch = tp.get_namespace(ids), ids.shape[0]
    cache = _Cache(xp, keys, values, positions, positions + 1, table)
    if places is not None:
        cache.find(places, batch, config.kv_head_counts, config.recurrent != ())
    at = xp.reshape(positions, (batch, 1))
    hidden = run_blocks(config, weights, ids, at, cache, batch=batch, ranks=ranks)
    logits = logits_of(config, ranks, hidden, output)
    tokens = choose(penalties.apply(logits, *left), pick, ranks, numbers)
    return xp.astype(tokens, ids.dtype, copy=False), cache.keys, cache.values


def prefill(
    config: ModelConfig,
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
    config, ranks, pick, weights, output
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
    hidden = run_blocks(config, weights, ids, positions, cache, ranks=ranks)
    last = xp.take(hidden, count - 1, axis=0)
    following = choose(logits_of(config, ranks, last, output), pick, ranks, numbers)
    return xp.astype(following, ids.dtype, copy=False), cache.keys, cache.values


def onepass(config: ModelConfig, ranks: Ranks, weights: dict[str, Any], output: Matrix, ids: Array) -> Array:
    """Return the logits of the token that follows each of some tokens, (tokens, vocabulary), without a cache."""
    xp = tp.get_namespace(ids)

    positions = xp.arange(ids.shape[0], dtype=ids.dtype)
    hidden = run_blocks(config, weights, ids, positions, _Nothing(), ranks=ranks)
    return logits_of(config, ranks, hidden, output)


class _Nothing:
    """What is kept of no tokens."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Array, Array]] = {}

    def attend(self, number: int, q: Array, k: Array | None, v: Array | None, **options: Any) -> Array:
        if k is not None:
            self._seen[number] = k, v
        return tp.scaled_dot_product_attention(q, *self._seen[number], is_causal=True, **options)

    def state(self, number: int) -> tuple[None, None]:
        return None, None

    def keep(self, number: int, convolution: Array, state: Array) -> None:
        """Forget the state."""


class _Cache:
    """Keys and values of a step, with those of its tokens in their places."""

    def __init__(
        self,
        xp: Any,
        keys: Sequence[Array],
        values: Sequence[Array],
        positions: Array,
        lengths: Array,
        table: Array | None = None,
    ) -> None:
        self.keys, self.values = list(keys), list(values)
        self._xp, self._positions = xp, positions
        self._where = {"lengths": lengths, "page_table": table}
        self._places: dict[int, Array] = {}  # in pages, by the number of heads
        self._rows: Array = None  # of states

    def find(self, places: Array, batch: int, head_counts: Sequence[int], has_states: bool) -> None:
        """Note where keys, values and states go in pages; see `decode`."""
        if len(head_counts) == 1 and not has_states:
            self._places = {head_counts[0]: places}
            return
        start = 0
        for heads in head_counts:
            self._places[heads] = places[start : start + batch * heads]
            start += batch * heads
        self._rows = places[start:]

    def attend(self, number: int, q: Array, k: Array | None, v: Array | None, **options: Any) -> Array:
        if k is not None:
            self.keys[number] = self._put(self.keys[number], k)
            self.values[number] = self._put(self.values[number], v)
        k, v = self.keys[number], self.values[number]
        return attention(self._xp, q, k, v, is_causal=q.shape[2] > 1, **self._where, **options)

    def state(self, number: int) -> tuple[Array, Array]:
        kept = self.keys[number], self.values[number]
        return kept if self._rows is None else tuple(self._xp.take(part, self._rows, axis=0) for part in kept)

    def keep(self, number: int, convolution: Array, state: Array) -> None:
        self.keys[number] = self._kept(self.keys[number], convolution)
        self.values[number] = self._kept(self.values[number], state)

    def _kept(self, old: Array, new: Array) -> Array:
        """Return states with those of a step in place."""
        if self._rows is None:
            return _assigned(old, (slice(None),) * 4, new)
        flat, rows = (self._xp.reshape(part, (part.shape[0], -1)) for part in (old, new))
        return self._xp.reshape(_assigned(flat, (self._rows, slice(None)), rows), old.shape)

    def _put(self, old: Array, new: Array) -> Array:
        """Return keys or values of a block with those of a step in their places."""
        xp = self._xp
        new = stored(xp, new, old.dtype)
        if not self._places:
            return _assigned(old, (slice(None), slice(None), self._positions, slice(None)), new)
        places = self._places[old.shape[1]]
        rows = xp.reshape(new, (places.shape[0], old.shape[-1]))
        return xp.reshape(_assigned(xp.reshape(old, (-1, old.shape[-1])), (places, slice(None)), rows), old.shape)


def _assigned(old: Array, key: tuple[Any, ...], new: Array) -> Array:
    """Return an array with a part replaced: itself, if it can be written to."""
    at = getattr(old, "at", None) if hasattr(type(old), "at") else None
    if at is not None and hasattr(at[key], "set"):  # without these promises, indices would be compared with lengths
        return at[key].set(new, mode="promise_in_bounds", unique_indices=True)
    old[key] = new
    return old
