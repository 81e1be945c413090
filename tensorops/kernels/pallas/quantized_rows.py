"""The kernel of quantized_linear for blocks of formats whose rows XLA stores along the sublanes.

XLA stores arrays in the order of axes in which tiles are fullest: rows of bytes that do not fill registers of 128 lanes lie
along the sublanes, and outputs along the lanes. So the bytes of a block are rows there, and slices give codes and scales.
Work: as in `quantized_blocks.py`, but that XLA only puts the columns of `x` in the order of the codes.
Precision and bytes: as in `quantized_blocks.py`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from tensorops import formats
from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.block_layouts import LAYOUTS, Layout, Places
from tensorops.kernels.pallas.blocks import TOGETHER, Blocks


def quantized_linear(blocks: Blocks, generation: str, format: str, x: jax.Array, weight: jax.Array) -> jax.Array:
    """Compute `tensorops.quantized_linear`; `blocks` have rows and outputs."""
    *leading, length = x.shape
    rows, (outputs, width) = math.prod(leading), weight.shape
    layout = LAYOUTS[format]
    fields = _arranged(layout, jnp.reshape(x, (rows, length)))

    def kernel(*references: Any) -> None:
        *x_refs, weight_ref, y_ref = references
        y_ref[...] = _product(layout, x_refs, weight_ref).astype(y_ref.dtype)

    of_x = pl.BlockSpec((blocks.rows, fields[0].shape[1]), lambda i, j: (i, 0), pipeline_mode=pl.Buffered(1))
    (y,) = call(
        kernel,
        (pl.cdiv(rows, blocks.rows), pl.cdiv(outputs, blocks.columns)),
        [*((a, of_x) for a in fields), (weight.T, pl.BlockSpec((width, blocks.columns), lambda i, j: (0, j)))],
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


def _codes(layout: Layout, field: int) -> Places:
    """Return the numbers of the codes in a field, in the order of their bytes."""
    columns = layout.columns(field)
    return columns[columns >= 0]


def _arranged(layout: Layout, x: jax.Array) -> list[jax.Array]:
    """Return the columns of `x` that belong to the codes of each field."""
    of = formats.get(layout.name)
    in_runs = jnp.reshape(x, (x.shape[0], -1, 8 // layout.bits, layout.run))
    return [jnp.reshape(in_runs[:, :, field], (x.shape[0], -1)) for field in range(in_runs.shape[2])]


def _product(layout: Layout, x_refs: list[Any], weight_ref: Any) -> jax.Array:
    of, dtype = formats.get(layout.name), x_refs[0].dtype
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
    total = jnp.zeros((x_refs[0].shape[0], weight_ref.shape[1]), jnp.float32)
    in_block = of.elements * layout.bits // 8  # codes of each field
    together = max(TOGETHER // in_block, 1)
    count = weight_ref.shape[0] // of.nbytes
    for first in range(0, count, together):
        end = min(first + together, count)
        stored = [weight_ref[i * of.nbytes : (i + 1) * of.nbytes, :].astype(jnp.int32) for i in range(first, end)]
        scales = [_scales(layout, block) for block in stored]
        for field, x_ref in enumerate(x_refs):
            w = [_of_field(layout, field, block, own) for block, own in zip(stored, scales, strict=True)]
            x = x_ref[:, first * in_block : end * in_block]
            w = jnp.concatenate(w, axis=0).astype(dtype)
            total += jax.lax.dot(x, w, precision=precision, preferred_element_type=jnp.float32)
    return total


def _scales(layout: Layout, block: jax.Array) -> list[tuple[jax.Array, jax.Array | None]]:
    """Return the scale and the minimum of each group in a block, in rows of their own."""
    of = formats.get(layout.name)
    numbers = np.arange(of.elements // of.group_size)
    places = layout.places(numbers)
    found = []
    for j in numbers.tolist():
        named = {name: block[int(at[j]) : int(at[j]) + 1] for name, at in places.items()}
        found.append(layout.scales(named, jnp.full((1, block.shape[1]), j, jnp.int32)))
    return found


def _of_field(
    layout: Layout, field: int, block: jax.Array, scales: list[tuple[jax.Array, jax.Array | None]]
) -> jax.Array:
    """Return the weights of a block in a field, (codes, outputs), in float32."""
    of, numbers = formats.get(layout.name), _codes(layout, field)
    upper = None if layout.upper is None else _upper(layout, numbers, block)
    values = layout.numbers(block[layout.start : layout.start + len(numbers)], field, upper)
    found = []
    for start in range(0, len(numbers), size := min(of.group_size, layout.run)):
        scale, minimum = scales[numbers[start] // of.group_size]
        w = values[start : start + size] * scale
        found.append(w if minimum is None else w + minimum)
    return jnp.concatenate(found, axis=0)


def _upper(layout: Layout, numbers: Places, block: jax.Array) -> jax.Array:
    """Return the bytes with the upper bits of codes, shifted."""
    assert layout.upper is not None
    places, shifts = layout.upper.byte(numbers), layout.upper.shift(numbers)
    found = []
    for start in range(0, len(numbers), 8):
        first, step = int(places[start]), int(places[start + 1] - places[start])
        part = block[first : first + (8 if step else 1)]
        by = jax.lax.broadcasted_iota(jnp.int32, (8, block.shape[1]), 0) * int(shifts[start + 1] - shifts[start])
        found.append(part >> by + int(shifts[start]))
    return jnp.concatenate(found, axis=0)
