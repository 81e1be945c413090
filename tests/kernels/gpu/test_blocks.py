"""Products with blocks of each format, and their numbers: on OpenCL devices, an emulated GPU, and by NVRTC."""

from __future__ import annotations

import numpy as np
import pytest

import emulation
import gpu_cases
import gpu_compiled
import support
import tensorops as tp
from tensorops import formats
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels._gpu.plans import Operand, contiguous_strides
from tensorops.kernels.cuda import _compile
from tensorops.testing import DTYPES, REFERENCES
from tensorops.testing._stored_blocks import FORMATS, random_blocks

pytestmark = pytest.mark.dimensions
READ = [name for name in FORMATS if not name.startswith(("fp8", "sparse"))]
NAMES = pytest.mark.parametrize("name", READ)
SIZES = [(1, 1, 1), (1, 17, 7), (2, 3, 7), (3, 17, 1), (8, 3, 2), (33, 17, 1), (64, 3, 3)]  # rows, outputs, blocks
TOLERANCES = {"float64": 1e-14, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


def drawn(name, rows, outputs, blocks, dtype="float32"):
    """Return rows of x, and rows of random blocks."""
    rng = np.random.default_rng([rows, outputs, blocks])
    columns = blocks * formats.get(name).elements
    return rng.standard_normal((rows, columns)).astype(DTYPES[dtype]), random_blocks(rng, name, outputs, columns)


def assert_is_product(y, x, stored, name, dtype="float32"):
    """Compare with float64, relative to the sum of the magnitudes of products."""
    exact = REFERENCES["quantized_linear"](x, stored, format=name)
    size = np.abs(x.astype(np.float64)) @ np.abs(REFERENCES["dequantize"](stored, format=name)).T
    assert y.dtype == DTYPES[dtype]
    assert (np.abs(y.astype(np.float64) - exact) <= TOLERANCES[dtype] * size).all()


# --- OpenCL ------------------------------------------------------------------------------------------


def computed(operator, *arrays, **options):
    """Return the result of a call that the kernel took, as a NumPy array."""
    explained = operator.explain(*arrays, **options)
    assert explained.kernel == "opencl", explained
    return support.back(operator(*arrays, **options))


@pytest.fixture
def there():
    support.require("pyopencl")
    return lambda *arrays: support.on_opencl(list(arrays))


@NAMES
def test_products_of_every_size(geometry, there, name):
    for sizes in SIZES:
        x, stored = drawn(name, *sizes)
        assert_is_product(computed(tp.quantized_linear, *there(x, stored), format=name), x, stored, name)


@NAMES
def test_half_inputs(geometry, there, name):
    x, stored = drawn(name, 3, 17, 2, "float16")
    assert_is_product(computed(tp.quantized_linear, *there(x, stored), format=name), x, stored, name, "float16")


@NAMES
def test_numbers_of_any_bytes_are_those_of_the_format_bit_by_bit(geometry, there, name):
    stored = np.random.default_rng(0).integers(0, 256, (9, 5 * FORMATS[name][1]), dtype=np.uint8)
    if name == "mxfp4":
        stored.reshape(9, 5, -1)[..., 0] |= 8  # drivers differ in numbers smaller than the normal
    with np.errstate(all="ignore"):
        expected = formats.get(name).values(np, stored)
    rows = np.asarray([[3, 8, 0], [0, 1, 1]], np.int64)
    for found, numbers in (
        (computed(tp.dequantize, *there(stored), format=name), expected),
        (computed(tp.embedding, *there(rows, stored), format=name), expected[rows]),
    ):
        are_numbers = ~np.isnan(numbers)
        np.testing.assert_array_equal(np.isnan(found), ~are_numbers)
        np.testing.assert_array_equal(found[are_numbers].view(np.uint32), numbers[are_numbers].view(np.uint32))


def test_ids_out_of_range_give_nan(geometry, there):
    _, stored = drawn("q4_k", 1, 4, 1)
    ids = np.asarray([-1, 2, 4, 2**40], np.int64)
    y = computed(tp.embedding, *there(ids, stored), format="q4_k")
    assert np.isnan(y[[0, 2, 3]]).all()
    np.testing.assert_array_equal(y[1], tp.dequantize(stored, format="q4_k")[2])


@pytest.mark.parametrize("rows", [2, 40])
def test_views(geometry, there, rows):
    """Every second row of blocks, without the first block, and inputs whose elements are apart."""
    wide, stored = drawn("q6_k", rows, 10, 4)
    on_device = there(wide, stored)
    x, some = wide[:, ::2], stored[1::2, 210:630]
    y = computed(tp.quantized_linear, on_device[0][:, ::2], on_device[1][1::2, 210:630], format="q6_k")
    assert_is_product(y, x, some, "q6_k")


def test_what_kernels_do_not_take_is_said(there):
    x, stored = drawn("q8_0", 1, 3, 4)
    x, twice = there(x, np.repeat(stored, 2, axis=1))
    explained = tp.quantized_linear.explain(x, twice[:, ::2], format="q8_0")
    assert explained.kernel == "generic"
    assert "the bytes of rows of blocks are not contiguous" in str(explained)


# --- the emulated GPU, and CUDA ----------------------------------------------------------------------


def planned(device, name, x, weight):
    options = {"bits": 4, "group_size": 32, "format": name}
    plan = PLANNERS[tp.quantized_linear](device, x, weight, None, None, **options)
    assert not isinstance(plan, str), plan
    return plan


@pytest.mark.parametrize(
    ("device", "dtype", "sizes", "lead"),
    [
        ("cuda", "float32", (1, 17, 7), 0),
        pytest.param("cuda", "bfloat16", (5, 3, 3), 0, marks=pytest.mark.exhaustive),
        pytest.param("no-shuffles", "float64", (2, 1, 7), 1, marks=pytest.mark.exhaustive),
        pytest.param("cuda", "float16", (40, 17, 1), 1, marks=pytest.mark.exhaustive),
    ],
)
@NAMES
def test_emulated_products(name, device, dtype, sizes, lead):
    if not emulation.compiler():
        pytest.skip("there is no C++ compiler")
    x, stored = drawn(name, *sizes, dtype)
    plan = planned(gpu_cases.DEVICES[device], name, *(emulation.operand_of(a, lead) for a in (x, stored)))
    assert_is_product(emulation.run(plan, {"x": x, "weight": stored}, lead)["y"], x, stored, name, dtype)


@NAMES
def test_programs_compile_without_spills(name):
    """Each format for some rows on one of the architectures; .ci/gpu-compiled has some formats on all."""
    if not gpu_compiled.library():
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    place = [*FORMATS].index(name)
    architecture = gpu_compiled.ARCHITECTURES[place % len(gpu_compiled.ARCHITECTURES)]
    rows, dtype = (1, 8, 2, 4)[place % 4], ("float32", "float16", "float64")[place % 3]
    shapes = (rows, 2048), (512, 2048 // FORMATS[name][0] * FORMATS[name][1])
    operands = [Operand(d, s, contiguous_strides(s)) for d, s in zip((dtype, "uint8"), shapes, strict=True)]
    (launch,) = planned(gpu_compiled.GPU, name, *operands).launches
    program = gpu_compiled.Program(_compile.program(launch), launch, "quantized_linear", dtype)
    assert gpu_compiled.made_of(program, architecture, disassembled=False).problems == ()


@pytest.mark.parametrize("rows", [1, 3, 8])
@NAMES
def test_few_rows_read_each_row_of_blocks_by_one_team(name, rows):
    of = formats.get(name)
    shapes = (rows, 16 * of.elements), (6, 16 * of.nbytes)
    operands = [Operand(d, s, contiguous_strides(s)) for d, s in zip(("float32", "uint8"), shapes, strict=True)]
    (launch,) = planned(gpu_compiled.GPU, name, *operands).launches
    outputs, tiles, tiles_of_rows = launch.arguments[-3:]
    assert (outputs, tiles_of_rows) == (6, 1)
    assert tiles * launch.defines["OUTPUTS"] == outputs
    assert tiles <= launch.groups * launch.defines["ROWS"] < tiles + launch.defines["ROWS"]
