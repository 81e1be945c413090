"""Kernels on rows that fit vector memory: norms and softmax. Each element is read once and written once.

Work: a step computes a block of whole rows; rows are independent, so those beyond the last need no mask.
Precision: float32 inside, whatever the dtypes are.
Bytes: those of the arguments and the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.blocks import LANES, Blocks

_SIGN_AND_EXPONENT_OF_ONE = 127 << 23
_EXPONENT = 0xFF << 23


def rms_norm(
    blocks: Blocks, generation: str, x: jax.Array, weight: Any = None, *, eps: float, weight_offset: float, **_: Any
) -> list[jax.Array]:
    """Compute `tensorops.rms_norm` along the last axis."""

    def compute(x: jax.Array, weight: jax.Array | None = None) -> tuple[jax.Array]:
        y = _divided(*scaled_to_one(x, eps**0.5), eps)
        return (y if weight is None else y * (weight + weight_offset),)

    return over_rows("rms_norm", compute, blocks, generation, [x], [weight], [x.dtype])


def add_rms_norm(
    blocks: Blocks, generation: str, x: jax.Array, residual: jax.Array, weight: Any = None, *, eps: float, **_: Any
) -> list[jax.Array]:
    """Compute `tensorops.add_rms_norm` along the last axis."""
    dtype = x.dtype

    def compute(x: jax.Array, residual: jax.Array, weight: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        total = (x + residual).astype(dtype).astype(jnp.float32)
        y = _divided(*scaled_to_one(total, eps**0.5), eps)
        return (y if weight is None else y * weight), total

    return over_rows("add_rms_norm", compute, blocks, generation, [x, residual], [weight], [dtype, dtype])


def layer_norm(
    blocks: Blocks, generation: str, x: jax.Array, weight: Any = None, bias: Any = None, *, eps: float, **_: Any
) -> list[jax.Array]:
    """Compute `tensorops.layer_norm` along the last axis."""

    def compute(x: jax.Array, weight: jax.Array | None = None, bias: jax.Array | None = None) -> tuple[jax.Array]:
        scaled, unit = scaled_to_one(x, eps**0.5)
        y = _divided(centred(scaled), unit, eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias,)

    return over_rows("layer_norm", compute, blocks, generation, [x], [weight, bias], [x.dtype])


def l2_norm(blocks: Blocks, generation: str, x: jax.Array, *, eps: float, **_: Any) -> list[jax.Array]:
    """Compute `tensorops.l2_norm` along the last axis."""
    return over_rows("l2_norm", lambda x: unit_vectors(x, eps)[:1], blocks, generation, [x], [], [x.dtype])


def softmax(
    blocks: Blocks, generation: str, x: jax.Array, where: Any = None, *, dtype: Any = None, **_: Any
) -> list[jax.Array]:
    """Compute `tensorops.softmax` along the last axis."""

    def compute(x: jax.Array, *where: jax.Array) -> tuple[jax.Array]:
        _, e, total = shifted_exponentials(x, *where)
        return (e / total,)

    return over_rows("softmax", compute, blocks, generation, [x, *mask_of(where, x)], [], [dtype or x.dtype])


def log_softmax(
    blocks: Blocks, generation: str, x: jax.Array, where: Any = None, *, dtype: Any = None, **_: Any
) -> list[jax.Array]:
    """Compute `tensorops.log_softmax` along the last axis."""

    def compute(x: jax.Array, *where: jax.Array) -> tuple[jax.Array]:
        shifted, _, total = shifted_exponentials(x, *where)
        return (shifted - jnp.log(total),)

    return over_rows("log_softmax", compute, blocks, generation, [x, *mask_of(where, x)], [], [dtype or x.dtype])


def unit_vectors(x: jax.Array, eps: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return rows over their lengths, the inverses of these, and whether `eps` bounds them."""
    scaled, unit = scaled_to_one(x, eps)
    square, bound = jnp.sum(scaled * scaled, axis=-1, keepdims=True), jnp.float32(eps) * unit
    bounded = square <= bound * bound
    length = jnp.where(bounded, bound, jnp.sqrt(square))
    length = jnp.where(length == 0, 1.0, length)  # no bound, and all elements are zero
    return scaled / length, unit / length, bounded


def mask_of(where: jax.Array | None, x: jax.Array) -> list[jax.Array]:
    """Return the mask of rows as bytes, if there is one: kernels read no bool."""
    return [] if where is None else [jnp.broadcast_to(where, x.shape).astype(jnp.int8)]


def shifted_exponentials(x: jax.Array, where: jax.Array | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return ``x - max``, its exponentials and their sums, of the elements where `where` is not 0."""
    if where is not None:
        x = jnp.where(where.astype(jnp.int32) != 0, x, -jnp.inf)
    largest = jnp.max(x, axis=-1, keepdims=True)
    if where is not None:  # without elements, the maximum is -inf
        largest = jnp.where(largest == -jnp.inf, 0.0, largest)
    shifted = x - largest
    e = jnp.exp(shifted)
    total = jnp.sum(e, axis=-1, keepdims=True)
    return shifted, e, total if where is None else jnp.where(total == 0, 1.0, total)


# ------------------------------------------------------------------------------------------- what they share


def over_rows(
    name: str,
    compute: Callable[..., Sequence[jax.Array]],
    blocks: Blocks,
    generation: str,
    rows: Sequence[jax.Array],
    parameters: Sequence[jax.Array | None],
    results: Sequence[Any],
    *,
    numbers: Sequence[jax.Array] = (),
    sums: Sequence[Any] = (),
) -> list[jax.Array]:
    """Apply a function of rows, of numbers of each row, and of the parameters of every row that are given.

    The function gets floating-point arrays as float32, and numbers as columns. It returns arrays of the shape of
    `rows`: as many as `results` has dtypes, then those that are summed over all rows to arrays of the dtypes of `sums`.
    """
    shape = rows[0].shape
    length = shape[-1]
    count = math.prod(shape[:-1])
    given = [i for i, p in enumerate(parameters) if p is not None]
    block = pl.BlockSpec((blocks.rows, length), lambda i: (i, 0))
    same = pl.BlockSpec((1, length), lambda i: (0, 0))
    inputs = [(jnp.reshape(a, (count, length)), block) for a in rows]
    inputs += [_of_rows(a, blocks.rows) for a in numbers]
    inputs += [(jnp.reshape(p, (1, length)), same) for p in parameters if p is not None]
    first_parameter = len(rows) + len(numbers)

    def kernel(*references: Any) -> None:
        read, written = references[: len(inputs)], references[len(inputs) :]
        values = [_wide(r[...]) for r in read]
        of_rows = [as_column(v) if v.shape[0] != blocks.rows else v for v in values[len(rows) : first_parameter]]
        named: list[Any] = [None] * len(parameters)
        for place, value in zip(given, values[first_parameter:], strict=True):
            named[place] = value
        found = compute(*values[: len(rows)], *of_rows, *named)
        for reference, result in zip(written, found[: len(results)], strict=False):
            reference[...] = result.astype(reference.dtype)
        for reference, terms in zip(written[len(results) :], found[len(results) :], strict=True):
            reference[...] = jnp.sum(_of_existing_rows(terms, count), axis=0, keepdims=True)[None]

    grid = (pl.cdiv(count, blocks.rows),)
    outputs = [(jax.ShapeDtypeStruct((count, length), dtype), block) for dtype in results]
    part = pl.BlockSpec((1, 1, length), lambda i: (i, 0, 0))
    outputs += [(jax.ShapeDtypeStruct((*grid, 1, length), jnp.float32), part) for _ in sums]
    found = call(kernel, grid, inputs, outputs, name=name, vmem=blocks.vmem, generation=generation)
    totals = [jnp.sum(y, axis=(0, 1)).astype(dtype) for y, dtype in zip(found[len(results) :], sums, strict=True)]
    return [*(jnp.reshape(y, shape) for y in found[: len(results)]), *totals]


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _of_rows(numbers: jax.Array, rows: int) -> tuple[jax.Array, pl.BlockSpec]:
    """Return one number for each row along the lanes, if a block of that many rows has whole lanes."""
    if rows == numbers.size or rows % LANES == 0:
        return jnp.reshape(numbers, (1, -1)), pl.BlockSpec((1, rows), lambda i: (0, i))
    return jnp.reshape(numbers, (-1, 1)), pl.BlockSpec((rows, 1), lambda i: (i, 0))


def _of_existing_rows(terms: jax.Array, count: int) -> jax.Array:
    """Set the terms of rows beyond the last to zero."""
    rows = terms.shape[0]
    if count % rows == 0:
        return terms
    index = jax.lax.broadcasted_iota(jnp.int32, terms.shape, 0) + pl.program_id(0) * rows
    return jnp.where(index < count, terms, 0.0)


def as_column(row: jax.Array) -> jax.Array:
    """Turn ``(1, n)`` into ``(n, 1)``."""
    return jnp.transpose(jnp.broadcast_to(row, (LANES, row.shape[1])))[:, :1]


def scaled_to_one(x: jax.Array, least: float) -> tuple[jax.Array, jax.Array]:
    """Return ``x * unit`` of magnitude about one, and `unit`, a power of two for each row; see `ops.normalization`."""
    unit = unit_of(jnp.max(jnp.abs(x), axis=-1, keepdims=True), least)
    return x * unit, unit


def unit_of(largest: jax.Array, least: float) -> jax.Array:
    """Return a power of two that scales elements of at most this size to about one."""
    largest = jnp.maximum(largest, jnp.float32(least))
    bits = jax.lax.bitcast_convert_type(largest, jnp.int32) & _EXPONENT
    # Infinity and NaN have the largest exponent, zeros the smallest. The power and its inverse are normal numbers.
    bits = jnp.where((bits == _EXPONENT) | (largest == 0), _SIGN_AND_EXPONENT_OF_ONE, bits)
    bits = jnp.clip(bits, 2 << 23, 252 << 23)
    return jax.lax.bitcast_convert_type((254 << 23) - bits, jnp.float32)


def centred(scaled: jax.Array) -> jax.Array:
    """Subtract the mean of rows, and what rounding left of it; see `ops.normalization`."""
    scaled = scaled - jnp.mean(scaled, axis=-1, keepdims=True)
    return scaled - jnp.mean(scaled, axis=-1, keepdims=True)


def _divided(scaled: jax.Array, unit: jax.Array, eps: float) -> jax.Array:
    return scaled / root_mean_square(scaled, unit, eps)


def root_mean_square(scaled: jax.Array, unit: jax.Array, eps: float) -> jax.Array:
    """Return the root of the mean of squares, with `eps` added before scaling."""
    return root_of(jnp.mean(scaled * scaled, axis=-1, keepdims=True), unit, eps)


def root_of(square: jax.Array, unit: jax.Array, eps: float) -> jax.Array:
    """Return the root of a mean of squares, with `eps` added before scaling."""
    root = jnp.float32(eps**0.5) * unit
    square = square + root * root
    if eps > 0:  # it underflowed, and all elements are zero: any divisor gives 0
        square = jnp.where(square == 0, 1.0, square)
    return jnp.sqrt(square)


KERNELS: dict[str, Callable[..., list[jax.Array]]] = {
    function.__name__: function for function in (rms_norm, add_rms_norm, layer_norm, l2_norm, softmax, log_softmax)
}
"""The kernels on whole rows by the name of their operator."""
