"""Selection in C++: every SIMD target, dtype, layout and number of candidates; rows that are divided among threads.

That it is chosen, and agrees with the reference on all cases, is tested in `test_conformance`.
"""

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import DTYPES, REFERENCES

_native = support.require_native()
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
EVERY = [*DTYPES, *INTEGERS]


def numbers(rng, dtype, *shape):
    """Numbers of the whole range, or normally distributed ones."""
    if dtype in DTYPES:
        return support.normal(rng, *shape, dtype=dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def assert_selected(x, k, **options):
    """Assert that the values are those of the reference, bit by bit, and so are the indices."""
    values, indices = _native.top_k(x, k, **options)
    _, expected = REFERENCES["top_k"](x, k, **options)
    assert (values.dtype, indices.dtype) == (x.dtype, np.intp)
    np.testing.assert_array_equal(indices, expected)
    assert values.tobytes() == np.take_along_axis(x, expected, axis=-1).tobytes()


ORDERS = {
    "random": lambda x: x,
    "ascending": lambda x: np.take_along_axis(x, np.argsort(x.astype(np.float64), axis=-1), axis=-1),
    "descending": lambda x: np.take_along_axis(x, np.argsort(-x.astype(np.float64), axis=-1), axis=-1),
    "equal": lambda x: np.repeat(x[:, :1], x.shape[-1], axis=-1),
    "few values": lambda x: x[:, np.arange(x.shape[-1]) * 7 % 11 % min(x.shape[-1], 11)],
    "best in the middle": lambda x: np.concatenate([x[:, ::2], x[:, 1::2][:, ::-1]], axis=-1),
}


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", EVERY)
def test_every_length_and_number(target, dtype, order, largest, rng):
    """From one vector to many; with and without a lower bound, and candidates that are sorted in both ways."""
    for n, k in [(1, 1), (15, 4), (64, 8), (129, 16), (300, 1), (700, 90), (1000, 129), (3000, 40), (5000, 400)]:
        assert_selected(np.ascontiguousarray(ORDERS[order](numbers(rng, dtype, 2, n))), k, largest=largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(target, dtype, rng):
    for n, k in [(40, 5), (40, 40), (1000, 30), (1000, 900), (6000, 100)]:
        x = numbers(rng, dtype, 3, n)
        for share, value in [(0.3, np.nan), (0.1, np.inf), (0.2, -np.inf), (0.1, -0.0), (0.1, 0.0)]:
            x[rng.random(x.shape) < share] = value
        x[2, rng.random(n) < 0.98] = np.nan  # fewer numbers than are wanted
        for largest in (True, False):
            assert_selected(x, k, largest=largest)
    nothing = np.full((1, 500), np.nan).astype(DTYPES[dtype])
    for k in (3, 100, 500):
        assert_selected(nothing, k)
        assert_selected(np.where(np.arange(500) % 9 == 3, -np.inf, nothing).astype(DTYPES[dtype]), k)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
def test_the_layout_makes_no_difference(target, dtype, rng):
    room = numbers(rng, dtype, 5, 4, 131)
    for index in (np.s_[:, :, 1:], np.s_[::2, 1:, :65], np.s_[::-1, ::-1], np.s_[1, :, 3:4], np.s_[0, 0]):
        assert_selected(room[index], 1)
        assert_selected(room[index], room[index].shape[-1])
    assert_selected(np.broadcast_to(room[0, 0], (6, 131)), 9)
    odd = np.frombuffer(b"x" + room.tobytes(), dtype=np.uint8)[1:].view(room.dtype)  # not aligned
    assert_selected(odd.reshape(room.shape), 20)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint32"])
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 400_000, 50), (1, 400_000, 1), (1, 300_000, 20_000), (2, 200_000, 3)])
def test_few_long_rows_over_threads(target, dtype, rows, n, k, rng):
    """Divided, a row has candidates from every part; equal ones are in the order of the parts."""
    x = numbers(rng, dtype, rows, n)
    x[:, ::3] = x[0, 1]
    together = _native.top_k(x, k)
    before = _native.use_one_thread(True)
    try:
        alone = _native.top_k(x, k)
    finally:
        _native.use_one_thread(before)
    for ours, theirs in zip(together, alone, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    order = np.lexsort((np.arange(n), -x[0].astype(np.float64)))
    np.testing.assert_array_equal(together[1][0], order[:k])


def test_rows_over_threads(target, rng):
    x = numbers(rng, "float32", 64, 20001)
    together, alone = _native.top_k(x, 33), [_native.top_k(row, 33) for row in x]
    for i, part in enumerate(together):
        np.testing.assert_array_equal(part, [one[i] for one in alone])


def test_what_is_refused():
    x = np.ones((4, 6), np.float32)
    for array, k, options, reason in [
        (x[:, ::2], 2, {}, "the last axis of x is not contiguous"),
        (x, 2, {"axis": 0}, "axis is not the last of x"),
        (x, 7, {}, "k is not within 0 … the length of x"),
        (x, -1, {}, "k is not within 0 … the length of x"),
        (x, 2.0, {}, "k is not within 0 … the length of x"),
        (x, 2, {"largest": 1}, "largest is not a bool"),
        (x > 0, 2, {}, "x has a dtype without a kernel"),
        (x.astype(np.complex64), 2, {}, "x has a dtype without a kernel"),
        (x.astype(">f4"), 2, {}, "x is in foreign byte order"),
        (np.broadcast_to(np.int8(0), 2**32), 1, {}, "the last axis of x is not contiguous"),
        (x[0, 0], 1, {}, "x is not an array"),
        (x[0, 0, ...], 1, {}, "x has 0 dimensions"),
    ]:
        assert _native.top_k_supports(array, k, **options) == reason
        assert _native.top_k(array, k, **options) is NotImplemented


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_kernel_runs(library, rng):
    support.require(library)
    x = numbers(rng, "int16", 3, 50)
    expected = REFERENCES["top_k"](x, 5)
    (there,) = support.there((x,), library)
    with tp.trace() as log:
        values, indices = support.back(tp.top_k(there, 5))
    assert [record.kernel for record in log] == ["cpu" if library == "numpy" else "torch_cpu"]
    np.testing.assert_array_equal(values, expected[0])
    np.testing.assert_array_equal(indices, expected[1])
