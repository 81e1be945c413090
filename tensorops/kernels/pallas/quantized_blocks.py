"""The kernel of quantized_linear for blocks of formats.

Work: as for affine groups (`quantized.py`), rows of `x` stay while blocks of some outputs pass. These are bytes along the
lanes, in the order of the file. A register of 128 bytes gives codes by shifts; what belongs to them, scales and upper
bits, is taken from other lanes by static tables. XLA arranges the columns of `x` like the codes in the bytes beforehand, with
zeros where bytes are no codes, so codes stay in their lanes.
Precision: as for affine groups; a weight is rounded as by its format, ``scale · code + minimum`` in float32.
Bytes: those of the blocks and the result, and `x` as it is arranged; if its rows do not fit vector memory, the blocks
once for each part of the rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from tensorops import formats
from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.block_layouts import LAYOUTS, Layout, Places
from tensorops.kernels.pallas.blocks import LANES, Blocks, padded


class Taken(NamedTuple):
    """What a register takes from lanes of others: a row of the tables has the places, -1 for none."""

    row: int
    sources: tuple[int, ...]


class Field(NamedTuple):
    """The codes in some bits of the bytes in a register, with their groups and their upper bits."""

    field: int
    groups: Taken
    upper: Taken | None
    shift: int  # a row of the tables, of the upper bits


class Plan:
    """What is where in rows of blocks: static, but for the tables, which the kernel reads.

    Parameters
    ----------
    layout
        Of the blocks.
    width
        The bytes of a row.
    """

    def __init__(self, layout: Layout, width: int) -> None:
        of = formats.get(layout.name)
        self.layout, self.count = layout, width // of.nbytes
        self.in_block = of.elements // of.group_size
        self._rows: list[Places] = []
        numbers = np.arange(self.in_block)
        places = {name: at + 0 * numbers for name, at in layout.places(numbers).items()}
        # Bytes of scales, first all together: fewer registers have them then.
        of_scales = np.unique(np.concatenate(list(places.values())))
        self.scale_bytes = self._registers(of_scales, of.nbytes)
        self.places = {
            name: self._registers(np.searchsorted(of_scales, at), len(of_scales)) for name, at in places.items()
        }
        self.fields: list[list[Field]] = []
        byte = np.arange(padded(width, LANES))
        block, byte = byte // of.nbytes, byte % of.nbytes
        for register in range(len(byte) // LANES):
            part = slice(register * LANES, (register + 1) * LANES)
            self.fields.append(self._of_register(block[part], byte[part]))

    def _of_register(self, block: Places, byte: Places) -> list[Field]:
        of, found = formats.get(self.layout.name), []
        for field in range(8 // self.layout.bits):
            column = np.where(block < self.count, self.layout.columns(field)[byte], -1)
            if (column < 0).all():
                continue
            groups = np.where(column < 0, -1, block * self.in_block + column // of.group_size)
            upper, shift = None, 0
            if (bits := self.layout.upper) is not None:
                upper = self._take(np.where(column < 0, -1, block * of.nbytes + bits.byte(column)))
                shift = self._row(np.where(column < 0, 0, bits.shift(column)))
            found.append(Field(field, self._take(groups), upper, shift))
        return found

    def _registers(self, places: Places, size: int) -> list[Taken]:
        """Return how registers get what is at these places of each block of a size, one after the other."""
        every = (np.arange(self.count)[:, None] * size + places).reshape(-1)
        every = np.pad(every, (0, padded(every.size, LANES) - every.size), constant_values=-1)
        return [self._take(part) for part in every.reshape(-1, LANES)]

    def _take(self, places: Places) -> Taken:
        return Taken(self._row(places), tuple(np.unique(places[places >= 0] // LANES).tolist()))

    def _row(self, row: Places) -> int:
        self._rows.append(row)
        return len(self._rows) - 1

    @property
    def tables(self) -> np.ndarray[Any, Any]:
        """What the kernel takes, shape (tables, 128)."""
        return np.asarray(self._rows, np.int32)


@functools.cache
def plan(name: str, width: int) -> Plan:
    """Return what is where in rows of so many bytes."""
    return Plan(LAYOUTS[name], width)


def quantized_linear(blocks: Blocks, generation: str, format: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute `tensorops.quantized_linear`; `blocks` have rows and outputs."""
    *leading, length = x.shape
    rows, (outputs, width) = math.prod(leading), weight.shape
    found = plan(format, width)
    fields = _arranged(found.layout, jnp.reshape(x, (rows, length)))
    tables = jnp.asarray(found.tables)
    columns = padded(width, LANES)

    def kernel(*references: Any) -> None:
        *x_refs, weight_ref, tables_ref, y_ref = references
        weights = _Weights(found, weight_ref, tables_ref)
        y_ref[...] = _product(x_refs, weights).astype(y_ref.dtype)

    (y,) = call(
        kernel,
        (pl.cdiv(rows, blocks.rows), pl.cdiv(outputs, blocks.columns)),
        [
            *(
                (a, pl.BlockSpec((blocks.rows, columns), lambda i, j: (i, 0), pipeline_mode=pl.Buffered(1)))
                for a in fields
            ),
            (weight, pl.BlockSpec((blocks.columns, columns), lambda i, j: (j, 0))),
            (tables, pl.BlockSpec(tables.shape, lambda i, j: (0, 0), pipeline_mode=pl.Buffered(1))),
        ],
        [
            (
                jax.ShapeDtypeStruct((rows, outputs), x.dtype),
                pl.BlockSpec((blocks.rows, blocks.columns), lambda i, j: (i, j)),
            )
        ],
        name=f"quantized_linear_{format}",
        vmem=blocks.vmem,
        generation=generation,
        parallel=2,
    )
    return jnp.reshape(y, (*leading, outputs))


def _arranged(layout: Layout, x: jax.Array) -> list[jax.Array]:
    """Return the columns of `x` where bytes have their codes, for each field, and zeros elsewhere."""
    of = formats.get(layout.name)
    in_blocks = jnp.reshape(x, (x.shape[0], -1, of.elements))
    width = in_blocks.shape[1] * of.nbytes
    found = []
    for field in range(8 // layout.bits):
        columns = layout.columns(field)
        following = np.where(columns[:-1] < 0, -1, columns[:-1] + 1)
        starts = np.flatnonzero(np.concatenate([[True], columns[1:] != following]))
        parts = []
        for start, end in zip(starts, [*starts[1:], of.nbytes], strict=True):
            if columns[start] < 0:
                parts.append(jnp.zeros((*in_blocks.shape[:2], end - start), x.dtype))
            else:
                parts.append(in_blocks[:, :, columns[start] : columns[start] + end - start])
        row = jnp.reshape(jnp.concatenate(parts, axis=-1), (x.shape[0], width))
        found.append(jnp.pad(row, ((0, 0), (0, padded(width, LANES) - width))))
    return found


def _product(x_refs: list[Any], weights: _Weights) -> jax.Array:
    x_dtype = x_refs[0].dtype
    precision = jax.lax.Precision.HIGHEST if x_dtype == jnp.float32 else None
    total = jnp.zeros((x_refs[0].shape[0], weights.outputs), jnp.float32)
    of_both = (((1,), (1,)), ((), ()))
    for register, fields in enumerate(weights.plan.fields):
        lanes = slice(register * LANES, (register + 1) * LANES)
        if not fields:
            continue
        x = jnp.concatenate([x_refs[each.field][:, lanes] for each in fields], axis=1)
        w = jnp.concatenate([weights.of_field(register, each).astype(x_dtype) for each in fields], axis=1)
        total += jax.lax.dot_general(x, w, of_both, precision=precision, preferred_element_type=jnp.float32)
    return total


class _Weights:
    """The weights of some outputs, from references to their blocks and to the tables."""

    def __init__(self, found: Plan, weight_ref: Any, tables_ref: Any) -> None:
        self.plan = found
        self.weight_ref, self.tables_ref = weight_ref, tables_ref
        self.outputs = weight_ref.shape[0]
        compact = [self._taken(each, self._bytes) for each in found.scale_bytes]
        self.scales, self.minima = [], []
        for i in range(len(next(iter(found.places.values())))):
            named = {name: self._taken(taken[i], compact.__getitem__) for name, taken in found.places.items()}
            lanes = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1) + i * LANES
            scales, minima = found.layout.scales(named, jax.lax.rem(lanes, found.in_block))
            self.scales.append(scales)
            self.minima.append(minima)

    def of_field(self, register: int, each: Field) -> jax.Array:
        """Return the weights in a field of a register's bytes, in float32; zeros where bytes are no codes."""
        layout, upper = self.plan.layout, None
        if each.upper is not None:
            upper = self._taken(each.upper, self._bytes) >> self._row(each.shift)
        numbers = layout.numbers(self._bytes(register), each.field, upper)
        w = numbers * self._taken(each.groups, self.scales.__getitem__)
        if self.minima[0] is not None:
            w += self._taken(each.groups, self.minima.__getitem__)
        return jnp.where(self._row(each.groups.row) < 0, 0.0, w)

    def _bytes(self, register: int) -> jax.Array:
        return self.weight_ref[:, register * LANES : (register + 1) * LANES].astype(jnp.int32)

    def _row(self, row: int) -> jax.Array:
        return self.tables_ref[row : row + 1, :]

    def _taken(self, taken: Taken, source: Callable[[int], Any]) -> jax.Array:
        """Return what is at places of several registers."""
        places = jnp.broadcast_to(self._row(taken.row), (self.outputs, LANES))
        found = None
        for register in taken.sources:
            part = jnp.take_along_axis(source(register), places & (LANES - 1), axis=1)
            found = part if found is None else jnp.where(places < register * LANES, found, part)
        return found
