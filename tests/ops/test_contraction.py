"""Contraction: numbers worked out by hand, integers and mixed dtypes, laziness and transformations of einsum."""

import textwrap

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import support
import tensorops as tp
from tensorops.ops import contraction
from tensorops.testing import contraction as references

A = np.array([[1, 2, 3], [4, 5, 6]])
B = np.array([[1, 0], [2, -1], [0, 3]])


@pytest.mark.parametrize(
    ("subscripts", "operands", "expected"),
    [
        ("ij,jk", (A, B), [[5, 7], [14, 13]]),
        ("ij,jk->ki", (A, B), [[5, 14], [7, 13]]),
        ("ij->j", (A,), [5, 7, 9]),
        ("ij,ji", (A, B), 18),
        ("ii->i", (A[:, :2],), [1, 5]),
        ("ii", (A[:, :2],), 6),
        ("i,j->ji", (A[0], B[1]), [[2, 4, 6], [-1, -2, -3]]),
        ("...j,j", (A, A[0]), [14, 32]),
        ("ij,jk,k->i", (A, B, B[1]), [3, 15]),
        ("ji", (A,), [[1, 4], [2, 5], [3, 6]]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_einsum_by_hand(library, subscripts, operands, expected, dtype):
    operands = tuple(x.astype(dtype) for x in operands)
    there = support.there(operands, library.name)
    for call in (tp.einsum, tp.einsum.generic):
        result = support.back(call(subscripts, *there))
        assert result.dtype == dtype
        assert_array_equal(result, expected)
    assert_array_equal(references.einsum(subscripts, *operands), expected)


def test_complex_numbers_are_not_conjugated():
    x = np.array([1 + 2j, 3 - 1j])
    assert tp.einsum("i,i", x, x) == (1 + 2j) ** 2 + (3 - 1j) ** 2
    assert tp.einsum("i,i", x, np.ones(2)).dtype == np.complex128


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("float16", "float16"), "float16"),
        (("float16", "float32"), "float32"),
        (("float16", "bfloat16"), "float32"),
        (("bfloat16", "float64"), "float64"),
        (("int8", "int32"), "int32"),
        (("uint8", "int8"), "int16"),
    ],
)
def test_mixed_dtypes_are_promoted_before_anything_is_summed(dtypes, expected):
    from tensorops.testing import DTYPES

    x, y = (np.full((2, 3), 50).astype(DTYPES.get(name, name)) for name in dtypes)
    result = tp.einsum("ij,ik->i", x, y)
    assert result.dtype == expected
    wanted = np.array([22_500] * 2).astype(expected)  # int8 would wrap around at 128
    assert_array_equal(result, wanted)


def test_half_types_are_rounded_once(library):
    """In float16, the product of the first two and the sums in between would be infinite."""
    if "float16" not in support.dtypes_of(library.name):
        pytest.skip(f"{library.name} holds no float16")
    x = np.full((3, 4), 300.0, np.float16)
    there = support.there((x, x, np.full(4, 2.0**-12, np.float16)), library.name)
    result = support.back(tp.einsum("ij,ij,j->i", *there))
    assert result.dtype == np.float16
    assert_array_equal(result, np.full(3, 4 * 90000.0 / 4096).astype(np.float16))


@pytest.mark.parametrize(
    ("subscripts", "shapes", "message"),
    [
        ("ij,jk", [(2, 3), (4, 5)], r"^einsum: operands\[1\] has length 4 along 'j', but operands\[0\] has 3$"),
        ("ii", [(2, 3)], r"^einsum: operands\[0\] has the lengths 2 and 3 along 'i'$"),
        ("i,ij", [(2,), (2,)], r"^einsum: operands\[1\] has 1 dimension, but its subscripts 'ij' name 2$"),
        ("i...j", [(2,)], r"^einsum: operands\[0\] has 1 dimension, but its subscripts 'i...j' name at least 2$"),
        ("...,...", [(2, 3), (2,)], r"^einsum: operands\[1\] has length 2 along '...', but operands\[0\] has 3$"),
        ("ij,jk", [(2, 3)], r"^einsum: subscripts 'ij,jk' are of 2 operands, but 1 are given$"),
        ("i->k", [(2,)], r"^einsum: subscripts 'i->k' name 'k' in the output only$"),
        ("i,->i,", [(2,), ()], r"^einsum: subscripts 'i,->i,' contain ',', expected letters"),
    ],
)
def test_messages(subscripts, shapes, message):
    for call in (tp.einsum, tp.einsum.generic, tp.einsum.explain):
        with pytest.raises(ValueError, match=message):
            call(subscripts, *map(np.ones, shapes))


def test_operands_are_named_one_by_one():
    x = np.ones(3)
    for args, message in [
        ((x, [1.0]), r"^einsum: operands\[1\] is list, expected an array of "),
        ((x, None), r"^einsum: operands\[1\] is NoneType, expected an array of "),
        ((), r"^einsum: operands are missing, expected at least one array$"),
        ((x, np.ones(3, np.int64)), r"^einsum: operands\[1\] has dtype int64, but operands\[0\] has float64"),
    ]:
        with pytest.raises(TypeError, match=message):
            tp.einsum("i,i", *args)
    with pytest.raises(TypeError, match=r"^einsum: missing a required argument: 'subscripts'$"):
        tp.einsum()
    with pytest.raises(TypeError, match=r"^einsum: got an unexpected keyword argument 'operands'$"):
        tp.einsum("i", x, operands=(x,))
    with pytest.raises(TypeError, match=r"^einsum: subscripts is list, expected a string"):
        tp.einsum([0], x)
    with pytest.raises(TypeError, match=r"^prepare: einsum has no parameter 'operands'"):
        tp.prepare("einsum", operands=x)


# --- as one of the operators -------------------------------------------------------------------------


def test_every_operand_is_traced_and_moved():
    support.require("torch")
    x, y, z = A.astype(np.float32), B.astype(np.float32), np.ones(2, np.float32)
    with tp.set_backend("torch"), tp.trace() as log:
        result = tp.einsum("ij,jk,k->i", x, y, z)
    assert type(result) is np.ndarray
    assert_array_equal(result, [12.0, 27.0])
    (record,) = log
    assert (record.operator, record.kernel, record.library) == ("einsum", "generic", "torch")
    assert record.shapes == ((2, 3), (3, 2), (2,))
    assert [(t.source, t.target) for t in record.transfers] == [("numpy", "torch")] * 3 + [("torch", "numpy")]
    with tp.set_backend("torch"):
        assert tp.einsum.explain("ij,jk", x, y).library == "torch"
    (there,) = support.there((y,), "torch")
    with pytest.raises(TypeError, match=r"operands\[0\] is an array of numpy, but operands\[1\] of torch"):
        tp.einsum("ij,jk", x, there)


def test_opt_einsum_is_imported_by_the_first_call_with_three_operands():
    code = """
    import sys
    import numpy as np, tensorops
    a = np.ones((2, 2))
    tensorops.einsum("ij,jk", a, a)
    assert "opt_einsum" not in sys.modules
    tensorops.einsum("ij,jk,kl", a, a, a)
    assert "opt_einsum" in sys.modules
    """
    result = support.python(textwrap.dedent(code))
    assert result.returncode == 0, result.stderr


def test_the_order_is_found_once_and_is_a_good_one():
    """From right to left it is products of a matrix and a vector; the plan of other subscripts is another."""
    contraction._planned.cache_clear()
    a, v = np.ones((64, 64)), np.ones(64)
    for _ in range(3):
        tp.einsum("ab,bc,cd,d->a", a, a, a, v)
    assert contraction._planned.cache_info().misses == 1
    _, pairs, _, _ = contraction._planned("ab,bc,cd,d->a", ((64, 64),) * 3 + ((64,),), "auto")
    assert [pair[:2] for pair in pairs] == [(2, 3), (1, 2), (0, 1)]


def test_lazy_arrays_stay_lazy(monkeypatch):
    support.require("dask")
    import dask
    import dask.array as da

    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 6, 8)), rng.standard_normal((2, 8, 4))

    def compute(*_, **__):
        raise AssertionError("computed early")

    with monkeypatch.context() as patch, dask.config.set(scheduler=compute):
        patch.setattr(da.Array, "compute", compute)
        a, b = da.from_array(x, chunks=(1, 3, 4)), da.from_array(y, chunks=(1, 4, 2))
        lazy = [tp.einsum("bij,bjk->bik", a, b), tp.einsum("bij,bjk->ik", a, b), tp.einsum("bij->i", a)]
        for result in lazy:
            assert isinstance(result, da.Array)
    for subscripts, result in zip(("bij,bjk->bik", "bij,bjk->ik", "bij->i"), lazy, strict=True):
        operands = (x, y)[: subscripts.count(",") + 1]
        assert_allclose(result.compute(), np.einsum(subscripts, *operands), rtol=1e-12)
    unknown = da.from_array(x[0], chunks=(3, 8))
    with pytest.raises(ValueError, match=r"^einsum: operands\[0\] has an axis of unknown length, 'i'$"):
        tp.einsum("ij->i", unknown[unknown[:, 0] > 0])


SUBSCRIPTS = "iia,ab,cb->ci"
OPERANDS = [
    np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate([(3, 3, 4), (4, 5), (2, 5)])
]


def gradients():
    """Of the sum of the results: each operand's is the contraction of the others, spread where it was summed."""
    a, b, c = (x.astype(np.float64) for x in OPERANDS)
    diagonal = np.einsum("iia->ia", a)
    of_a = np.zeros(a.shape)
    of_a[np.arange(3), np.arange(3)] = np.einsum("ab,cb->a", b, c)
    of_b = np.einsum("ia,cb->ab", diagonal, c)
    return of_a, of_b, np.broadcast_to(np.einsum("ia,ab->b", diagonal, b), c.shape)


def test_gradients_in_torch():
    support.require("torch")
    import torch

    operands = [torch.tensor(x, requires_grad=True) for x in OPERANDS]
    tp.einsum(SUBSCRIPTS, *operands).sum().backward()
    for x, expected in zip(operands, gradients(), strict=True):
        assert_allclose(x.grad.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_gradients_and_transformations_in_jax():
    support.require("jax")
    import jax

    operands = [jax.numpy.asarray(x) for x in OPERANDS]
    wanted = np.einsum(SUBSCRIPTS, *OPERANDS)

    def total(*operands):
        return tp.einsum(SUBSCRIPTS, *operands).sum()

    for gradient in (jax.grad(total, (0, 1, 2)), jax.jit(jax.grad(total, (0, 1, 2)))):
        for actual, expected in zip(gradient(*operands), gradients(), strict=True):
            assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert_allclose(jax.jit(lambda *x: tp.einsum(SUBSCRIPTS, *x))(*operands), wanted, rtol=1e-4, atol=1e-5)
    stacked = [np.stack([x, 2 * x]) for x in OPERANDS]
    assert_allclose(jax.vmap(lambda *x: tp.einsum(SUBSCRIPTS, *x))(*stacked)[1], 8 * wanted, rtol=1e-4, atol=1e-4)


def test_gradients_in_mlx():
    support.require("mlx")
    import mlx.core as mx

    found = mx.grad(lambda *x: tp.einsum(SUBSCRIPTS, *x).sum(), (0, 1, 2))(*map(mx.array, OPERANDS))
    for actual, expected in zip(found, gradients(), strict=True):
        assert_allclose(np.asarray(actual), expected, rtol=1e-4, atol=1e-5)
