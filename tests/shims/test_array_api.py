"""The standard's requirements on the shims, compared with NumPy; array-api-strict must meet them too, as a control.

A fast choice: data-apis/array-api-tests tests everything, see `shims/README.md`.
"""

import itertools
import operator

import numpy as np
import pytest

MODULES = ["array_api_mlx", "array_api_strict"]

SIGNED, UNSIGNED, REAL = (
    ("int8", "int16", "int32", "int64"),
    ("uint8", "uint16", "uint32", "uint64"),
    ("float32", "float64"),
)
DTYPES = ("bool", *SIGNED, *UNSIGNED, *REAL, "complex64")


@pytest.fixture(params=MODULES)
def xp(request):
    module = pytest.importorskip(request.param)
    if request.param != "array_api_strict":
        yield module
        return
    everything = {"api_version": "2025.12", "boolean_indexing": True, "data_dependent_shapes": True}
    with module.ArrayAPIStrictFlags(**everything, enabled_extensions=("linalg", "fft")):
        yield module


def make(xp, values, dtype=None):
    return xp.asarray(np.asarray(values, dtype=dtype), copy=True)


def same(result, expected):
    """Compare shape, dtype and bits, but for NaN, which is one."""
    expected = np.asarray(expected)
    result = np.asarray(result)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)
    if expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(result)[expected == 0], np.signbit(expected)[expected == 0])


# --- promotion ---------------------------------------------------------------------------------------


def promoted(a, b):
    """Return the standard's common dtype of two, or ``None``; NumPy's where that is of the same kind."""
    if a == b:
        return a
    for kind in (SIGNED, UNSIGNED, REAL, SIGNED + UNSIGNED):
        if a in kind and b in kind:
            common = str(np.result_type(a, b))
            return common if common in kind else None
    return "complex64" if {a, b} == {"float32", "complex64"} else None


@pytest.mark.dimensions
@pytest.mark.parametrize(("a", "b"), list(itertools.product(DTYPES, DTYPES)))
def test_promotion(xp, a, b):
    if "float64" in (a, b) and "complex64" in (a, b):
        pytest.skip("complex128, which not every library has")
    x, y = (xp.ones(2, dtype=getattr(xp, name)) for name in (a, b))
    expected = promoted(a, b)
    if expected is None:
        for function in (operator.eq, xp.equal, lambda x, y: xp.result_type(x.dtype, y.dtype)):
            with pytest.raises(TypeError):
                function(x, y)
        return
    assert xp.result_type(x, y) == getattr(xp, expected)
    if a != "bool":
        for function in (operator.mul, xp.multiply):
            assert function(x, y).dtype == getattr(xp, expected)
    assert xp.concat([x, y]).dtype == getattr(xp, expected)


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        ("int8", 1, "int8"),
        ("uint64", 1, "uint64"),
        ("float32", 1, "float32"),
        ("float32", 1.5, "float32"),
        ("float64", 1.5, "float64"),
        ("float32", 1j, "complex64"),
        ("complex64", 1, "complex64"),
        ("complex64", 1.5, "complex64"),
    ],
)
def test_python_numbers_take_on_the_dtype(xp, dtype, number, expected):
    x = make(xp, [1, 2], dtype)
    for result in (x + number, number + x):
        same(result, np.asarray([1 + number, 2 + number], dtype=expected))


@pytest.mark.parametrize(("dtype", "number"), [("int32", 1.5), ("bool", 1), ("int32", 1j), ("uint8", "a")])
def test_python_numbers_of_another_kind_are_refused(xp, dtype, number):
    with pytest.raises(TypeError):
        xp.ones(2, dtype=getattr(xp, dtype)) + number


def test_float64_is_not_computed_through_float32(xp):
    third = make(xp, [1.0, 2.0]) / 3
    assert third.dtype == xp.float64
    same(third, np.asarray([1.0, 2.0]) / 3)
    same(third + 0.1, np.asarray([1.0, 2.0]) / 3 + 0.1)
    x = np.linspace(-20, 20, 1001)
    for name in ("exp", "sin", "cos", "tan", "tanh", "expm1", "sinh"):
        expected = getattr(np, name)(x)
        np.testing.assert_allclose(np.asarray(getattr(xp, name)(make(xp, x))), expected, rtol=1e-13, atol=1e-15)


def test_large_integers_are_exact(xp):
    same(make(xp, [2**63, 1], "uint64") + 2**63, np.asarray([0, 2**63 + 1], dtype="uint64"))
    same(make(xp, [2**62], "int64") * 1 - 1, np.asarray([2**62 - 1], dtype="int64"))


# --- elementwise -------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 7.0, 1e30, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("copysign", np.copysign),
        ("maximum", np.maximum),
        ("minimum", np.minimum),
        ("nextafter", np.nextafter),
        ("remainder", np.remainder),
    ],
)
def test_special_values_of_two(xp, dtype, name, reference):
    a, b = (each.ravel().astype(dtype) for each in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        expected = reference(a, b)
        same(getattr(xp, name)(make(xp, a), make(xp, b)), expected)


@pytest.mark.parametrize("dtype", REAL)
def test_special_values_of_hypot_and_logaddexp(xp, dtype):
    a, b = (each.ravel().astype(dtype) for each in np.meshgrid(SPECIAL, SPECIAL))
    for name in ("hypot", "logaddexp"):
        with np.errstate(all="ignore"):
            result, expected = getattr(xp, name)(make(xp, a), make(xp, b)), getattr(np, name)(a, b)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("name", ["signbit", "sign", "round", "trunc", "floor", "ceil", "isnan", "isinf", "isfinite"])
def test_special_values_of_one(xp, dtype, name):
    a = np.asarray([*SPECIAL, 0.5, 1.5, -0.5], dtype=dtype)
    with np.errstate(all="ignore"):
        same(getattr(xp, name)(make(xp, a)), getattr(np, name)(a))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_integer_division_and_shifts(xp, dtype):
    limits = np.iinfo(dtype)
    a = np.asarray([0, 1, 2, 7, limits.max, limits.min, limits.min + 1], dtype=dtype)
    divisors = np.asarray([1, 2, 3, 7, limits.max] + ([-2, -7] if limits.min else []), dtype=dtype)
    a, b = (each.ravel() for each in np.meshgrid(a, divisors))
    x, y = make(xp, a), make(xp, b)
    same(x // y, a // b)
    same(x % y, a % b)
    same(xp.floor_divide(x, y) * y + xp.remainder(x, y), a)
    shifts = np.asarray([0, 1, 3, limits.bits - 1], dtype=dtype)
    a, b = (each.ravel() for each in np.meshgrid(a, shifts))
    x, y = make(xp, a), make(xp, b)
    same(x << y, a << b)
    same(x >> y, a >> b)


def test_float_division_rounds_as_the_remainder_says(xp):
    a, b = np.asarray([1.0, 1.0, -7.5, 7.5]), np.asarray([0.1, 1e-8, 2.0, -2.0])
    same(make(xp, a) // make(xp, b), a // b)
    same(make(xp, a) % make(xp, b), a % b)


def test_clip_takes_arrays_and_numbers(xp):
    a = np.asarray([-3, 0, 5, 9], dtype="int16")
    same(xp.clip(make(xp, a), 0, 5), np.clip(a, 0, 5))
    same(xp.clip(make(xp, a), max=make(xp, [1, 1, 1, 9], "int16")), np.minimum(a, [1, 1, 1, 9]).astype("int16"))


# --- indexing ----------------------------------------------------------------------------------------

KEYS = [
    0,
    -1,
    slice(None),
    slice(None, None, -1),
    slice(3, 0, -2),
    (slice(None), 1),
    (1, slice(None, None, -1), slice(1, None)),
    (Ellipsis, 0),
    (0, Ellipsis),
    (None, slice(2), Ellipsis, None),
    (1, 2, 3),
    (),
    Ellipsis,
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_getitem_and_setitem(xp, key):
    a = np.arange(60, dtype="int32").reshape(3, 4, 5)
    full = key if isinstance(key, tuple) else (key,)
    if Ellipsis not in full:
        full = (*full, Ellipsis)
    x = make(xp, a)
    same(x[full], a[full])
    if None not in full:
        x[full] = -7
        a[full] = -7
        same(x, a)


def test_boolean_indexing(xp):
    a = np.arange(12.0).reshape(3, 4)
    x = make(xp, a)
    for mask in (a > 4, a > 99, np.asarray([True, False, True])):
        same(x[make(xp, mask)] if mask.ndim == 2 else xp.take(x, xp.nonzero(make(xp, mask))[0], axis=0), a[mask])
    x[x > 4] = 0.0
    a[a > 4] = 0.0
    same(x, a)


def test_integer_array_indexing(xp):
    a = np.arange(12).reshape(3, 4).astype("int64")
    rows, columns = np.asarray([0, 2, 2]), np.asarray([1, -1, 0])
    same(make(xp, a)[make(xp, rows), make(xp, columns)], a[rows, columns])
    same(make(xp, a)[make(xp, rows), 1], a[rows, 1])


@pytest.mark.parametrize("key", [3, -4, (0, 4), (0, 0, 0), "a", 1.0])
def test_bad_indices_raise_index_error(xp, key):
    with pytest.raises((IndexError, TypeError)):
        make(xp, np.zeros((3, 4)))[key]


def test_setitem_keeps_shape_and_dtype(xp):
    x = xp.zeros(3, dtype=xp.float32)
    x[0] = 5
    same(x, np.asarray([5, 0, 0], dtype="float32"))
    ints = xp.zeros(3, dtype=xp.int32)
    with pytest.raises(TypeError):
        ints[0] = 1.5
    with pytest.raises((TypeError, ValueError)):
        x[:] = xp.ones(2, dtype=xp.float32)


def test_in_place_operators(xp):
    x = make(xp, [1, 2], "int32")
    y = x
    x += 1
    same(y, np.asarray([2, 3], dtype="int32"))
    with pytest.raises(TypeError):
        x += make(xp, [1, 2], "int64")
    with pytest.raises((ValueError, TypeError)):
        x += make(xp, [[1, 2]], "int32")


def test_several_results_are_a_tuple(xp):
    """As the standard says from 2025.12 on, of devices as well."""
    a, b = make(xp, [[1, 0], [2, 3]]), make(xp, [4, 5])
    results = [xp.broadcast_arrays(a, b), xp.meshgrid(b, b, b), xp.unstack(a), xp.nonzero(a)]
    for arrays, count in zip(results, (2, 3, 2, 2), strict=True):
        assert type(arrays) is tuple
        assert [type(array) for array in arrays] == [type(a)] * count
    assert type(xp.__array_namespace_info__().devices()) is tuple


# --- sorting, searching, sets ------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable_both_ways(xp, descending):
    rng = np.random.default_rng(5)
    a = rng.integers(0, 4, size=(3, 50)).astype("int32")
    order = np.asarray(xp.argsort(make(xp, a), axis=1, descending=descending))
    wanted = np.argsort(-a if descending else a, axis=1, kind="stable")
    np.testing.assert_array_equal(order, wanted)
    same(xp.sort(make(xp, a), axis=0, descending=descending), np.sort(a, axis=0)[:: -1 if descending else 1])


def test_searchsorted(xp):
    a, v = np.asarray([1.0, 2.0, 2.0, 5.0]), np.asarray([[0.0, 2.0], [5.0, 9.0]])
    for side in ("left", "right"):
        result = xp.searchsorted(make(xp, a), make(xp, v), side=side)
        np.testing.assert_array_equal(np.asarray(result), np.searchsorted(a, v, side=side))
    backwards = make(xp, [3, 2, 1, 0])
    np.testing.assert_array_equal(
        np.asarray(xp.searchsorted(make(xp, a[::-1]), make(xp, v), sorter=backwards)), np.searchsorted(a, v)
    )


def test_unique(xp):
    a = np.asarray([[3.0, 1.0, np.nan], [np.nan, 1.0, -2.0]])
    values, first, inverse, counts = xp.unique_all(make(xp, a))
    order = np.argsort(np.asarray(values))  # the standard leaves it open
    np.testing.assert_array_equal(np.asarray(values)[order], [-2.0, 1.0, 3.0, np.nan, np.nan])
    np.testing.assert_array_equal(np.asarray(counts)[order], [1, 2, 1, 1, 1])
    assert inverse.shape == a.shape
    np.testing.assert_array_equal(np.asarray(values)[np.asarray(inverse)], a)
    np.testing.assert_array_equal(a.ravel()[np.asarray(first)], np.asarray(values))


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool"])
def test_isin(xp, dtype):
    if xp.__name__ == "array_api_strict":
        pytest.skip("array-api-strict 2.6 ignores invert, and takes no bool")
    a, b = np.asarray([[0, 1], [1, 0]], dtype=dtype), np.asarray([1], dtype=dtype)
    same(xp.isin(make(xp, a), make(xp, b)), np.isin(a, b))
    same(xp.isin(make(xp, a), make(xp, b), invert=True), ~np.isin(a, b))
    same(xp.isin(make(xp, a), make(xp, b[:0])), np.zeros_like(a, dtype=bool))


# --- statistics, manipulation, linear algebra --------------------------------------------------------


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_sums_of_integers_are_no_narrower_than_the_default(xp, dtype):
    x = xp.ones((2, 300), dtype=getattr(xp, dtype))
    total = xp.sum(x, axis=1)
    bits = np.iinfo(dtype).bits
    default = xp.iinfo(xp.asarray(0).dtype).bits
    kind = "int" if dtype in SIGNED else "uint"
    assert total.dtype == getattr(xp, f"{kind}{max(bits, default)}")
    assert [int(v) for v in total] == [300, 300] if hasattr(total, "__iter__") else int(total[0]) == 300
    assert xp.sum(x, dtype=xp.float32).dtype == xp.float32


def test_variance_with_any_correction(xp):
    a = np.asarray([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]])
    for correction in (0, 1, 0.5):
        expected = ((a - a.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) / (3 - correction)
        np.testing.assert_allclose(np.asarray(xp.var(make(xp, a), axis=1, correction=correction)), expected)
    np.testing.assert_allclose(np.asarray(xp.std(make(xp, a))), a.std())


def test_cumulative(xp):
    a = np.asarray([[1, 2, 3], [4, 5, 6]], dtype="int64")
    same(xp.cumulative_sum(make(xp, a), axis=1), np.cumsum(a, axis=1))
    same(xp.cumulative_prod(make(xp, a), axis=0), np.cumprod(a, axis=0))
    same(xp.cumulative_prod(make(xp, a), axis=1, include_initial=True)[:, 0], np.ones(2, dtype="int64"))
    with pytest.raises(ValueError, match="axis"):
        xp.cumulative_sum(make(xp, a))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32", "float64", "complex64"])
def test_products_of_matrices(xp, dtype):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 9, size=shape).astype(dtype) for shape in ((2, 3, 4), (4, 5)))
    same(make(xp, a) @ make(xp, b), a @ b)
    same(xp.matmul(make(xp, a), make(xp, b[:, 0])), a @ b[:, 0])
    same(xp.matmul(make(xp, b[:, 0]), make(xp, b)), b[:, 0] @ b)
    same(xp.tensordot(make(xp, a), make(xp, b), axes=((2,), (0,))), np.tensordot(a, b, axes=((2,), (0,))))
    same(xp.vecdot(make(xp, a), make(xp, a)), np.vecdot(a, a))
    with pytest.raises((ValueError, RuntimeError)):
        xp.matmul(make(xp, a), make(xp, a))


def test_manipulation(xp):
    a = np.arange(24).reshape(2, 3, 4)
    x = make(xp, a)
    same(xp.moveaxis(x, (0, 1), (-1, 0)), np.moveaxis(a, (0, 1), (-1, 0)))
    same(xp.repeat(x, 2, axis=1), np.repeat(a, 2, axis=1))
    same(xp.repeat(x, make(xp, [2, 0, 1]), axis=1), np.repeat(a, [2, 0, 1], axis=1))
    same(xp.tile(x, (2, 1, 1, 2)), np.tile(a, (2, 1, 1, 2)))
    same(xp.roll(x, (1, -2), axis=(0, 2)), np.roll(a, (1, -2), axis=(0, 2)))
    same(xp.roll(x, 5), np.roll(a, 5))
    same(xp.flip(x, axis=(0, 2)), np.flip(a, axis=(0, 2)))
    same(xp.concat([x, x], axis=None), np.concatenate([a, a], axis=None))
    same(
        xp.take_along_axis(x, make(xp, [[[0], [3], [1]]]), axis=2),
        np.take_along_axis(a, np.asarray([[[0], [3], [1]]]), 2),
    )
    assert [part.shape for part in xp.unstack(x, axis=1)] == [(2, 4)] * 3
    with pytest.raises(ValueError):  # noqa: PT011, each library's own words
        xp.reshape(x, (5, 5))
    with pytest.raises(IndexError):
        xp.flip(x, axis=3)


def test_decompositions(xp):
    rng = np.random.default_rng(2)
    a = rng.normal(size=(2, 3, 3))
    x = make(xp, a)
    np.testing.assert_allclose(np.asarray(xp.linalg.inv(x)), np.linalg.inv(a))
    np.testing.assert_allclose(np.asarray(xp.linalg.det(x)), np.linalg.det(a))
    np.testing.assert_allclose(np.asarray(xp.linalg.svdvals(x)), np.linalg.svd(a, compute_uv=False))
    q, r = xp.linalg.qr(x)
    np.testing.assert_allclose(np.asarray(q @ r), a, atol=1e-12)
    gram = x @ xp.matrix_transpose(x)
    factor = xp.linalg.cholesky(gram)
    np.testing.assert_allclose(np.asarray(factor @ factor.mT), np.asarray(gram), atol=1e-12)
    empty = xp.zeros((0, 0), dtype=xp.float64)
    assert xp.linalg.inv(empty).shape == (0, 0)


def test_transforms_and_their_norms(xp):
    a = np.asarray([1.0, 2.0, -1.0, 0.5, 3.0], dtype="complex64")
    for norm in ("backward", "ortho", "forward"):
        result = xp.fft.fft(make(xp, a), n=6, norm=norm)
        np.testing.assert_allclose(np.asarray(result), np.fft.fft(a, n=6, norm=norm), rtol=1e-5, atol=1e-6)
        result = xp.fft.hfft(make(xp, a), norm=norm)
        np.testing.assert_allclose(np.asarray(result), np.fft.hfft(a, norm=norm), rtol=1e-5, atol=1e-5)


# --- creation, dtypes, ways out ----------------------------------------------------------------------


def test_default_dtypes(xp):
    defaults = xp.__array_namespace_info__().default_dtypes()
    assert xp.asarray(1).dtype == xp.arange(3).dtype == defaults["integral"]
    assert xp.asarray([0.5]).dtype == xp.ones(2).dtype == xp.linspace(0, 1, 3).dtype == defaults["real floating"]
    assert xp.asarray(1j).dtype == defaults["complex floating"]
    assert xp.asarray(True).dtype == xp.bool
    assert xp.argmax(xp.ones(3)).dtype == defaults["indexing"]


def test_dtypes_compare_with_anything(xp):
    assert xp.float32 == xp.float32
    assert xp.float32 != xp.float64
    assert xp.float32 != None  # noqa: E711
    assert xp.ones(1).dtype in (None, *xp.__array_namespace_info__().dtypes().values())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((5,), range(5)), ((2, 11, 3), range(2, 11, 3)), ((5, -5, -3), range(5, -5, -3)), ((5, 0), []), ((3, 3, 1), [])],
)
def test_arange(xp, arguments, expected):
    result = xp.arange(*arguments)
    assert [int(result[i]) for i in range(result.shape[0])] == list(expected)
    assert xp.arange(*arguments, dtype=xp.float64).dtype == xp.float64


def test_arange_of_floats_does_not_drift(xp):
    result = xp.arange(0.0, 10000.0, 0.1, dtype=xp.float32)
    np.testing.assert_allclose(np.asarray(result), np.arange(100000) * 0.1, rtol=2e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_and_numpy_read_the_values(xp, dtype):
    a = np.asarray([[0, 1, 2], [3, 4, 5]], dtype=dtype)
    x = make(xp, a)
    same(np.asarray(x), a)
    same(np.from_dlpack(x), a)
    same(xp.from_dlpack(x), a)
    same(xp.from_dlpack(a.copy()), a)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda xp: xp.sin(xp.asarray(1)), TypeError),
        (lambda xp: xp.asarray([1.0]) & xp.asarray([1.0]), TypeError),
        (lambda xp: xp.add([1.0], xp.asarray([1.0])), TypeError),
        (lambda xp: xp.asarray([1j]) < xp.asarray([1j]), TypeError),
        (lambda xp: bool(xp.ones(2)), (TypeError, ValueError)),
        (lambda xp: int(xp.asarray(1j)), TypeError),
        (lambda xp: operator.index(xp.asarray(1.0)), TypeError),
        (lambda xp: xp.astype(xp.asarray(1j), xp.float32), TypeError),
        (lambda xp: xp.isdtype(xp.float32, "imaginary"), ValueError),
        (lambda xp: xp.ones(2) + xp.ones(3), (ValueError, TypeError)),
        (lambda xp: xp.concat([]), ValueError),
        (lambda xp: xp.max(xp.zeros((0, 3)), axis=0), ValueError),
        (lambda xp: xp.asarray([[1], [1, 2]]), ValueError),
        (lambda xp: xp.asarray(object()), (TypeError, ValueError, OverflowError)),
        (lambda xp: xp.full(2, 300, dtype=xp.uint8), OverflowError),
    ],
)
def test_errors(xp, call, error):
    with pytest.raises(error):
        call(xp)
