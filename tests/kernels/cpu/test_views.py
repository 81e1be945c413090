"""Views of every kind, along any axis: which kernel runs, and what it returns."""

import numpy as np
import pytest

import support
import tensorops
from tensorops.testing import DTYPES

_native = support.require_native()

SHAPES = [(5, 7, 9), (100, 10), (3, 130, 70), (4, 1, 33), (2, 40, 3, 6), (33,), (300, 3), (1, 1)]
ALONG = ("softmax", "log_softmax", "logsumexp")
EPS = {"float64": 2**-52, "float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}
ELEMENTWISE = ("silu", "gelu", "softplus", "relu", "swiglu", "geglu")


def layouts(rng, shape, dtype):
    """Return arrays of the given or the reverse shape, each another view of random numbers."""
    whole = (3 * rng.standard_normal([2 * n for n in shape])).astype(DTYPES[dtype])
    part = np.ascontiguousarray(whole[tuple(slice(n) for n in shape)])
    stepped = whole[tuple(slice(0, 2 * n, 2) for n in shape)]
    return {
        "contiguous": part,
        "transposed": part.T,
        "sliced": whole[tuple(slice(n) for n in shape)],
        "stepped": stepped,
        "stepped and transposed": stepped.T,
        "reversed": part[::-1, ..., ::-1] if part.ndim > 1 else part[::-1],
        "swapped": part.swapaxes(0, -1),
        "broadcast": np.broadcast_to(part[:1], shape),
        "broadcast along the last axis": np.broadcast_to(part[..., :1], shape),
    }


def reference(operator, x, axis):
    """Return the operator's values, in numbers wider than float64 where there are any."""
    x = x.astype(np.longdouble)
    largest = x.max(axis=axis, keepdims=True)
    total = np.exp(x - largest).sum(axis=axis, keepdims=True)
    if operator == "softmax":
        return np.exp(x - largest) / total
    if operator == "log_softmax":
        return x - largest - np.log(total)
    return (largest + np.log(total)).squeeze(axis)


def on_cpu(operator, *args, **options):
    with tensorops.trace() as log:
        y = getattr(tensorops, operator)(*args, **options)
    assert [call.kernel for call in log] == ["cpu"]
    return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", ALONG)
def test_along_every_axis_of_every_view(operator, dtype, rng):
    for shape in SHAPES:
        for name, x in layouts(rng, shape, dtype).items():
            for axis in range(-1, x.ndim):
                y = on_cpu(operator, x, axis=axis)
                expected = reference(operator, x, axis)
                assert (y.shape, y.dtype) == (expected.shape, x.dtype)
                eps = EPS[dtype]
                # exp magnifies the rounding of a large difference; float16 has few bits for small numbers
                scale = np.maximum(np.abs(expected), 1) if operator != "softmax" else np.abs(expected) + 6e-8 / eps
                scale = scale if dtype in ("float16", "bfloat16") or operator != "softmax" else np.abs(expected)
                assert np.max(np.abs(y.astype(np.longdouble) - expected) / scale) < 32 * eps, (shape, name, axis)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("operator", ALONG)
def test_derivatives_along_every_axis_of_every_view(operator, dtype, rng):
    for shape in SHAPES:
        for name, x in layouts(rng, shape, dtype).items():
            for axis in range(x.ndim):
                y, soft = (reference(each, x, axis) for each in (operator, "softmax"))
                argument = x if operator == "logsumexp" else y.astype(x.dtype)
                for dy in (rng.standard_normal(y.shape), np.broadcast_to(np.float64(0.5), y.shape)):
                    dy = dy.astype(x.dtype) if dy.strides[-1:] != (0,) else np.broadcast_to(x.dtype.type(0.5), y.shape)
                    wide = dy.astype(np.longdouble)
                    if operator == "softmax":
                        expected = soft * (wide - (wide * soft).sum(axis=axis, keepdims=True))
                    elif operator == "log_softmax":
                        expected = wide - soft * wide.sum(axis=axis, keepdims=True)
                    else:
                        expected = soft * np.expand_dims(wide, axis)
                    dx = getattr(_native, f"{operator}_vjp")(argument, dy, axis=axis)
                    assert dx.dtype == x.dtype
                    largest = np.abs(wide).max() * (1 + np.log(x.shape[axis]))
                    assert np.abs(dx - expected).max() < 64 * EPS[dtype] * largest, (shape, name, axis)


@pytest.mark.parametrize("largest", [np.inf, -np.inf])
@pytest.mark.parametrize("length", [3, 50])
def test_derivative_of_logsumexp_beside_infinities(length, largest, rng):
    """A line of nothing but -inf shares evenly, +inf leaves nothing to the others and has no derivative itself."""
    x = rng.standard_normal((2, length))
    x[0] = -np.inf
    x[0, 0] = largest
    expected = np.full(length, 1 / length) if largest < 0 else np.r_[np.nan, np.zeros(length - 1)]
    for dx in (_native.logsumexp_vjp(x, np.ones(2)),
               _native.logsumexp_vjp(np.ascontiguousarray(x.T), np.ones(2), axis=0).T):  # fmt: skip
        np.testing.assert_array_equal(dx[0], expected)
        np.testing.assert_allclose(dx[1], np.exp(x[1]) / np.exp(x[1]).sum())


NORMS = {"rms_norm": 1e-6, "l2_norm": 1e-12, "layer_norm": 1e-5}


def normalized(operator, x, axis, weight=None, bias=None):
    """Return values of a norm in numbers wider than float64, and the size of what each comes from, with its errors."""
    x = x.astype(np.longdouble)
    centred = x - x.mean(axis=axis, keepdims=True) if operator == "layer_norm" else x
    if operator == "l2_norm":
        divisor = np.maximum(np.sqrt((centred**2).sum(axis=axis, keepdims=True)), NORMS[operator])
    else:
        divisor = np.sqrt((centred**2).mean(axis=axis, keepdims=True) + np.longdouble(NORMS[operator]))
    shape = [n if d == axis or d == axis + x.ndim else 1 for d, n in enumerate(x.shape)] if np.ndim(axis) == 0 else ()
    weight = 1 if weight is None else weight.astype(np.longdouble).reshape(shape)
    bias = 0 if bias is None else bias.astype(np.longdouble).reshape(shape)
    size = np.abs(x).max(axis=axis, keepdims=True) / divisor
    return centred / divisor * weight + bias, size * np.abs(weight) + np.abs(bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", NORMS)
def test_norms_along_every_axis_of_every_view(operator, dtype, rng):
    for shape in SHAPES:
        for name, x in layouts(rng, shape, dtype).items():
            for axis in range(-1, x.ndim):
                parameters = [rng.standard_normal(2 * x.shape[axis]).astype(x.dtype)[::2] for _ in range(2)]
                parameters = parameters[: {"rms_norm": 1, "l2_norm": 0, "layer_norm": 2}[operator] if axis else 0]
                y = on_cpu(operator, x, *parameters, axis=axis)
                expected, size = normalized(operator, x, axis, *parameters)
                assert (y.shape, y.dtype) == (x.shape, x.dtype)
                error = np.abs(y.astype(np.longdouble) - expected) / (size + 1e-300)
                assert error.max() < 6 * EPS[dtype], (shape, name, axis)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", ["rms_norm", "layer_norm"])
def test_norms_of_sums_along_every_axis_of_every_view(operator, dtype, rng):
    for shape in SHAPES:
        residuals = layouts(rng, shape, dtype)
        for name, x in layouts(rng, shape, dtype).items():
            for residual in (residuals[name], residuals["contiguous"].reshape(x.shape)):
                for axis in range(x.ndim):
                    weight = rng.standard_normal(x.shape[axis]).astype(x.dtype)
                    y, total = on_cpu(f"add_{operator}", x, residual, weight, axis=axis)
                    np.testing.assert_array_equal(support.bits(total), support.bits(x + residual))
                    expected, size = normalized(operator, total, axis, weight)
                    error = np.abs(y.astype(np.longdouble) - expected) / (size + 1e-300)
                    assert error.max() < 6 * EPS[dtype], (shape, name, axis)


@pytest.mark.parametrize("length", [3, 20, 300])
@pytest.mark.parametrize("operator", NORMS)
def test_norms_beyond_the_range_of_squares(operator, length, rng):
    """Lines whose squares overflow or vanish, and those with infinities and NaN, beside usual ones."""
    x = rng.standard_normal((40, length)).astype(np.float32)
    x[3] *= np.float32(1e30)
    x[20] *= np.float32(1e-25)
    x[21] = 0
    x[30, 1] = np.inf
    x[31, 2] = np.nan
    with np.errstate(invalid="ignore"):
        expected = normalized(operator, x, -1)[0].astype(np.float64)
    assert np.isnan(expected[30:32]).any()
    wide = np.repeat(x, 2, axis=1)
    for y in (on_cpu(operator, x), on_cpu(operator, wide[:, ::2]), on_cpu(operator, np.asfortranarray(x)),
              on_cpu(operator, np.ascontiguousarray(x.T), axis=0).T, on_cpu(operator, wide.T[::2], axis=0).T,
              on_cpu(operator, x[None].swapaxes(1, 2), axis=1)[0].T):  # fmt: skip
        np.testing.assert_allclose(y, expected, rtol=3e-6, atol=3e-6 * np.nanmax(np.abs(expected[3])))


def norm_gradients(operator, x, dy, axis, weight):
    """Return the derivatives of a norm with respect to x and weight in numbers wider than float64."""
    x, dy = x.astype(np.longdouble), dy.astype(np.longdouble)
    shape = [n if d == axis else 1 for d, n in enumerate(x.shape)]
    others = tuple(d for d in range(x.ndim) if d != axis)
    centred = x - x.mean(axis=axis, keepdims=True) if operator == "layer_norm" else x
    mean = np.sum if operator == "l2_norm" else np.mean
    eps = 0 if operator == "l2_norm" else np.longdouble(NORMS[operator])
    divisor = np.sqrt(mean(centred**2, axis=axis, keepdims=True) + eps)
    y, g = centred / divisor, dy * (1 if weight is None else weight.astype(np.longdouble).reshape(shape))
    dx = g - y * mean(g * y, axis=axis, keepdims=True)
    if operator == "layer_norm":
        dx = dx - g.mean(axis=axis, keepdims=True)
    return dx / divisor, (dy * y).sum(axis=others), dy.sum(axis=others), divisor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", NORMS)
def test_derivatives_of_norms_along_every_axis_of_every_view(operator, dtype, rng):
    eps = EPS[dtype]
    compute = eps if dtype in ("float32", "float64") else 2**-23
    for shape in SHAPES:
        cotangents = layouts(rng, shape, dtype)
        for name, x in layouts(rng, shape, dtype).items():
            for axis in range(x.ndim):
                weight = None if operator == "l2_norm" else rng.standard_normal(2 * x.shape[axis]).astype(x.dtype)[::2]
                given = {"rms_norm": (weight,), "l2_norm": (), "layer_norm": (weight, weight)}[operator]
                for dy in (cotangents[name], cotangents["contiguous"].reshape(x.shape),
                           np.broadcast_to(x.dtype.type(0.5), x.shape)):  # fmt: skip
                    expected = norm_gradients(operator, x, dy, axis, weight)
                    results = getattr(_native, f"{operator}_vjp")(x, *given, dy, axis=axis)
                    dx, *of_parameters = results if isinstance(results, tuple) else (results,)
                    assert dx.dtype == x.dtype
                    # the deviation of equal elements is eps, and theirs from their mean a rounding error
                    size = np.abs(x.astype(np.longdouble)).max(axis=axis, keepdims=True) / expected[3]
                    slope = np.abs(dy.astype(np.longdouble)).max() * (1 if weight is None else np.abs(weight).max())
                    scale = slope.astype(np.longdouble) / expected[3] * (1 + size) ** 2
                    error = np.abs(dx.astype(np.longdouble) - expected[0])
                    assert np.all(error < 32 * compute * scale + eps * np.abs(expected[0])), (shape, name, axis)
                    terms = x.size // x.shape[axis]
                    for found, sums in zip(of_parameters, expected[1:], strict=False):
                        bound = 16 * compute * terms * np.abs(dy).max().astype(np.longdouble) * (1 + size.max())
                        error = np.abs(found.astype(np.longdouble) - sums)
                        assert np.all(error < bound + eps * np.abs(sums)), (shape, name, axis)


@pytest.mark.parametrize("length", [3, 20, 300])
@pytest.mark.parametrize("operator", ["rms_norm", "layer_norm"])
def test_derivatives_of_norms_beyond_the_range_of_squares(operator, length, rng):
    """Lines whose squares overflow or vanish, beside usual ones, whatever the layout."""
    x, dy = (rng.standard_normal((40, length)).astype(np.float32) for _ in range(2))
    x[3] *= np.float32(1e25)
    x[20] *= np.float32(1e-25)
    x[21] = 0
    weight = rng.standard_normal(length).astype(np.float32)
    given = (weight,) if operator == "rms_norm" else (weight, weight)
    expected = norm_gradients(operator, x, dy, 1, weight)[:3]
    wide = np.repeat(x, 2, axis=1)
    vjp = getattr(_native, f"{operator}_vjp")
    for rows, (dx, *sums) in ((True, vjp(x, *given, dy)), (True, vjp(wide[:, ::2], *given, dy)),
                              (True, vjp(np.asfortranarray(x), *given, dy)),
                              (False, vjp(np.ascontiguousarray(x.T), *given, np.ascontiguousarray(dy.T), axis=0)),
                              (False, vjp(wide.T[::2], *given, dy.T, axis=0))):  # fmt: skip
        error = np.abs((dx if rows else dx.T) - expected[0]) / np.abs(expected[0]).max(axis=1, keepdims=True)
        assert error.max() < 5e-5  # of three elements, the deviation may be small
        for found, wanted in zip(sums, expected[1:], strict=False):
            np.testing.assert_allclose(found, wanted.astype(float), rtol=1e-5, atol=1e-5)


def test_only_what_is_wanted_of_derivatives(rng):
    x = np.asfortranarray(rng.standard_normal((30, 50)))
    weight, dy = rng.standard_normal(50), rng.standard_normal((30, 50))
    whole = _native.rms_norm_vjp(x, weight, dy)
    for wanted in (1, 2):
        for found, expected in zip(_native.rms_norm_vjp(x, weight, dy, wanted=wanted), whole, strict=True):
            if found is not None:
                np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert _native.rms_norm_vjp(x, weight, dy, wanted=2)[0] is None


@pytest.mark.parametrize("operator", ["layer_norm", "l2_norm"])
def test_norms_along_several_axes(operator, rng):
    """Several axes that are one run of memory are one line, whose parameters have their shape."""
    x = rng.standard_normal((6, 4, 5, 3))
    for axes, y in (((1, 2, 3), on_cpu(operator, x, axis=(1, 2, 3))), ((0, 1), on_cpu(operator, x, axis=(0, 1))),
                    ((-1, 2), on_cpu(operator, x, axis=(-1, 2)))):  # fmt: skip
        np.testing.assert_allclose(y, normalized(operator, x, axes)[0].astype(float), rtol=1e-13, atol=1e-13)
    refused = {"cpu": "the axes of x are not one run of memory"}
    assert getattr(tensorops, operator).explain(x, axis=(0, 2)).refused == refused
    if operator == "layer_norm":
        weight = rng.standard_normal((4, 5, 3))
        y = on_cpu(operator, x, weight, axis=(1, 2, 3))
        expected = normalized(operator, x, (1, 2, 3))[0].astype(float) * weight
        np.testing.assert_allclose(y, expected, rtol=1e-13, atol=1e-13)
        transposed = x.swapaxes(2, 3)
        explanation = tensorops.layer_norm.explain(transposed, np.ones((3, 5)), axis=(2, 3))
        assert explanation.refused == {"cpu": "the axes of x are in another order in memory"}


@pytest.mark.parametrize("operator", ALONG)
def test_all_axes_of_what_is_dense(operator, rng):
    x = rng.standard_normal((4, 5, 6)).transpose(2, 0, 1)
    np.testing.assert_allclose(on_cpu(operator, x, axis=(0, 1, 2)), reference(operator, x, (0, 1, 2)).astype(float))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", ELEMENTWISE)
def test_elements_of_every_view(operator, dtype, rng):
    count = 2 if operator.endswith("glu") else 1
    for shape in SHAPES:
        all_layouts = [layouts(rng, shape, dtype) for _ in range(count)]
        for name in all_layouts[0]:
            args = [each[name] for each in all_layouts]
            y = on_cpu(operator, *args)
            expected = on_cpu(operator, *map(np.ascontiguousarray, args))
            np.testing.assert_array_equal(support.bits(y), support.bits(expected), err_msg=f"{shape} {name}")
        if count == 2 and len(shape) > 1:  # a gate and an array in different orders
            gate, up = all_layouts[0]["contiguous"], np.asfortranarray(all_layouts[1]["contiguous"])
            expected = on_cpu(operator, gate, np.ascontiguousarray(up))
            np.testing.assert_array_equal(support.bits(on_cpu(operator, gate, up)), support.bits(expected))


@pytest.mark.parametrize("operator", ["silu", "softmax", "rms_norm"])
def test_results_have_the_order_of_x_in_memory(operator, rng):
    x = rng.standard_normal((4, 5, 6)).transpose(2, 0, 1)
    assert on_cpu(operator, x).strides == x.strides
    assert on_cpu(operator, x[::2]).strides == np.empty_like(x[::2]).strides
    assert on_cpu(operator, x[:, ::-1]).flags.writeable


@pytest.mark.parametrize("largest", [np.inf, -np.inf])
@pytest.mark.parametrize("length", [3, 50])
def test_infinities_and_nan_along_any_axis(length, largest, rng):
    """A line with +inf, or of nothing but -inf, has that as its logarithm of a sum, and a line with NaN has NaN."""
    x = rng.standard_normal((4, length))
    x[0] = largest
    x[1, 1] = np.nan
    x[2] = largest
    x[2, 2] = np.nan
    for y in (on_cpu("logsumexp", x), on_cpu("logsumexp", np.ascontiguousarray(x.T), axis=0)):
        np.testing.assert_array_equal(y[:3], [largest, np.nan, np.nan])
        np.testing.assert_allclose(y[3], np.log(np.exp(x[3]).sum()))


def test_gradients_of_a_broadcast_cotangent(rng):
    """Expanded tensors have a stride of 0 along the last axis as well."""
    torch = pytest.importorskip("torch")
    x = torch.tensor(rng.standard_normal((40, 50)), requires_grad=True)
    tensorops.silu(x.T).sum().backward()
    of_sums = x.grad.clone()
    x.grad = None
    torch.nn.functional.silu(x.T).sum().backward()
    torch.testing.assert_close(of_sums, x.grad, rtol=1e-14, atol=1e-14)
