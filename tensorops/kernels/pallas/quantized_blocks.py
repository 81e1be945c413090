"""The kernels of quantized_linear for blocks of formats.

Work: as for affine groups (`quantized.py`), rows of `x` stay while blocks of some outputs pass, and columns of `x` are
sorted like the codes in the bytes, so that codes stay where they are. XLA stores rows of bytes along the lanes if they
fill registers of 128. Then scales and upper bits of codes are taken from other lanes, by static tables, and bytes that
are no codes have the weight zero. Otherwise XLA stores outputs along the lanes, to fill tiles: the bytes of a block are
then rows, whose slices are codes and scales.
Precision: as for affine groups; a weight is what its format says, ``scale · code + minimum`` in float32.
Bytes: those of the arguments and the result, and of tables; if the rows of `x` do not fit vector memory, the blocks
once for each part of the rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops import formats
from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.block_layouts import LAYOUTS, Layout, Places
from tensorops.kernels.pallas.blocks import LANES, TOGETHER, Blocks, padded


class Taken(NamedTuple):
    """What a register takes from lanes of others: a row of the tables has the places, -1 for none."""

    row: int
    sources: tuple[int, ...]


class Field(NamedTuple):
    """The codes in some bits of the bytes in a register: their columns, groups and upper bits, and how these shift."""

    field: int
    columns: int
    groups: Taken
    upper: Taken | None
    shift: int


class Plan:
    """What is where in rows of blocks.

    Parameters
    ----------
    layout
        Of the blocks.
    width
        The bytes of a row.
    """

    def __init__(self, layout: Layout, width: int) -> None:
        self.layout, self.of = layout, formats.get(layout.name)
        self.count = width // self.of.nbytes
        self._rows: list[Places] = []
        self.columns: list[Taken] = []  # of `x`, by register, as they are sorted

    def take(self, places: Places) -> Taken:
        """Put the places for a register into the tables."""
        return Taken(self.row(places), tuple(np.unique(places[places >= 0] // LANES).tolist()))

    def row(self, row: Places) -> int:
        """Put a row into the tables."""
        self._rows.append(row)
        return len(self._rows) - 1

    def registers(self, places: Places, size: int) -> list[Taken]:
        """Return how registers get what is at these places of each block of a size, one after the other."""
        every = (np.arange(self.count)[:, None] * size + places).reshape(-1)
        every = np.pad(every, (0, -every.size % LANES), constant_values=-1)
        return [self.take(part) for part in every.reshape(-1, LANES)]

    @property
    def tables(self) -> np.ndarray[Any, Any]:
        """What the kernel takes, shape (tables, 128)."""
        return np.asarray(self._rows, np.int32)

    def product(self, x: Sorted, weight_ref: Any, tables_ref: Any) -> jax.Array:
        """Return the product of sorted rows and a block of weights."""
        raise NotImplementedError


class AlongLanes(Plan):
    """Rows of bytes along the lanes."""

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__(layout, width)
        numbers = np.arange(self.of.elements // self.of.group_size)
        places = layout.places(numbers)
        # Bytes of scales, first all together: fewer registers have them then.
        of_scales = np.unique(np.concatenate(list(places.values())))
        self.scale_bytes = self.registers(of_scales, self.of.nbytes)
        self.places = {
            name: self.registers(np.searchsorted(of_scales, at), len(of_scales)) for name, at in places.items()
        }
        byte = np.arange(padded(width, LANES)).reshape(-1, LANES)
        self.fields = [self._of_register(row // self.of.nbytes, row % self.of.nbytes) for row in byte]

    def _of_register(self, block: Places, byte: Places) -> list[Field]:
        found = []
        for field in range(8 // self.layout.bits):
            number = np.where(block < self.count, self.layout.columns(field)[byte], -1)
            if (number < 0).all():
                continue

            def of_codes(places: Places, number: Places = number) -> Places:
                return np.where(number < 0, -1, places)

            upper, shift = None, 0
            if (bits := self.layout.upper) is not None:
                upper = self.take(of_codes(block * self.of.nbytes + bits.byte(number)))
                shift = self.row(bits.shift(np.maximum(number, 0)))
            self.columns.append(self.take(of_codes(block * self.of.elements + number)))
            column = of_codes(block * self.of.elements + number)
            groups = self.take(np.where(column < 0, -1, column // self.of.group_size))
            found.append(Field(field, len(self.columns) - 1, groups, upper, shift))
        return found

    def product(self, x: Sorted, weight_ref: Any, tables_ref: Any) -> jax.Array:
        """Return the product of sorted rows and a block of weights."""

        def stored(register: int) -> jax.Array:
            return weight_ref[:, register * LANES : (register + 1) * LANES].astype(jnp.int32)

        taken = functools.partial(_taken, tables_ref, weight_ref.shape[0])
        compact = [taken(each, stored) for each in self.scale_bytes]
        scales, minima = [], []
        for i in range(len(next(iter(self.places.values())))):
            named = {name: taken(registers[i], compact.__getitem__) for name, registers in self.places.items()}
            group = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1) + i * LANES
            scale, minimum = self.layout.scales(named, jax.lax.rem(group, self.of.elements // self.of.group_size))
            scales.append(scale)
            minima.append(minimum)

        def weights(register: int, each: Field) -> jax.Array:
            upper = None
            if each.upper is not None:
                upper = taken(each.upper, stored) >> tables_ref[each.shift : each.shift + 1, :]
            w = self.layout.numbers(stored(register), each.field, upper) * taken(each.groups, scales.__getitem__)
            if minima[0] is not None:
                w += taken(each.groups, minima.__getitem__)
            return jnp.where(tables_ref[each.groups.row : each.groups.row + 1, :] < 0, 0.0, w)

        total = jnp.zeros((x.rows, weight_ref.shape[0]), jnp.float32)
        for register, fields in enumerate(self.fields):
            if fields:
                w = jnp.concatenate([weights(register, each) for each in fields], axis=1)
                total += _dot(x.registers([each.columns for each in fields]), w, transposed=True)
        return total


class AlongSublanes(Plan):
    """Rows of bytes along the sublanes, outputs along the lanes."""

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__(layout, width)
        self.in_block = self.of.elements * layout.bits // 8  # codes of a field
        self.in_field = -(-self.count * self.in_block // LANES)  # registers of columns
        for field in range(8 // layout.bits):
            self.columns += self.registers(self._numbers(field), self.of.elements)

    def _numbers(self, field: int) -> Places:
        columns = self.layout.columns(field)
        return columns[columns >= 0]

    def product(self, x: Sorted, weight_ref: Any, tables_ref: Any) -> jax.Array:
        """Return the product of sorted rows and a block of weights."""
        total = jnp.zeros((x.rows, weight_ref.shape[1]), jnp.float32)
        together = TOGETHER // self.in_block
        for first in range(0, self.count, together):
            blocks = range(first, min(first + together, self.count))
            stored = [weight_ref[i * self.of.nbytes : (i + 1) * self.of.nbytes, :].astype(jnp.int32) for i in blocks]
            scales = [self._scales(block) for block in stored]
            begin, columns = first * self.in_block // LANES, len(blocks) * self.in_block
            for field in range(8 // self.layout.bits):
                pairs = zip(stored, scales, strict=True)
                w = jnp.concatenate([self._weights(field, block, own) for block, own in pairs], axis=0)
                registers = range(begin, begin + -(-columns // LANES))
                wide = x.registers([field * self.in_field + register for register in registers])
                total += _dot(wide[:, :columns], w, transposed=False)
        return total

    def _scales(self, block: jax.Array) -> list[tuple[jax.Array, jax.Array | None]]:
        """Return the scale and the minimum of each group in a block, in rows of their own."""
        numbers = np.arange(self.of.elements // self.of.group_size)
        places = self.layout.places(numbers)
        found = []
        for j in numbers.tolist():
            named = {name: block[int(at[j]) : int(at[j]) + 1] for name, at in places.items()}
            found.append(self.layout.scales(named, jnp.full((1, block.shape[1]), j, jnp.int32)))
        return found

    def _weights(self, field: int, block: jax.Array, scales: list[tuple[jax.Array, jax.Array | None]]) -> jax.Array:
        """Return the weights of a block in a field, (codes, outputs)."""
        numbers, start = self._numbers(field), self.layout.start
        upper = None if self.layout.upper is None else self._upper(numbers, block)
        values = self.layout.numbers(block[start : start + len(numbers)], field, upper)
        found = []
        size = min(self.of.group_size, self.layout.run)
        for first in range(0, len(numbers), size):
            scale, minimum = scales[numbers[first] // self.of.group_size]
            w = values[first : first + size] * scale
            found.append(w if minimum is None else w + minimum)
        return jnp.concatenate(found, axis=0)

    def _upper(self, numbers: Places, block: jax.Array) -> jax.Array:
        """Return the bytes with the upper bits of codes, shifted: those of eight codes are neighbours, or one byte."""
        assert self.layout.upper is not None
        places, shifts = self.layout.upper.byte(numbers), self.layout.upper.shift(numbers)
        found = []
        for first in range(0, len(numbers), 8):
            byte, in_one = int(places[first]), places[first] == places[first + 1]
            by = jax.lax.broadcasted_iota(jnp.int32, (8, block.shape[1]), 0) if in_one else 0
            found.append(block[byte : byte + (1 if in_one else 8)] >> by + int(shifts[first]))
        return jnp.concatenate(found, axis=0)


@functools.cache
def plan(format: str, width: int, *, along_lanes: bool) -> Plan:
    """Return what is where in rows of so many bytes."""
    return (AlongLanes if along_lanes else AlongSublanes)(LAYOUTS[format], width)


class Sorted:
    """Rows of `x`, whose columns are sorted for each step, or once for all if there is scratch memory."""

    def __init__(self, found: Plan, x_ref: Any, tables_ref: Any, sorted_ref: Any = None) -> None:
        self.rows = x_ref.shape[0]
        self._taken, self._x_ref, self._tables_ref, self._sorted_ref = found.columns, x_ref, tables_ref, sorted_ref

    def sort(self) -> None:
        """Sort them into scratch memory."""
        for i in range(len(self._taken)):
            self._sorted_ref[:, i * LANES : (i + 1) * LANES] = self._sort(i)

    def registers(self, numbers: Sequence[int]) -> jax.Array:
        """Return registers of sorted columns, next to each other."""
        if self._sorted_ref is None:
            return jnp.concatenate([self._sort(i) for i in numbers], axis=1)
        return jnp.concatenate([self._sorted_ref[:, i * LANES : (i + 1) * LANES] for i in numbers], axis=1)

    def _sort(self, i: int) -> jax.Array:
        def columns(register: int) -> jax.Array:  # the compiler permutes no elements of half the size
            return self._x_ref[:, register * LANES : (register + 1) * LANES].astype(jnp.float32)

        row = self._taken[i].row
        found = _taken(self._tables_ref, self.rows, self._taken[i], columns)
        return jnp.where(self._tables_ref[row : row + 1, :] < 0, 0.0, found).astype(self._x_ref.dtype)


def quantized_linear(
    blocks: Blocks, generation: str, sorted_once: bool, found: Plan, x: jax.Array, weight: jax.Array
) -> jax.Array:
    """Compute `tensorops.quantized_linear`; `blocks` have rows and outputs."""
    *leading, length = x.shape
    rows, (outputs, width) = math.prod(leading), weight.shape
    tables = jnp.asarray(found.tables)
    stored = (weight, pl.BlockSpec((blocks.columns, padded(width, LANES)), lambda i, j: (j, 0)))
    if isinstance(found, AlongSublanes):
        stored = (weight.T, pl.BlockSpec((width, blocks.columns), lambda i, j: (0, j)))

    def kernel(x_ref: Any, weight_ref: Any, tables_ref: Any, y_ref: Any, *scratch: Any) -> None:
        wide = Sorted(found, x_ref, tables_ref, *scratch)
        if scratch:
            pl.when(pl.program_id(1) == 0)(wide.sort)
        y_ref[...] = found.product(wide, weight_ref, tables_ref).astype(y_ref.dtype)

    of_x = pl.BlockSpec((blocks.rows, padded(length, LANES)), lambda i, j: (i, 0), pipeline_mode=pl.Buffered(1))
    (y,) = call(
        kernel,
        (pl.cdiv(rows, blocks.rows), pl.cdiv(outputs, blocks.columns)),
        [
            (jnp.reshape(x, (rows, length)), of_x),
            stored,
            (tables, pl.BlockSpec(tables.shape, lambda i, j: (0, 0), pipeline_mode=pl.Buffered(1))),
        ],
        [
            (
                jax.ShapeDtypeStruct((rows, outputs), x.dtype),
                pl.BlockSpec((blocks.rows, blocks.columns), lambda i, j: (i, j)),
            )
        ],
        name=f"quantized_linear_{found.layout.name}",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[pltpu.VMEM((blocks.rows, len(found.columns) * LANES), x.dtype)] if sorted_once else [],
        parallel=1 if sorted_once else 2,
    )
    return jnp.reshape(y, (*leading, outputs))


def _dot(x: jax.Array, w: jax.Array, *, transposed: bool) -> jax.Array:
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    dimensions = (((1,), (1 if transposed else 0,)), ((), ()))
    return jax.lax.dot_general(
        x, w.astype(x.dtype), dimensions, precision=precision, preferred_element_type=jnp.float32
    )


def _taken(tables_ref: Any, rows: int, taken: Taken, source: Callable[[int], jax.Array]) -> jax.Array:
    """Return what is at places of several registers."""
    places = jnp.broadcast_to(tables_ref[taken.row : taken.row + 1, :], (rows, LANES))
    found = None
    for register in taken.sources:
        part = jnp.take_along_axis(source(register), places & (LANES - 1), axis=1)
        found = part if found is None else jnp.where(places < register * LANES, found, part)
    assert found is not None
    return found
