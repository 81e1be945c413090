"""Libraries that accept any array of the standard, and common NumPy usage, on arrays of the shims.

Array-api-strict is the control of the former.

Inputs are the array library's own arrays, which the shim shares. Expected values are what the client, or NumPy,
computes from float64 NumPy arrays. On OpenCL the arrays are in a separate context, which exposes a client that creates
an array without naming their device; SciPy does so, and is tested on the default device.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import math
import operator
import os
import pickle
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

RNG = np.random.default_rng(7)
X = RNG.standard_normal((4, 6))
POSITIVE = np.abs(X) + 0.1
INTEGERS = RNG.integers(-3, 4, (3, 5))
TOLERANCE = 2e-5
CLIENT = functools.partial(pytest.mark.xfail, strict=True)


@dataclasses.dataclass(frozen=True)
class Library:
    """A library, and the way in from the arrays of the library below it."""

    xp: types.ModuleType
    raw: Callable[[np.ndarray], Any]
    shares: Callable[[Any, Any], bool]
    device: Any

    def array(self, values, dtype=None):
        """Return values as an array that shares the memory of a raw one; float32 for floats."""
        a = np.asarray(values)
        a = a.astype(dtype or {"f": np.float32, "c": np.complex64}.get(a.dtype.kind, a.dtype))
        raw = self.raw(a)
        x = self.xp.asarray(raw)
        assert self.shares(x, raw)
        return x

    def check(self, result, expected, tolerance=TOLERANCE):
        """Compare kind, place, shape and values with NumPy's result."""
        expected = np.asarray(expected)
        assert type(result) is type(self.xp.asarray(0))
        assert result.device == self.device
        assert result.shape == expected.shape
        values = np.asarray(result)
        kinds = {"i": "iu", "u": "iu"}
        assert values.dtype.kind in kinds.get(expected.dtype.kind, expected.dtype.kind)
        np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)


@functools.cache
def mlx():
    mx = pytest.importorskip("mlx.core")
    xp = pytest.importorskip("array_api_mlx")
    return Library(xp, mx.array, lambda x, raw: x.mlx is raw, mx.default_device())


@functools.cache
def pyopencl(*, by_default=False):
    cl = pytest.importorskip("pyopencl", exc_type=ImportError)
    cla = pytest.importorskip("pyopencl.array")
    xp = pytest.importorskip("array_api_pyopencl")
    if not xp.devices():
        pytest.skip("no OpenCL device was found")
    default = xp.default_device()
    context = default.context if by_default else cl.Context([default.cl_device])
    queue = default.queue if by_default else cl.CommandQueue(context)

    def shares(x, raw):
        return x.size == 0 or x.cl_array.base_data is raw.base_data

    return Library(xp, functools.partial(cla.to_device, queue), shares, xp.Device(queue))  # which holds the context


@functools.cache
def strict():
    xp = pytest.importorskip("array_api_strict")
    return Library(xp, lambda a: a, lambda x, raw: True, xp.asarray(0).device)


@contextlib.contextmanager
def everything_of(library):
    """Let array-api-strict do all that the standard has; tests of operators restrict it."""
    if library.xp.__name__ != "array_api_strict":
        yield library
        return
    everything = {"api_version": "2025.12", "boolean_indexing": True, "data_dependent_shapes": True}
    with library.xp.ArrayAPIStrictFlags(**everything, enabled_extensions=("linalg", "fft")):
        yield library


@pytest.fixture(params=[mlx, pyopencl, strict], ids=lambda f: f.__name__)
def lib(request):
    with everything_of(request.param()) as library:
        yield library


@pytest.fixture(params=[mlx, functools.partial(pyopencl, by_default=True), strict], ids=["mlx", "pyopencl", "strict"])
def lib_of_default(request):
    with everything_of(request.param()) as library:
        yield library


# ------------------------------------------------------------------------------------------ NumPy's habits


@pytest.fixture(params=[mlx, pyopencl], ids=lambda f: f.__name__)
def shim(request):
    return request.param()


def test_arrays_are_printed_as_numpy_prints_them(shim):
    x = shim.array([[0.5, -2], [10, 3]])
    assert repr(x) == "Array([[ 0.5, -2. ],\n       [10. ,  3. ]], dtype=float32)"
    assert str(x) == repr(x) == f"{x}"
    assert repr(shim.array([1, 2], "uint8")[0]) == "Array(1, dtype=uint8)"
    assert repr(shim.xp.zeros((0, 3), dtype=shim.xp.int32)) == "Array([], shape=(0, 3), dtype=int32)"
    assert f"{x[0, 0]:.3f}" == "0.500"
    with pytest.raises(TypeError, match="format"):
        f"{x:.3f}"


DIVIDED = [("int8", "int8"), ("uint8", "int32"), ("int64", "int16"), ("uint64", "uint64")]


@pytest.mark.parametrize(("first", "second"), DIVIDED)
def test_quotients_of_integers_are_of_the_default_floating_type(shim, first, second):
    a = np.asarray([[7, 0, 100], [1, 127, 3]], first)
    b = np.asarray([3, 0, 7], second)
    x, y = shim.array(a), shim.array(b)
    default = shim.xp.__array_namespace_info__().default_dtypes(device=shim.device)["real floating"]
    with np.errstate(all="ignore"):
        quotients = a.astype(np.float64) / b.astype(np.float64)
        inverses = 1 / a.astype(np.float64)
    for _ in range(2):  # the second time what was worked out for the first is used
        for result, expected in (
            (x / y, quotients),
            (shim.xp.divide(x, y), quotients),
            (x / 3, a / 3.0),
            (1 / x, inverses),
            (shim.xp.divide(x, 3), a / 3.0),
        ):
            assert result.dtype == default
            shim.check(result, expected, 1e-7)
        with pytest.raises(OverflowError, match=rf"out of bounds for {first}"):
            x / 2**65


def test_what_else_is_divided_stays_refused(shim):
    x = shim.array(np.asarray([6, 4], np.int32))
    for call in (
        lambda: x / 2.5,
        lambda: x / shim.array([2.0, 3.0]),
        lambda: shim.xp.divide(x, shim.array([True, False])),
        lambda: operator.itruediv(x, 2),
        lambda: operator.itruediv(x, x),
    ):
        with pytest.raises(TypeError):
            call()
    shim.check(x, np.asarray([6, 4]), 0)
    assert x.dtype == shim.xp.int32


def test_large_integers_are_divided_as_floats(shim):
    a = np.asarray([2**62, -(2**62), 2**53 + 1], np.int64)
    shim.check(shim.array(a) / shim.array(np.asarray([2**31, 2**30, 1], np.int64)), a / [2.0**31, 2.0**30, 1.0], 1e-7)


@pytest.mark.parametrize("python", [bool, int, float, complex])
def test_python_s_types_are_the_default_data_types(shim, python):
    xp = shim.xp
    defaults = xp.__array_namespace_info__().default_dtypes(device=shim.device)
    kind = {int: "integral", float: "real floating", complex: "complex floating"}.get(python)
    expected = xp.bool if python is bool else defaults[kind]
    x = shim.array(np.asarray([0, 1, 1], bool))
    for result, values in (
        (xp.zeros(2, dtype=python), [0, 0]),
        (xp.ones(2, dtype=python), [1, 1]),
        (xp.full(2, True, dtype=python), [1, 1]),
        (xp.zeros_like(x, dtype=python), [0, 0, 0]),
        (xp.asarray([0, 1], dtype=python), [0, 1]),
        (xp.asarray(x, dtype=python), [0, 1, 1]),
        (xp.astype(x, python), [0, 1, 1]),
        (xp.empty(0, dtype=python), []),
        (xp.eye(2, dtype=python), [[1, 0], [0, 1]]),
    ):
        assert result.dtype == expected
        np.testing.assert_array_equal(np.asarray(result), values)
    if python in (int, float):
        total = xp.sum(xp.astype(x, xp.int8), dtype=python)
        assert (total.dtype, float(total)) == (expected, 2.0)
    assert xp.isdtype(python, kind or "bool")
    assert xp.isdtype(expected, python)
    assert xp.result_type(python, expected) == expected
    assert xp.can_cast(python, expected)
    if python in (float, complex):
        assert xp.finfo(python) == xp.finfo(expected)
    if python is int:
        assert xp.iinfo(python) == xp.iinfo(expected)


@pytest.mark.parametrize("other", [str, object, list, "float32"])
def test_other_types_are_no_data_types(shim, other):
    with pytest.raises(TypeError):
        shim.xp.astype(shim.array([1.0]), other)


def test_len_in_and_iteration(shim):
    x = shim.array(X)
    assert len(x) == 4
    assert x[3, 2] in x
    assert 77.0 not in x
    assert "word" not in x
    for row, expected in zip(x, X, strict=True):
        shim.check(row, expected)
    for call in (lambda: len(x[0, 0]), lambda: list(x[0, 0])):
        with pytest.raises(TypeError, match="zero-dimensional"):
            call()
    assert x.nbytes == 4 * 4 * 6


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_independent(shim, copied):
    for x, expected in ((shim.array(X), X), (shim.array(X)[1:, ::2].T, X[1:, ::2].T), (shim.array(X[:0]), X[:0])):
        other = copied(x)
        np.testing.assert_array_equal(np.asarray(other), expected.astype(np.float32))
        other[...] = 7.0
        shim.check(x, expected)


def test_numpy_scalars_are_python_numbers(shim):
    x, i = shim.array(X), shim.array(INTEGERS)
    for scalar in (np.float32(0.5), np.float64(0.5), np.float16(0.5)):
        shim.check(x + scalar, X + 0.5)
        shim.check(scalar - x, 0.5 - X)
    shim.check(np.int8(3) * i, 3 * INTEGERS)
    shim.check(i > np.int64(1), INTEGERS > 1)
    x[0, 0] = np.float32(9)
    assert float(x[0, 0]) == 9.0
    with pytest.raises(TypeError):
        i + np.float32(1)


def test_numpy_arrays_are_refused_in_words(shim):
    x = shim.array(X)
    for call in (
        *(lambda: x + X, lambda: X + x, lambda: x == X, lambda: x != X, lambda: x < X),
        *(lambda: x @ X.T, lambda: X.T @ x, lambda: operator.iadd(x, X)),
    ):
        with pytest.raises(TypeError, match=r"numpy.ndarray.*asarray"):
            call()
    with pytest.raises(IndexError, match="ndarray"):
        x[np.asarray([0, 1])]
    assert (x == None) is False  # noqa: E711
    assert (x != "word") is True


@pytest.mark.parametrize("make", [lambda: pytest.importorskip("torch").ones(4, 6), lambda: strict().array(X)])
def test_arrays_of_other_libraries_are_refused_in_words(shim, make):
    other, x = make(), shim.array(X)
    for call in (lambda: x + other, lambda: x == other, lambda: x != other, lambda: operator.iadd(x, other)):
        with pytest.raises(TypeError, match=r"operand is .*asarray"):
            call()
    shim.xp.asarray(other) + shim.xp.asarray(other)


def test_sequences_of_arrays_keep_their_dtype(shim):
    x = shim.array(X)
    assert shim.xp.asarray([x[0, :], x[1, :]]).dtype == shim.xp.float32
    bytes_ = shim.array([1, 2], "int8")
    assert shim.xp.asarray([bytes_, bytes_]).dtype == shim.xp.int8
    for values, kind in (([1.0], "real floating"), ([1], "integral"), ([1j], "complex floating"), ([True], "bool")):
        assert shim.xp.isdtype(shim.xp.asarray(values).dtype, kind)


def test_truths_are_counted(shim):
    x = shim.array(X)
    shim.check(shim.xp.sum(x > 0, axis=0), np.sum(X > 0, axis=0))
    assert int(shim.xp.sum(x > 0)) == np.sum(X > 0)


def test_lengths_and_axes_that_are_no_integers(shim):
    xp = shim.xp
    for call in (lambda: xp.zeros(2.5), lambda: xp.ones((2, "a")), lambda: xp.sum(xp.ones(2), axis="a")):
        with pytest.raises(TypeError, match="integer"):
            call()
    for call in (lambda: xp.linspace(0.0, 1.0, -1), lambda: xp.eye(-1), lambda: xp.zeros(-1)):
        with pytest.raises(ValueError, match=r"[Nn]egative"):
            call()
    with pytest.raises(ValueError, match=r"solve: x2 has shape \(3,\)"):
        xp.linalg.solve(shim.array(np.eye(2)), shim.array(np.ones(3)))


# ----------------------------------------------------------------------------------------------- einops


@pytest.fixture
def einops():
    return pytest.importorskip("einops")


@pytest.fixture
def ea(einops):
    return pytest.importorskip("einops.array_api")


def fails_with_strict(request, lib, reason):
    if lib.xp.__name__ == "array_api_strict":
        request.applymarker(CLIENT(reason=reason, raises=TypeError))


@pytest.mark.parametrize(
    ("pattern", "lengths"),
    [("a b -> b a", {}), ("a (b c) -> c (a b)", {"c": 2}), ("(a d) b -> a d b ()", {"d": 2}), ("a b -> (b a)", {})],
)
def test_einops_rearrange(request, lib, einops, ea, pattern, lengths):
    if "(" in pattern:
        fails_with_strict(request, lib, "einops passes shapes as lists, which the standard does not know")
    lib.check(ea.rearrange(lib.array(X), pattern, **lengths), einops.rearrange(X, pattern, **lengths))


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "prod"])
def test_einops_reduce(lib, einops, ea, reduction):
    lib.check(ea.reduce(lib.array(X), "a b -> b", reduction), einops.reduce(X, "a b -> b", reduction))


def test_einops_reduce_in_blocks(request, lib, einops, ea):
    fails_with_strict(request, lib, "einops passes shapes as lists, which the standard does not know")
    pattern = "(a a2) (b b2) -> a b"
    lib.check(ea.reduce(lib.array(X), pattern, "max", a2=2, b2=3), einops.reduce(X, pattern, "max", a2=2, b2=3))


def test_einops_repeat(request, lib, einops, ea):
    lib.check(ea.repeat(lib.array(X), "a b -> a b c", c=3), einops.repeat(X, "a b -> a b c", c=3))
    fails_with_strict(request, lib, "einops passes shapes as lists, which the standard does not know")
    lib.check(ea.repeat(lib.array(X), "a b -> (a c) b", c=2), einops.repeat(X, "a b -> (a c) b", c=2))


def test_einops_pack_and_unpack(lib, einops, ea):
    parts = [X, X[:, 0], X.reshape(4, 3, 2)]
    packed, shapes = ea.pack([lib.array(p) for p in parts], "a *")
    expected, expected_shapes = einops.pack(parts, "a *")
    assert shapes == expected_shapes
    lib.check(packed, expected)
    for part, original in zip(ea.unpack(packed, shapes, "a *"), parts, strict=True):
        lib.check(part, original)


def test_einops_says_in_its_own_words_what_does_not_fit(lib, einops, ea):
    with pytest.raises(einops.EinopsError, match="Shape mismatch"):
        ea.rearrange(lib.array(X), "a (b c) -> a b c", c=4)


NO_BACKENDS = "outside einops.array_api, einops has a closed list of libraries, and no public way to add one"


@CLIENT(reason=NO_BACKENDS, raises=RuntimeError)
@pytest.mark.parametrize(
    "call",
    [lambda e, x: e.rearrange(x, "a b -> b a"), lambda e, x: e.einsum(x, x, "a b, c b -> a c")],
    ids=["rearrange", "einsum"],
)
def test_einops_with_backends_of_its_own(lib, einops, call):
    lib.check(call(einops, lib.array(X)), call(einops, X))


def test_einops_knows_the_arrays_of_mlx_themselves(einops):
    lib = mlx()
    raw = einops.rearrange(lib.array(X).mlx, "a (b c) -> c (a b)", c=2)
    lib.check(lib.xp.asarray(raw), einops.rearrange(X, "a (b c) -> c (a b)", c=2))
    raw = einops.einsum(lib.array(X).mlx, lib.array(X).mlx, "a b, c b -> a c")
    lib.check(lib.xp.asarray(raw), X @ X.T)


# -------------------------------------------------------------------------------------- array-api-extra

NAN = np.where(X > 1, np.nan, X)
ASCENDING = np.linspace(-2, 2, 9)

# A function's name, its arguments, and the same with NumPy.
EXTRA = {
    "angle": (lambda f, z: f(z), (X[:2] + 1j * X[2:],), np.angle),
    "apply_where": (
        lambda f, x: f(x > 0, x, lambda a: a * 2, lambda a: -a),
        (X,),
        lambda x: np.where(x > 0, 2 * x, -x),
    ),
    "apply_where-fill": (
        lambda f, x: f(x > 0, x, lambda a: a * 2, fill_value=-1.0),
        (X,),
        lambda x: np.where(x > 0, 2 * x, -1),
    ),
    "argpartition": (lambda f, x: f(x, 2)[:, 2], (X,), lambda x: np.argsort(x)[:, 2]),
    "atleast_nd": (lambda f, x: f(x, ndim=4), (X,), lambda x: x[None, None]),
    "cov": (lambda f, x: f(x), (X,), np.cov),
    "cov-weights": (
        lambda f, x, w: f(x, correction=0, aweights=w),
        (X, POSITIVE[0]),
        lambda x, w: np.cov(x, ddof=0, aweights=w),
    ),
    "create_diagonal": (lambda f, x: f(x, offset=-1), (X[0],), lambda x: np.diag(x, -1)),
    "deg2rad": (lambda f, x: f(x), (X,), np.deg2rad),
    "rad2deg": (lambda f, x: f(x), (X,), np.rad2deg),
    "isclose": (
        lambda f, x, y: f(x, y, rtol=0.3, equal_nan=True),
        (NAN, np.round(NAN)),
        lambda x, y: np.isclose(x, y, rtol=0.3, equal_nan=True),
    ),
    "isin": (lambda f, x, y: f(x, y), (INTEGERS, INTEGERS[0, :2]), np.isin),
    "kron": (lambda f, x, y: f(x, y), (X, X[:2, :3]), np.kron),
    "lazy_apply": (
        lambda f, x: f(np.cumsum, x, shape=(24,), dtype=x.dtype, as_numpy=True),
        (X,),
        np.cumsum,
    ),
    "nan_to_num": (
        lambda f, x: f(x, fill_value=2.0),
        (NAN,),
        lambda x: np.nan_to_num(x, nan=2.0),
    ),
    "nanmax": (lambda f, x: f(x, axis=0), (NAN,), lambda x: np.nanmax(x, axis=0)),
    "nanmin": (lambda f, x: f(x), (NAN,), np.nanmin),
    "nanmean": (lambda f, x: f(x, axis=1), (NAN,), lambda x: np.nanmean(x, axis=1)),
    "nansum": (lambda f, x: f(x, axis=(0, 1)), (NAN,), np.nansum),
    "nunique": (lambda f, x: f(x), (INTEGERS,), lambda x: len(np.unique(x))),
    "one_hot": (lambda f, x: f(x, 7), (INTEGERS + 3,), lambda x: np.eye(7)[x]),
    "pad": (
        lambda f, x: f(x, ((1, 0), (2, 3)), constant_values=-1),
        (X,),
        lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=-1),
    ),
    "partition": (lambda f, x: f(x, 3, axis=0)[3, :], (X,), lambda x: np.sort(x, axis=0)[3]),
    "searchsorted": (
        lambda f, x, y: f(x, y, side="right"),
        (ASCENDING, X),
        lambda x, y: np.searchsorted(x, y, side="right"),
    ),
    "setdiff1d": (lambda f, x, y: f(x, y), (INTEGERS, INTEGERS[0, :2]), np.setdiff1d),
    "sinc": (lambda f, x: f(x), (np.asarray([0, 1e-3, 0.5, 1, 7.3]),), np.sinc),
    "union1d": (lambda f, x, y: f(x, y), (INTEGERS[0], INTEGERS[1]), np.union1d),
    "unravel_index": (
        lambda f, x: f(x, (2, 5))[1],
        (np.asarray([0, 4, 7]),),
        lambda x: np.unravel_index(x, (2, 5))[1],
    ),
}


def extra(name):
    xpx = pytest.importorskip("array_api_extra")
    if not hasattr(xpx, name):
        pytest.skip(f"array-api-extra {xpx.__version__} has no {name}")
    return getattr(xpx, name)


@pytest.mark.parametrize("case", EXTRA)
def test_array_api_extra(lib, case):
    call, arguments, expected = EXTRA[case]
    result = call(extra(case.partition("-")[0]), *map(lib.array, arguments))
    lib.check(result, expected(*arguments))


@pytest.mark.parametrize("name", ["diag_indices", "tril_indices", "triu_indices"])
def test_array_api_extra_indices(lib, name):
    result = extra(name)(4, xp=lib.xp, device=lib.device)
    for mine, expected in zip(result, getattr(np, name)(4), strict=True):
        lib.check(mine, expected)
    if lib.xp.__name__ == "array_api_strict":
        return
    values = lib.array(X[:, :4])[result]
    lib.check(values, X[:, :4][getattr(np, name)(4)])


def test_array_api_extra_expand_dims(lib):
    expand_dims = extra("expand_dims")
    with pytest.warns(DeprecationWarning, match="expand_dims"):
        result = expand_dims(lib.array(X), axis=(0, 2))
    lib.check(result, np.expand_dims(X, (0, 2)))
    lib.check(lib.xp.expand_dims(lib.array(X), axis=(0, 2)), np.expand_dims(X, (0, 2)))


@pytest.mark.parametrize(
    ("key", "method", "value"),
    [
        ((slice(None), 1), "add", 5.0),
        ((0, slice(None, None, 2)), "set", -1.0),
        ((slice(1, 3), ...), "multiply", 2.0),
        ((..., -1), "max", np.full(4, 0.25)),  # of a number, array-api-extra makes an array on the default device
        (X > 0, "set", 0.0),
        (X > 0, "divide", 4.0),
    ],
    ids=["column", "row", "rows", "ellipsis", "mask", "mask-divide"],
)
def test_array_api_extra_at(lib, key, method, value):
    at = extra("at")
    x = lib.array(X)
    there, changed = (lib.array(a) if isinstance(a, np.ndarray) else a for a in (key, value))
    result = getattr(at(x)[there], method)(changed, copy=True)
    lib.check(x, X)  # a copy was asked for
    compute = {"add": np.add, "set": lambda _, v: v, "multiply": np.multiply, "max": np.maximum, "divide": np.divide}
    expected = X.copy()
    expected[key] = compute[method](X[key], value)
    lib.check(result, expected)


# -------------------------------------------------------------------------- scikit-learn: array API dispatch

SAMPLES = RNG.standard_normal((50, 5)) * [3, 2, 1.5, 1, 0.5]
CLASSES = (SAMPLES[:, 0] + 2 * SAMPLES[:, 2] > 0).astype(np.int64) + (SAMPLES[:, 1] > 1)
TARGETS = SAMPLES @ np.arange(1.0, 6.0) + 0.1 * RNG.standard_normal(50)


@pytest.fixture
def sklearn():
    module = pytest.importorskip("sklearn")
    assert os.environ["SCIPY_ARRAY_API"] == "1"  # conftest: SciPy reads it when it is imported
    with module.config_context(array_api_dispatch=True):
        yield module


def numpy_only(function, *arguments):
    """Return what scikit-learn computes from NumPy arrays, without a library between."""
    import sklearn

    with sklearn.config_context(array_api_dispatch=False):
        return function(*arguments)


def close_up_to_signs(lib, result, expected):
    """Compare the columns of two matrices, each of which may point either way."""
    values = np.asarray(result)
    assert values.shape == expected.shape
    signs = np.sign(np.sum(values * expected, axis=0))
    assert (np.abs(signs) == 1).all()
    lib.check(result, expected * signs, 1e-3)


@pytest.mark.parametrize("solver", ["full", "covariance_eigh"])
def test_sklearn_pca(lib, sklearn, solver):
    from sklearn.decomposition import PCA

    x = lib.array(SAMPLES)
    pca = PCA(3, svd_solver=solver).fit(x)
    expected = numpy_only(PCA(3, svd_solver="full").fit, SAMPLES)
    lib.check(pca.components_, expected.components_, 1e-3)
    lib.check(pca.explained_variance_, expected.explained_variance_, 1e-4)
    reduced = pca.transform(x)
    lib.check(reduced, numpy_only(expected.transform, SAMPLES), 1e-3)
    lib.check(
        pca.inverse_transform(reduced),
        numpy_only(lambda: expected.inverse_transform(expected.transform(SAMPLES))),
        1e-3,
    )


def test_sklearn_ridge(lib, sklearn):
    from sklearn.linear_model import Ridge

    x, y = lib.array(SAMPLES), lib.array(TARGETS)
    ridge = Ridge(alpha=0.5, solver="svd").fit(x, y)
    expected = numpy_only(Ridge(alpha=0.5, solver="svd").fit, SAMPLES, TARGETS)
    lib.check(ridge.coef_, expected.coef_, 1e-4)
    lib.check(ridge.predict(x), numpy_only(expected.predict, SAMPLES), 1e-3)
    assert math.isclose(ridge.score(x, y), numpy_only(expected.score, SAMPLES, TARGETS), rel_tol=1e-5)


def test_sklearn_linear_discriminant_analysis(lib, sklearn):
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, y = lib.array(SAMPLES), lib.array(CLASSES)
    model = LinearDiscriminantAnalysis(n_components=2).fit(x, y)
    expected = numpy_only(LinearDiscriminantAnalysis(n_components=2).fit, SAMPLES, CLASSES)
    lib.check(model.means_, expected.means_, 1e-4)
    close_up_to_signs(lib, model.transform(x), numpy_only(expected.transform, SAMPLES))
    lib.check(model.predict_proba(x), numpy_only(expected.predict_proba, SAMPLES), 1e-3)
    lib.check(model.predict(x), numpy_only(expected.predict, SAMPLES))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # array-api-strict computes with NumPy
@pytest.mark.parametrize("name", ["StandardScaler", "MinMaxScaler", "MaxAbsScaler", "Normalizer"])
def test_sklearn_preprocessing(lib, sklearn, name):
    from sklearn import preprocessing

    scaler = getattr(preprocessing, name)
    result = scaler().fit_transform(lib.array(SAMPLES))
    lib.check(result, numpy_only(scaler().fit_transform, SAMPLES), 1e-4)


@pytest.mark.parametrize("name", ["mean_squared_error", "r2_score", "euclidean_distances", "rbf_kernel"])
def test_sklearn_metrics(lib, sklearn, name):
    from sklearn import metrics

    a, b = (SAMPLES, SAMPLES[:7]) if hasattr(metrics.pairwise, name) else (TARGETS, np.round(TARGETS))
    function = getattr(metrics, name, None) or getattr(metrics.pairwise, name)
    result = function(lib.array(a), lib.array(b))
    expected = numpy_only(function, a, b)
    if isinstance(expected, float):
        assert math.isclose(result, expected, rel_tol=1e-4)
    else:
        lib.check(result, expected, 1e-3)


def test_sklearn_accuracy(lib, sklearn):
    from sklearn.metrics import accuracy_score

    guesses = np.roll(CLASSES, 1)
    score = accuracy_score(lib.array(CLASSES), lib.array(guesses))
    assert math.isclose(score, np.mean(guesses == CLASSES), rel_tol=1e-6)


def test_sklearn_balanced_accuracy(lib, sklearn):
    """It divides a confusion matrix of integers by its sums."""
    from sklearn.metrics import balanced_accuracy_score

    guesses = np.roll(CLASSES, 1)
    recalls = [np.mean(guesses[kind == CLASSES] == kind) for kind in np.unique(CLASSES)]
    score = balanced_accuracy_score(lib.array(CLASSES), lib.array(guesses))
    assert math.isclose(score, np.mean(recalls), rel_tol=1e-6)


# ------------------------------------------------------------------------------------------------- SciPy

SPECIAL = {
    "expit": (X,),
    "logit": (1 / (1 + np.exp(-X)),),
    "erf": (X,),
    "erfc": (X,),
    "gammaln": (POSITIVE,),
    "ndtr": (X,),
    "log_ndtr": (X,),
    "entr": (POSITIVE,),
    "i0": (X,),
    "xlogy": (POSITIVE, POSITIVE[:, :1]),
    "rel_entr": (POSITIVE, POSITIVE[:1]),
}
STATS = ["gmean", "hmean", "kurtosis", "skew", "variation", "sem", "entropy", "iqr", "circmean", "tmean"]


@pytest.fixture
def scipy():
    module = pytest.importorskip("scipy")
    assert os.environ["SCIPY_ARRAY_API"] == "1"  # conftest: SciPy reads it when it is imported
    return module


@pytest.mark.parametrize("name", SPECIAL)
def test_scipy_special(lib_of_default, scipy, name):
    from scipy import special

    function = getattr(special, name)
    lib_of_default.check(function(*map(lib_of_default.array, SPECIAL[name])), function(*SPECIAL[name]))


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "log_softmax"])
def test_scipy_special_along_an_axis(lib_of_default, scipy, name):
    from scipy import special

    function = getattr(special, name)
    lib_of_default.check(function(lib_of_default.array(X), axis=0), function(X, axis=0))


@pytest.mark.parametrize("name", STATS)
def test_scipy_stats(lib_of_default, scipy, name):
    from scipy import stats

    function = getattr(stats, name)
    lib_of_default.check(function(lib_of_default.array(POSITIVE), axis=1), function(POSITIVE, axis=1), 2e-4)


def test_scipy_stats_zscore(lib_of_default, scipy):
    from scipy.stats import zscore

    lib_of_default.check(zscore(lib_of_default.array(X), axis=0), (X - X.mean(axis=0)) / X.std(axis=0), 1e-4)


def test_scipy_stats_tests(lib_of_default, scipy):
    from scipy import stats

    x, y = lib_of_default.array(X), lib_of_default.array(POSITIVE)
    for result, expected in (
        (stats.ttest_ind(x, y, axis=1), stats.ttest_ind(X, POSITIVE, axis=1)),
        (stats.ttest_1samp(x, 0.5, axis=1), stats.ttest_1samp(X, 0.5, axis=1)),
        (stats.pearsonr(x, y, axis=1), stats.pearsonr(X, POSITIVE, axis=1)),
    ):
        lib_of_default.check(result.statistic, expected.statistic, 1e-4)
        lib_of_default.check(result.pvalue, expected.pvalue, 1e-3)


# Of SciPy 1.17: special functions without a native implementation end in ``xp.asarray(values)``, and statistics meet
# ``xp.asarray(scalar)``: on the default device, wherever their arguments were.
@CLIENT(reason="SciPy makes arrays without naming a device", raises=(AssertionError, ValueError))
@pytest.mark.parametrize("name", ["special.expit", "stats.ttest_ind"])
def test_scipy_on_another_device(scipy, name):
    module, name = name.split(".")
    function = getattr(importlib.import_module(f"scipy.{module}"), name)
    arguments = (X[0],) if name == "expit" else (X[0], POSITIVE[0])
    lib = pyopencl()
    result, expected = function(*map(lib.array, arguments)), function(*arguments)
    lib.check(getattr(result, "statistic", result), getattr(expected, "statistic", expected), 1e-4)


CENTRES = np.asarray([0.5, 1.5, -2.0])


@pytest.fixture(params=[mlx, functools.partial(pyopencl, by_default=True)], ids=["mlx", "pyopencl"])
def shim_of_default(request):
    return request.param()


@pytest.mark.costly
def test_scipy_find_minimum(shim_of_default, scipy):
    """It writes ``dtype=bool``; array-api-strict refuses what it does before that."""
    elementwise = pytest.importorskip("scipy.optimize.elementwise", reason="since SciPy 1.15")
    lib = shim_of_default
    centres = lib.array(CENTRES)
    bracket = elementwise.bracket_minimum(lambda x, c: (x - c) ** 2 + 1, lib.array(0.0), args=(centres,)).bracket
    result = elementwise.find_minimum(lambda x, c: (x - c) ** 2 + 1, bracket, args=(centres,))
    lib.check(result.x, CENTRES, 1e-3)  # the root of float32's precision
    lib.check(result.f_x, np.ones(3), 1e-6)
    assert bool(lib.xp.all(result.success))


# Of SciPy 1.17: a table of abscissae is made of ``xp.arange(n) * h``, where h is an array of floats.
@CLIENT(reason="SciPy multiplies integers with floats, which the standard leaves open", raises=TypeError)
def test_scipy_tanhsinh(shim_of_default, scipy):
    integrate = importlib.import_module("scipy.integrate")
    if not hasattr(integrate, "tanhsinh"):
        pytest.skip("since SciPy 1.15")
    lib = shim_of_default
    result = integrate.tanhsinh(lib.xp.exp, lib.array(0.0), lib.array(CENTRES))
    lib.check(result.integral, np.expm1(CENTRES), 1e-4)
