"""The kernel of rope on pairs of halves.

Work: a step rotates some heads at some positions; the cosines and sines of the positions stay for all heads.
Precision: float32 inside; angles as in the body.
Bytes: those of `x` and of the result, and float32 cosines and sines, which XLA computes, once.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.backends import get_namespace
from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.blocks import Blocks
from tensorops.ops.positional import frequencies


def tables(
    x: jax.Array, positions: Any, base: float, freqs: Any, cos: Any, sin: Any, attention_factor: float
) -> jax.Array:
    """Return float32 cosines and, beside them, sines of the pairs at each position, of shape (..., seq, features)."""
    if cos is None:
        theta = frequencies(get_namespace(x), x, base, freqs, x.shape[-1], jnp.float32)
        # Cosines and sines of all angles are chosen from in one pass, which writes nothing else.
        angles = positions.astype(jnp.float32)[..., None] * jnp.concatenate([theta, theta])
        first = jax.lax.broadcasted_iota(jnp.int32, angles.shape, angles.ndim - 1) < theta.size
        found = jnp.where(first, jnp.cos(angles), jnp.sin(angles))
    else:
        found = jnp.concatenate([cos, sin], axis=-1).astype(jnp.float32)
    return found * attention_factor if attention_factor != 1.0 else found


def rotate(blocks: Blocks, generation: str, x: jax.Array, tables: jax.Array) -> jax.Array:
    """Rotate pairs of halves of the last axis by angles of which `tables` has the cosines and sines."""
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
        _kernel,
        (pl.cdiv(sequence, blocks.rows), count, pl.cdiv(heads, blocks.columns)),
        [(x, block), (tables, of_positions)],
        [(jax.ShapeDtypeStruct(x.shape, x.dtype), block)],
        name="rope",
        vmem=blocks.vmem,
        generation=generation,
        parallel=3,
    )
    return jnp.reshape(y, shape)


def _kernel(x_ref: Any, tables_ref: Any, y_ref: Any) -> None:
    x, cos_sin = x_ref[...].astype(jnp.float32), tables_ref[...]
    sin_cos = _halves_swapped(cos_sin)
    pairs = cos_sin.shape[-1] // 2
    first = jax.lax.broadcasted_iota(jnp.int32, cos_sin.shape, cos_sin.ndim - 1) < pairs
    cos, sin = jnp.where(first, cos_sin, sin_cos), jnp.where(first, -sin_cos, cos_sin)
    y_ref[...] = (x * cos[:, None] + _halves_swapped(x) * sin[:, None]).astype(y_ref.dtype)


def _halves_swapped(x: jax.Array) -> jax.Array:
    return pltpu.roll(x, x.shape[-1] // 2, axis=x.ndim - 1)
