"""Which calls of quantized_linear the kernel computes, and with which blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tensorops.kernels.pallas.blocks import LANES, MIB, VMEM, Blocks, padded, tile_rows
from tensorops.kernels.pallas.refusals import DTYPES, refuse_arrays
from tensorops.ops.quantization import AFFINE

if TYPE_CHECKING:
    from tensorops.kernels.pallas.planners import Program

_STREAMED = MIB // 2  # bytes of integers in a step: more than what moves while a step starts
_MOST_OUTPUTS = 256  # in a step
_FEW = 16  # rows whose columns each step sorts again
_WIDE = 8 * 4 * LANES  # bytes of numbers in registers' place, for each row and each output: eight columns of lanes
_TILE = 8  # rows of a tile where they are few
_MOST = 0.9  # of the vector memory


def quantized_linear(
    generation: str,
    *,
    x: Any,
    weight: Any,
    scales: Any = None,
    biases: Any = None,
    bits: int,
    group_size: int,
    format: str = "affine",
    precision: str = "highest",
) -> Program | str:
    """Plan `tensorops.quantized_linear`."""
    if format != AFFINE:
        return _of_blocks(generation, x, weight, format)
    if reason := refuse_arrays({"x": x}) or refuse_arrays({"weight": weight}, ("uint8",)):
        return reason
    if reason := refuse_arrays({"scales": scales, "biases": biases}, (*DTYPES, "float16")):
        return reason
    rows = math.prod(x.shape[:-1])
    sorted_once = bits == 4 and rows > _FEW
    parameters = [a for a in (scales, biases) if a is not None]
    found = _blocks(rows, weight.shape, bits, x.dtype.itemsize, parameters, sorted_once, generation)
    if found is None:
        return f"rows of {x.shape[-1]} elements do not fit the vector memory of a TPU {generation}"

    def program(**arrays: Any) -> list[Any]:
        from tensorops.kernels.pallas import quantized

        layout = quantized.Format(bits, weight.shape[1], group_size * bits // 8, biases is None)
        return [quantized.quantized_linear(found, generation, sorted_once, layout, **arrays)]

    return program


def _of_blocks(generation: str, x: Any, weight: Any, format: str) -> Program | str:
    if reason := refuse_arrays({"x": x}) or refuse_arrays({"weight": weight}, ("uint8",)):
        return reason
    from tensorops.kernels.pallas.block_layouts import LAYOUTS

    if format not in LAYOUTS:
        return f"the kernel reads no blocks of format {format!r}"
    rows, (outputs, width) = math.prod(x.shape[:-1]), weight.shape
    sorted_once, bits = rows > _FEW, LAYOUTS[format].bits
    found = _blocks(rows, weight.shape, bits, x.dtype.itemsize, [], sorted_once, generation)
    if found is None:
        return f"rows of {x.shape[-1]} elements do not fit the vector memory of a TPU {generation}"

    def program(x: Any, weight: Any) -> list[Any]:
        from tensorops.kernels.pallas import quantized_blocks

        plan = quantized_blocks.plan(format, width, along_lanes=_along_lanes(outputs, width))
        return [quantized_blocks.quantized_linear(found, generation, sorted_once, plan, x, weight)]

    return program


def _along_lanes(outputs: int, width: int) -> bool:
    """Return whether XLA stores rows of bytes along the lanes, as it does where tiles are fuller then.

    It would copy the array for a kernel that expects the other order.
    """
    return padded(outputs, _TILE) * padded(width, LANES) <= padded(width, _TILE) * padded(outputs, LANES)


def _blocks(
    rows: int,
    shape: tuple[int, int],
    bits: int,
    itemsize: int,
    parameters: list[Any],
    sorted_once: bool,
    generation: str,
) -> Blocks | None:
    """Divide rows of `x` and outputs; ``None`` if not even one tile of rows fits.

    The fewer blocks of rows, the less often weights are read: rather than to divide rows, steps have fewer outputs.
    """
    outputs, width = shape[0], padded(shape[1], LANES)
    of_parameters = sum((2 * a.dtype.itemsize + 4) * padded(a.shape[1], LANES) for a in parameters)
    of_output = 2 * width + of_parameters + _WIDE
    of_columns = width * 8 // bits * itemsize * (2 if sorted_once else 1)
    tile = tile_rows([itemsize])
    usual = min(max(_STREAMED // width // LANES * LANES, LANES), _MOST_OUTPUTS, padded(outputs, LANES))
    found: list[Blocks] = []
    for count in range(usual, 0, -LANES):
        of_row = of_columns + count * (2 * itemsize + 8) + _WIDE
        most = int(_MOST * VMEM[generation] - count * of_output) // of_row // tile * tile
        if most > 0:
            held = padded(-(-rows // -(-rows // most)), tile)
            found.append(Blocks(held, count, held * of_row + count * of_output))
    return min(found, key=lambda each: -(-rows // each.rows), default=None)
