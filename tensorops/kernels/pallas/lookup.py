"""The kernel of embedding: rows are copied from where the table is, each by a transfer of its own.

Work: a step starts the copies of one block of rows, then waits for those of the block before, whose rows it writes: the
copies of a block are under way while the last is written. The table is read where the ids say, so no block of it moves.
Pairs: two rows of bfloat16 share the words of memory, and a transfer copies whole words. So both are copied, and the
half of each word that belongs to the row is kept. If the number of rows is odd, the last is in no pair, and stays in
vector memory. Mosaic refuses the transfer of one such row. A table of shape (rows, dim / 128, 128) has rows of words of
their own, but as a view of the table it is a copy of all of it, in each call; XLA's gather reads eight rows for one.
Ids: as for `jax.numpy.take`, negative ones count from the end, and one that is out of range gives a row of NaN. What
is copied for it is a row that exists.
Precision: the bits of the table.
Bytes: those of the rows, of bfloat16 twice; those of the result; those of the ids, which steps read twice, as addresses
and as numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops._dtypes import widen_integers
from tensorops.kernels.pallas._call import Copied, call
from tensorops.kernels.pallas.blocks import LANES, tile_rows

if TYPE_CHECKING:
    from tensorops.kernels.pallas.lookup_plans import Lookup

_NAN = 0x7FC0  # of bfloat16
_OUTSIDE = -1  # in place of a row number


def embedding(blocks: Lookup, generation: str, ids: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute `tensorops.embedding`."""
    count, dim = ids.size, weight.shape[1]
    grid = (blocks.cores, blocks.steps + 1)
    rows = jnp.pad(_row_numbers(ids, weight.shape[0]), (0, blocks.cores * blocks.steps * blocks.rows - count))
    rows = jnp.reshape(rows, (-1, 1, blocks.rows))

    def copied_block(core: Any, step: Any) -> Any:
        return core * blocks.steps + jnp.minimum(step, blocks.steps - 1)

    def written_block(core: Any, step: Any) -> Any:
        return core * blocks.steps + jnp.maximum(step - 1, 0)

    of_rows = (1, 1, blocks.rows)
    addresses = pl.BlockSpec(of_rows, lambda c, i: (copied_block(c, i), 0, 0), memory_space=pltpu.SMEM)
    numbers = pl.BlockSpec(of_rows, lambda c, i: (written_block(c, i), 0, 0))
    inputs = [(rows, addresses), (rows, numbers)]
    if weight.shape[0] % blocks.together:
        inputs.append((_bits(weight[-1:]), pl.BlockSpec((1, dim), lambda c, i: (0, 0))))
    copies = functools.partial(_copies, blocks, count)
    (y,) = call(
        functools.partial(_kernel, blocks=blocks, count=count),
        grid,
        inputs,
        [
            (
                jax.ShapeDtypeStruct((count, dim), weight.dtype),
                pl.BlockSpec((blocks.rows, dim), lambda c, i: (written_block(c, i), 0)),
            )
        ],
        name="embedding",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[
            pltpu.VMEM((2, blocks.rows * blocks.together, dim), weight.dtype),
            pltpu.VMEM((blocks.rows, LANES), jnp.int32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        parallel=1,
        copied=[Copied(weight, (blocks.together, dim), copies)],
    )
    return jnp.reshape(y, (*ids.shape, dim))


def _row_numbers(ids: jax.Array, vocabulary: int) -> jax.Array:
    """Return the rows that ids mean as int32, in one axis."""
    ids = jnp.reshape(widen_integers(jnp, ids, None), -1)
    ids = jnp.where(ids < 0, ids + vocabulary, ids)
    return jnp.where((ids >= 0) & (ids < vocabulary), ids.astype(jnp.int32), _OUTSIDE)


def _copies(blocks: Lookup, count: int, core: Any, step: Any) -> Any:
    """Return how many rows a step copies: none beyond the last id, and none in the step after the last block."""
    first = (core * blocks.steps + step) * blocks.rows
    return jnp.where(step < blocks.steps, jnp.clip(count - first, 0, blocks.rows), 0)


class _References(NamedTuple):
    """Where the blocks of a step are, and what stays from one step to the next.

    Parameters
    ----------
    addresses
        The rows to copy.
    numbers
        The rows to write, along the lanes.
    last
        The bits of the last row of the table, if it is in no pair.
    table, y
        The table, and the block that is written.
    copied
        Rows as they are copied, of this step and the one before.
    columns
        The rows to write, along the sublanes.
    arrived
        What counts the copies of each step.
    """

    addresses: Any
    numbers: Any
    last: Any
    table: Any
    y: Any
    copied: Any
    columns: Any
    arrived: Any


def _kernel(*references: Any, blocks: Lookup, count: int) -> None:
    addresses, numbers, *last, table, y, copied, columns, arrived = references
    at = _References(addresses, numbers, last[0] if last else None, table, y, copied, columns, arrived)
    core, step = pl.program_id(0), pl.program_id(1)

    def start(row: Any) -> None:
        first = jnp.clip(at.addresses[0, 0, row], 0, _paired(blocks, at) - 1) & -blocks.together
        _copy(blocks, at, step, pl.multiple_of(first, blocks.together), row).start()

    def wait(row: Any) -> None:
        _copy(blocks, at, step - 1, 0, row).wait()

    _repeat(_copies(blocks, count, core, step), start)

    @pl.when(step > 0)  # type: ignore[untyped-decorator]
    def _() -> None:
        _repeat(_copies(blocks, count, core, step - 1), wait)
        _write(blocks, at, (step - 1) & 1)


def _paired(blocks: Lookup, at: _References) -> int:
    """Return how many rows of the table are in pairs; all of them, if rows are copied one by one."""
    rows: int = at.table.shape[0]
    return rows // blocks.together * blocks.together


def _copy(blocks: Lookup, at: _References, step: Any, first: Any, row: Any) -> Any:
    """Return the transfer of a row of the table, or of a pair from its first row on, to a place among those of a step.

    To wait for it, the row does not matter.
    """
    # The compiler takes pairs of an array only if all its rows are in pairs.
    table = at.table.at[pl.ds(0, _paired(blocks, at))]
    place = pl.ds(pl.multiple_of(row * blocks.together, blocks.together), blocks.together)
    slot = step & 1
    return pltpu.make_async_copy(
        table.at[pl.ds(first, blocks.together)], at.copied.at[slot, place], at.arrived.at[slot]
    )


def _write(blocks: Lookup, at: _References, slot: Any) -> None:
    """Write the rows of a block, a tile at a time."""
    at.columns[...] = jnp.transpose(jnp.broadcast_to(at.numbers[0], (LANES, blocks.rows)))
    tile = tile_rows([at.y.dtype.itemsize])

    def write(i: Any) -> None:
        first = pl.multiple_of(i * tile, tile)
        number = at.columns[pl.ds(first, tile), :1]
        x = at.copied[slot, pl.ds(pl.multiple_of(first * blocks.together, tile), tile * blocks.together)]
        if blocks.together == 1:
            y = jnp.where(number == _OUTSIDE, jnp.nan, x)
        else:
            pairs = pltpu.bitcast(x, jnp.int32)  # the even row is in the low halves
            bits = jnp.where(number & 1 != 0, pairs >> 16, pairs)
            if at.last is not None:
                bits = jnp.where(number == at.table.shape[0] - 1, at.last[...], bits)
            bits = jnp.where(number == _OUTSIDE, _NAN, bits)
            y = jax.lax.bitcast_convert_type(bits.astype(jnp.int16), at.y.dtype)
        at.y[pl.ds(first, tile)] = y

    _repeat(blocks.rows // tile, write)


def _repeat(count: Any, do: Callable[[Any], None]) -> None:
    """Call a function with each number below `count`, in int32 even where JAX has int64."""
    jax.lax.fori_loop(jnp.int32(0), jnp.int32(count), lambda i, _: do(i), None)


def _bits(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.int32)
