"""Launch geometry as pure functions: which thread gets which elements, computed as the macros of rows.h compute it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tensorops.kernels._gpu.geometry import MAX_ROW_DIMS, joined_rows, refuse_row, rows_geometry
from tensorops.kernels._gpu.plans import Device, Operand, contiguous_strides
from tensorops.kernels._gpu.rows import rows_of
from tensorops.kernels._gpu.selection import longest_share, shares_of_rows

PROCESSOR = Device("cpu", units=4, lanes=0, local_bytes=2**18, max_block=4096, float64=True)
NVIDIA = Device("gpu", units=108, lanes=32, local_bytes=48 * 1024, max_block=1024, float64=True)
OTHER = Device("gpu", units=32, lanes=0, local_bytes=2**16, max_block=256, float64=False)
SMALL = Device("gpu", units=1, lanes=0, local_bytes=2**15, max_block=96, float64=False)
LEAST = Device("gpu", units=1, lanes=0, local_bytes=2**15, max_block=1, float64=False)
DEVICES = [PROCESSOR, NVIDIA, OTHER, SMALL, LEAST]

LONGEST = 2**31 - 1 - 2**16
LENGTHS = [1, 2, 7, 8, 63, 64, 65, 127, 129, 1000, 3071, 3072, 3073, 6144, 6145, 8192, 16385, 32768, 40001]
HUGE = [2**20 + 1, 2**30 - 1, LONGEST]
ROWS = [1, 2, 15, 16, 17, 1000, 2**16 + 1, 2**31 - 1, 2**31 + 7, 2**40]


def chunks(g, n):
    """CHUNKS: the vectors of a row that each thread computes."""
    return g.kept or (n + g.threads * g.vec - 1) // (g.threads * g.vec)


def first_element(g, thread, k):
    """ELEMENT(k) of a thread."""
    return (k * g.threads + thread % g.threads) * g.vec


def row_index(g, block, thread, turn):
    """ROW_INDEX(turn) of a thread."""
    return (block * g.each + turn) * g.rows + thread // g.threads


def is_power_of_two(n):
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", LENGTHS)
def test_each_element_of_a_row_belongs_to_one_thread(device, length, itemsize, dense):
    g = rows_geometry(device, 5, length, itemsize, dense=dense)
    k, thread, lane = np.ogrid[: chunks(g, length), : g.threads, : g.vec]
    elements = first_element(g, thread, k) + lane
    counts = np.bincount(elements[elements < length], minlength=length)
    np.testing.assert_array_equal(counts, np.ones(length, int))


@given(st.sampled_from(DEVICES), st.integers(1, 5000), st.integers(1, 300), st.sampled_from([2, 4, 8]))
def test_each_row_belongs_to_one_group_of_threads(device, rows, length, itemsize):
    g = rows_geometry(device, rows, length, itemsize)
    block, turn, of_block = np.ogrid[: g.groups, : g.each, : g.rows]
    computed = row_index(g, block, of_block * g.threads, turn)
    counts = np.bincount(computed[computed < rows], minlength=rows)
    np.testing.assert_array_equal(counts, np.ones(rows, int))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("device", DEVICES)
def test_no_index_overflows_and_no_row_is_left_out(device, itemsize, dense):
    for rows, length in itertools.product(ROWS, LENGTHS + HUGE):
        g = rows_geometry(device, rows, length, itemsize, dense=dense)
        assert is_power_of_two(g.threads)
        assert is_power_of_two(g.rows)
        assert g.block <= device.max_block
        # Elements are counted in 32 bits, also where a vector ends.
        last = first_element(g, g.threads - 1, chunks(g, length) - 1)
        assert length <= last + g.vec < 2**31
        assert 1 <= g.groups < 2**31
        # The last block has a row to compute in its first turn, and no row is beyond the last block.
        assert row_index(g, g.groups - 1, 0, 0) < rows <= row_index(g, g.groups, 0, 0) < 2**62


@pytest.mark.parametrize(("itemsize", "longest"), [(2, 24576), (4, 24576), (8, 12288)])
def test_rows_are_read_once_while_they_fit_registers(itemsize, longest):
    for length in (*range(1, 3000, 7), *range(3000, longest, 331), longest):
        g = rows_geometry(NVIDIA, 1000, length, itemsize)
        assert g.kept * g.vec * max(4, itemsize) <= 96 * 4  # with 128, NVRTC spills for sm_120
        assert g.kept, length
        # Compiled for few lengths, but no more than about a third of the registers are left empty in long rows.
        assert g.kept == 1 or g.kept * g.threads * g.vec <= 1.5 * (length + g.threads * g.vec)
    assert rows_geometry(NVIDIA, 1000, longest + 1, itemsize).kept == 0
    assert rows_geometry(NVIDIA, 1000, 4096, itemsize, passes=1).kept == 0
    assert len({rows_geometry(NVIDIA, 1000, n, itemsize).kept for n in range(1, longest, 5)}) <= 12


def test_threads_grow_with_rows():
    lengths = (64, 65, 128, 129, 3072, 3073, 6144, 6145, 12288, 12289, 10**6)
    threads = [rows_geometry(NVIDIA, 1000, n, 4).threads for n in lengths]
    assert threads == [8, 16, 16, 32, 32, 64, 64, 128, 128, 256, 256]
    # Where fewer values fit a thread's registers, more threads share a row.
    assert rows_geometry(OTHER, 1000, 3072, 4).threads == 128
    assert rows_geometry(OTHER, 1000, 3072, 4).kept == 6
    assert rows_geometry(SMALL, 1000, 3072, 4).threads == 64


def test_rows_beyond_32_bits_are_refused():
    assert refuse_row(LONGEST) is None
    assert "2147418112 elements" in refuse_row(LONGEST + 1)


# ---------------------------------------------------------------- axes

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple)


@st.composite
def layouts(draw):
    """A shape and strides of one to three arrays, which are often those of views into contiguous arrays."""
    shape = draw(SHAPES)
    strides = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else range(len(shape))
        steps, step = [0] * len(shape), draw(st.sampled_from([1, 1, 2, -1]))
        for axis in reversed(order):
            steps[axis] = 0 if draw(st.integers(0, 9)) == 0 else step
            step *= shape[axis] + draw(st.sampled_from([0, 0, 0, 1]))
        strides.append(tuple(steps))
    return shape, strides


def offsets(shape, strides):
    """The offsets of all elements, in C order."""
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]


@given(layouts())
def test_joined_axes_visit_the_same_elements(layout):
    shape, strides = layout
    joined = joined_rows(shape, strides)
    # Brute force: an axis begins where some array does not continue as the axis before it would.
    moving = [axis for axis, n in enumerate(shape) if n > 1]
    apart = 1 + sum(
        any(s[outer] != s[inner] * shape[inner] for s in strides) for outer, inner in itertools.pairwise(moving)
    )
    if apart > MAX_ROW_DIMS:
        assert joined is None
        return
    lengths, steps = joined
    assert len(lengths) == apart
    for before, after in zip(strides, steps, strict=True):
        assert len(after) == MAX_ROW_DIMS
        assert offsets(lengths, after[: len(lengths)]) == offsets(shape, before)


def row_offset(along, lengths, row):
    """ROW_OFFSET(name, row), with the lengths of the second and third axis that a launch passes."""
    length1, length2 = (*lengths[1:], 1, 1)[:2]
    if len(lengths) == 1:
        return row * along[0]
    if len(lengths) == 2:
        return row // length1 * along[0] + row % length1 * along[1]
    return row // length2 // length1 * along[0] + row // length2 % length1 * along[1] + row % length2 * along[2]


@given(SHAPES, st.data())
def test_rows_have_the_elements_that_numpy_says(shape, data):
    cut = data.draw(st.lists(st.sampled_from([slice(None), slice(None), slice(None, None, -1), slice(None, None, 2)]),
                             min_size=len(shape), max_size=len(shape)))  # fmt: skip
    order = data.draw(st.permutations(range(len(shape))))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    memory = np.arange(math.prod(shape))
    view = memory.reshape(shape)[tuple(cut)].transpose(order)
    offset = int(view.flat[0])
    x = Operand("float32", view.shape, tuple(s // memory.itemsize for s in view.strides), offset)
    y = Operand("float32", view.shape, contiguous_strides(view.shape))
    rows = rows_of(axes, x=x, y=y)
    expected = np.moveaxis(view, axes, range(-len(axes), 0))
    expected = expected.reshape(-1, math.prod(expected.shape[expected.ndim - len(axes) :]))
    if isinstance(rows, str):
        assert "cannot be joined" in rows
        assert len(axes) > 1 or view.ndim > 1 + MAX_ROW_DIMS
        return
    assert (rows.count, rows.length) == expected.shape
    _, start, step, *along = rows.arguments["x"]
    for row in range(rows.count):
        begin = start + row_offset(along, rows.lengths, row)
        np.testing.assert_array_equal(begin + step * np.arange(rows.length), expected[row])


def test_rows_of_the_largest_arrays_do_not_overflow():
    shape = (2**21, 3, 2**20)
    x = Operand("float32", shape, (3 * 2**21, 2**21, 2))
    y = Operand("float32", shape, contiguous_strides(shape))
    rows = rows_of((2,), x=x, y=y)
    assert rows.count == 3 * 2**21
    launch = rows.launch(NVIDIA, "rms_norm", "rms_norm", "float32", {}, (rows.arguments["x"],))
    numbers = [a for a in launch.arguments if not isinstance(a, str)]
    last = (rows.count - 1) * 2**21 + (2**20 - 1) * 2
    _, start, step, *along = rows.arguments["x"]
    assert start + row_offset([int(a) for a in along], rows.lengths, rows.count - 1) + (rows.length - 1) * step == last
    assert last > 2**42
    assert all(isinstance(a, np.int64) for a in numbers if a > 2**31 - 1)


@pytest.mark.parametrize(
    ("length", "dtype", "aligned"),
    [(64, "float32", 1), (66, "float32", 0), (64, "float16", 1), (68, "float16", 0), (66, "float64", 1)],
)
def test_vectors_are_whole_only_if_rows_consist_of_them(length, dtype, aligned):
    x = Operand(dtype, (10, length), (length, 1))
    rows = rows_of((1,), x=x)
    launch = rows.launch(NVIDIA, "rms_norm", "rms_norm", dtype, {}, (rows.arguments["x"],))
    assert launch.defines["ALIGNED"] == aligned
    assert launch.defines["DENSE"] == 1
    elsewhere = rows_of((1,), x=Operand(dtype, (10, length), (length, 1), aligned=8))
    assert elsewhere.launch(NVIDIA, "rms_norm", "rms_norm", dtype, {}, (rows.arguments["x"],)).defines["ALIGNED"] == 0
    sparse = rows_of((1,), x=Operand(dtype, (10, length), (2 * length, 2)))
    assert sparse.launch(NVIDIA, "rms_norm", "rms_norm", dtype, {}, (rows.arguments["x"],)).defines["DENSE"] == 0


def first_of_share(length, share, shares):
    """first_of_share of top_k.cl."""
    return length if share == shares else length // 16 * share // shares * 16


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [1, 2**14, 2**16, 2**17 - 1, 2**17, 2**20 + 1, 2**24])
@pytest.mark.parametrize("rows", [0, 1, 2, 50, 2**31])
def test_shares_of_a_long_row_are_the_row(device, length, rows):
    shares = shares_of_rows(device, rows, length)
    assert 1 <= shares <= device.units
    assert shares == 1 or (rows * shares <= device.units and length >= 2**14 * shares)
    bounds = np.asarray([first_of_share(length, share, shares) for share in range(shares + 1)])
    assert (bounds[0], bounds[-1]) == (0, length)
    assert np.diff(bounds).min() >= min(length, 64)  # as many as are sought, at most
    assert np.diff(bounds).max() <= longest_share(length, shares)


def test_only_a_processor_writes_past_its_caches_and_only_large_results():
    def stream(device, rows):
        of = rows_of((1,), x=Operand("float32", (rows, 1024), (1024, 1)))
        return of.launch(device, "rms_norm", "rms_norm", "float32", {}, (of.arguments["x"],)).defines["STREAM"]

    assert stream(PROCESSOR, 2048) == 1
    assert stream(PROCESSOR, 2047) == 0
    assert stream(NVIDIA, 2**20) == 0
