"""The kernel of top_k, for few elements of wide rows.

Work: a round passes over whole rows in vector memory once. It deals elements to columns and keeps the best few of each
column, sorted; then it takes the best of all columns, one after another, until a column is used up from which elements
were left out. The next round passes over what comes after the last element that was taken. Usually one is enough.
Precision: exact. Elements become integers in their order: equal ones are told apart by their positions.
Bytes: each element is read once; values and indices are written once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.blocks import Blocks

_KEPT = 4  # of each column
_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000
_NONE, _NAN, _USED_UP = -(2**31), -(2**31) + 1, 2**31 - 1  # keys that no number has


def top_k(blocks: Blocks, generation: str, x: jax.Array, k: int, columns: int, *, largest: bool) -> list[jax.Array]:
    """Compute `tensorops.top_k` along the last axis."""
    *leading, length = x.shape
    rows = math.prod(leading)
    of_rows = pl.BlockSpec((blocks.rows, k), lambda i: (i, 0))
    found = call(
        functools.partial(_kernel, length=length, columns=columns, largest=largest),
        (pl.cdiv(rows, blocks.rows),),
        [(jnp.reshape(x, (rows, length)), pl.BlockSpec((blocks.rows, blocks.columns), lambda i: (i, 0)))],
        [(jax.ShapeDtypeStruct((rows, k), dtype), of_rows) for dtype in (x.dtype, jnp.int32)],
        name="top_k",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[pltpu.VMEM((blocks.rows, 1), jnp.int32)] * 3 + [pltpu.VMEM((blocks.rows, k), jnp.int32)] * 2,
    )
    values, indices = (jnp.reshape(y, (*leading, k)) for y in found)
    return [values, indices.astype(jax.dtypes.canonicalize_dtype(jnp.int64))]


def _kernel(
    x_ref: Any,
    values_ref: Any,
    indices_ref: Any,
    count_ref: Any,
    last_key_ref: Any,
    last_place_ref: Any,
    keys_ref: Any,
    places_ref: Any,
    *,
    length: int,
    columns: int,
    largest: bool,
) -> None:
    rows, k = keys_ref.shape
    count_ref[...] = jnp.zeros((rows, 1), jnp.int32)
    last_key_ref[...] = jnp.full((rows, 1), _USED_UP, jnp.int32)
    last_place_ref[...] = jnp.zeros((rows, 1), jnp.int32)
    column = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
    number = jax.lax.broadcasted_iota(jnp.int32, (rows, k), 1)

    def collect(part: Any, kept: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Add a part of the rows to the best elements of each column so far."""
        start = part * columns
        key, place = _keys(x_ref[:, pl.ds(pl.multiple_of(start, columns), columns)], column + start, largest)
        last_key, last_place = last_key_ref[...], last_place_ref[...]
        is_next = (key < last_key) | ((key == last_key) & (place > last_place))
        key = jnp.where(is_next & (column + start < length), key, _NONE)
        keys, places = list(kept[:_KEPT]), list(kept[_KEPT:])
        before = jnp.zeros(key.shape, jnp.int32)  # whether the element comes before this place; the rest moves on
        for i in range(_KEPT):
            before = jnp.where(key > keys[i], 1, before)
            keys[i], key = jnp.where(before == 1, key, keys[i]), jnp.where(before == 1, keys[i], key)
            places[i], place = jnp.where(before == 1, place, places[i]), jnp.where(before == 1, places[i], place)
        return (*keys, *places)

    def round_of_selection(_: Any) -> Any:
        nothing = (jnp.full((rows, columns), _NONE, jnp.int32),) * (2 * _KEPT)
        kept = jax.lax.fori_loop(0, x_ref.shape[1] // columns, collect, nothing)
        after = jnp.where(kept[_KEPT - 1] == _NONE, _NONE, _USED_UP)  # the last that is kept

        def take(_: Any, kept: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            keys, places = kept[:_KEPT], kept[_KEPT:]
            key = jnp.max(keys[0], axis=1, keepdims=True)
            place = jnp.min(jnp.where(keys[0] == key, places[0], _USED_UP), axis=1, keepdims=True)
            count = count_ref[...]
            takes = (key != _USED_UP) & (count < k)
            here = takes & (number == count)
            keys_ref[...] = jnp.where(here, key, keys_ref[...])
            places_ref[...] = jnp.where(here, place, places_ref[...])
            last_key_ref[...] = jnp.where(takes, key, last_key_ref[...])
            last_place_ref[...] = jnp.where(takes, place, last_place_ref[...])
            count_ref[...] = jnp.where(takes, count + 1, count)
            taken = takes & (keys[0] == key) & (places[0] == place)
            moved = [jnp.where(taken, later, own) for own, later in zip(keys, (*keys[1:], after), strict=True)]
            of_moved = [jnp.where(taken, later, own) for own, later in zip(places, (*places[1:], after), strict=True)]
            return (*moved, *of_moved)

        jax.lax.fori_loop(0, k, take, kept)
        return jnp.min(count_ref[...])

    jax.lax.while_loop(lambda least: least < k, round_of_selection, jnp.int32(0))
    values_ref[...] = _numbers(keys_ref[...], places_ref[...], largest).astype(values_ref.dtype)
    indices_ref[...] = places_ref[...] >> 1


def _keys(x: jax.Array, index: jax.Array, largest: bool) -> tuple[jax.Array, jax.Array]:
    """Return integers that are larger for better elements, and places: an odd place has a zero that is negative."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    magnitude = bits & _MAGNITUDE
    key = jnp.where(bits < 0, -magnitude, magnitude)
    key = jnp.where(magnitude > _INFINITY, _NAN, key if largest else -key)
    return key, 2 * index + jnp.where((magnitude == 0) & (bits < 0), 1, 0)


def _numbers(key: jax.Array, place: jax.Array, largest: bool) -> jax.Array:
    """Return the elements that have these keys and places."""
    number = key if largest else -key
    bits = jnp.abs(number) | jnp.where((number < 0) | ((number == 0) & ((place & 1) == 1)), _NONE, 0)
    return jax.lax.bitcast_convert_type(jnp.where(key == _NAN, _INFINITY + (1 << 22), bits), jnp.float32)
