"""The kernel of scaled_dot_product_attention for few queries: keys and values are read once, and no score is written.

Work: the queries of all heads that share a key head are the rows of one product. A step has a block of keys and values
of some key heads; keys in pages are in several blocks, one for each page. The largest score so far, the sum of weights
relative to it and the weighted values stay in scratch memory from one step to the next, as in `sums`.
Cores: sequences and blocks of heads are divided over the two cores of v4 and v5p; a single sequence has two blocks of
heads there, or stays on one core if it has a single key head. On chips with one core, the steps already follow one
another as fast as memory delivers keys, so there is nothing to gain from dividing these.
Precision: float32 inside; weights are multiplied in two parts of the dtype of the values. If a score leaves the range,
queries are scaled down to a unit in which products of finite numbers stay in it, as in the body.
Bytes: the queries, the result, and whole blocks of those keys and values that lengths and the window leave. Steps
beyond a sequence compute nothing, and already fetch the first block of the next.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import Scalars, call

if TYPE_CHECKING:
    from tensorops.kernels.pallas.decoding_plans import Decoding

_LARGEST_EXPONENT = 124  # of the sum of a score's products; the largest of float32 is 127
_BIAS, _MANTISSA_BITS, _INFINITY = 127, 23, 0xFF


def attend(
    blocks: Decoding,
    generation: str,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: jax.Array | None = None,
    sinks: jax.Array | None = None,
    lengths: jax.Array | None = None,
    page_table: jax.Array | None = None,
    scale: float,
    softcap: float | None = None,
) -> list[jax.Array]:
    """Compute `tensorops.scaled_dot_product_attention`."""
    batch, heads, queries, dim = q.shape
    kv_heads, value_dim = v.shape[1], v.shape[3]
    group = heads // kv_heads
    rows = group * queries
    grid = (batch, kv_heads // blocks.heads, blocks.steps)
    scalars, place = _places(blocks, grid, k.shape, lengths, page_table)

    def of_keys(x: jax.Array, turned: bool) -> list[tuple[jax.Array, pl.BlockSpec]]:
        block = (x.shape[3], blocks.keys) if turned else (blocks.keys, x.shape[3])
        x = jnp.swapaxes(x, 2, 3) if turned else x
        places = [functools.partial(place, page, turned) for page in range(blocks.pages)]
        return [(x, pl.BlockSpec((1, blocks.heads, *block), each)) for each in places]

    of_queries = pl.BlockSpec((1, blocks.heads, rows, dim), lambda b, h, j, *_: (b, h, 0, 0))
    inputs = [(jnp.reshape(q, (batch, kv_heads, rows, dim)), of_queries)]
    inputs += of_keys(k, blocks.turned[0]) + of_keys(v, blocks.turned[1])
    if mask is not None:
        inputs.append(_mask_in_steps(blocks, mask, kv_heads, group, queries))
    if sinks is not None:
        of_rows = jnp.repeat(sinks.astype(jnp.float32), queries).reshape(kv_heads, rows, 1)
        inputs.append((of_rows, pl.BlockSpec((blocks.heads, rows, 1), lambda b, h, j, *_: (h, 0, 0))))

    def scratch(features: int, dtype: Any = jnp.float32) -> Any:
        return pltpu.VMEM((blocks.heads, rows, features), dtype)

    (y,) = call(
        functools.partial(
            _kernel,
            options=_Options(blocks, scale, softcap),
            paged=page_table is not None,
            masked=mask is not None,
            sinking=sinks is not None,
        ),
        grid,
        inputs,
        [
            (
                jax.ShapeDtypeStruct((batch, kv_heads, rows, value_dim), q.dtype),
                pl.BlockSpec((1, blocks.heads, rows, value_dim), lambda b, h, j, *_: (b, h, 0, 0)),
            )
        ],
        name="scaled_dot_product_attention_decode",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[
            scratch(dim, q.dtype),
            scratch(1, jnp.int32),
            scratch(blocks.step),
            scratch(1),
            scratch(1),
            scratch(value_dim),
        ],
        parallel=2,
        scalars=scalars,
    )
    return [jnp.reshape(y, (batch, heads, queries, value_dim))]


# ------------------------------------------------------------------------------------------------- which blocks


def _places(
    blocks: Decoding,
    grid: tuple[int, int, int],
    shape: tuple[int, ...],
    lengths: jax.Array | None,
    page_table: jax.Array | None,
) -> tuple[list[Scalars], Callable[..., tuple[Any, ...]]]:
    """Return the numbers that say where keys are, and what tells the place of each block of a step from them.

    Bytes are counted for sequences of all keys, and pages that differ from those before them. That is the most that
    move, except that a window may end in the middle of a block, and then reach into one more of each sequence.
    """
    batch, head_blocks, _ = grid
    owners, _, size, _ = shape
    ends = jnp.full(batch, blocks.all_keys, jnp.int32) if lengths is None else _clamped(lengths, blocks.all_keys)
    scalars = [Scalars(ends, np.full(batch, blocks.all_keys, np.int32))]
    if page_table is not None:
        table = jnp.reshape(_clamped(page_table, owners - 1), -1)
        scalars.append(Scalars(table, np.arange(table.size, dtype=np.int32) % owners))

    def place(page: int, turned: bool, b: Any, h: Any, j: Any, ends: Any, *tables: Any) -> tuple[Any, ...]:
        is_beyond = _quotient(_first(blocks, ends[b]), blocks.step) + j > _last(ends[b], blocks.step)
        here = b * head_blocks + h
        there = jnp.where(is_beyond, jnp.minimum(here + 1, batch * head_blocks - 1), here)
        j = jnp.where(there > here, 0, j)
        b = _quotient(there, head_blocks)
        h = there - b * head_blocks
        first = _first(blocks, ends[b])
        block = (_quotient(first, blocks.step) + j) * blocks.pages + page
        block = jnp.clip(block, _quotient(first, blocks.keys), _last(ends[b], blocks.keys))
        if page_table is None:
            return (b, h, 0, block) if turned else (b, h, block, 0)
        each = size // blocks.keys  # of the blocks, in a page
        at = _quotient(block, each)
        owner, block = tables[0][b * page_table.shape[1] + at], block - at * each
        return (owner, h, 0, block) if turned else (owner, h, block, 0)

    return scalars, place


def _first(blocks: Decoding, end: Any) -> Any:
    """Return the first key that any query attends to, in a sequence with that many keys."""
    return jnp.maximum(end - blocks.back, 0)


def _last(end: Any, size: int) -> Any:
    """Return the last block, of that many keys each, of a sequence."""
    return _quotient(jnp.maximum(end - 1, 0), size)


def _quotient(x: Any, size: int) -> Any:
    """Divide a number that is not negative, for which the compiler for TPUs needs no sign."""
    return jax.lax.div(x, jax.lax.full_like(x, size))


def _clamped(numbers: jax.Array, most: int) -> jax.Array:
    """Return int32, from 0 to `most`."""
    if numbers.dtype.itemsize < 4:
        numbers = numbers.astype(jnp.int32)  # `most` may be beyond their own range
    return jnp.clip(numbers, 0, most).astype(jnp.int32)


def _mask_in_steps(
    blocks: Decoding, mask: jax.Array, kv_heads: int, group: int, queries: int
) -> tuple[jax.Array, pl.BlockSpec]:
    """Return a mask with an axis of key heads and one of their rows; axes along which it is equal have one element."""
    if mask.dtype != jnp.bfloat16:
        mask = mask.astype(jnp.int8 if mask.dtype == bool else jnp.float32)
    batch, heads, rows, _ = (1,) * (4 - mask.ndim) + mask.shape
    mask = jnp.broadcast_to(jnp.reshape(mask, (batch, heads, rows, -1)), (batch, heads, rows, blocks.all_keys))
    if heads > 1 or rows > 1:
        split = (kv_heads, group) if heads > 1 else (1, 1)
        mask = jnp.reshape(mask, (batch, *split, rows, blocks.all_keys))
        mask = jnp.broadcast_to(mask, (batch, split[0], group, queries, blocks.all_keys))
        mask = jnp.reshape(mask, (batch, split[0], group * queries, blocks.all_keys))
    of_heads = blocks.heads if heads > 1 else 1

    def place(b: Any, h: Any, j: Any, ends: Any, *_: Any) -> tuple[Any, ...]:
        step = jnp.minimum(_quotient(_first(blocks, ends[b]), blocks.step) + j, _last(ends[b], blocks.step))
        return b if batch > 1 else 0, h if heads > 1 else 0, 0, step

    return mask, pl.BlockSpec((1, of_heads, mask.shape[2], blocks.step), place)


# --------------------------------------------------------------------------------------------------- the kernel


class _Options(NamedTuple):
    """What the kernel is compiled for, besides shapes."""

    blocks: Decoding
    scale: float
    softcap: float | None

    @property
    def weight_unit(self) -> float:
        """Return what weights are multiplied by, so that no sum of weighted values exceeds the largest of them."""
        return float(0.5 ** self.blocks.all_keys.bit_length())

    @property
    def k_axis(self) -> int:
        """Return the axis of a block of keys along which there are keys."""
        return 2 if self.blocks.turned[0] else 1

    @property
    def v_axis(self) -> int:
        """Return the axis of a block of values along which there are keys."""
        return 2 if self.blocks.turned[1] else 1


class _References(NamedTuple):
    """Where the blocks of a step are, and what stays from one step to the next: all of these by head and row.

    Parameters
    ----------
    scaled
        The queries in their unit.
    exponent
        That of the unit's reciprocal, a power of two.
    scores
        Those of a step, in the unit.
    largest
        The largest score so far, in the unit.
    total
        The sum of weights so far, relative to it.
    sum
        The sum of weighted values so far.
    """

    ends: Any
    q: Any
    k: Sequence[Any]
    v: Sequence[Any]
    mask: Any
    sinks: Any
    y: Any
    scaled: Any
    exponent: Any
    scores: Any
    largest: Any
    total: Any
    sum: Any


def _kernel(*references: Any, options: _Options, paged: bool, masked: bool, sinking: bool) -> None:
    blocks, given = options.blocks, iter(references)
    ends = next(given)
    if paged:
        next(given)  # the table, which index maps use
    q, k, v = next(given), [*itertools.islice(given, blocks.pages)], [*itertools.islice(given, blocks.pages)]
    at = _References(ends, q, k, v, next(given) if masked else None, next(given) if sinking else None, *given)
    end, part = at.ends[pl.program_id(0)], pl.program_id(2)
    first = _first(blocks, end)
    start = (_quotient(first, blocks.step) + part) * blocks.step
    # Of most blocks, every query attends to every key.
    all_from = first if blocks.left is None else jnp.maximum(first, end - 1 - blocks.left)
    all_to = end if blocks.right is None else jnp.minimum(end, end - blocks.queries + blocks.right + 1)
    is_whole = (start >= all_from) & (start + blocks.step <= all_to)

    @pl.when(part == 0)  # type: ignore[untyped-decorator]
    def _() -> None:
        at.scaled[...] = at.q[0]
        at.largest[...] = jnp.full_like(at.largest, -jnp.inf)
        for reference in (at.exponent, at.total, at.sum):
            reference[...] = jnp.zeros_like(reference)

    @pl.when(is_whole)  # type: ignore[untyped-decorator]
    def _() -> None:
        _add(options, at, _together(at.k, options.k_axis), _together(at.v, options.v_axis), None)

    @pl.when(jnp.logical_not(is_whole) & (start < end))  # type: ignore[untyped-decorator]
    def _() -> None:
        k, v = _together(at.k, options.k_axis), _together(at.v, options.v_axis)
        # What no query attends to may be anything, and a weight of 0 does not hide NaN.
        k = jnp.where(_reached(k.shape, options.k_axis, start, first, end), k, jnp.zeros_like(k))
        v = jnp.where(_reached(v.shape, options.v_axis, start, first, end), v, jnp.zeros_like(v))
        _add(options, at, k, v, _allowed(blocks, at.scores.shape, start, end))

    @pl.when(part == pl.num_programs(2) - 1)  # type: ignore[untyped-decorator]
    def _() -> None:
        _write_result(options, at)


def _add(options: _Options, at: _References, k: jax.Array, v: jax.Array, allowed: jax.Array | None) -> None:
    """Add the keys and values of a step to what is known of each row."""
    _multiply_queries(options, at, k)

    scores = at.scores[...]
    strange = jnp.where(jnp.abs(scores) < jnp.inf, jnp.zeros_like(scores), 1.0)

    @pl.when(jnp.max(strange) > 0)  # type: ignore[untyped-decorator]
    def _() -> None:
        _change_unit(options, at, k)
        _multiply_queries(options, at, k)

    exponent, scores = _exponent_of_scores(options, at), at.scores[...]
    if options.softcap is not None:
        scores = options.softcap * jnp.tanh(scores * _power(at.exponent[...]) / options.softcap)
    if at.mask is not None:
        mask = at.mask[0]
        if mask.dtype == jnp.int8:
            scores = jnp.where(mask.astype(jnp.int32) != 0, scores, -jnp.inf)
        else:
            scores += _scaled_down(mask.astype(jnp.float32), exponent)
    if allowed is not None:  # last, as the mask may be anything beyond the keys
        scores = jnp.where(allowed, scores, -jnp.inf)
    per_unit, before = _power(exponent), at.largest[...]
    largest = jnp.maximum(before, jnp.max(scores, axis=2, keepdims=True))
    kept = _correction(before, largest, per_unit)
    weights = jnp.exp((scores - _shift(largest)) * per_unit) * options.weight_unit
    at.largest[...] = largest
    at.total[...] = at.total[...] * kept + jnp.sum(weights, axis=2, keepdims=True)
    high = weights.astype(v.dtype)
    product = _product(high, v, options.v_axis)
    if v.dtype != jnp.float32:
        product += _product((weights - high.astype(jnp.float32)).astype(v.dtype), v, options.v_axis)
    at.sum[...] = at.sum[...] * kept + product


def _write_result(options: _Options, at: _References) -> None:
    largest, total, y = at.largest[...], at.total[...], at.sum[...]
    if at.sinks is not None:
        exponent = _exponent_of_scores(options, at)
        sink, per_unit = _scaled_down(at.sinks[...], exponent), _power(exponent)
        top = jnp.maximum(largest, sink)
        kept = _correction(largest, top, per_unit)
        total = total * kept + jnp.exp((sink - _shift(top)) * per_unit) * options.weight_unit
        y *= kept
    at.y[0] = (y / jnp.where(total == 0, 1.0, total)).astype(at.y.dtype)


def _multiply_queries(options: _Options, at: _References, k: jax.Array) -> None:
    at.scores[...] = _product(at.scaled[...], k, 3 - options.k_axis) * options.scale


def _change_unit(options: _Options, at: _References, k: jax.Array) -> None:
    """Scale queries down until no product of them and the keys can leave the range."""
    q = at.q[0].astype(jnp.float32)
    key = jnp.max(jnp.abs(k.astype(jnp.float32)), axis=(1, 2), keepdims=True)
    products = jnp.maximum(_exponent(key) + q.shape[2].bit_length(), 0) + max(math.frexp(options.scale)[1], 0)
    before = at.exponent[...]
    query = _exponent(jnp.max(jnp.abs(q), axis=2, keepdims=True))
    after = jnp.maximum(before, query + products - _LARGEST_EXPONENT)
    at.exponent[...] = after
    at.scaled[...] = _scaled_down(q, after).astype(at.scaled.dtype)
    if options.softcap is None:
        at.largest[...] = _scaled_down(at.largest[...], after - before)


def _exponent_of_scores(options: _Options, at: _References) -> jax.Array:
    """Return the exponent of what scores are in that have been capped, if they are."""
    exponent: jax.Array = at.exponent[...]
    return exponent if options.softcap is None else jnp.zeros_like(exponent)


def _together(blocks: Sequence[Any], axis: int) -> jax.Array:
    """Return the keys or values of a step."""
    return blocks[0][0] if len(blocks) == 1 else jnp.concatenate([block[0] for block in blocks], axis=axis)


def _reached(shape: tuple[int, ...], axis: int, start: Any, first: Any, end: Any) -> jax.Array:
    """Tell which of the keys from `start` on, along an axis, are from `first` to `end`."""
    key = start + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    return (key >= first) & (key < end)


def _product(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """Multiply the matrices of each head, in float32, along the last axis of `a` and this one of `b`."""
    exact = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    axes = (((2,), (axis,)), ((0,), (0,)))
    return jax.lax.dot_general(a, b, axes, precision=exact, preferred_element_type=jnp.float32)


def _allowed(blocks: Decoding, shape: tuple[int, ...], start: Any, end: Any) -> jax.Array:
    """Tell which of the keys from `start` on the position of each row lets it attend to."""
    key = start + jax.lax.broadcasted_iota(jnp.int32, shape, 2)
    allowed = key < end
    if blocks.left is None and blocks.right is None:
        return allowed
    query = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    query = jax.lax.rem(query, jnp.full_like(query, blocks.queries))
    distance = key - (query + end - blocks.queries)
    if blocks.left is not None:
        allowed &= distance >= -blocks.left
    if blocks.right is not None:
        allowed &= distance <= blocks.right
    return allowed


def _correction(before: jax.Array, after: jax.Array, per_unit: jax.Array) -> jax.Array:
    """Return the factor of sums when the largest score grows; the difference of infinities would be NaN."""
    return jnp.where(before == after, 1.0, jnp.exp((before - after) * per_unit))


def _shift(largest: jax.Array) -> jax.Array:
    """Return what is subtracted before exponentials: nothing, without any score."""
    return jnp.where(largest == -jnp.inf, 0.0, largest)


def _exponent(x: jax.Array) -> jax.Array:
    """Return an exponent of two that is above positive numbers, and 0 for infinity and NaN."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32) >> _MANTISSA_BITS
    return jnp.where(bits >= _INFINITY, 0, bits - _BIAS + 1)


def _power(exponent: jax.Array) -> jax.Array:
    """Return a power of two; beyond the range, exponentials cannot tell the difference of two scores from infinity."""
    bits = (jnp.clip(exponent, -_BIAS + 1, _BIAS - 1) + _BIAS) << _MANTISSA_BITS
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _scaled_down(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """Divide by a power of two, which may be beyond the range."""
    half = exponent >> 1
    return x * _power(-half) * _power(half - exponent)
