"""The kernel of attention for many queries: blocks of queries against blocks of keys, with a running softmax.

Work: a step has some queries of some heads that share a key head, and a block of its keys, which it takes in parts. The
largest score so far, the sum of exponentials relative to it and the weighted values stay in scratch memory from one
block of keys to the next. Parts that lengths, causality and the window hide from all queries of a step are skipped;
blocks of keys that have only such parts do not move, as the index of the block stays that of the nearest one needed.
Precision: products of bfloat16 are exact, sums and exponentials float32; bfloat16 weights are rounded before they are
multiplied by values. Scores have a unit, a power of two that is 1 unless finite queries and keys have products beyond
the range of float32.
Bytes: those of `q` and `y`, and of the mask, of whose booleans XLA makes bytes first. If all keys and values of a head
fit vector memory, they are read once for all its queries, so q + k + v + y in all; else once for each block of queries
that may attend to them, at most q + y + (k + v) * blocks of queries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import Scalars, call
from tensorops.kernels.pallas.blocks import AttentionBlocks
from tensorops.kernels.pallas.sums import _as_row

_LARGEST_EXPONENT = 124  # of scores in their unit, which leaves room for sums
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class Rules:
    """Which keys a query attends to, and how scores become weights.

    Parameters
    ----------
    queries, keys
        How many there are.
    left, right
        How many keys before and after its own position a query attends to; ``None`` where all.
    scale
        Factor of the scores.
    softcap
        Bound of the scores.
    """

    queries: int
    keys: int
    left: int | None
    right: int | None
    scale: float
    softcap: float | None

    def span(self, first: Any, last: Any, end: Any) -> tuple[Any, Any]:
        """Return the first key and the end of those that some query from `first` to `last` attends to.

        `end` is the number of valid keys; with `first` and `last` exchanged, these are the keys that all of the queries
        attend to.
        """
        position = end - self.queries  # of query 0
        begin = jnp.int32(0) if self.left is None else jnp.maximum(first + position - self.left, 0)
        stop = end if self.right is None else jnp.minimum(last + position + self.right + 1, end)
        return begin, stop


@dataclass(frozen=True)
class Layout:
    """Where the blocks of a step are; its grid is (batch, key head, queries of the group, block of keys)."""

    blocks: AttentionBlocks
    rules: Rules

    @property
    def query_blocks(self) -> int:
        """How many blocks of queries a head has."""
        return -(-self.rules.queries // self.blocks.queries)

    @property
    def key_blocks(self) -> int:
        """How many blocks of keys there are."""
        return -(-self.rules.keys // self.blocks.keys)

    def part_of_group(self, step: Any) -> tuple[Any, Any]:
        """Return which block of heads and which of queries a step has."""
        return _quotient(step, self.query_blocks), jax.lax.rem(step, self.query_blocks)

    def queries_of(self, step: Any) -> tuple[Any, Any]:
        """Return the first and the last query of a step."""
        first = jax.lax.rem(step, self.query_blocks) * self.blocks.queries
        return first, jnp.minimum(first + self.blocks.queries, self.rules.queries) - 1

    def key_block(self, batch: Any, step: Any, block: Any, numbers: Sequence[Any]) -> Any:
        """Return which block of keys is in memory: that of the step, or the nearest one needed."""
        if self.key_blocks == 1:
            return 0
        end = numbers[0][batch] if numbers else self.rules.keys
        begin, stop = self.rules.span(*self.queries_of(step), end)
        size = self.blocks.keys
        return jnp.minimum(jnp.maximum(block, _quotient(begin, size)), _quotient(jnp.maximum(stop - 1, 0), size))

    def of_queries(self, width: int) -> pl.BlockSpec:
        """Return the block of queries or results, of shape (batch, key head, head of the group, query, feature)."""
        return pl.BlockSpec(
            (1, 1, self.blocks.heads, self.blocks.queries, width),
            lambda b, h, s, j, *_: (b, h, *self.part_of_group(s), 0),
        )

    def of_keys(self, width: int) -> pl.BlockSpec:
        """Return the block of keys or values, of shape (batch, key head, key, feature)."""
        return pl.BlockSpec(
            (1, 1, self.blocks.keys, width), lambda b, h, s, j, *numbers: (b, h, self.key_block(b, s, j, numbers), 0)
        )

    def of_scores(self, shape: tuple[int, ...]) -> pl.BlockSpec:
        """Return the block of what broadcasts to (batch, key head, head of the group, query, key)."""
        sizes = (1, 1, self.blocks.heads, self.blocks.queries, self.blocks.keys)

        def index(b: Any, h: Any, s: Any, j: Any, *numbers: Any) -> tuple[Any, ...]:
            every = (b, h, *self.part_of_group(s), self.key_block(b, s, j, numbers))
            return tuple(0 if n == 1 else i for n, i in zip(shape, every, strict=True))

        return pl.BlockSpec(tuple(1 if n == 1 else size for n, size in zip(shape, sizes, strict=True)), index)

    def of_rows(self) -> pl.BlockSpec:
        """Return the block of a number for each row, of shape (batch, key head, step, 1, row of the step)."""
        return pl.BlockSpec(
            (1, 1, 1, 1, self.blocks.heads * self.blocks.queries), lambda b, h, s, j, *_: (b, h, s, 0, 0)
        )

    def from_steps(self, x: jax.Array, heads: int) -> jax.Array:
        """Turn (batch, key head, step, 1, row of the step) into (batch, heads, queries)."""
        batch, kv_heads = x.shape[:2]
        x = jnp.reshape(x, (batch, kv_heads, -1, self.query_blocks, self.blocks.heads, self.blocks.queries))
        x = jnp.reshape(jnp.swapaxes(x, 3, 4), (batch, heads, self.query_blocks * self.blocks.queries))
        return x[..., : self.rules.queries]

    def in_steps(self, x: jax.Array, kv_heads: int) -> jax.Array:
        """Turn (batch, heads, queries) into (batch, key head, step, 1, row of the step), with zeros for no query."""
        count = self.query_blocks * self.blocks.queries
        x = jnp.pad(x, ((0, 0), (0, 0), (0, count - x.shape[2])))
        x = jnp.reshape(x, (x.shape[0], kv_heads, -1, self.blocks.heads, self.query_blocks, self.blocks.queries))
        return jnp.reshape(
            jnp.swapaxes(x, 3, 4), (x.shape[0], kv_heads, -1, 1, self.blocks.heads * self.blocks.queries)
        )


def scaled_dot_product_attention(
    blocks: AttentionBlocks,
    generation: str,
    rules: Rules,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    sinks: jax.Array | None = None,
    lengths: jax.Array | None = None,
    *,
    statistics: bool = False,
) -> list[jax.Array]:
    """Compute `tensorops.scaled_dot_product_attention`; with `statistics`, also `ops.attention.log_totals`."""
    batch, heads, queries, dim = q.shape
    kv_heads, _, value_dim = v.shape[1:]
    group = heads // kv_heads
    layout = Layout(blocks, rules)
    inputs, scalars = arguments_of(layout, q, k, v, mask, lengths)
    if sinks is not None:
        sinks = jnp.reshape(sinks.astype(jnp.float32), (1, kv_heads, group, 1, 1))
        inputs["sinks"] = (sinks, layout.of_scores(sinks.shape))
    rows, steps = blocks.heads * blocks.queries, group // blocks.heads * layout.query_blocks
    outputs = [
        (jax.ShapeDtypeStruct((batch, kv_heads, group, queries, value_dim), q.dtype), layout.of_queries(value_dim))
    ]
    if statistics:
        outputs.append((jax.ShapeDtypeStruct((batch, kv_heads, steps, 1, rows), jnp.float32), layout.of_rows()))
    y, *totals = call(
        functools.partial(_kernel, names=tuple(inputs), layout=layout, given=len(scalars), results=len(outputs)),
        (batch, kv_heads, steps, layout.key_blocks),
        list(inputs.values()),
        outputs,
        name="scaled_dot_product_attention",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[
            pltpu.VMEM((rows, dim), q.dtype),
            pltpu.VMEM((rows, 1), jnp.float32),
            pltpu.VMEM((rows, 1), jnp.float32),
            pltpu.VMEM((rows, value_dim), jnp.float32),
            pltpu.VMEM((1, 1), jnp.int32),
            pltpu.VMEM((1, 1), jnp.float32),
        ],
        parallel=2,
        scalars=scalars,
    )
    return [jnp.reshape(y, (batch, heads, queries, value_dim)), *(layout.from_steps(t, heads) for t in totals)]


def arguments_of(
    layout: Layout, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None, lengths: jax.Array | None
) -> tuple[dict[str, tuple[jax.Array, pl.BlockSpec]], list[Scalars]]:
    """Return the arrays by the name that the kernel has for them, with their blocks, and the scalars."""
    batch, heads, queries, dim = q.shape
    kv_heads, keys, value_dim = v.shape[1:]
    inputs = {
        "q": (jnp.reshape(q, (batch, kv_heads, heads // kv_heads, queries, dim)), layout.of_queries(dim)),
        "k": (k, layout.of_keys(dim)),
        "v": (v, layout.of_keys(value_dim)),
    }
    if mask is not None:
        mask = _by_group(mask, kv_heads, heads // kv_heads)
        inputs["allowed" if mask.dtype == bool else "added"] = (_readable(mask), layout.of_scores(mask.shape))
    if lengths is None:
        return inputs, []
    return inputs, [Scalars(jnp.clip(lengths, 0, keys).astype(jnp.int32), np.full(batch, keys))]


def _by_group(mask: jax.Array, kv_heads: int, group: int) -> jax.Array:
    """Reshape what broadcasts to (batch, heads, queries, keys) to the axes (batch, key head, head of the group, …)."""
    batch, heads, queries, keys = (1,) * (4 - mask.ndim) + mask.shape
    return jnp.reshape(mask, (batch, *((1, 1) if heads == 1 else (kv_heads, group)), queries, keys))


def _readable(mask: jax.Array) -> jax.Array:
    """Return a mask of bytes or numbers: Mosaic takes a boolean for four bytes, and no part of a row of narrow ones."""
    if 1 in mask.shape[-2:]:
        return mask.astype(jnp.float32)
    return mask.astype(jnp.int8) if mask.dtype == bool else mask


# --------------------------------------------------------------------------------------------------- the kernel


@dataclass(frozen=True)
class _State:
    """What steps with the same queries share.

    Parameters
    ----------
    q
        The queries times a power of two, so that scores are in their unit.
    largest, total, y
        Of each row: the largest score, the sum of exponentials relative to it, and the sum of values weighted by them.
    excess
        The exponent of the unit.
    largest_key
        The largest magnitude among the keys of the block.
    """

    q: Any
    largest: Any
    total: Any
    y: Any
    excess: Any
    largest_key: Any


def _kernel(*references: Any, names: tuple[str, ...], layout: Layout, given: int, results: int) -> None:
    lengths, references = references[:given], references[given:]
    inputs = dict(zip(names, references, strict=False))
    y_ref, *totals_ref = references[len(names) : len(names) + results]
    state = _State(*references[len(names) + results :])
    blocks, rules = layout.blocks, layout.rules
    step, block = pl.program_id(2), pl.program_id(3)
    end = lengths[0][pl.program_id(0)] if lengths else rules.keys
    first, last = layout.queries_of(step)
    begin, stop = rules.span(first, last, end)
    scores = _Scores(rules, inputs, state)

    @pl.when(block == 0)  # type: ignore[untyped-decorator]
    def _() -> None:
        state.largest[...] = jnp.full_like(state.largest, -jnp.inf)
        for reference in (state.total, state.y, state.excess):
            reference[...] = jnp.zeros_like(reference)

    at = block * blocks.keys
    first_part, end_part = parts_of(blocks, begin - at, stop - at)

    # Keys that stay are looked through once.
    @pl.when(step == 0 if layout.key_blocks == 1 else first_part < end_part)  # type: ignore[untyped-decorator]
    def _() -> None:
        state.largest_key[...] = _largest_finite(inputs["k"][0, 0])

    @pl.when(first_part < end_part)  # type: ignore[untyped-decorator]
    def _() -> None:
        scores.choose_unit()

    hidden = Hidden(rules, blocks, first, end, begin, stop)
    everywhere = rules.span(last, first, end)

    def attend(part: Any, _: None) -> None:
        start = at + part * blocks.part
        whole = (start >= everywhere[0]) & (start + blocks.part <= everywhere[1])
        place = pl.ds(pl.multiple_of(part * blocks.part, blocks.part), blocks.part)
        pl.when(whole)(lambda: scores.attend(place, None, lambda v: v))
        pl.when(jnp.logical_not(whole))(lambda: scores.attend(place, hidden.allowed(start), hidden.visible(start)))

    jax.lax.fori_loop(first_part, end_part, attend, None)

    @pl.when(block == layout.key_blocks - 1)  # type: ignore[untyped-decorator]
    def _() -> None:
        y, log_total = scores.result()
        y_ref[0, 0] = jnp.reshape(y, y_ref.shape[2:]).astype(y_ref.dtype)
        for reference in totals_ref:
            reference[0, 0, 0] = _as_row(log_total)


@dataclass(frozen=True)
class Hidden:
    """What lengths, causality and the window hide from the queries of a step, whose keys are `begin` to `stop`."""

    rules: Rules
    blocks: AttentionBlocks
    first: Any
    end: Any
    begin: Any
    stop: Any

    def allowed(self, start: Any) -> jax.Array:
        """Tell for each query and key of the part from `start` on whether it attends to it."""
        shape = (self.blocks.queries, self.blocks.part)
        key = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        distance = key - jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        position = self.first + self.end - self.rules.queries - start  # of the first query, from the first key
        found = key < self.end - start
        if self.rules.left is not None:
            found &= distance >= position - self.rules.left
        if self.rules.right is not None:
            found &= distance <= position + self.rules.right
        return found

    def visible(self, start: Any) -> Callable[[jax.Array], jax.Array]:
        """Return what replaces values by zeros to which no query of the step attends: they may be NaN."""

        def replace(v: jax.Array) -> jax.Array:
            key = start + jax.lax.broadcasted_iota(jnp.int32, v.shape, 0)
            return jnp.where((key >= self.begin) & (key < self.stop), v.astype(jnp.float32), 0.0).astype(v.dtype)

        return replace


@dataclass(frozen=True)
class _Scores:
    """The running softmax of a step: scores are in a unit, and a power of two of the scale is part of it."""

    rules: Rules
    inputs: dict[str, Any]
    state: _State

    @property
    def scale(self) -> tuple[float, int]:
        """Return the scale as a number near 1 and the exponent of a power of two."""
        return math.frexp(self.rules.scale)

    @property
    def scaled_late(self) -> bool:
        """Whether the factor near 1 multiplies differences of scores, which costs nothing, instead of scores."""
        return self.rules.scale > 0 and self.rules.softcap is None and "added" not in self.inputs

    def choose_unit(self) -> None:
        """Choose the unit for another block of keys, and scale what is known of the others."""
        q = self.inputs["q"][0, 0]
        rows = q.shape[0] * q.shape[1]
        before = self.state.excess[...]
        products = _exponent(_largest_finite(q)) + _exponent(self.state.largest_key[...]) + q.shape[-1].bit_length()
        excess = jnp.maximum(before, products + (self.scale[1] - _LARGEST_EXPONENT))
        self.state.excess[...] = excess
        if self.rules.softcap is None:
            self.state.largest[...] *= _power(before - excess)
        exponent = jnp.clip(self.scale[1] - excess, -252, 252)  # of two factors that are normal numbers
        half = exponent >> 1
        wide = q.astype(jnp.float32) * _power(half)[None] * _power(exponent - half)[None]
        self.state.q[...] = jnp.reshape(wide, (rows, q.shape[-1])).astype(q.dtype)

    def attend(self, place: Any, allowed: jax.Array | None, visible: Callable[[jax.Array], jax.Array]) -> None:
        """Attend to the part of the block's keys at `place`."""
        state = self.state
        k, v = self.inputs["k"][0, 0, place], self.inputs["v"][0, 0, place]
        s = self._masked(product(state.q[...], k, 1), place, allowed)
        before = state.largest[...]
        largest = jnp.maximum(before, jnp.max(s, axis=1, keepdims=True))
        shift, factor = _shift(largest), self._factor()
        kept = jnp.exp2((before - shift) * factor)
        weights = jnp.exp2((s - shift) * factor)
        state.largest[...] = largest
        state.total[...] = state.total[...] * kept + jnp.sum(weights, axis=1, keepdims=True)
        state.y[...] = state.y[...] * kept + product(weights.astype(v.dtype), visible(v), 0)

    def result(self) -> tuple[jax.Array, jax.Array]:
        """Return the weighted means of values, and the logarithms of the sums of exponentials."""
        largest, total, y = self.state.largest[...], self.state.total[...], self.state.y[...]
        if "sinks" in self.inputs:
            heads, queries = self.inputs["q"].shape[2:4]
            sink = jnp.broadcast_to(self.inputs["sinks"][0, 0], (heads, queries, 1))
            sink = jnp.reshape(sink, largest.shape) * (_LOG2_E / self._factor())
            top = jnp.maximum(largest, sink)
            shift, factor = _shift(top), self._factor()
            kept = jnp.exp2((largest - shift) * factor)
            total, y = total * kept + jnp.exp2((sink - shift) * factor), y * kept
            largest = top
        log_total = _shift(largest) * (self._factor() / _LOG2_E) + jnp.log(total)
        return y / jnp.where(total == 0, 1.0, total), log_total

    def _unit(self) -> jax.Array:
        """Return the unit; beyond this power, the exponential cannot tell a difference of scores from infinity."""
        return _power(jnp.minimum(self.state.excess[...], _LARGEST_EXPONENT))

    def _factor(self) -> jax.Array:
        """Return what differences of scores are multiplied by to be exponents of two."""
        if self.rules.softcap is not None:
            return jnp.full((1, 1), _LOG2_E, jnp.float32)
        return self._unit() * (_LOG2_E * (self.scale[0] if self.scaled_late else 1.0))

    def _masked(self, s: jax.Array, place: Any, allowed: jax.Array | None) -> jax.Array:
        """Apply the rest of the scale, the cap and the masks to scores."""
        softcap = self.rules.softcap
        if not self.scaled_late:
            s = s * self.scale[0]
        if softcap is not None:
            s = softcap * jnp.tanh(s * (self._unit() / softcap))
        if "added" in self.inputs:
            added = part_of(self.inputs, "added", place)
            s = s + (added if softcap is not None else added * (1.0 / self._unit()))
        return hide(self.inputs, s, place, allowed)


def parts_of(blocks: AttentionBlocks, begin: Any, stop: Any) -> tuple[Any, Any]:
    """Return the first part of a block that has any of these keys, counted from the block's first, and the end."""
    first = _quotient(jnp.clip(begin, 0, blocks.keys), blocks.part)
    return first, _quotient(jnp.clip(stop, 0, blocks.keys) + (blocks.part - 1), blocks.part)


def part_of(inputs: dict[str, Any], name: str, place: Any) -> jax.Array:
    """Return a mask of some keys for each row, as float32."""
    mask = inputs[name]
    found = mask[0, 0] if mask.shape[-1] == 1 else mask[0, 0, :, :, place]
    heads, queries = inputs["q"].shape[2:4]
    found = jnp.broadcast_to(found.astype(jnp.float32), (heads, queries, found.shape[-1]))
    return jnp.reshape(found, (heads * queries, found.shape[-1]))


def hide(inputs: dict[str, Any], s: jax.Array, place: Any, allowed: jax.Array | None) -> jax.Array:
    """Replace scores by -inf where the boolean mask, or `allowed` of each query and key, hides the key."""
    if "allowed" in inputs:
        s = jnp.where(part_of(inputs, "allowed", place) != 0, s, -jnp.inf)
    if allowed is None:
        return s
    grouped = jnp.reshape(s, (*inputs["q"].shape[2:4], s.shape[1]))
    return jnp.reshape(jnp.where(allowed[None], grouped, -jnp.inf), s.shape)


def _quotient(x: Any, divisor: int) -> Any:
    """Divide what is not negative; ``//`` compiles to much more."""
    return jax.lax.div(x, jnp.int32(divisor))


def product(a: jax.Array, b: jax.Array, axis: int, axis_of_a: int = 1) -> jax.Array:
    """Sum products along an axis of `a` and one of `b`, in float32."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dimensions = (((axis_of_a,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


def _shift(largest: jax.Array) -> jax.Array:
    """Return what is subtracted before exponentials: nothing, if there is no score yet."""
    return jnp.where(largest == -jnp.inf, 0.0, largest)


def _largest_finite(x: jax.Array) -> jax.Array:
    """Return the largest magnitude, of shape (1, 1)."""
    magnitude = jnp.abs(jnp.reshape(x.astype(jnp.float32), (-1, x.shape[-1])))
    return jnp.max(jnp.where(magnitude < jnp.inf, magnitude, 0.0), keepdims=True)


def _exponent(x: jax.Array) -> jax.Array:
    """Return the exponent of a power of two above each number, which is not negative."""
    return (jax.lax.bitcast_convert_type(x, jnp.int32) >> 23) - 126


def _power(exponent: jax.Array) -> jax.Array:
    """Return powers of two that are normal numbers; 0 below."""
    return jax.lax.bitcast_convert_type(jnp.maximum(exponent + 127, 0) << 23, jnp.float32)
