"""Kernels that reduce rows of any length to a few numbers in one pass: logsumexp, and what cross_entropy needs of rows.

Work: a step has a part of several rows. The largest element so far and the sum of exponentials relative to it stay in
scratch memory from one part to the next; when a larger element comes, the sum is scaled.
Precision: float32 inside.
Bytes: each element is read once; results are a number for each row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.blocks import LANES, Blocks
from tensorops.kernels.pallas.rows import as_column
from tensorops.ops.loss import UNIT, blended, losses_with_total, reduced_cross_entropy


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
    counted
        The sum of the shares of the elements.
    below
        The sum of their distances from the largest element times their shares, in `ops.loss.UNIT`.
    """

    largest: jax.Array
    log_total: jax.Array
    chosen: jax.Array | None = None
    counted: jax.Array | None = None
    below: jax.Array | None = None


def sums_of_rows(
    name: str,
    blocks: Blocks,
    generation: str,
    x: jax.Array,
    numbers: jax.Array | None = None,
    shares: Callable[..., jax.Array] | None = None,
    rows_of_shares: Sequence[jax.Array] = (),
    weight: jax.Array | None = None,
) -> Sums:
    """Reduce rows along the last axis.

    `numbers` are int32, one for each row. `shares` computes what the elements count from arrays of the shape of `x` and
    from the weight of every column, or 1.
    """
    *leading, length = x.shape
    count = math.prod(leading)
    grid = (pl.cdiv(count, blocks.rows), pl.cdiv(length, blocks.columns))
    of_rows = pl.BlockSpec((1, blocks.rows), lambda i, j: (0, i))
    block = pl.BlockSpec((blocks.rows, blocks.columns), lambda i, j: (i, j))
    inputs = [(jnp.reshape(a, (count, length)), block) for a in (x, *rows_of_shares)]
    if weight is not None and shares is not None:
        inputs.append((jnp.reshape(weight, (1, length)), pl.BlockSpec((1, blocks.columns), lambda i, j: (0, j))))
    named = ["largest", "log_total"]
    if numbers is not None:
        inputs.append((jnp.reshape(numbers, (1, count)), of_rows))
        named.append("chosen")
    if shares is not None:
        named += ["counted", "below"]
    found = call(
        functools.partial(_kernel, length=length, named=named, shares=shares),
        grid,
        inputs,
        [(jax.ShapeDtypeStruct((1, count), jnp.float32), of_rows)] * len(named),
        name=name,
        vmem=blocks.vmem,
        generation=generation,
        scratch=[pltpu.VMEM((blocks.rows, 1), jnp.float32)] * len(named),
    )
    return Sums(**{key: jnp.reshape(y, leading) for key, y in zip(named, found, strict=True)})


def logsumexp(
    blocks: Blocks, generation: str, x: jax.Array, *, keepdims: bool = False, dtype: Any = None, **_: Any
) -> list[jax.Array]:
    """Compute `tensorops.logsumexp` along the last axis."""
    sums = sums_of_rows("logsumexp", blocks, generation, x)
    y = (sums.log_total + shift_of(sums.largest)).astype(dtype or x.dtype)
    return [jnp.expand_dims(y, -1) if keepdims else y]


def cross_entropy(
    blocks: Blocks,
    generation: str,
    logits: jax.Array,
    targets: jax.Array,
    weight: Any = None,
    *,
    label_smoothing: float,
    **options: Any,
) -> list[jax.Array]:
    """Compute `tensorops.cross_entropy`."""
    probable = jnp.issubdtype(targets.dtype, jnp.floating)

    def losses_of(xp: Any, x: jax.Array, targets: jax.Array, weight: Any, own: Any, squares: Any, _: Any) -> jax.Array:
        shares = shares_of_classes(label_smoothing, x.shape[-1], probable=probable)
        of_sums = {"shares": shares if probable or label_smoothing else None, "weight": weight}
        if probable:
            sums = sums_of_rows("cross_entropy", blocks, generation, x, rows_of_shares=[targets], **of_sums)
            counted, below = sums.counted, sums.below
        else:
            numbers = as_int32(targets, x.shape[-1])
            sums = sums_of_rows("cross_entropy", blocks, generation, x, numbers, **of_sums)
            counted, below = shares_of_numbers(xp, sums, numbers, own, label_smoothing)
        return losses_of_sums(counted, below, sums, squares)

    return [reduced_cross_entropy(losses_of, logits, targets, weight, **options)]


def shares_of_classes(label_smoothing: float, classes: int, *, probable: bool) -> Callable[..., jax.Array]:
    """Return what computes the shares of classes in the loss of probabilities, or those that are spread evenly."""

    def shares(x: jax.Array, *rows_and_weight: jax.Array) -> jax.Array:
        if not probable:
            return jnp.broadcast_to(rows_and_weight[0] / classes if rows_and_weight else 1.0 / classes, x.shape)
        probabilities, *weight = rows_and_weight
        if label_smoothing:
            probabilities = (1.0 - label_smoothing) * probabilities + label_smoothing / classes
        return probabilities * weight[0] if weight else probabilities

    return shares


def shares_of_numbers(xp: Any, sums: Sums, numbers: jax.Array, own: Any, label_smoothing: float) -> tuple[Any, Any]:
    """Return what the classes count in each row whose class was looked up, and their distances times that."""
    distance = UNIT * sums.largest - UNIT * jnp.where(numbers >= 0, sums.chosen, jnp.nan)
    return blended(xp, distance, own, label_smoothing, sums.counted, sums.below)


def losses_of_sums(counted: Any, below: Any, sums: Sums, squares: Any) -> jax.Array:
    """Return the losses of rows; relative to an infinite logit there is no total, and the loss is undefined."""
    log_total = jnp.where(jnp.isfinite(sums.largest), sums.log_total, jnp.nan)
    return losses_with_total(counted, below, UNIT * sums.largest, log_total, squares)


def as_int32(targets: jax.Array, classes: int) -> jax.Array:
    """Return class numbers as int32; those that no class has are -1."""
    return jnp.where((targets >= 0) & (targets < classes), targets.astype(jnp.int32), -1)


def _kernel(*references: Any, length: int, named: Sequence[str], shares: Callable[..., jax.Array] | None) -> None:
    inputs = references[: -2 * len(named)]
    results = dict(zip(named, references[-2 * len(named) : -len(named)], strict=True))
    so_far = dict(zip(named, references[-len(named) :], strict=True))
    of_shares = inputs[1 : len(inputs) - ("chosen" in so_far)]

    def here(x: jax.Array) -> jax.Array:
        assert shares is not None
        return shares(x, *(reference[...].astype(jnp.float32) for reference in of_shares))

    add_part(
        pl.program_id(1),
        pl.num_programs(1),
        inputs[0][...].astype(jnp.float32),
        results,
        so_far,
        length=length,
        numbers_ref=inputs[-1],
        shares=None if shares is None else here,
    )


def add_part(
    part: Any,
    parts: Any,
    x: jax.Array,
    results: dict[str, Any],
    so_far: dict[str, Any],
    *,
    length: int,
    numbers_ref: Any,
    shares: Callable[[jax.Array], jax.Array] | None = None,
) -> None:
    """Add a part of rows to what is known of them, `so_far` in scratch memory; after the last part, it is the result.

    Both are named as in `Sums`. `numbers_ref` has the numbers of the elements that are looked up, if they are wanted.
    """

    @pl.when(part == 0)  # type: ignore[untyped-decorator]
    def _() -> None:
        for name, reference in so_far.items():
            reference[...] = jnp.full_like(reference, -jnp.inf if name == "largest" else 0.0)

    columns = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) + part * x.shape[1]
    x = jnp.where(columns < length, x, -jnp.inf)
    before = so_far["largest"][...]
    largest = jnp.maximum(before, jnp.max(x, axis=1, keepdims=True))
    shift = shift_of(largest)
    kept = jnp.where(before == -jnp.inf, 1.0, jnp.exp(shift_of(before) - shift))  # the sum of nothing is 0
    total = so_far["log_total"]
    total[...] = total[...] * kept + jnp.sum(jnp.exp(x - shift), axis=1, keepdims=True)
    so_far["largest"][...] = largest
    if "chosen" in so_far:
        is_chosen = columns == as_column(numbers_ref[...])
        so_far["chosen"][...] += jnp.sum(jnp.where(is_chosen, x, 0.0), axis=1, keepdims=True)
    if shares is not None:
        here = jnp.where(columns < length, shares(x), 0.0)
        counted = so_far["counted"][...]
        moved = _times(counted, UNIT * largest - UNIT * before)
        below = jnp.sum(_times(here, UNIT * largest - UNIT * x), axis=1, keepdims=True)
        so_far["below"][...] += jnp.where(counted == 0, 0.0, moved) + below
        so_far["counted"][...] = counted + jnp.sum(here, axis=1, keepdims=True)

    @pl.when(part == parts - 1)  # type: ignore[untyped-decorator]
    def _() -> None:
        for name, reference in results.items():
            value = so_far[name][...]
            reference[...] = _as_row(jnp.log(value) if name == "log_total" else value)


def _times(shares: jax.Array, distances: jax.Array) -> jax.Array:
    """Return products; an infinite distance that counts nothing gives 0."""
    return shares * jnp.where((shares == 0) & (distances == jnp.inf), 0.0, distances)


def shift_of(largest: jax.Array) -> jax.Array:
    """Return what is subtracted before exponentials: nothing, if all elements are -inf or one is inf or NaN."""
    return jnp.where(jnp.abs(largest) < jnp.inf, largest, 0.0)


def _as_row(column: jax.Array) -> jax.Array:
    """Turn ``(n, 1)`` into ``(1, n)``."""
    return jnp.transpose(jnp.broadcast_to(column, (column.shape[0], LANES)))[:1]
