"""The kernel of the derivative of attention in reverse mode, for many queries: weights are computed again from scores.

Work: for each block of keys, the steps are those of the kernel of attention over all queries of the heads that share
the keys. Gradients of keys and values stay in scratch memory from step to step. A step gives the gradient of its
queries from this block of keys; if there are several blocks, XLA adds these.
Precision: as in `attention`; the logarithms of the sums of exponentials are kept by the call, so weights are computed
without a running softmax. Where scores of finite queries and keys exceed the range of float32, gradients are NaN.
Bytes: those of q, k, v, y, the gradient of y, and the results once if all keys and values of a head fit vector memory
with their gradients; else queries, results and their gradients once for each block of keys.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.attention import Hidden, Layout, Rules, arguments_of, hide, part_of, parts_of, product
from tensorops.kernels.pallas.blocks import AttentionBlocks
from tensorops.kernels.pallas.rows import as_column


def gradients(
    blocks: AttentionBlocks,
    generation: str,
    rules: Rules,
    wanted: Sequence[str],
    rest: Sequence[jax.Array],
    *,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    mask: jax.Array | None = None,
    sinks: jax.Array | None = None,
    lengths: jax.Array | None = None,
) -> list[jax.Array]:
    """Return the cotangents of arrays from the result, `ops.attention.log_totals`, and the cotangent of the result."""
    y, totals, dy = rest
    batch, heads, queries, dim = q.shape
    kv_heads, _, value_dim = v.shape[1:]
    grouped = (batch, kv_heads, heads // kv_heads, queries, value_dim)
    layout = Layout(blocks, rules)
    inputs, scalars = arguments_of(layout, q, k, v, mask, lengths)
    inputs["y"] = (jnp.reshape(y, grouped), layout.of_queries(value_dim))
    inputs["dy"] = (jnp.reshape(dy, grouped), layout.of_queries(value_dim))
    inputs["totals"] = (layout.in_steps(totals, kv_heads), layout.of_rows())
    for name, width in (("k", dim), ("v", value_dim)):
        inputs[name] = (inputs[name][0], _of_keys(blocks, width))
    several = layout.key_blocks > 1
    parts = (layout.key_blocks, *grouped[:4], dim)
    of_queries = layout.of_queries(dim)
    of_parts = pl.BlockSpec((1, *of_queries.block_shape), lambda b, h, s, j, *_: (j, *of_queries.index_map(b, h, s, j)))
    rows = blocks.heads * blocks.queries
    dq, dk, dv = call(
        functools.partial(_kernel, names=tuple(inputs), layout=layout, given=len(scalars)),
        (batch, kv_heads, layout.key_blocks, heads // kv_heads // blocks.heads * layout.query_blocks),
        [(a, _keys_outside(spec)) for a, spec in inputs.values()],
        [
            (jax.ShapeDtypeStruct(parts, jnp.float32 if several else q.dtype), _keys_outside(of_parts)),
            (jax.ShapeDtypeStruct(k.shape, k.dtype), _keys_outside(_of_keys(blocks, dim))),
            (jax.ShapeDtypeStruct(v.shape, v.dtype), _keys_outside(_of_keys(blocks, value_dim))),
        ],
        name="scaled_dot_product_attention_gradients",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[
            pltpu.VMEM((rows, dim), jnp.float32),
            pltpu.VMEM((blocks.keys, dim), jnp.float32),
            pltpu.VMEM((blocks.keys, value_dim), jnp.float32),
        ],
        parallel=2,
        scalars=scalars,
    )
    dq = jnp.sum(dq, axis=0).astype(q.dtype) if several else dq
    found = {"q": jnp.reshape(dq, q.shape), "k": dk, "v": dv}
    if "sinks" in wanted:
        assert sinks is not None
        slope = jnp.sum(y.astype(jnp.float32) * dy.astype(jnp.float32), axis=-1)
        weights = jnp.exp(sinks.astype(jnp.float32)[:, None] - totals)
        found["sinks"] = -jnp.sum(weights * slope, axis=(0, 2)).astype(sinks.dtype)
    return [found[name] for name in wanted]


def _of_keys(blocks: AttentionBlocks, width: int) -> pl.BlockSpec:
    return pl.BlockSpec((1, 1, blocks.keys, width), lambda b, h, s, j, *_: (b, h, j, 0))


def _keys_outside(spec: pl.BlockSpec) -> pl.BlockSpec:
    """Return the block for a grid (batch, key head, block of keys, step of queries)."""
    return pl.BlockSpec(spec.block_shape, lambda b, h, j, s, *numbers: spec.index_map(b, h, s, j, *numbers))


def _kernel(*references: Any, names: tuple[str, ...], layout: Layout, given: int) -> None:
    lengths, references = references[:given], references[given:]
    inputs = dict(zip(names, references, strict=False))
    dq_ref, dk_ref, dv_ref, *scratch = references[len(names) :]
    blocks, rules = layout.blocks, layout.rules
    block, step = pl.program_id(2), pl.program_id(3)
    end = lengths[0][pl.program_id(0)] if lengths else rules.keys
    first, last = layout.queries_of(step)
    begin, stop = rules.span(first, last, end)
    everywhere = rules.span(last, first, end)
    sums = _Sums(rules, inputs, *scratch)
    hidden = Hidden(rules, blocks, first, end, begin, stop)

    @pl.when(step == 0)  # type: ignore[untyped-decorator]
    def _() -> None:
        sums.dk[...] = jnp.zeros_like(sums.dk)
        sums.dv[...] = jnp.zeros_like(sums.dv)

    sums.dq[...] = jnp.zeros_like(sums.dq)
    at = block * blocks.keys
    first_part, end_part = parts_of(blocks, begin - at, stop - at)

    def add(part: Any, _: None) -> None:
        start = at + part * blocks.part
        whole = (start >= everywhere[0]) & (start + blocks.part <= everywhere[1])
        place = pl.ds(pl.multiple_of(part * blocks.part, blocks.part), blocks.part)
        pl.when(whole)(lambda: sums.add(place, first, None, lambda x: x))
        pl.when(jnp.logical_not(whole))(lambda: sums.add(place, first, hidden.allowed(start), hidden.visible(start)))

    jax.lax.fori_loop(first_part, end_part, add, None)
    dq_ref[0, 0, 0] = jnp.reshape(sums.dq[...] * rules.scale, dq_ref.shape[3:]).astype(dq_ref.dtype)

    @pl.when(step == pl.num_programs(3) - 1)  # type: ignore[untyped-decorator]
    def _() -> None:
        dk_ref[0, 0] = (sums.dk[...] * rules.scale).astype(dk_ref.dtype)
        dv_ref[0, 0] = sums.dv[...].astype(dv_ref.dtype)


@dataclass(frozen=True)
class _Sums:
    """The gradients of a step's queries and of a block of keys and values, so far."""

    rules: Rules
    inputs: dict[str, Any]
    dq: Any
    dk: Any
    dv: Any

    def add(self, place: Any, first: Any, allowed: jax.Array | None, visible: Any) -> None:
        """Add what the part of the block's keys at `place` contributes."""
        q, y, dy = (self._rows(self.inputs[name][0, 0], first) for name in ("q", "y", "dy"))
        k, v = visible(self.inputs["k"][0, 0, place]), visible(self.inputs["v"][0, 0, place])
        s, slope = self._scores(product(q, k, 1), place, first)
        s = hide(self.inputs, s, place, allowed)
        total = as_column(self.inputs["totals"][0, 0, 0])
        weights = jnp.exp(s - jnp.where(total == -jnp.inf, 0.0, total))
        mean = jnp.sum(dy.astype(jnp.float32) * y.astype(jnp.float32), axis=1, keepdims=True)
        ds = weights * (product(dy, v, 1) - mean)
        ds = (ds if slope is None else ds * slope).astype(q.dtype)
        self.dq[...] += product(ds, k, 0)
        self.dk[place] += product(ds, q, 0, 0)
        self.dv[place] += product(weights.astype(v.dtype), dy, 0, 0)

    def _rows(self, x: jax.Array, first: Any) -> jax.Array:
        """Return the rows of a step from (head, query, …), zeros for those beyond the last query."""
        heads, queries, width = x.shape
        if self.rules.queries % queries:
            query = first + jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
            x = jnp.where(query < self.rules.queries, x.astype(jnp.float32), 0.0).astype(x.dtype)
        return jnp.reshape(x, (heads * queries, width))

    def _scores(self, products: jax.Array, place: Any, first: Any) -> tuple[jax.Array, jax.Array | None]:
        """Return the scores with the mask that is added, and their derivative by scaled products, unless it is 1."""
        s, softcap, slope = products * self.rules.scale, self.rules.softcap, None
        if softcap is not None:
            capped = jnp.tanh(s / softcap)
            s, slope = softcap * capped, 1.0 - capped * capped
        if "added" in self.inputs:
            added = part_of(self.inputs, "added", place)
            s = s + self._rows(jnp.reshape(added, (*self.inputs["q"].shape[2:4], added.shape[1])), first)
        return s, slope
