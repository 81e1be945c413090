"""MLX specifics of `array_api_mlx`: wrappers, laziness, transformations. See `test_array_api.py` for the standard."""

import copy
import itertools
import pickle
import sys
import warnings

import numpy as np
import pytest

import support
import tensorops as tp

mx = pytest.importorskip("mlx.core")
xp = pytest.importorskip("array_api_mlx")


@pytest.fixture(autouse=True)
def on_the_cpu():
    with mx.stream(mx.cpu):  # its GPUs have no float64
        yield


X = np.linspace(-2.0, 2.0, 12, dtype=np.float32).reshape(3, 4)


# --- in and out --------------------------------------------------------------------------------------


def test_import_needs_no_tensorops():
    done = support.python("import array_api_mlx, sys; print('tensorops' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_an_array_is_wrapped_and_given_back_without_a_copy():
    raw = mx.array(X)
    x = xp.asarray(raw)
    assert type(x) is xp.Array
    assert x.mlx is raw
    assert xp.asarray(x) is x
    assert x.__array_namespace__(api_version="2024.12") is sys.modules["array_api_mlx"] is xp
    with pytest.raises(ValueError, match="api_version"):
        x.__array_namespace__(api_version="2019.12")


def test_functions_take_raw_arrays_and_return_wrappers():
    raw = mx.array(X)
    for result in (xp.exp(raw), xp.add(raw, raw), xp.add(raw, 1), xp.add(1, raw), xp.sum(raw), raw_minus(raw)):
        assert type(result) is xp.Array
    assert type(raw - xp.asarray(raw)) is mx.array  # MLX takes it for its own
    assert mx.exp(xp.asarray(raw)).shape == X.shape


def raw_minus(raw):
    return xp.asarray(raw) - raw


def test_what_changes_an_array_in_place_leaves_the_raw_one():
    raw = mx.array(X)
    x = xp.asarray(raw)
    y = x
    x += 1
    x[0] = 7.0
    x[x > 2] = 0.0
    expected = X + 1
    expected[0] = 7
    expected[expected > 2] = 0
    np.testing.assert_array_equal(np.asarray(y), expected)
    np.testing.assert_array_equal(np.asarray(raw), X)


def test_numpy_float64_stays_float64():
    third = np.asarray([1.0, 2.0]) / 3
    for x in (xp.asarray(third), xp.from_dlpack(third), xp.asarray(third[::-1])[::-1], xp.asarray(third.astype(">f8"))):
        assert x.dtype == xp.float64
        np.testing.assert_array_equal(np.asarray(x), third)
    with pytest.raises(TypeError, match="MLX has no complex128"):
        xp.asarray(np.asarray([1j]))
    assert xp.asarray(np.asarray([1j]), dtype=xp.complex64).dtype == xp.complex64
    with pytest.raises(TypeError, match="complex128"):
        xp.ones(1, dtype=xp.float64) * xp.ones(1, dtype=xp.complex64)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_types_come_and_go(name):
    dtype = getattr(xp, name)
    x = xp.asarray([1.0, 2.5], dtype=dtype)
    assert (x + 1).dtype == dtype
    assert (x * xp.ones(2)).dtype == xp.float32
    np.testing.assert_array_equal(np.asarray(x), np.asarray([1.0, 2.5], dtype="float32"))
    assert xp.result_type(xp.float16, xp.bfloat16) == xp.float32


@pytest.mark.parametrize("name", ["int64", "uint64", "int32", "bool", "float64", "complex64"])
def test_numpy_arrays_are_of_the_types_that_numpy_itself_creates(name):
    """MLX's 64-bit integers are long long, which compiled code does not take for NumPy's int64 where that is long."""
    numbers = np.asarray([[0, 1], [1, 0]], dtype=name)
    x = xp.asarray(numbers)
    for values in (np.asarray(x), np.asarray(x[0, 1]), np.from_dlpack(x), tp.to_backend(x.mlx, "numpy")):
        assert values.dtype.num == numbers.dtype.num
    assert np.asarray(x).base is not None  # a view


def test_numpy_arrays_of_one_number_hold_it_once_for_each_element():
    values = np.asarray(xp.full((2, 2), 3.0))
    values[0, 0] = 7.0
    np.testing.assert_array_equal(values, [[7.0, 3.0], [3.0, 3.0]])


@pytest.mark.parametrize("source", ["ml_dtypes", "torch", "jax.numpy"])
def test_bfloat16_of_other_libraries_comes_through_dlpack(source):
    library = pytest.importorskip(source)
    numbers = [1.0, 2.5, -3.0e38]
    x = (np if source == "ml_dtypes" else library).asarray(numbers, dtype=library.bfloat16)
    for result in (xp.from_dlpack(x), xp.asarray(x)):
        assert result.dtype == xp.bfloat16
        np.testing.assert_allclose(np.asarray(result), numbers, rtol=2**-8)


def test_bfloat16_goes_through_dlpack_where_numpy_knows_it():
    """From NumPy 2.5 on, a package can register the data type; NumPy refuses it in words otherwise."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = xp.asarray([1.0, 2.5], dtype=xp.bfloat16)
    if not registered_for_dlpack(ml_dtypes.bfloat16):
        with pytest.raises((BufferError, RuntimeError), match="Unsupported dtype"):
            np.from_dlpack(x)
    else:
        assert np.from_dlpack(x).dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(np.from_dlpack(x).astype(np.float32), [1.0, 2.5])
    moved = tp.to_backend(x, "numpy")
    assert moved.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(moved.astype(np.float32), [1.0, 2.5])


def registered_for_dlpack(dtype):
    """Return whether NumPy exports a data type that is not its own."""
    try:
        np.zeros(1, dtype).__dlpack__()
    except BufferError:
        return False
    return True


def test_data_types_are_names_for_those_of_mlx():
    assert xp.float32 == mx.float32
    assert hash(xp.float32) == hash(mx.float32)
    assert xp.float32.mlx == mx.float32
    assert xp.zeros(2, dtype=mx.int8).dtype is xp.int8
    assert repr(xp.uint16) == "array_api_mlx.uint16"
    assert copy.deepcopy(xp.uint16) is pickle.loads(pickle.dumps(xp.uint16)) is xp.uint16


def test_numpy_arrays_are_not_taken_for_operands():
    x = xp.asarray(X)
    for function in (lambda: x + X, lambda: X + x, lambda: xp.add(x, X)):
        with pytest.raises(TypeError):
            function()
    assert type(x * np.float64(2.0)) is xp.Array  # also a Python float


def test_there_is_one_device():
    info = xp.__array_namespace_info__()
    assert info.devices() == (xp.ones(1).device,) == (info.default_device(),)
    assert "float64" in info.dtypes()
    assert "complex128" not in info.dtypes()
    x = xp.ones(2)
    assert x.to_device(x.device) is x
    for call in (lambda: x.to_device("cuda"), lambda: xp.ones(2, device="cuda")):
        with pytest.raises(ValueError, match="device is 'cuda'"):
            call()


# --- indexing that MLX itself gets wrong -------------------------------------------------------------


@pytest.mark.parametrize("key", [3, -4, (0, 4), (slice(None), -5), (0, 0, 0), "name", 1.5, (Ellipsis, Ellipsis)])
def test_indices_out_of_bounds_read_no_foreign_memory(key):
    for call in (lambda: xp.asarray(X)[key], lambda: xp.asarray(X).__setitem__(key, 1.0)):
        with pytest.raises(IndexError):
            call()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_indices_in_arrays_stay_within_bounds(dtype):
    far = 127 if dtype.endswith("8") else 10**12
    there = xp.asarray([0, 2, far], dtype=getattr(xp, dtype))
    x = xp.asarray(X[:, 0])
    expected = X[[0, 2, 2], 0]
    for result in (x[there], xp.take(x, there), xp.take_along_axis(x, there)):
        np.testing.assert_array_equal(np.asarray(result), expected)
    if dtype == "int64":
        np.testing.assert_array_equal(np.asarray(x[-there - 1]), X[[2, 0, 0], 0])
    x[there] = 9.0
    np.testing.assert_array_equal(np.asarray(x), [9.0, X[1, 0], 9.0])
    long = xp.asarray(np.arange(1000))
    np.testing.assert_array_equal(np.asarray(long[xp.asarray([127, 100], dtype=xp.int8)]), [127, 100])
    with pytest.raises(IndexError, match="length 0"):
        xp.zeros((0, 2))[there]
    assert xp.zeros((0, 2))[there[:0]].shape == (0, 2)


def test_what_fails_when_it_is_computed_raises_wherever_it_is_read():
    for read in (np.asarray, repr, float, np.from_dlpack):
        x = xp.linalg.inv(xp.zeros((2, 2)))
        with pytest.raises(RuntimeError, match="factorization"):
            read(x[0, 0] if read is float else x)


@pytest.mark.parametrize(
    "key",
    [
        slice(5, 9),
        (slice(None), None, slice(None, None, -2)),
        (np.asarray([2, 0]), slice(None, None, -1)),
        (slice(1), np.asarray([[0, 3], [1, 1]])),
        (np.asarray([True, False, True]), 1),
        (slice(None), np.asarray([True, False, True, False])),
        np.asarray([False, False, True]),
        np.zeros((3, 4), dtype=bool),
        True,
        (None, 1, ..., -1),
    ],
    ids=str,
)
def test_keys_of_numpy(key):
    def wrapped(entry):
        return xp.asarray(entry) if isinstance(entry, np.ndarray) else entry

    there = tuple(map(wrapped, key)) if isinstance(key, tuple) else wrapped(key)
    expected, x = X.copy(), xp.asarray(X)
    np.testing.assert_array_equal(np.asarray(x[there]), expected[key])
    if not any(entry is None for entry in (key if isinstance(key, tuple) else ())):
        x[there] = 9.0
        expected[key] = 9.0
        np.testing.assert_array_equal(np.asarray(x), expected)


# --- laziness and transformations --------------------------------------------------------------------

LAZY = {
    "operators": lambda x: -(x + 1) * x / (x * x + 2) - 1.5,
    "comparison": lambda x: xp.where(x > 0, x, -x),
    "floor_divide": lambda x: x // 0.7,
    "remainder": lambda x: x % 0.7,
    "hypot": lambda x: xp.hypot(x, x),
    "nextafter": lambda x: xp.nextafter(x, x + 1),
    "copysign": lambda x: xp.copysign(x, -x),
    "shift": lambda x: xp.astype(x, xp.int32) << 2,
    "slices": lambda x: x[1:, ::-1] + x[0, ...][None, :],
    "integer array": lambda x: x[xp.asarray([2, 0])],
    "setitem": lambda x: replaced(x, 0, 1.0),
    "masked setitem": lambda x: replaced(x, x > 0, 0.0),
    "in place": lambda x: increased(x),
    "sum": lambda x: xp.sum(x, axis=0) + xp.mean(x) + xp.std(x, correction=1),
    "cumulative": lambda x: xp.cumulative_prod(x, axis=1, include_initial=True),
    "sort": lambda x: xp.sort(x, descending=True),
    "argsort": lambda x: xp.argsort(x, descending=True),
    "argmax": lambda x: xp.argmax(x, axis=1),
    "take": lambda x: xp.take(x, xp.asarray([1, 1]), axis=1),
    "searchsorted": lambda x: xp.searchsorted(x[0, :], x),
    "isin": lambda x: xp.isin(x, x[0, :]),
    "matmul": lambda x: x @ x.mT,
    "integer matmul": lambda x: xp.astype(x, xp.int32) @ xp.astype(x.T, xp.int32),
    "tensordot": lambda x: xp.tensordot(x, x, axes=2),
    "diff": lambda x: xp.diff(x, n=2),
    "roll": lambda x: xp.roll(x, (1, 2), axis=(0, 1)),
    "repeat": lambda x: xp.repeat(x, 2),
    "asarray": lambda x: xp.asarray([x[0, 0], x[1, 1]]),
    "svd": lambda x: xp.linalg.svdvals(x),
    "fft": lambda x: xp.fft.rfft(x),
    "clip": lambda x: xp.clip(x, -1, xp.ones(4)),
    "tril": lambda x: xp.tril(x, k=1),
}


def replaced(x, key, value):
    x[key] = value
    return x


def increased(x):
    x += 1
    return x


@pytest.mark.parametrize("name", LAZY)
def test_lazy_functions_are_traced_by_compile(name):
    """MLX refuses to compute while it traces: a function that looked at a value would raise."""
    function = LAZY[name]
    traced = mx.compile(lambda raw: function(xp.asarray(raw)).mlx)(mx.array(X))
    np.testing.assert_allclose(np.asarray(traced), np.asarray(function(xp.asarray(X))), rtol=1e-5, atol=1e-6)


ANY_SHAPE = {
    "filled": lambda x: xp.where(x > 0, xp.exp(x), xp.zeros_like(x)) * xp.full_like(x, 2.0) + xp.ones_like(x),
    "elementwise": lambda x: xp.log1p(xp.abs(x)) * xp.sign(x) - xp.clip(x, -0.5, 0.5) ** 2,
    "integers": lambda x: xp.isnan(xp.astype(x, xp.int32)) | (x > 0),
    "broadcast": lambda x: x * xp.max(x, axis=0) + xp.expand_dims(xp.sum(x, axis=1), axis=1),
    "extremes": lambda x: xp.max(x, axis=1, keepdims=True) - xp.min(x, axis=(0,)),
    "sums": lambda x: xp.sum(x, axis=1) + xp.prod(x, axis=1),
    "counts": lambda x: xp.astype(xp.any(x > 1, axis=0), xp.int32) + xp.astype(xp.all(x > -1, axis=0), xp.int32),
    "means": lambda x: xp.mean(x, axis=0, keepdims=True) + xp.mean(x) + xp.mean(x, axis=1, keepdims=True),
    "deviations": lambda x: xp.std(x, axis=1) * xp.var(x, correction=1),
    "positions": lambda x: xp.argmax(x, axis=1),
    "cumulative": lambda x: xp.cumulative_sum(x, axis=1),
    "flat": lambda x: xp.reshape(x, (-1,)),
    "column": lambda x: xp.reshape(x, (-1, 1)),
    "whole": lambda x: x[None, :, None, ...],
    "matmul": lambda x: x @ x.mT + xp.linalg.vector_norm(x),
    "vecdot": lambda x: xp.vecdot(x, x),
    "concat": lambda x: xp.concat([x, xp.sum(x, axis=0, keepdims=True)], axis=0),
    "sort": lambda x: xp.sort(x, axis=1),
    "masked setitem": lambda x: replaced(x, x > 0, 0.0),
    "transposed": lambda x: xp.squeeze(xp.expand_dims(xp.permute_dims(x, (1, 0)), axis=0), axis=0),
}
LENGTHS = {
    "zeros": lambda x: x + xp.zeros(x.shape),
    "full": lambda x: xp.where(x > 0, x, xp.full(x.shape, 2.0)),
    "arange": lambda x: x + xp.arange(x.shape[1], dtype=xp.float32),
    "linspace": lambda x: x + xp.linspace(0.0, 1.0, x.shape[1]),
    "eye": lambda x: x @ xp.eye(x.shape[1]),
    "broadcast_to": lambda x: xp.broadcast_to(xp.sum(x), x.shape),
    "reshape": lambda x: xp.reshape(x, (x.shape[1], x.shape[0])),
    "row": lambda x: x[0],
    "slice": lambda x: x[:, :2],
    "integer array": lambda x: x[xp.asarray([1, 0])],
    "setitem": lambda x: replaced(x, 0, 1.0),
    "iteration": lambda x: next(iter(x)),
    "take": lambda x: xp.take(x, xp.asarray([1, 0]), axis=0),
    "take_along_axis": lambda x: xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1),
    "repeat": lambda x: xp.repeat(x, 2),
    "tile": lambda x: xp.tile(x, (1, 2)),
    "flip": lambda x: xp.flip(x),
    "roll": lambda x: xp.roll(x, 1),
    "unstack": lambda x: xp.unstack(x)[0],
    "meshgrid": lambda x: xp.meshgrid(x, x)[0],
    "tril": lambda x: xp.tril(x),
    "triu": lambda x: xp.triu(x),
    "diff": lambda x: xp.diff(x),
    "isin": lambda x: xp.isin(x, x),
    "initial": lambda x: xp.cumulative_sum(x, axis=1, include_initial=True),
    "integer matmul": lambda x: xp.astype(x, xp.int32) @ xp.astype(x.mT, xp.int32),
    "tensordot": lambda x: xp.tensordot(x, x),
    "trace": lambda x: xp.linalg.trace(x),
    "diagonal": lambda x: xp.linalg.diagonal(x),
    "cross": lambda x: xp.linalg.cross(x[:, :3], x[:, :3]),
    "matrix_power": lambda x: xp.linalg.matrix_power(x @ x.mT, 2),
}


def shapeless(function):
    mx.eval(mx.ones(1) + 1)  # what is compiled before MLX computes for the first time is traced again after it
    return mx.compile(lambda raw: function(xp.asarray(raw)).mlx, shapeless=True)


@pytest.mark.parametrize("first", [(3, 4), (1, 4), (1, 1)], ids=str)
@pytest.mark.parametrize("name", ANY_SHAPE)
def test_functions_traced_for_any_shape(name, first):
    function = ANY_SHAPE[name]
    traced, rng = shapeless(function), np.random.default_rng(0)
    for shape in (first, (3, 4), (40, 300), (3, 1), (1, 4), (2, 3)):
        values = rng.standard_normal(shape, dtype=np.float32)
        result, expected = np.asarray(traced(mx.array(values))), np.asarray(function(xp.asarray(values)))
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_what_is_fused_for_any_shape_reads_no_foreign_memory(fusing_mlx):
    traced = shapeless(ANY_SHAPE["filled"])
    for shape in ((2, 3), (500, 600)):
        values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        np.testing.assert_allclose(
            np.asarray(traced(mx.array(values))), 2 * np.where(values > 0, np.exp(values), 0) + 1, rtol=1e-6
        )


@pytest.mark.parametrize("name", LENGTHS)
def test_functions_that_keep_lengths_are_not_traced_for_any_shape(name):
    """MLX would run them for other shapes, and return wrong elements or read foreign memory."""
    with pytest.raises(ValueError, match=r"would keep lengths of this call, but mx.compile\(shapeless=True\)"):
        shapeless(LENGTHS[name])(mx.array(X))
    x = xp.asarray(X)  # the error has ended the trace
    assert xp.zeros(x.shape).shape == x.shape


@pytest.mark.parametrize("wrap", [mx.grad, mx.vmap, mx.checkpoint], ids=["grad", "vmap", "checkpoint"])
def test_lengths_are_kept_within_other_transformations(wrap):
    def function(raw):
        return xp.sum(xp.asarray(raw) * xp.arange(3, dtype=xp.float32)).mlx

    raw = mx.ones((2, 3)) if wrap is mx.vmap else mx.ones(3)
    np.testing.assert_array_equal(np.asarray(mx.compile(wrap(function))(raw)), np.asarray(wrap(function)(raw)))
    with pytest.raises(ValueError, match="shapeless=True"):
        mx.compile(wrap(function), shapeless=True)(raw)


@pytest.mark.parametrize(
    "function",
    [lambda x: xp.nonzero(x)[0], xp.unique_values, lambda x: x[x > 0], lambda x: xp.repeat(x, xp.astype(x, xp.int32))],
)
def test_functions_with_shapes_that_depend_on_values_compute(function):
    with pytest.raises(ValueError, match="eval"):
        mx.compile(lambda raw: function(xp.asarray(raw)).mlx)(mx.array(X[0]))


def test_float64_functions_have_gradients():
    x = mx.array([-1.5, 0.5, 2.0], dtype=mx.float64)
    for name, derivative in (("exp", np.exp), ("sin", np.cos), ("cos", lambda v: -np.sin(v))):
        function = getattr(xp, name)
        result = mx.grad(lambda raw, function=function: xp.sum(function(raw)).mlx)(x)
        np.testing.assert_allclose(np.asarray(result), derivative(np.asarray(x)), rtol=1e-6)


def test_grad_and_vmap_go_through():
    def loss(raw):
        x = xp.asarray(raw)
        return xp.sum(xp.where(x > 0, x * x, 3.0 * x) / 2).mlx

    np.testing.assert_allclose(np.asarray(mx.grad(loss)(mx.array(X))), np.where(X > 0, X, 1.5), rtol=1e-6)
    rows = mx.vmap(lambda raw: (xp.asarray(raw) - xp.max(raw)).mlx)(mx.array(X))
    np.testing.assert_allclose(np.asarray(rows), X - X.max(axis=1, keepdims=True))


def test_gradients_pass_by_the_order_of_elements():
    def loss(raw):
        x = xp.asarray(raw)
        return xp.sum(xp.take(x, xp.argsort(x)) * xp.arange(3, dtype=xp.float32)).mlx

    np.testing.assert_allclose(np.asarray(mx.grad(loss)(mx.array([3.0, 1.0, 2.0]))), [2.0, 0.0, 1.0])


# --- tensorops ---------------------------------------------------------------------------------------


def test_operators_return_the_kind_that_they_were_given():
    support.require("mlx")
    raw, x = mx.array(X), xp.asarray(X)
    expected = tp.softmax(X)
    for given in (raw, x):
        result = tp.softmax(given)
        assert type(result) is type(given)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)
        assert tp.softmax.explain(given).kernel == "generic"
        parts = tp.add_rms_norm(given, given)
        assert [type(part) for part in parts] == [type(given)] * 2
    assert tp.get_namespace(raw, x) is xp
    assert type(tp.add_rms_norm(raw, x)[0]) is xp.Array


def test_a_kernel_of_mlx_takes_wrappers():
    support.require("mlx")
    rng = np.random.default_rng(0)
    w = tp.quantize(rng.normal(size=(64, 64)).astype(np.float32), bits=4, group_size=32)
    x = rng.normal(size=(2, 64)).astype(np.float32)
    arrays = [mx.array(a) for a in (x, *w)]
    options = {"bits": 4, "group_size": 32}
    wrapped = [xp.asarray(a) for a in arrays]
    assert tp.quantized_linear.explain(*wrapped, **options).kernel == "mlx"
    result = tp.quantized_linear(*wrapped, **options)
    assert type(result) is xp.Array
    np.testing.assert_array_equal(np.asarray(result), np.asarray(tp.quantized_linear(*arrays, **options)))


def test_operators_move_wrappers_to_other_backends():
    support.require("mlx")
    x = xp.asarray(X)
    with tp.set_backend("numpy"):
        result = tp.silu(x)
    assert type(result) is xp.Array
    np.testing.assert_array_equal(np.asarray(result), tp.silu.generic(X))
    assert type(tp.to_backend(x, "numpy")) is np.ndarray


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "std", "any", "all", "count_nonzero"])
def test_reductions_without_elements_do_not_ask_mlx(name, keepdims, monkeypatch):
    """Its own sometimes never end."""
    for function in ("sum", "prod", "mean", "any", "all"):
        whole = getattr(mx, function)

        def watched(a, *args, whole=whole, **kwargs):
            assert a.size, "MLX reduces nothing"
            return whole(a, *args, **kwargs)

        monkeypatch.setattr(mx, function, watched)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shape, axis in (((3, 0), 1), ((0, 3), 1), ((2, 0, 3), None), ((2, 0, 3), (0, 2))):
            found = getattr(xp, name)(xp.zeros(shape), axis=axis, keepdims=keepdims)
            expected = getattr(np, name)(np.zeros(shape), axis=axis, keepdims=keepdims)
            np.testing.assert_array_equal(np.asarray(found), expected)


@pytest.mark.parametrize("shape", [(3_000_000,), (1000, 3000), (1000, 1000), (100, 100, 100)], ids=str)
def test_means_of_millions(shape):
    """MLX adds in order: its own deviation of three millions is 21."""
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) + 1000
    x, exact = xp.asarray(values), values.astype(np.float64)
    assert float(xp.mean(x)) == pytest.approx(exact.mean(), abs=1e-3)
    assert float(xp.std(x)) == pytest.approx(exact.std(), abs=1e-4)
    assert float(xp.sum(x)) == pytest.approx(exact.sum(), rel=1e-6)
    for order, expected in ((1, exact.sum()), (2, (exact**2).sum() ** 0.5), (3, (exact**3).sum() ** (1 / 3))):
        assert float(xp.linalg.vector_norm(x, ord=order)) == pytest.approx(expected, rel=1e-6)
    if len(shape) == 2:
        assert float(xp.linalg.matrix_norm(x)) == pytest.approx((exact**2).sum() ** 0.5, rel=1e-6)


def test_lengths_of_ranges_are_computed_with_integers():
    far = -9007199254740993
    np.testing.assert_array_equal(np.asarray(xp.arange(0, far - 1, far)), [0, far])
    for first, last, step in itertools.product(range(-3, 4), range(-3, 4), (-2, -1, 1, 2, 3)):
        np.testing.assert_array_equal(np.asarray(xp.arange(first, last, step)), np.arange(first, last, step))


def test_complex128_is_a_name_only():
    assert xp.complex128 != xp.complex64
    assert xp.zeros(2).dtype not in (xp.complex128,)
    for make in (lambda: xp.zeros(2, dtype=xp.complex128), lambda: xp.astype(xp.zeros(2), xp.complex128)):
        with pytest.raises(TypeError, match="MLX has no complex128; its only complex data type is complex64"):
            make()
