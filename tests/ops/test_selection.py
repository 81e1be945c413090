"""Selection: the reference against numbers worked out by hand; integers, gradients and transformations of top_k."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from tensorops.testing import selection as references

inf, nan = np.inf, np.nan
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize(
    ("row", "largest", "expected"),
    [
        ([1.0, nan, inf, -inf, 2.0], True, [2, 4, 0, 3, 1]),
        ([1.0, nan, inf, -inf, 2.0], False, [3, 0, 4, 2, 1]),
        ([nan, -inf, nan, -inf], True, [1, 3, 0, 2]),
        ([nan, inf, nan, inf], False, [1, 3, 0, 2]),
        ([-0.0, 0.0, -0.0], True, [0, 1, 2]),
        ([0.0, -0.0, 0.0], False, [0, 1, 2]),
        ([3, -128, 127, 3], True, [2, 0, 3, 1]),
        ([3, -128, 127, 3], False, [1, 0, 3, 2]),
    ],
)
def test_top_k_by_hand(library, row, largest, expected):
    x = np.array(row, np.int8 if isinstance(row[0], int) else np.float32)
    values, indices = references.top_k(x, len(row), largest=largest)
    assert_array_equal(indices, expected)
    assert_array_equal(values, x[expected])
    (there,) = support.there((x,), library.name)
    for call in (tp.top_k, tp.top_k.generic):
        values, indices = support.back(call(there, len(row), largest=largest))
        assert_array_equal(indices, expected)
        assert_array_equal(values, x[expected])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_every_width(library, dtype, largest, rng):
    """At the ends of the range, where a negation or a conversion to another width would overflow."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    ends = np.array([low, high, low + 1, high - 1, high // 2, high // 2 + 1, 0, 1], dtype)
    x = rng.choice(ends, (3, 40)).astype(dtype)
    expected = references.top_k(x, 9, largest=largest)
    with support.holding(library.name, "float64"):  # in JAX, int64 needs the same setting
        (there,) = support.there((x,), library.name)
        for call in (tp.top_k, tp.top_k.generic):
            values, indices = support.back(call(there, 9, largest=largest))
            assert values.dtype == dtype
            assert_array_equal(values, expected[0])
            assert_array_equal(indices, expected[1])


def test_equal_elements_of_a_long_row_keep_their_order(library, rng):
    x = rng.integers(0, 3, (2, 4000)).astype(np.float32)
    expected = references.top_k(x, 2500)
    (there,) = support.there((x,), library.name)
    for call in (tp.top_k, tp.top_k.generic):
        assert_array_equal(support.back(call(there, 2500))[1], expected[1])


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((5,), {}, r"^top_k: k is 5, expected 0 … 4, the length of x along axis -1$"),
        ((4,), {"axis": 0}, r"^top_k: k is 4, expected 0 … 3, the length of x along axis -2$"),
        ((10**30,), {}, r"^top_k: k is 1\d*0, expected 0 … 4"),
        ((1,), {"axis": 2}, r"^top_k: axis 2 is out of range, x has 2 dimensions$"),
    ],
)
def test_messages(args, options, message):
    for call in (tp.top_k, tp.top_k.generic):
        with pytest.raises(ValueError, match=message):
            call(np.ones((3, 4), np.float32), *args, **options)


# --- gradients and transformations -------------------------------------------------------------------

X = np.array([[1.0, 4.0, nan, 3.0], [2.0, 2.0, -1.0, 0.5]], np.float32)
C = np.array([[0.5, 0.25], [3.0, 7.0]], np.float32)
GRADIENT = np.array([[0.0, 0.5, 0.0, 0.25], [3.0, 7.0, 0.0, 0.0]], np.float32)


def test_gradients_flow_to_the_elements_taken():
    torch = support.require("torch") and pytest.importorskip("torch")
    x = torch.tensor(X, requires_grad=True)
    values, indices = tp.top_k(x, 2)
    assert not indices.requires_grad
    (values * torch.tensor(C)).sum().backward()
    assert_array_equal(x.grad.numpy(), GRADIENT)


def test_gradients_and_transformations_in_jax():
    support.require("jax")
    import jax

    def loss(x):
        return (tp.top_k(x, 2)[0] * C).sum()

    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        assert_array_equal(gradient(jax.numpy.asarray(X)), GRADIENT)
    stacked = np.stack([X, X[::-1]])
    expected = references.top_k(stacked, 2)
    for call in (jax.vmap(lambda x: tp.top_k(x, 2)), jax.jit(lambda x: tp.top_k(x, 2))):
        values, indices = call(jax.numpy.asarray(stacked))
        assert_array_equal(values, expected[0])
        assert_array_equal(indices, expected[1])
        assert indices.dtype == np.int32
    values, indices = jax.vmap(lambda x: tp.top_k(x, 2), in_axes=2)(jax.numpy.asarray(np.moveaxis(stacked, 0, 2)))
    assert_array_equal(indices, expected[1])


def test_gradients_in_mlx():
    support.require("mlx")
    import mlx.core as mx

    gradient = mx.grad(lambda x: (tp.top_k(x, 2)[0] * mx.array(C)).sum())(mx.array(X))
    assert_array_equal(np.asarray(gradient), GRADIENT)


@pytest.mark.parametrize("chunks", [(1, 4), (2, 2)], ids=str)  # the second is computed by the body
def test_dask_knows_shapes_and_dtypes_before(chunks):
    support.require("dask")
    import dask.array as da

    x = da.from_array(X, chunks=chunks)
    values, indices = tp.top_k(x, 2)
    assert (values.shape, indices.shape) == ((2, 2), (2, 2))
    assert (values.dtype, indices.dtype) == (np.float32, np.int64)
    assert (tp.top_k.explain(x, 2).kernel == "dask") == (chunks == (1, 4))
    expected = references.top_k(X, 2)
    assert_array_equal(values.compute(), expected[0])
    assert_array_equal(indices.compute(), expected[1])
    assert indices.compute().dtype == np.int64
