"""Kernels that reduce rows of any length to a few numbers in one pass: logsumexp, and what cross_entropy needs of rows.

Work: a step has a part of several rows. The largest element so far and the sum of exponentials relative to it stay in
scratch memory from one part to the next; when a larger element comes, the sum is scaled.
Precision: float32 inside.
Bytes: each element is read once; results are a number for each row.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.blocks import LANES, Blocks
from tensorops.ops.loss import losses_of_classes, reduced_cross_entropy


class Sums(NamedTuple):
    """What is known of each row: float32, of the shape of the rows.

    Parameters
    ----------
    largest
        The largest element.
    log_total
        The logarithm of the sum of the exponentials, relative to the largest element if that is finite.
    chosen
        The element that the row's number names; 0 if there is none.
    """

    largest: jax.Array
    log_total: jax.Array
    chosen: jax.Array | None


def sums_of_rows(name: str, blocks: Blocks, generation: str, x: jax.Array, numbers: jax.Array | None = None) -> Sums:
    """Reduce rows along the last axis; `numbers` are int32, one for each row."""
    *leading, length = x.shape
    rows = math.prod(leading)
    grid = (pl.cdiv(rows, blocks.rows), pl.cdiv(length, blocks.columns))
    of_rows = pl.BlockSpec((1, blocks.rows), lambda i, j: (0, i))
    inputs = [(jnp.reshape(x, (rows, length)), pl.BlockSpec((blocks.rows, blocks.columns), lambda i, j: (i, j)))]
    if numbers is not None:
        inputs.append((jnp.reshape(numbers, (1, rows)), of_rows))
    results = 2 if numbers is None else 3
    found = call(
        functools.partial(_kernel, length=length),
        grid,
        inputs,
        [(jax.ShapeDtypeStruct((1, rows), jnp.float32), of_rows)] * results,
        name=name,
        vmem=blocks.vmem,
        generation=generation,
        scratch=[pltpu.VMEM((blocks.rows, 1), jnp.float32)] * results,
    )
    largest, log_total, *chosen = (jnp.reshape(y, leading) for y in found)
    return Sums(largest, log_total, chosen[0] if chosen else None)


def logsumexp(
    blocks: Blocks, generation: str, x: jax.Array, *, keepdims: bool = False, dtype: Any = None, **_: Any
) -> list[jax.Array]:
    """Compute `tensorops.logsumexp` along the last axis."""
    sums = sums_of_rows("logsumexp", blocks, generation, x)
    y = (sums.log_total + _shift(sums.largest)).astype(dtype or x.dtype)
    return [jnp.expand_dims(y, -1) if keepdims else y]


def cross_entropy(
    blocks: Blocks, generation: str, logits: jax.Array, targets: jax.Array, weight: Any = None, **options: Any
) -> list[jax.Array]:
    """Compute `tensorops.cross_entropy` for class numbers, without label smoothing."""

    def losses_of(xp: Any, x: jax.Array, targets: jax.Array, _: Any, own: Any, squares: Any, __: Any) -> jax.Array:
        sums = sums_of_rows("cross_entropy", blocks, generation, x, targets.astype(jnp.int32))
        return losses_of_sums(xp, sums, targets, x.shape[-1], own, squares)

    return [reduced_cross_entropy(losses_of, logits, targets, weight, **options)]


def losses_of_sums(xp: Any, sums: Sums, targets: jax.Array, classes: int, own: Any, squares: Any) -> jax.Array:
    """Return the losses of rows of logits of which the class numbers were looked up; see `losses_of_classes`."""
    within = (targets >= 0) & (targets < classes)
    chosen = jnp.where(within, sums.chosen, jnp.nan)
    # Relative to an infinite logit there is no total: the loss is undefined.
    log_total = jnp.where(jnp.isfinite(sums.largest), sums.log_total, jnp.nan)
    return losses_of_classes(xp, sums.largest, log_total, chosen, own, squares)


def _kernel(x_ref: Any, *references: Any, length: int) -> None:
    add_part(pl.program_id(1), pl.num_programs(1), x_ref[...].astype(jnp.float32), *references, length=length)


def add_part(part: Any, parts: Any, x: jax.Array, *references: Any, length: int) -> None:
    """Add a part of rows to what is known of them, which are the results after the last part.

    References are to the numbers of elements that are looked up, if any, to the results, and to as much scratch memory.
    """
    choosing = len(references) % 2 == 1
    numbers_ref = references[0] if choosing else None
    references = references[1:] if choosing else references
    count = len(references) // 2
    results, scratch = references[:count], references[count:]
    largest_ref, total_ref = scratch[:2]

    @pl.when(part == 0)  # type: ignore[untyped-decorator]
    def _() -> None:
        largest_ref[...] = jnp.full_like(largest_ref, -jnp.inf)
        for reference in scratch[1:]:
            reference[...] = jnp.zeros_like(reference)

    columns = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) + part * x.shape[1]
    x = jnp.where(columns < length, x, -jnp.inf)
    before = largest_ref[...]
    largest = jnp.maximum(before, jnp.max(x, axis=1, keepdims=True))
    shift = _shift(largest)
    kept = jnp.where(before == -jnp.inf, 1.0, jnp.exp(_shift(before) - shift))  # the sum of nothing is 0
    total_ref[...] = total_ref[...] * kept + jnp.sum(jnp.exp(x - shift), axis=1, keepdims=True)
    largest_ref[...] = largest
    if numbers_ref is not None:
        is_chosen = columns == _as_column(numbers_ref[...])
        scratch[2][...] += jnp.sum(jnp.where(is_chosen, x, 0.0), axis=1, keepdims=True)

    @pl.when(part == parts - 1)  # type: ignore[untyped-decorator]
    def _() -> None:
        found = [largest_ref[...], jnp.log(total_ref[...]), *(reference[...] for reference in scratch[2:])]
        for reference, value in zip(results, found, strict=True):
            reference[...] = _as_row(value)


def _shift(largest: jax.Array) -> jax.Array:
    """Return what is subtracted before exponentials: nothing, if all elements are -inf or one is inf or NaN."""
    return jnp.where(jnp.abs(largest) < jnp.inf, largest, 0.0)


def _as_row(column: jax.Array) -> jax.Array:
    """Turn ``(n, 1)`` into ``(1, n)``."""
    return jnp.transpose(jnp.broadcast_to(column, (column.shape[0], LANES)))[:1]


def _as_column(row: jax.Array) -> jax.Array:
    """Turn ``(1, n)`` into ``(n, 1)``."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))[:, :1]
