"""sparse_2_4: two of every four neighbours in float16, the others are 0; 32 numbers in a block.

Four bytes of places precede the 16 numbers: two bits for each, those of the first of four neighbours lowest.

Source: Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021, https://arxiv.org/abs/2104.08378.
"""

from __future__ import annotations

from tensorops.formats._bits import joined, number
from tensorops.formats._format import Format, Groups
from tensorops.formats._packing import number_bytes
from tensorops.libraries import has_host_values
from tensorops.typing import Array, Namespace


def prune_2_4(xp: Namespace, w: Array) -> Array:
    """Keep the two numbers of largest magnitude of every four neighbours in a row, and make the others 0.

    Parameters
    ----------
    xp : namespace
        Of the array.
    w : array, floating point, shape (..., columns)
        Numbers; 4 divides the columns.

    Returns
    -------
    array
        Like `w`: what `tensorops.quantize` takes for format ``"sparse_2_4"``. Of equal magnitudes, the first are kept.

    Raises
    ------
    ValueError
        If 4 does not divide the columns.

    Examples
    --------
    >>> import numpy as np
    >>> from tensorops import formats
    >>> formats.prune_2_4(np, np.asarray([[1.0, -3.0, 2.0, 0.5]]))
    array([[ 0., -3.,  2.,  0.]])
    """
    if w.ndim < 1 or w.shape[-1] % 4:
        raise ValueError(f"prune_2_4: w has shape {tuple(w.shape)}, whose last axis is not a multiple of 4")
    fours = xp.reshape(w, (*w.shape[:-1], w.shape[-1] // 4, 4))
    is_kept = xp.stack(_largest_two(xp, fours), axis=-1)
    return xp.reshape(xp.where(is_kept, fours, xp.zeros_like(fours)), w.shape)


def _largest_two(xp: Namespace, fours: Array) -> list[Array]:
    """Return which of four numbers along the last axis are among the two of largest magnitude."""
    sizes = [xp.abs(fours[..., i]) for i in range(4)]

    def is_kept(i: int) -> Array:
        before, after = [sizes[j] >= sizes[i] for j in range(i)], [sizes[j] > sizes[i] for j in range(i + 1, 4)]
        return xp.sum(xp.astype(xp.stack([*before, *after], axis=-1), xp.int32), axis=-1) < 2

    return [is_kept(i) for i in range(4)]


def _unpack(xp: Namespace, blocks: Array) -> Groups:
    before = blocks.shape[:-1]
    places = joined(xp, xp.stack((blocks[..., :4] & 15, blocks[..., :4] >> 4), axis=-1), 2)
    values = number(xp, xp.reshape(blocks[..., 4:], (*before, 8, 2, 2)), 2)
    first, second = values[..., 0, 0], values[..., 1, 0]
    zero = xp.zeros_like(first)
    each = [xp.where(places >> 2 == i, second, xp.where(places & 3 == i, first, zero)) for i in range(4)]
    return Groups(joined(xp, xp.stack(each, axis=-1), 2), xp.ones_like(first[..., :1]), None)


def _pack(xp: Namespace, w: Array) -> Array:
    fours = xp.reshape(w, (*w.shape[:-1], 8, 4))
    if has_host_values(w) and bool(xp.any(xp.sum(xp.astype(fours != 0.0, xp.int32), axis=-1) > 2)):
        raise ValueError(
            "quantize: w has more than two numbers other than 0 in four neighbours, but format 'sparse_2_4' keeps two; "
            "tensorops.formats.prune_2_4 makes the others 0"
        )
    is_kept = _largest_two(xp, fours)

    def two(each: list[Array]) -> tuple[Array, Array]:
        first = xp.where(is_kept[0], each[0], xp.where(is_kept[1], each[1], each[2]))
        return first, xp.where(is_kept[3], each[3], xp.where(is_kept[2], each[2], each[1]))

    first, second = two([xp.full_like(fours[..., 0], i, dtype=xp.uint8) for i in range(4)])
    places = first | (second << 2)
    values = xp.stack(two([fours[..., i] for i in range(4)]), axis=-1)
    stored = joined(xp, number_bytes(xp, xp.expand_dims(values, axis=-1), 2), 3)
    return xp.concat((places[..., 0::2] | (places[..., 1::2] << 4), stored), axis=-1)


FORMAT = Format("sparse_2_4", elements=32, nbytes=36, group_size=32, bits=0, unpack=_unpack, pack=_pack)
