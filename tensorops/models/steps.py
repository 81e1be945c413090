"""One step of decoding as a function of arrays: what `tensorops.PersistentKernel` compiles.

Everything that changes from step to step is in arrays: the tokens, their positions, where their keys and values are
put, how many keys there are, and the random numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorops as tp

from .weights import embed, linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import LlamaConfig
    from .weights import Matrix

__all__ = ["add_and_normalize", "decode"]

Array = Any


def decode(
    config: LlamaConfig,
    weights: dict[str, Any],
    output: Matrix,
    pick: dict[str, Any],
    ids: Array,
    positions: Array,
    keys: Sequence[Array],
    values: Sequence[Array],
    numbers: Array | None = None,
    *,
    table: Array | None = None,
    places: Array | None = None,
) -> tuple[Array, list[Array], list[Array]]:
    """Return the token that follows each of some sequences.

    Parameters
    ----------
    config : LlamaConfig
        The sizes.
    weights, output
        The results of `arrange`.
    pick : dict
        Options of `tensorops.sample`.
    ids, positions : array of int32, shape (batch,)
        The last token of each sequence, and its position.
    keys, values : sequence of array, one for each block
        A cache of one sequence, (1, kv_heads, capacity, head_dim), or with a `table` pages of all sequences,
        (num_pages, kv_heads, page_size, head_dim).
    numbers : array of float32, shape (batch,), optional
        Uniform random numbers, unless the temperature is 0.
    table : array of int32, shape (batch, pages), optional
        The pages of each sequence.
    places : array of int32, shape (batch * kv_heads,), optional
        With a `table`, where the key of each head goes among all keys of a block: ``keys`` without its last axis.

    Returns
    -------
    ids : array of int32, shape (batch,)
        The tokens.
    keys, values : list of array
        With the keys and values of the step; where arrays can be written to, the given ones.
    """
    xp, batch = tp.get_namespace(ids), ids.shape[0]
    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
    lengths, dtype = positions + 1, keys[0].dtype
    at = xp.reshape(positions, (batch, 1))
    x = embed(ids, weights["embedding"], config.dim)
    added = None
    all_keys, all_values = [], []
    for w, old_keys, old_values in zip(weights["blocks"], keys, values, strict=True):
        h, x = add_and_normalize(x, added, w["attn_norm"], config.eps)
        split = xp.reshape(linear(h, w["attn_qkv"]), (batch, heads + 2 * kv_heads, 1, dim))
        rotated = tp.rope(
            split[:, : heads + kv_heads, :, :],
            at,
            base=config.rope_base,
            freqs=weights["frequencies"],
            interleaved=True,
            attention_factor=config.rotation.attention_factor,
        )
        k = _put(xp, old_keys, rotated[:, heads:, :, :], positions, places)
        v = _put(xp, old_values, split[:, heads + kv_heads :, :, :], positions, places)
        q = xp.astype(rotated[:, :heads, :, :], dtype, copy=False)
        y = tp.scaled_dot_product_attention(q, k, v, lengths=lengths, page_table=table)
        y = xp.reshape(xp.astype(y, x.dtype, copy=False), (batch, heads * dim))
        h, x = tp.add_rms_norm(linear(y, w["attn_output"]), x, w["ffn_norm"], config.eps)
        h = linear(h, w["ffn_gate_up"])
        added = linear(tp.swiglu(h[:, : config.hidden_dim], h[:, config.hidden_dim :]), w["ffn_down"])
        all_keys.append(k)
        all_values.append(v)
    hidden, _ = add_and_normalize(x, added, weights["norm"], config.eps)
    tokens = tp.sample(linear(hidden, output), **pick, rng=numbers)
    return xp.astype(tokens, ids.dtype, copy=False), all_keys, all_values


def add_and_normalize(x: Array, added: Array | None, weight: Array, eps: float) -> tuple[Array, Array]:
    """Return the norm of the sum, and the sum."""
    if added is None:
        return tp.rms_norm(x, weight, eps), x
    return tp.add_rms_norm(added, x, weight, eps)


def _put(xp: Any, old: Array, new: Array, positions: Array, places: Array | None) -> Array:
    """Return keys or values of a block with those of a step in their places."""
    new = xp.astype(new, old.dtype, copy=False)
    if places is None:
        return _assigned(old, (slice(None), slice(None), positions, slice(None)), new)
    rows = xp.reshape(new, (places.shape[0], old.shape[-1]))
    return xp.reshape(_assigned(xp.reshape(old, (-1, old.shape[-1])), (places, slice(None)), rows), old.shape)


def _assigned(old: Array, key: tuple[Any, ...], new: Array) -> Array:
    """Return an array with a part replaced: itself, if it can be written to."""
    at = getattr(old, "at", None) if hasattr(type(old), "at") else None
    if at is not None and hasattr(at[key], "set"):  # without these promises, indices would be compared with lengths
        return at[key].set(new, mode="promise_in_bounds", unique_indices=True)
    old[key] = new
    return old
