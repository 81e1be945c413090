"""Kernels on groups of channels that fit vector memory: group_norm and instance_norm.

Work: a step has whole groups of some elements of the batch. It passes several times over the planes of a block, the
last two axes, and sums them up element by element before it reduces the sums of a group. Channels are along the lanes,
along the sublanes, or each in planes of its own.
Precision: float32 inside, whatever the dtypes are.
Bytes: those of the arguments and the result.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from tensorops.kernels.pallas._call import call
from tensorops.kernels.pallas.rows import as_column, root_of, unit_of

if TYPE_CHECKING:
    from tensorops.kernels.pallas.channels_plans import ChannelBlocks


def normalized(
    name: str,
    blocks: ChannelBlocks,
    generation: str,
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    *,
    axis: int,
    eps: float,
) -> jax.Array:
    """Normalize groups of channels along the second or the last axis, then scale and shift channels."""
    batch, count = x.shape[0], x.shape[axis]
    block = [blocks.batch, *x.shape[1:]]
    block[axis] = blocks.channels
    of_block = pl.BlockSpec(tuple(block), lambda i, j: (i, *(j if a == axis else 0 for a in range(1, x.ndim))))
    in_planes = axis >= x.ndim - 2
    of_channels = pl.BlockSpec((1, blocks.channels if in_planes else count), lambda i, j: (0, j if in_planes else 0))
    parameters = [p for p in (weight, bias) if p is not None]
    kernel = functools.partial(
        _kernel,
        group=blocks.group,
        along=None if not in_planes else axis - x.ndim,
        size=blocks.group * math.prod(x.shape[1:]) // count,
        eps=eps,
        given=(weight is not None, bias is not None),
    )
    (found,) = call(
        kernel,
        (pl.cdiv(batch, blocks.batch), count // blocks.channels),
        [(x, of_block), *((jnp.reshape(p, (1, count)), of_channels) for p in parameters)],
        [(jax.ShapeDtypeStruct(x.shape, x.dtype), of_block)],
        name=name,
        vmem=blocks.vmem,
        generation=generation,
        parallel=2,
    )
    return found


def _kernel(
    x_ref: Any, *references: Any, group: int, along: int | None, size: int, eps: float, given: tuple[bool, bool]
) -> None:
    """Normalize a block; channels are `along` an axis of planes, or each has planes of its own."""
    *parameters, y_ref = references
    rows = iter(parameters)
    weight, bias = (next(rows) if each else None for each in given)
    batch, *leading, _, _ = x_ref.shape
    shape = tuple(leading) if along is not None else (group, *leading[1:])  # of the planes of a group
    groups = 1 if along is not None else leading[0] // group
    first = pl.program_id(1) * leading[0] if along is None else 0  # channel of the block

    def normalize(step: Any, _: Any) -> Any:
        element, in_block = jax.lax.div(step, groups), jax.lax.rem(step, groups) * group

        def place(plane: Any) -> tuple[Any, ...]:
            indices: list[Any] = []
            for n in reversed(shape):
                indices.insert(0, jax.lax.rem(plane, n))
                plane = jax.lax.div(plane, n)
            if along is None:
                indices[0] += in_block
            return (element, *indices)

        def total(function: Callable[[jax.Array], jax.Array], largest: bool = False) -> jax.Array:
            combine = jnp.maximum if largest else jnp.add

            def add(plane: Any, so_far: jax.Array) -> jax.Array:
                return combine(so_far, function(x_ref[place(plane)].astype(jnp.float32)))

            sums = jax.lax.fori_loop(0, math.prod(shape), add, jnp.zeros(x_ref.shape[-2:], jnp.float32))
            return _of_groups(sums, along, group, largest)

        unit = unit_of(total(jnp.abs, largest=True), eps**0.5)
        mean = total(lambda x: x * unit) / size
        rest = total(lambda x: x * unit - mean) / size  # what rounding left of the mean; see `ops.normalization`
        square = total(lambda x: jnp.square(x * unit - mean - rest)) / size
        root = root_of(square, unit, eps)

        def write(plane: Any, _: Any) -> Any:
            at = place(plane)
            y = (x_ref[at].astype(jnp.float32) * unit - mean - rest) / root
            for reference, apply in ((weight, jnp.multiply), (bias, jnp.add)):
                if reference is not None:
                    y = apply(y, _of_channels(reference[...].astype(jnp.float32), along, first + at[1] if shape else 0))
            y_ref[at] = y.astype(y_ref.dtype)
            return 0

        return jax.lax.fori_loop(0, math.prod(shape), write, 0)

    jax.lax.fori_loop(0, batch * groups, normalize, 0)


def _of_groups(plane: jax.Array, along: int | None, group: int, largest: bool) -> jax.Array:
    """Reduce a plane to one number for each group, or to the number of its group for each channel along an axis."""
    reduce = jnp.max if largest else jnp.sum
    if along is None:
        return reduce(plane, keepdims=True)
    axis = along + 2
    numbers = reduce(plane, axis=1 - axis, keepdims=True)
    if group == 1:
        return numbers
    channels = plane.shape[axis]
    shape = (channels, channels // group) if axis == 0 else (channels // group, channels)
    channel = jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    first = jax.lax.broadcasted_iota(jnp.int32, shape, 1 - axis) * group
    is_in = (channel >= first) & (channel < first + group)
    of_groups = reduce(jnp.where(is_in, numbers, 0.0), axis=axis, keepdims=True)
    return jnp.sum(jnp.where(is_in, of_groups, 0.0), axis=1 - axis, keepdims=True)


def _of_channels(row: jax.Array, along: int | None, channel: Any) -> jax.Array:
    """Return a parameter of channels so that it goes with a plane: all of them, or that of one channel."""
    if along is None:
        is_this = jax.lax.broadcasted_iota(jnp.int32, row.shape, 1) == channel
        return jnp.sum(jnp.where(is_this, row, 0.0), keepdims=True)
    return row if along == -1 else as_column(row)
