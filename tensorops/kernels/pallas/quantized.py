"""The kernel of quantized_linear.

Work: a step multiplies rows of `x`, which stay for all outputs, by the weights of some outputs. Weights become numbers
in vector memory, as many columns at a time as a register has lanes, and go to the matrix unit from there.
Four bits: the even columns are in the low halves of bytes, the odd ones in the high halves. The columns of `x` are
sorted in the same way, so the halves need not be interleaved.
Precision: weights in float32; then those for a bfloat16 `x` are rounded to it, and those for a float32 `x` are
multiplied in full precision. Sums are in float32.
Bytes: those of the arguments and the result; if the rows of `x` do not fit vector memory, the weights once for each
block of rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.block_layouts import float16
from tensorops.kernels.pallas.blocks import LANES, TOGETHER, Blocks, padded

_LOW_HALVES = 0x0F0F0F0F
_HALF = 0.5  # of the weights is computed: a scaled integer may overflow where the weight does not


class Format(NamedTuple):
    """How weights are stored.

    Parameters
    ----------
    bits
        Of an integer.
    width
        Bytes of integers in a row.
    group
        Bytes of integers that share a scale.
    signed
        Whether integers are in two's complement.
    """

    bits: int
    width: int
    group: int
    signed: bool


def quantized_linear(
    blocks: Blocks,
    generation: str,
    sorted_once: bool,
    layout: Format,
    x: jax.Array,
    weight: jax.Array,
    scales: jax.Array,
    biases: jax.Array | None = None,
) -> jax.Array:
    """Compute `tensorops.quantized_linear`; `blocks` have rows and outputs.

    If columns are sorted once, steps share them in scratch memory, else each step sorts them.
    """
    *leading, length = x.shape
    rows, (outputs, width) = math.prod(leading), weight.shape
    columns = padded(width, LANES) * 8 // layout.bits
    of_x = pl.BlockSpec((blocks.rows, columns), lambda i, j: (i, 0), pipeline_mode=pl.Buffered(1))
    inputs = [(jnp.reshape(x, (rows, length)), of_x)]
    for parameter in (weight, scales, biases):
        if parameter is not None:
            whole = (blocks.columns, padded(parameter.shape[1], LANES))
            inputs.append((_as_stored(parameter), pl.BlockSpec(whole, lambda i, j: (j, 0))))

    def kernel(x_ref: Any, weight_ref: Any, scales_ref: Any, *references: Any) -> None:
        *biases_ref, y_ref = references[:-1] if sorted_once else references
        sorted_ref = references[-1] if sorted_once else None
        if sorted_ref is not None:

            @pl.when(pl.program_id(1) == 0)  # type: ignore[untyped-decorator]
            def _() -> None:
                for start in range(0, columns, 2 * LANES):
                    end = start + 2 * LANES
                    sorted_ref[:, start:end] = _sorted(layout, length, x_ref, start, end)

        weights = _Weights(layout, weight_ref, scales_ref, *biases_ref)
        y_ref[...] = _product(layout, length, x_ref, weights, sorted_ref).astype(y_ref.dtype)

    (y,) = call(
        kernel,
        (pl.cdiv(rows, blocks.rows), pl.cdiv(outputs, blocks.columns)),
        inputs,
        [
            (
                jax.ShapeDtypeStruct((rows, outputs), x.dtype),
                pl.BlockSpec((blocks.rows, blocks.columns), lambda i, j: (i, j)),
            )
        ],
        name="quantized_linear",
        vmem=blocks.vmem,
        generation=generation,
        scratch=[pltpu.VMEM((blocks.rows, columns), x.dtype)] if sorted_once else [],
        parallel=1 if sorted_once else 2,
    )
    return jnp.reshape(y, (*leading, outputs))


def _product(layout: Format, length: int, x_ref: Any, weights: _Weights, sorted_ref: Any) -> jax.Array:
    columns = x_ref.shape[1]
    precision = jax.lax.Precision.HIGHEST if x_ref.dtype == jnp.float32 else None
    total = jnp.zeros((x_ref.shape[0], weights.outputs), jnp.float32)
    for start in range(0, columns, TOGETHER):
        end = min(start + TOGETHER, columns)
        x = _sorted(layout, length, x_ref, start, end) if sorted_ref is None else sorted_ref[:, start:end]
        w = weights.columns(start, end).astype(x.dtype)
        of_both = (((1,), (1,)), ((), ()))
        total += jax.lax.dot_general(x, w, of_both, precision=precision, preferred_element_type=jnp.float32)
    return total / _HALF


def _sorted(layout: Format, length: int, x_ref: Any, start: int, end: int) -> jax.Array:
    """Return columns of `x`, sorted within each part that belongs to a register of weights; beyond the last, zeros."""
    x = x_ref[:, start:end]
    if layout.bits == 8 and end <= length:
        return x
    wide = x.astype(jnp.float32)  # the compiler selects and permutes no elements of half the size here
    if end > length:
        wide = jnp.where(_lanes(wide.shape) < length - start, wide, 0.0)
    if layout.bits == 8:
        return wide.astype(x.dtype)
    found = []
    for first in range(0, end - start, 2 * LANES):
        halves = wide[:, first : first + LANES], wide[:, first + LANES : first + 2 * LANES]
        lanes = _lanes(halves[0].shape)
        for odd in (0, 1):
            source = (2 * lanes + odd) & (LANES - 1)
            a, b = (jnp.take_along_axis(half, source, axis=1) for half in halves)
            found.append(jnp.where(lanes < LANES // 2, a, b))
    return jnp.concatenate(found, axis=1).astype(x.dtype)


class _Weights:
    """Half the weights of some outputs, from references to what is stored."""

    def __init__(self, layout: Format, weight_ref: Any, scales_ref: Any, biases_ref: Any = None) -> None:
        self.layout = layout
        self.weight_ref = weight_ref
        self.outputs = weight_ref.shape[0]
        self.scales = _halves(scales_ref)
        self.biases = None if biases_ref is None else _halves(biases_ref)

    def columns(self, start: int, end: int) -> jax.Array:
        """Return float32 weights, in the order of the columns that `_sorted` returns; beyond the last, zeros."""
        bits = self.layout.bits
        of_byte = 8 // bits
        found = []
        for first in range(start // of_byte, end // of_byte, LANES):
            scale = self._of_groups(self.scales, first)
            bias = None if self.biases is None else self._of_groups(self.biases, first)
            for integers in self._integers(first):
                w = integers * scale if bias is None else integers * scale + bias
                if first + LANES > self.layout.width:
                    w = jnp.where(_lanes(w.shape) < self.layout.width - first, w, 0.0)
                found.append(w)
        return jnp.concatenate(found, axis=1)

    def _integers(self, first: int) -> list[jax.Array]:
        packed = self.weight_ref[:, first : first + LANES]
        if self.layout.bits == 4:  # on four bytes at a time
            packed = pltpu.bitcast(packed, jnp.int32)
            halves = (packed & _LOW_HALVES, (packed >> 4) & _LOW_HALVES)
            parts = [pltpu.bitcast(half, jnp.int8) for half in halves]
        else:
            parts = [pltpu.bitcast(packed, jnp.int8) if self.layout.signed else packed]
        return [part.astype(jnp.int32).astype(jnp.float32) for part in parts]

    def _of_groups(self, values: jax.Array, first: int) -> jax.Array:
        """Return for each of the bytes in a register the value of its group."""
        group, last = self.layout.group, self.layout.width - 1
        lanes = _lanes((self.outputs, LANES))
        begin, end = first // group, min(first + LANES - 1, last) // group
        # Bytes beyond the last belong to its group: what lies beyond the last group was never written.
        places = jax.lax.div(jnp.minimum(lanes + first % group, last - first + first % group), group) + begin % LANES
        found = None
        for part in range(begin // LANES, end // LANES + 1):
            source = values[:, part * LANES : (part + 1) * LANES]
            taken = jnp.take_along_axis(source, places & (LANES - 1), axis=1)
            found = taken if found is None else jnp.where(places < LANES, found, taken)
        assert found is not None
        return found


def _as_stored(parameter: jax.Array) -> jax.Array:
    """Return what Pallas' compiler takes: float16 as its bits."""
    return jax.lax.bitcast_convert_type(parameter, jnp.int16) if parameter.dtype == jnp.float16 else parameter


def _halves(reference: Any) -> jax.Array:
    """Return half of numbers in float32, also of the bits of float16."""
    if reference.dtype != jnp.int16:  # halved before it is wider: lanes of bfloat16 are permuted two at a time
        return (reference[...] * jnp.asarray(_HALF, reference.dtype)).astype(jnp.float32)
    return _HALF * float16(reference[...].astype(jnp.int32))


def _lanes(shape: tuple[int, ...]) -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
