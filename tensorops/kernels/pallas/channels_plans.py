"""Which calls of group_norm and instance_norm the kernel computes, and with which blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorops.kernels.pallas.blocks import LANES, MIB, VMEM, padded, tile_rows
from tensorops.kernels.pallas.refusals import refuse_arrays

if TYPE_CHECKING:
    from tensorops.kernels.pallas.planners import Program

_ENOUGH = 10 * MIB  # as in `blocks`
_MOST = 0.9
_STEPS = 4
_MOST_PADDING = 2
_WIDE = 8  # float32 values of each element of a plane that the kernel holds at a time


class ChannelBlocks(NamedTuple):
    """How a grid divides ``(batch, channels, ...)`` or ``(batch, ..., channels)``.

    Parameters
    ----------
    batch
        Elements of the batch in a block.
    channels
        In a block: whole groups.
    group
        The channels of a group.
    vmem
        The bytes of vector memory that a step needs.
    """

    batch: int
    channels: int
    group: int
    vmem: int


def group_norm(generation: str, *, x: Any, num_groups: int, channel_axis: int, **arguments: Any) -> Program | str:
    """Plan `tensorops.group_norm`."""
    return _planned("group_norm", generation, x, num_groups, channel_axis, **arguments)


def instance_norm(generation: str, *, x: Any, channel_axis: int, **arguments: Any) -> Program | str:
    """Plan `tensorops.instance_norm`."""
    return _planned("instance_norm", generation, x, x.shape[channel_axis], channel_axis, **arguments)


def _planned(
    name: str, generation: str, x: Any, groups: int, axis: int, *, weight: Any = None, bias: Any = None, eps: float
) -> Program | str:
    if reason := refuse_arrays({"x": x, "weight": weight, "bias": bias}):
        return reason
    if x.ndim == 2:
        return "x has no positions"
    if axis not in (1, x.ndim - 1):
        return "channel_axis is neither the second nor the last of x"
    last = (x.shape[0], *(n for a, n in enumerate(x.shape) if a not in (0, axis)), x.shape[axis])
    moved = axis == 1 and _padding(last, x.dtype.itemsize) < _padding(x.shape, x.dtype.itemsize)
    shape, along = (last, x.ndim - 1) if moved else (tuple(x.shape), axis)
    if _padding(shape, x.dtype.itemsize) > _MOST_PADDING:
        return f"the last axes of x fill less than 1 / {_MOST_PADDING} of a tile: XLA would copy x for the kernel"
    parts = divided(shape, along, x.shape[axis] // groups, x.dtype.itemsize, generation)
    if parts is None:
        return f"the groups of an element of the batch do not fit the vector memory of a TPU {generation}"

    order, back = (0, *range(2, x.ndim), 1), (0, x.ndim - 1, *range(1, x.ndim - 1))

    def program(x: Any, weight: Any = None, bias: Any = None) -> list[Any]:
        from tensorops.kernels.pallas import channels

        y = channels.normalized(
            name, parts, generation, x.transpose(order) if moved else x, weight, bias, axis=along, eps=eps
        )
        return [y.transpose(back) if moved else y]

    return program


def _padding(shape: tuple[int, ...], itemsize: int) -> float:
    """Return how many times its elements an array takes in memory, of which XLA prefers the order that takes least."""
    rows, columns = shape[-2:]
    return padded(rows, tile_rows([itemsize])) * padded(columns, LANES) / (rows * columns)


def divided(shape: tuple[int, ...], axis: int, group: int, itemsize: int, generation: str) -> ChannelBlocks | None:
    """Divide an array into blocks that hold whole groups; ``None`` if not even the smallest fits."""
    batch, count = shape[0], shape[axis]
    in_tiles = axis >= len(shape) - 2  # then a block has a multiple of the lanes, or all channels
    least = group if not in_tiles else count if count % LANES else math.lcm(group, LANES)

    def vmem_of(channels: int) -> int:
        block = [*shape]
        block[axis] = channels
        plane = padded(block[-2], tile_rows([itemsize])) * padded(block[-1], LANES)
        return plane * (4 * itemsize * math.prod(block[1:-2]) + 4 * _WIDE)

    if vmem_of(least) > _MOST * VMEM[generation]:
        return None
    fitting = [n for n in range(least, count + 1, least) if count % n == 0 and vmem_of(n) <= _ENOUGH]
    channels = max(fitting, default=least)
    one = vmem_of(channels)
    several = min(max(_ENOUGH // one, 1), -(-batch // _STEPS)) if channels == count else 1
    return ChannelBlocks(several, channels, group, several * one)
