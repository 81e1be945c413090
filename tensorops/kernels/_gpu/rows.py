"""The arguments and macros of kernels over rows, which ``native/gpu/rows.h`` declares."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorops.kernels._gpu.geometry import STREAM_BYTES, Rows, joined_rows, refuse_row, rows_geometry
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Number, Operand

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""The element types of floating dtypes, as the sources name them."""

INTEGERS = {
    "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64",
    "uint64": "u64",
}  # fmt: skip
"""Those of integers."""

Arguments = tuple[str | Number, ...]

# A processor's kernels take one element of each cache line that they read of rows whose elements are far apart, one by
# one: rms_norm of 32 MiB took 60 ms, the body 10. Up to this many elements the body's launches take longer.
_MOST_APART = 2**16
_APART = 16  # elements, from which on each is in another line


def refuse_dtypes(device: Device, **operands: Operand | None) -> str | None:
    """Return why a device's kernels cannot read or write floating arrays of these dtypes, computing in any of them."""
    for name, operand in operands.items():
        if operand is None:
            continue
        if operand.dtype not in SHORT:
            return f"{name} has dtype {operand.dtype}, expected {', '.join(SHORT)}"
        if operand.dtype == "float64" and not device.float64:
            return f"{name} has dtype float64, which the device does not compute in"
    return None


def refuse_wider(device: Device, **operands: Operand | None) -> str | None:
    """Return why kernels that compute as the dtype of the first array has it cannot read or write the others."""
    if reason := refuse_dtypes(device, **operands):
        return reason
    first, *others = operands
    if (x := operands[first]) is not None and x.dtype != "float64":
        for name in others:
            if (a := operands[name]) is not None and a.dtype == "float64":
                return f"{name} has dtype float64, and {first} a narrower one"
    return None


@dataclass(frozen=True, slots=True)
class RowsOf:
    """Arrays of one shape as rows along some of their axes."""

    length: int
    count: int
    lengths: tuple[int, ...]
    arguments: dict[str, Arguments]  # of each array
    dense: bool  # whether the elements of each row are adjacent, in all arrays
    aligned: bool  # whether all rows begin at multiples of 16 bytes

    def beside(self, vector: Operand) -> RowsOf:
        """Return the same rows, read together with an array that has one axis, that along rows."""
        dense = self.dense and (vector.strides[0] == 1 or self.length == 1)
        return replace(self, dense=dense, aligned=self.aligned and dense and vector.aligned >= 16)

    def refuse_apart(self, device: Device) -> str | None:
        """Return why the operator's body should compute these rows, although kernels can."""
        apart = any(abs(int(argument[2])) >= _APART for argument in self.arguments.values())
        if device.kind == "cpu" and apart and self.count * self.length > _MOST_APART:
            return (
                "the elements of a row are far apart in memory, which the operator's body reads faster on a processor"
            )
        return None

    def launch(
        self,
        device: Device,
        source: str,
        kernel: str,
        dtype: str,
        defines: dict[str, Any],
        arrays: tuple[Arguments, ...],
        options: Arguments = (),
        *,
        passes: int = 2,
        geometry: Rows | None = None,
    ) -> Launch:
        """Return the launch of a kernel over these rows, whose elements are computed as `dtype` is."""
        itemsize = ITEM_SIZES[dtype]
        g = geometry or rows_geometry(device, self.count, self.length, itemsize, passes=passes, dense=self.dense)
        common = {
            "DOUBLE": int(dtype == "float64"),
            "WARP": device.lanes,
            "ROW_DIMS": len(self.lengths),
            "DENSE": int(self.dense),
            "ALIGNED": int(self.aligned and self.length % g.vec == 0),
            "STREAM": int(device.kind == "cpu" and self.length * self.count * itemsize >= STREAM_BYTES),
        }
        inner = (*self.lengths[1:], 1, 1)[:2]
        shape = (np.int32(self.length), np.int64(self.count), np.int64(g.each), np.int64(inner[0]), np.int64(inner[1]))
        arguments: Arguments = tuple(a for array in arrays for a in array) + shape + options
        return Launch(source, kernel, {**common, **g.defines, **defines}, g.groups, g.block, arguments)


def rows_of(
    axes: tuple[int, ...],
    sought: dict[str, tuple[Operand, int]] | None = None,
    each: dict[str, Operand] | None = None,
    /,
    **arrays: Operand,
) -> RowsOf | str:
    """Return arrays of one shape as rows along `axes`, or why they are not rows for kernels.

    Of arrays in `sought`, kernels find the elements for a row by themselves, with the step that is given: their strides
    along `axes` do not matter. Arrays in `each` have one element for each row: their axes are those across.
    """
    first = next(iter(arrays.values()))
    along = [i for i in range(first.ndim) if i not in axes]
    others = [(name, a, step, tuple(a.strides[i] for i in along)) for name, (a, step) in (sought or {}).items()]
    others += [(name, a, 0, a.strides) for name, a in (each or {}).items()]
    across = joined_rows(
        tuple(first.shape[i] for i in along),
        [tuple(a.strides[i] for i in along) for a in arrays.values()] + [strides for *_, strides in others],
    )
    row = joined_rows(tuple(first.shape[i] for i in axes), [tuple(a.strides[i] for i in axes) for a in arrays.values()])
    if across is None:
        return "the arrays have too many axes of rows that cannot be joined"
    if row is None or len(row[0]) > 1:
        return "the axes of a row cannot be joined into one"
    (length,) = row[0]
    if reason := refuse_row(length):
        return reason
    steps = [1 if length == 1 else step[0] for step in row[1]]
    every = [(name, a, step) for (name, a), step in zip(arrays.items(), steps, strict=True)]
    every += [(name, a, step) for name, a, step, _ in others]
    arguments = {
        name: _operand(name, a, step, tuple(strides)) for (name, a, step), strides in zip(every, across[1], strict=True)
    }
    dense = all(step == 1 for step in steps)
    aligned = dense and all(
        a.aligned >= 16 and all(s * ITEM_SIZES[a.dtype] % 16 == 0 for s in strides)
        for a, strides in zip(arrays.values(), across[1], strict=False)
    )
    return RowsOf(length, math.prod(across[0]), tuple(across[0]), arguments, dense, aligned)


def vector(name: str, a: Operand) -> Arguments:
    """Return the arguments of an array with one axis, that along rows."""
    return _operand(name, a, a.strides[0], (0, 0, 0))


def _operand(name: str, a: Operand, step: int, strides: tuple[int, ...]) -> Arguments:
    return (name, np.int64(a.offset), np.int64(step), *map(np.int64, strides))
