"""The launches of products with a matrix: every product is computed once, for shapes of any size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensorops.kernels._gpu.linear import linear
from tensorops.kernels._gpu.plans import Device, Operand, contiguous_strides
from tensorops.kernels._gpu.quantization import quantized_linear

PROCESSOR = Device("cpu", 2, 16, 2**18, 8192, True)
GPUS = {
    f"{units} units, {lanes} lanes": Device("gpu", units, lanes, 2**15, 256, True)
    for units, lanes in ((1, 0), (132, 32))
}
DEVICES = pytest.mark.parametrize("device", [PROCESSOR, *GPUS.values()], ids=["processor", *GPUS])


def operand(dtype, *shape):
    return Operand(dtype, shape, contiguous_strides(shape))


def products(device, rows, outputs, columns, dtype="float32"):
    plan = linear(device, operand(dtype, rows, columns), operand(dtype, outputs, columns), None)
    (launch,) = plan.launches
    return launch


@DEVICES
@pytest.mark.parametrize(("rows", "outputs"), [*itertools.product((1, 3, 4, 9, 31, 33, 65), (1, 2, 3, 7, 64, 130))])
def test_every_product_is_computed_once(device, rows, outputs):
    launch = products(device, rows, outputs, 96)
    d, (tiles, tiles_of_rows), each = launch.defines, launch.arguments[-2:], int(launch.arguments[-6])
    count = np.zeros((rows, outputs), int)
    high, wide = (64, 64) if d["TILED"] else (d["X_ROWS"], d["OUTPUTS"])
    for index in range(launch.groups * each * d["ROWS"]):
        if index >= tiles:
            continue
        row, first = index % int(tiles_of_rows) * high, index // int(tiles_of_rows) * wide
        begin = first if d["TILED"] else min(first, outputs - wide)
        assert begin >= 0
        count[row : row + high, first : begin + wide] += 1
    assert (count == 1).all()


@DEVICES
@pytest.mark.parametrize(
    ("rows", "outputs", "columns"), [(1, 2**31 + 5, 8), (2**31 + 5, 1, 8), (2**20, 2**20, 64), (7, 3, 2**31 - 2**17)]
)
def test_large_shapes_are_counted_in_64_bits(device, rows, outputs, columns):
    launch = products(device, rows, outputs, columns)
    *_, length2, most, tiles, tiles_of_rows = launch.arguments
    assert (most, int(tiles) % int(tiles_of_rows)) == (outputs, 0)
    assert {type(a) for a in (length2, most, tiles, tiles_of_rows)} == {np.int64}
    assert launch.groups * int(launch.arguments[-6]) * launch.defines["ROWS"] >= tiles


@DEVICES
def test_rows_beyond_the_kernels_are_refused(device):
    assert "2**31" in linear(device, operand("float32", 1, 2**31), operand("float32", 1, 2**31), None)


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("bits", "group_size"), [*itertools.product((4, 8), (2, 6, 16, 20, 32, 48, 64, 128))])
def test_chunks_are_in_one_group(device, dtype, bits, group_size):
    columns = 1920 * group_size
    matrices = (operand("uint8", 5, columns * bits // 8), *(operand("float16", 5, 1920) for _ in range(2)))
    plan = quantized_linear(device, operand(dtype, 1, columns), *matrices, bits=bits, group_size=group_size)
    (launch,) = plan.launches
    d = launch.defines
    chunk = (d["VEC"] * 8 if device.kind == "cpu" else d["WORDS"] * 32) // bits
    assert chunk % d["VEC"] == 0
    assert d["WHOLE"] == (group_size % chunk == 0)
    groups_of_chunk = int(launch.arguments[launch.arguments.index("y") - 1])
    chunks = np.arange(columns // chunk)
    if d["WHOLE"]:
        np.testing.assert_array_equal(chunks * groups_of_chunk >> 32, chunks * chunk // group_size)
    else:
        smallest = 2 * 8 // bits if device.kind == "cpu" else 32 // bits
        assert group_size % smallest
