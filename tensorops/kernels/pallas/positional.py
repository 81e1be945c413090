"""The kernel of rope, whose rotation back is its derivative in reverse mode.

Work: a step rotates some heads at some positions; the cosines and sines of the positions stay for all heads.
Precision: float32 inside; angles as in the body.
Bytes: those of `x` and of the result, and float32 cosines and sines, which XLA computes, once.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.backends import get_namespace
from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.blocks import Blocks
from tensorops.ops.positional import frequencies


class Pairs(NamedTuple):
    """Which of the leading features rotate with each other: halves, or neighbours if they are interleaved."""

    dims: int
    interleaved: bool

    def is_first(self, features: jax.Array) -> jax.Array:
        """Return which of some numbers of features are the first of their pair."""
        return features % 2 == 0 if self.interleaved else features < self.dims // 2

    def other(self, x: jax.Array) -> jax.Array:
        """Return the other of each pair, in a kernel; of features that do not rotate, anything."""
        width, axis = x.shape[-1], x.ndim - 1
        distance = 1 if self.interleaved else self.dims // 2
        after = pltpu.roll(x, width - distance, axis=axis)
        if 2 * distance == width:
            return after
        features = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
        return jnp.where(self.is_first(features), after, pltpu.roll(x, distance, axis=axis))


def tables(
    x: jax.Array, pairs: Pairs, positions: Any, base: float, freqs: Any, cos: Any, sin: Any, attention_factor: float
) -> jax.Array:
    """Return float32 cosines in the places of first features of pairs, sines in those of second ones.

    Their shape is (..., seq, features); of features that do not rotate, they are anything.
    """
    if cos is None:
        theta = frequencies(get_namespace(x), x, base, freqs, pairs.dims, jnp.float32)
        theta = jnp.repeat(theta, 2) if pairs.interleaved else jnp.concatenate([theta, theta])
        # Cosines and sines of all angles are chosen from in one pass, which writes nothing else.
        angles = positions.astype(jnp.float32)[..., None] * _with_all_features(theta, x)
        first = pairs.is_first(jax.lax.broadcasted_iota(jnp.int32, angles.shape, angles.ndim - 1))
        found = jnp.where(first, jnp.cos(angles), jnp.sin(angles))
    else:
        if positions is not None:
            cos, sin = (_rows_at(table, positions) for table in (cos, sin))
        join = jnp.stack if pairs.interleaved else jnp.concatenate
        joined = jnp.reshape(join([cos, sin], axis=-1), (*cos.shape[:-1], pairs.dims))
        found = _with_all_features(joined.astype(jnp.float32), x)
    return found * attention_factor if attention_factor != 1.0 else found


def _rows_at(table: jax.Array, positions: jax.Array) -> jax.Array:
    """Return rows of a table; one outside of it is NaN."""
    inside = (positions >= 0) & (positions < table.shape[0])
    return jnp.where(inside[..., None], jnp.take(table, positions, axis=0, mode="clip"), jnp.nan)


def _with_all_features(a: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, x.shape[-1] - a.shape[-1])])


def rotate(
    blocks: Blocks, generation: str, x: jax.Array, tables: jax.Array, pairs: Pairs, *, back: bool = False
) -> jax.Array:
    """Rotate pairs of features by angles of which `tables` has the cosines and sines, or back."""
    shape = x.shape
    *batch, heads, sequence, features = shape
    count = math.prod(batch)
    of_batch = tables.ndim > 2
    if of_batch:
        tables = jnp.broadcast_to(tables, (*batch, sequence, features))
    else:
        tables = jnp.broadcast_to(tables, (sequence, features))
    tables = jnp.reshape(tables, (-1, sequence, features))
    block = pl.BlockSpec((1, blocks.columns, blocks.rows, features), lambda s, b, h: (b, h, s, 0))
    of_positions = pl.BlockSpec((1, blocks.rows, features), lambda s, b, h: (b if of_batch else 0, s, 0))
    x = jnp.reshape(x, (count, heads, sequence, features))
    (y,) = call(
        functools.partial(_kernel, pairs=pairs, back=back),
        (pl.cdiv(sequence, blocks.rows), count, pl.cdiv(heads, blocks.columns)),
        [(x, block), (tables, of_positions)],
        [(jax.ShapeDtypeStruct(x.shape, x.dtype), block)],
        name="rope",
        vmem=blocks.vmem,
        generation=generation,
        parallel=3,
    )
    return jnp.reshape(y, shape)


def _kernel(x_ref: Any, tables_ref: Any, y_ref: Any, *, pairs: Pairs, back: bool) -> None:
    x, of_pairs = x_ref[...].astype(jnp.float32), tables_ref[...]
    other = pairs.other(of_pairs)
    features = jax.lax.broadcasted_iota(jnp.int32, of_pairs.shape, of_pairs.ndim - 1)
    first = pairs.is_first(features)
    cos, sin = jnp.where(first, of_pairs, other), jnp.where(first, other, of_pairs)
    sin = jnp.where(first != back, -sin, sin)
    y = x * cos[:, None] + pairs.other(x) * sin[:, None]
    if pairs.dims < x.shape[-1]:
        y = jnp.where((features < pairs.dims)[:, None], y, x)
    y_ref[...] = y.astype(y_ref.dtype)
