"""Sums and means whose error does not grow with their length, even if a library adds elements one by one."""

from __future__ import annotations

from math import prod

from tensorops.libraries import sums_in_order
from tensorops.typing import Array, Namespace

_BLOCK = 128  # shorter sums lose few digits, if any


def sum_along(xp: Namespace, x: Array, axes: tuple[int, ...], *, keepdims: bool = False) -> Array:
    """Return the sum of floating-point `x` along axes counted from the front.

    If the library adds in order, blocks of neighbours are summed, then their sums in the same way: no partial sum has
    more than `_BLOCK` terms.
    """
    if not _needs_blocks(x, axes):
        return xp.sum(x, axis=axes, keepdims=keepdims)
    for axis in axes:
        x = _sum_in_blocks(xp, x, axis)
    return x if keepdims else xp.squeeze(x, axis=axes)


def mean_along(xp: Namespace, x: Array, axes: tuple[int, ...], *, keepdims: bool = False) -> Array:
    """Return the mean of `x` along axes counted from the front, summed as `sum_along` does."""
    if not _needs_blocks(x, axes):
        return xp.mean(x, axis=axes, keepdims=keepdims)
    return sum_along(xp, x, axes, keepdims=keepdims) / prod(x.shape[a] for a in axes)


def _needs_blocks(x: Array, axes: tuple[int, ...]) -> bool:
    return any(x.shape[a] > _BLOCK for a in axes) and sums_in_order(x)


def _sum_in_blocks(xp: Namespace, x: Array, axis: int) -> Array:
    before, after = tuple(x.shape[:axis]), tuple(x.shape[axis + 1 :])
    along = (slice(None),) * axis
    while (n := x.shape[axis]) > _BLOCK:
        whole = n - n % _BLOCK
        blocks = xp.reshape(x[(*along, slice(0, whole), ...)], (*before, whole // _BLOCK, _BLOCK, *after))
        sums = xp.sum(blocks, axis=axis + 1)
        if whole < n:
            rest = xp.sum(x[(*along, slice(whole, n), ...)], axis=axis, keepdims=True)
            sums = xp.concat((sums, rest), axis=axis)
        x = sums
    return xp.sum(x, axis=axis, keepdims=True)
