"""Positional encodings of Dask arrays, block by block."""

from __future__ import annotations

from tensorops._typing import Array
from tensorops.kernels.dask._launch import Blockwise, every_axis, given, register
from tensorops.ops.positional import _check, rope


def _rope(
    x: Array,
    positions: Array,
    *,
    base: float = 10000.0,
    freqs: Array | None = None,
    interleaved: bool = False,
    dims: int | None = None,
) -> Blockwise:
    base, interleaved, dims = _check(x, positions, base, freqs, interleaved, dims)
    options = {"base": base, "interleaved": interleaved, "dims": dims}
    around_heads = (*range(x.ndim - 3), x.ndim - 2)  # the batch and the sequence
    features, frequencies = x.ndim - 1, x.ndim
    arrays = given(
        x=every_axis(x), positions=(positions, around_heads[-positions.ndim :]), freqs=(freqs, (frequencies,))
    )
    return Blockwise(rope, arrays, options, whole=(features, frequencies))


register(rope, _rope)
