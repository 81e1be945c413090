"""Which calls of linear_cross_entropy the kernel computes, and with which blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tensorops._dtypes import is_floating
from tensorops.kernels.pallas.blocks import LANES, MIB, TOGETHER, VMEM, Blocks, padded
from tensorops.kernels.pallas.refusals import refuse_arrays

if TYPE_CHECKING:
    from tensorops.kernels.pallas.planners import Program

_STREAMED = 2 * MIB  # bytes of weights in a step
_MOST_CLASSES = 512  # in a step
_WIDE = 8 * 4  # bytes of numbers that are alive for each logit
_OF_ROW = 4 * 4 * LANES + 32  # bytes of what is known of a row, one number in a register, and of its results
_MOST = 0.9  # of the vector memory


def linear_cross_entropy(
    generation: str,
    *,
    x: Any,
    weight: Any,
    targets: Any,
    bias: Any = None,
    ce_weight: Any = None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Program | str:
    """Plan `tensorops.linear_cross_entropy`."""
    if is_floating(targets):
        return "targets are probabilities"
    if label_smoothing:
        return "label_smoothing is not 0"
    if reason := refuse_arrays({"x": x, "weight": weight, "bias": bias, "ce_weight": ce_weight}):
        return reason
    rows, (classes, features) = math.prod(x.shape[:-1]), weight.shape
    found = _blocks(rows, classes, features, x.dtype.itemsize, weight.dtype.itemsize, generation)
    if found is None:
        return f"rows of {features} elements do not fit the vector memory of a TPU {generation}"
    options = {"reduction": reduction, "ignore_index": ignore_index, "z_loss": z_loss}

    def program(**arrays: Any) -> list[Any]:
        from tensorops.kernels.pallas import projected_loss

        return projected_loss.linear_cross_entropy(found, generation, **arrays, **options)

    return program


def _blocks(rows: int, classes: int, features: int, size: int, weight_size: int, generation: str) -> Blocks | None:
    """Divide rows and classes; ``None`` if not even the smallest blocks fit.

    The fewer blocks of rows, the less often weights are read: rather than to divide rows, steps have fewer classes.
    """
    width = padded(features, LANES)
    of_row = width * size + _OF_ROW
    of_class = 2 * width * weight_size + 32 + _WIDE * TOGETHER
    if size < 4 or weight_size < 4:
        of_class += 0 if size == weight_size else 4 * width  # factors of two dtypes are widened
    rest = 4 * width * TOGETHER if size < weight_size else 0
    usual = min(max(_STREAMED // (width * weight_size) // LANES * LANES, LANES), _MOST_CLASSES, padded(classes, LANES))
    found: list[Blocks] = []
    for count in range(usual, 0, -LANES):
        most = int(_MOST * VMEM[generation] - rest - count * of_class) // of_row // TOGETHER * TOGETHER
        if most > 0:
            held = padded(-(-rows // -(-rows // most)), TOGETHER)
            held = rows if rows <= TOGETHER else held
            found.append(Blocks(held, count, rest + padded(held, 32) * of_row + count * of_class))
    return min(found, key=lambda each: -(-rows // each.rows), default=None)
