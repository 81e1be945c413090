"""Which calls of top_k the kernel computes, and with which blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tensorops.kernels.pallas.blocks import LANES, Blocks, padded, whole_rows
from tensorops.kernels.pallas.refusals import refuse_arrays

if TYPE_CHECKING:
    from tensorops.kernels.pallas.planners import Program

_MOST = 128  # elements that are selected: each takes a step in which no other row can help
_COLUMNS = 5  # for each selected element, so that few columns have several of them


def top_k(generation: str, *, x: Any, k: int, axis: int, largest: bool) -> Program | str:
    """Plan `tensorops.top_k`."""
    if reason := refuse_arrays({"x": x}):
        return reason
    if axis not in (-1, x.ndim - 1):
        return "axis is not the last of x"
    if not 0 < k <= _MOST:
        return f"k is {k}, expected 1 … {_MOST}"
    length = x.shape[-1]
    columns = min(padded(_COLUMNS * k, LANES), padded(length, LANES))
    parts = whole_rows(math.prod(x.shape[:-1]), padded(length, columns), [x.dtype.itemsize], 0, generation)
    if parts is None:
        return f"rows of {length} elements do not fit the vector memory of a TPU {generation}"
    blocks: Blocks = parts

    def program(x: Any) -> list[Any]:
        from tensorops.kernels.pallas import selection

        return selection.top_k(blocks, generation, x, k, columns, largest=largest)

    return program
