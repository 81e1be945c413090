"""Activations and softmax variants: the references against closed forms, other libraries and hand calculations."""

import decimal
import inspect
import math

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops as tp
from support import close
from tensorops.testing import DTYPES, REFERENCES, activation as references, assert_matches

inf, nan = np.inf, np.nan


POINTS = [-700.0, -80.0, -20.0, -3.5, -1.0, -1e-9, 0.0, 1e-9, 0.1, 1.0, 2.5, 20.0, 80.0, 700.0]


def exactly(function, x):
    """Evaluate a function of a `Decimal` with 400 digits, enough for every cancellation here."""
    with decimal.localcontext(prec=400):
        return float(function(decimal.Decimal(x)))


@pytest.mark.parametrize("x", POINTS)
def test_logistic_functions_have_full_precision(x):
    close(references.sigmoid(x), exactly(lambda t: 1 / (1 + (-t).exp()), x), rtol=4e-16)
    close(references.silu(x), exactly(lambda t: t / (1 + (-t).exp()), x), rtol=4e-16)
    close(references.softplus(x), exactly(lambda t: (1 + t.exp()).ln(), x), rtol=4e-16)


@pytest.mark.parametrize("x", POINTS)
def test_mish_and_the_exponential_units_have_full_precision(x):
    # tanh(log(1 + e)) = ((1 + e)² - 1) / ((1 + e)² + 1)
    close(references.mish(x), exactly(lambda t: t * ((1 + t.exp()) ** 2 - 1) / ((1 + t.exp()) ** 2 + 1), x), rtol=6e-16)
    close(references.quick_gelu(x, alpha=0.5), exactly(lambda t: t / (1 + (-t / 2).exp()), x), rtol=4e-16)
    close(references.elu(x, alpha=2.0), exactly(lambda t: t if t > 0 else 2 * (t.exp() - 1), x), rtol=4e-16)
    scale, alpha = decimal.Decimal("1.0507009873554804934"), decimal.Decimal("1.6732632423543772848")
    close(references.selu(x), exactly(lambda t: scale * (t if t > 0 else alpha * (t.exp() - 1)), x), rtol=4e-16)


def test_piecewise_functions_by_hand():
    x = [-8.0, -3.0, -1.5, 0.0, 1.5, 3.0, 8.0, nan]
    close(references.hard_sigmoid(x), [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0, nan])
    close(references.hard_sigmoid(x, alpha=0.2), [0.0, 0.0, 0.2, 0.5, 0.8, 1.0, 1.0, nan])
    close(references.hard_swish(x), [0.0, 0.0, -0.375, 0.0, 1.125, 3.0, 8.0, nan])
    close(references.leaky_relu(x, negative_slope=0.25), [-2.0, -0.75, -0.375, 0.0, 1.5, 3.0, 8.0, nan])
    close(references.reglu([-1.0, 2.0, nan], [3.0, -4.0, 1.0]), [0.0, -8.0, nan])


@pytest.mark.parametrize("x", [-6.0, -1.0, -0.25, 0.0, 0.5, 3.0])
def test_gelu_tanh_has_full_precision(x):
    def gelu_tanh(t):
        pi = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494")
        u = (2 / pi).sqrt() * (t + decimal.Decimal("0.044715") * t**3)
        return t / 2 * (1 + ((2 * u).exp() - 1) / ((2 * u).exp() + 1))

    close(references.gelu(x, approximate="tanh"), exactly(gelu_tanh, x), rtol=2e-14)


def test_gelu_at_tabulated_points():
    # The normal distribution function at 0, 1, 2, -1 and -10.
    phi = [0.5, 0.841344746068542948585, 0.977249868051820792800, 0.158655253931457051415, 7.61985302416052606597e-24]
    x = np.array([0.0, 1.0, 2.0, -1.0, -10.0])
    close(references.gelu(x), x * phi, rtol=1e-13)
    close(references.geglu(x, [1.0, 2.0, 3.0, 4.0, 5.0]), x * phi * [1, 2, 3, 4, 5], rtol=1e-13)


def test_gelu_refuses_an_unknown_approximation():
    with pytest.raises(ValueError, match="approximate is 'fast'"):
        references.gelu([1.0], approximate="fast")


def test_relu_and_swiglu_by_hand():
    assert_array_equal(references.relu([-2.0, -0.0, 0.0, 3.0, nan]), [0.0, 0.0, 0.0, 3.0, nan])
    close(references.swiglu([0.0, math.log(3)], [5.0, -2.0]), [0.0, -1.5 * math.log(3)])


IN_TORCH = {"hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish"}


@pytest.mark.parametrize(
    "name",
    ["sigmoid", "silu", "relu", "softplus", "gelu", "mish", "hard_sigmoid", "hard_swish", "elu", "selu", "leaky_relu"],
)
def test_activations_agree_with_torch(rng, name):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal(200) * 5
    function = getattr(torch.nn.functional, IN_TORCH.get(name, name))
    close(REFERENCES[name](x), function(torch.from_numpy(x)).numpy(), rtol=1e-11, atol=1e-15)
    if name == "gelu":
        expected = function(torch.from_numpy(x), approximate="tanh").numpy()
        close(references.gelu(x, approximate="tanh"), expected, rtol=1e-11, atol=1e-15)


def test_softmax_by_hand():
    x = np.log([[1.0, 2.0, 3.0], [4.0, 4.0, 8.0]])
    p = np.array([[1 / 6, 2 / 6, 3 / 6], [1 / 4, 1 / 4, 1 / 2]])
    close(references.softmax(x), p)
    close(references.log_softmax(x), np.log(p))
    close(references.logsumexp(x), np.log([6.0, 16.0]))
    close(references.softmax(x, axis=0), [[1 / 5, 1 / 3, 3 / 11], [4 / 5, 2 / 3, 8 / 11]])
    close(references.logsumexp(x, axis=0, keepdims=True), np.log([[5.0, 6.0, 11.0]]))


def test_softmax_ignores_a_shift_however_large():
    for shift in (1e4, -1e4):
        close(references.softmax(np.array([0.0, 1.0]) + shift), [1 / (1 + math.e), math.e / (1 + math.e)])
    assert_array_equal(references.softmax([1e308, -1e308]), [1.0, 0.0])
    assert_array_equal(references.log_softmax([1e308, 0.0]), [0.0, -1e308])
    close(references.logsumexp([1000.0] * 4), 1000 + math.log(4))


def test_softmax_where_leaves_masked_entries_out():
    x = np.log([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    where = np.array([[True, False, True], [False, False, False]])
    close(references.softmax(x, where=where), [[1 / 4, 0, 3 / 4], [0, 0, 0]])
    close(references.log_softmax(x, where=where), [[math.log(1 / 4), -inf, math.log(3 / 4)], [-inf] * 3])
    close(references.softmax(x, where=[False, True, True])[0], [0, 2 / 5, 3 / 5])
    close(references.softmax([nan, 1.0, inf, 1.0], where=[False, True, False, True]), [0, 0.5, 0, 0.5])


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("silu", [inf, -inf, nan, -1e4], [inf, nan, nan, 0.0]),
        ("sigmoid", [inf, -inf, nan, -1e4], [1.0, 0.0, nan, 0.0]),
        ("relu", [inf, -inf, nan, -1e4], [inf, 0.0, nan, 0.0]),
        ("softplus", [inf, -inf, nan, -1e4, 1e4], [inf, 0.0, nan, 0.0, 1e4]),
        ("gelu", [inf, -inf, nan, -1e4, 1e4], [inf, nan, nan, 0.0, 1e4]),
        ("quick_gelu", [inf, -inf, nan, -1e4, 1e308], [inf, nan, nan, 0.0, 1e308]),
        ("mish", [inf, -inf, nan, -1e4, 1e4], [inf, nan, nan, 0.0, 1e4]),
        ("hard_sigmoid", [inf, -inf, nan, -1e4, 1e308], [1.0, 0.0, nan, 0.0, 1.0]),
        ("hard_swish", [inf, -inf, nan, -1e4, 1e308], [inf, nan, nan, 0.0, 1e308]),
        ("elu", [inf, -inf, nan, -1e4, 1e4], [inf, -1.0, nan, -1.0, 1e4]),
        ("selu", [inf, nan, 0.0], [inf, nan, 0.0]),
        ("leaky_relu", [inf, -inf, nan, -1e4, 1e4], [inf, -inf, nan, -100.0, 1e4]),
        ("softmax", [[0.0, -inf], [0.0, inf], [-inf, -inf]], [[1, 0], [nan] * 2, [nan] * 2]),
        ("softmax", [[0.0, nan]], [[nan, nan]]),
        ("log_softmax", [[0.0, -inf], [0.0, inf], [-inf, -inf]], [[0, -inf], [nan] * 2, [nan] * 2]),
        ("logsumexp", [[0.0, -inf], [0.0, inf], [-inf, -inf]], [0, inf, -inf]),
        ("logsumexp", [[0.0, nan], [inf, nan]], [nan, nan]),
        ("rms_norm", [[1.0, inf, -inf], [1.0, nan, 1.0]], [[0, nan, nan], [nan] * 3]),
        ("layer_norm", [[1.0, inf, 2.0], [1.0, nan, 1.0]], [[nan] * 3, [nan] * 3]),
    ],
)  # fmt: skip
def test_special_values(name, x, expected):
    assert_array_equal(REFERENCES[name](x), expected)


def test_gelu_tanh_of_special_values():
    assert_array_equal(
        references.gelu([inf, -inf, nan, 1e200, -1e200], approximate="tanh"), [inf, nan, nan, 1e200, 0.0]
    )


@pytest.mark.costly(2)
def test_hard_sigmoid_does_not_cancel_near_its_kinks(library):
    """Next to -3, alpha x + beta would be the rounding error of its terms; where alpha is 0, there is no kink."""
    x = np.float32(-3.0) + np.logspace(-6, -1, 33, dtype=np.float32)
    for kink, options in ((3.0, {}), (2.5, {"alpha": 0.2}), (8.0, {"alpha": 0.25, "beta": 2.0})):
        moved = np.concatenate([x, [np.float32(-3.0)]]).astype(np.float32) + np.float32(3.0 - kink)
        (there,) = support.there((moved,), library.name)
        slope = 1 / 6 if not options else options["alpha"]
        expected = slope * (moved.astype(np.float64) + kink)
        for call in (tp.hard_sigmoid, tp.hard_sigmoid.generic):
            np.testing.assert_allclose(support.back(call(there, **options)), expected, rtol=5e-7, atol=1e-38)
    (there,) = support.there((np.float32([-1e30, 0.0, 1e30]),), library.name)
    for call in (tp.hard_sigmoid, tp.hard_sigmoid.generic):
        assert support.back(call(there, alpha=0.0, beta=0.25)).tolist() == [0.25] * 3
        assert support.back(call(there, alpha=-1.0, beta=0.25)).tolist() == [1.0, 0.25, 0.0]


# --- the dtype of a result -------------------------------------------------------------------------------

SUMS = (tp.softmax, tp.log_softmax, tp.logsumexp)


def dtypes_of(library, name):
    """Return a dtype in every form in which a library has it: in its arrays, and in its namespace."""
    (x,) = support.there((np.zeros(2, DTYPES[name]),), library.name)
    forms = [x.dtype, tp.get_namespace(x).asarray(x).dtype, getattr(tp.get_namespace(x), name, x.dtype)]
    return [*forms, DTYPES[name].type] if isinstance(x.dtype, np.dtype) else forms


@pytest.mark.costly(3)
@pytest.mark.parametrize("result", DTYPES)
@pytest.mark.parametrize("given", DTYPES)
def test_results_have_the_dtype_that_is_asked_for(library, given, result, rng):
    held = support.dtypes_of(library.name)
    if given not in held or result not in held:
        pytest.skip(f"{library.name} holds no {given} or no {result}")
    x = (3 * rng.standard_normal((3, 9))).astype(DTYPES[given])
    wider = "float64" if "float64" in (given, result) else "float32"
    with support.holding(library.name, wider):
        (there,) = support.there((x,), library.name)
        for operator in SUMS:
            expected = REFERENCES[operator.__name__](x)
            for dtype in dtypes_of(library, result):
                for call in (operator, operator.generic):
                    y = support.back(call(there, dtype=dtype))
                    tolerance = 0.51 if wider == "float64" and result != "float64" else 8
                    assert_matches(y, expected, result, tolerance=tolerance, scale_axis=None)


@pytest.mark.costly(3)
def test_a_narrower_dtype_rounds_the_result_only(library):
    """Rounded to the dtype of the result first, all elements of a row would be alike, or infinite."""
    held = support.dtypes_of(library.name)
    for given, result in (("float64", "float32"), ("float32", "float16"), ("float32", "bfloat16")):
        if given not in held or result not in held:
            continue
        large, step = {"float32": (1e300, 2.0**-30), "float16": (7e4, 2.0**-8), "bfloat16": (3e38, 2.0**-8)}[result]
        x = np.array([[large, -large], [1.0, 1.0 + step]], DTYPES[given])
        with support.holding(library.name, given):
            (there,) = support.there((x,), library.name)
            (dtype, *_) = dtypes_of(library, result)
            for call in (tp.softmax, tp.softmax.generic):
                y = support.back(call(there, dtype=dtype))
                assert_matches(y, REFERENCES["softmax"](x), result, tolerance=0.51, scale_axis=())
            for call in (tp.log_softmax, tp.log_softmax.generic):
                y = support.back(call(there[1:, :], dtype=dtype))
                assert_matches(y, REFERENCES["log_softmax"](x[1:]), result, tolerance=0.51, scale_axis=())


@pytest.mark.parametrize("backend", ["torch", "jax", "mlx", "array_api_strict", "dask"])
def test_the_dtype_goes_where_the_arrays_go(backend, rng):
    held = support.dtypes_of(support.require(backend).name)
    for result in ("float32", "bfloat16", "float16"):
        x = rng.standard_normal((3, 9)).astype(np.float32)
        with tp.set_backend(backend):
            if result not in held:
                with pytest.raises(TypeError, match=rf"^softmax: dtype: .*{backend}.*{result}"):
                    tp.softmax(x, dtype=DTYPES[result])
                continue
            y = tp.softmax(x, dtype=DTYPES[result])
        assert type(y) is np.ndarray
        assert_matches(y, REFERENCES["softmax"](x), result, tolerance=8)


def test_a_dtype_of_another_library_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"^softmax: dtype is torch.dtype, expected a floating-point dtype of numpy$"):
        tp.softmax(np.ones(3), dtype=torch.float32)
    with pytest.raises(TypeError, match=r"^logsumexp: dtype is .*, expected a floating-point dtype of torch$"):
        tp.logsumexp(torch.ones(3), dtype=np.float32)
    with pytest.raises(TypeError, match=r"^softmax: dtype is int32, expected a floating-point dtype of torch$"):
        tp.softmax(torch.ones(3), dtype=torch.int32)
    with pytest.raises(TypeError, match=r"^log_softmax: dtype is int64, expected a floating-point dtype of numpy$"):
        tp.log_softmax(np.ones(3), dtype=np.int64)


def test_jax_refuses_a_dtype_that_it_would_narrow():
    support.require("jax")
    (x,) = support.there((np.ones(3, np.float32),), "jax")
    message = r"^softmax: dtype is float64, which jax does not hold in its present setting$"
    with pytest.raises(TypeError, match=message):
        tp.softmax(x, dtype=np.float64)


@pytest.mark.parametrize(
    ("name", "kernel"), [("numpy", "cpu"), ("torch", "torch_cpu"), ("jax", "jax_ffi"), ("dask", "dask")]
)
@pytest.mark.parametrize("operator", SUMS)
def test_kernels_take_float32_results_of_half_types_and_several_last_axes(operator, name, kernel):
    support.require(name)
    support.require_provider(kernel)
    x = np.linspace(-3, 3, 60).reshape(3, 4, 5).astype(np.float16)
    (there,) = support.there((x,), name)
    (dtype, *_) = dtypes_of(support.require(name), "float32")
    with tp.trace() as log:
        y = operator(there, axis=(-1, -2), dtype=dtype)
    assert [record.kernel for record in log] == [kernel]
    assert_matches(support.back(y), REFERENCES[operator.__name__](x, axis=(1, 2)), "float32", tolerance=8)


@pytest.mark.costly
@pytest.mark.parametrize("operator", SUMS)
def test_torch_differentiates_and_compiles_with_a_dtype(operator, rng):
    support.require("torch")
    import torch

    x = torch.from_numpy(rng.standard_normal((3, 9))).bfloat16()
    factors = (
        torch.from_numpy(np.cos(np.arange(27.0))).reshape(3, 9)[..., : 1 if operator is tp.logsumexp else 9].float()
    )

    def gradient(call, x):
        x = x.clone().requires_grad_()
        (call(x).reshape(factors.shape) * factors).sum().backward()
        return x.grad

    found = gradient(lambda x: operator(x, dtype=torch.float32), x)
    expected = gradient(lambda x: getattr(torch, operator.__name__)(x.float(), -1), x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)
    compiled = torch.compile(lambda x: operator(x, dtype=torch.float32), backend="eager", fullgraph=True)(x)
    assert compiled.dtype == torch.float32
    torch.testing.assert_close(compiled, operator(x, dtype=torch.float32))


@pytest.mark.costly
@pytest.mark.parametrize("operator", SUMS)
def test_jax_differentiates_and_maps_with_a_dtype_and_axes(operator, rng):
    support.require("jax")
    import jax
    import jax.numpy as jnp

    x = jnp.asarray(rng.standard_normal((2, 3, 4, 5)), jnp.bfloat16)
    plain = {tp.softmax: jax.nn.softmax, tp.log_softmax: jax.nn.log_softmax, tp.logsumexp: jax.nn.logsumexp}[operator]

    def ours(x):
        return operator(x, axis=(-2, -1), dtype=jnp.float32)

    def theirs(x):
        return plain(x.astype(jnp.float32), axis=(-2, -1))

    for transformed in (lambda f: f, jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(jax.vmap(f)))):
        found, expected = transformed(ours)(x), transformed(theirs)(x)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
    found, expected = (jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x))))(x) for f in (ours, theirs))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=1e-2, atol=1e-3)
    if operator.kernel_of("jax_ffi"):
        program = jax.jit(jax.vmap(ours)).lower(x).as_text()
        assert f"@tensorops.{operator.__name__}(" in program
        assert "axis = array<i64: -2, -1>" in program or "axis = dense<[-2, -1]>" in program


# What SciPy defines: weights of any sign, sums that cancel, elements of weight 0, infinities
SCIPY = {
    "range": ((np.arange(10.0),), {"b": np.arange(10.0, 0, -1)}),
    "cancels to a negative sum": ((np.asarray([1.0, 2.0]),), {"b": np.asarray([1.0, -1.0])}),
    "cancels to 0": ((np.asarray([1.0, 1.0]),), {"b": np.asarray([1.0, -1.0])}),
    "by rows": ((np.asarray([[5000.0, 6000.0], [7000.0, 8000.0]]),), {"b": np.asarray([[1.0, -2.0], [-3.0, 4.0]])}),
    "broadcast": ((np.full((4, 3), 1000.0),), {"b": np.asarray([[1.0], [2.0], [-4.0], [0.5]])}),
    "weight 0 of infinity": ((np.asarray([inf, 3.0, -inf]),), {"b": np.asarray([0.0, 2.0, 5.0])}),
    "weight 0 of NaN": ((np.asarray([nan, 3.0]),), {"b": np.asarray([0.0, 2.0])}),
    "nothing": ((np.asarray([-inf, -inf]),), {}),
    "infinities": ((np.asarray([inf, 1.0, inf]),), {"b": np.asarray([1.0, 1.0, 2.0])}),
    "huge": ((np.asarray([1e300, -1e300]),), {}),
}


@pytest.mark.parametrize("axis", [None, -1, 0])
@pytest.mark.parametrize("arguments", SCIPY.values(), ids=SCIPY)
def test_logsumexp_weighs_and_signs_as_scipys(library, arguments, axis):
    special = pytest.importorskip("scipy.special")
    if "float64" not in support.dtypes_of(library.name):
        pytest.skip("the values need float64")
    (x,), options = arguments
    with library.quiet(), library.holding("float64"), library.reading(), np.errstate(all="ignore"):
        arrays = {name: library.from_numpy(value, None) for name, value in options.items()}
        expected = special.logsumexp(x, axis=axis, return_sign=True, **options)
        found = tp.logsumexp(library.from_numpy(x, None), axis=axis, return_sign=True, **arrays)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(library.to_numpy(mine), theirs, rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(
            library.to_numpy(tp.logsumexp(library.from_numpy(x, None), axis=axis, **arrays)),
            special.logsumexp(x, axis=axis, **options),
            rtol=1e-14,
            atol=1e-14,
        )


def test_gradients_of_a_weighted_logsumexp(rng):
    """By elements, weights and both, where weights are negative and elements are left out; 0 is left out as well."""
    torch = pytest.importorskip("torch")
    x, b = (torch.from_numpy(rng.standard_normal((3, 5))).requires_grad_() for _ in range(2))
    where = torch.from_numpy(rng.random((3, 5)) < 0.7)
    where[:, 0] = True

    def magnitude(x, b):
        return tp.logsumexp(x, b=b, where=where, return_sign=True)[0]

    assert torch.autograd.gradcheck(magnitude, (x, b))
    assert torch.autograd.gradgradcheck(magnitude, (x, b))
    with torch.no_grad():
        b[:, 1] = 0
        x[:, 1] = torch.inf
    gradients = torch.autograd.grad(magnitude(x, b).sum(), (x, b))
    assert all(torch.isfinite(g).all() and (g[:, 1] == 0).all() for g in gradients)


def test_jax_differentiates_a_weighted_logsumexp(rng):
    support.require("jax")
    import jax

    x, b = (jax.numpy.asarray(rng.standard_normal((3, 5)), "float32") for _ in range(2))

    def gradients(function):
        return jax.grad(lambda x, b: function(x, b=b, axis=0, return_sign=True)[0].sum(), argnums=(0, 1))(x, b)

    for mine, theirs in zip(gradients(tp.logsumexp), gradients(jax.nn.logsumexp), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_all_axes_in_any_memory_order_have_the_kernel(name, rng):
    support.require_native()
    for x in (rng.standard_normal((3, 4, 5)), np.asfortranarray(rng.standard_normal((3, 4, 5)))):
        assert getattr(tp, name).explain(x, axis=None).kernel == "cpu"
        close(getattr(tp, name)(x, axis=None), REFERENCES[name](x, axis=None), rtol=1e-14)


@pytest.mark.parametrize("name", ["silu", "gelu", "mish", "quick_gelu", "hard_swish"])
def test_minus_infinity_is_multiplied_by_zero(library, name):
    """As the docstrings say, in bodies and kernels alike."""
    x = library.from_numpy(np.asarray([-np.inf, 0.0], np.float32), None)
    with library.quiet(), library.reading():
        for run in (getattr(tp, name), getattr(tp, name).generic):
            np.testing.assert_array_equal(library.to_numpy(run(x)), [np.nan, 0.0])


@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
def test_the_gradient_of_logsumexp_of_minus_infinity_is_finite(name):
    """The mean of all directions, as for any row of equal elements."""
    row = support.require(name)
    x = row.from_numpy(np.full(4, -np.inf, np.float32), None)
    if name == "torch":
        x.requires_grad_()
        tp.logsumexp(x).backward()
        gradient = x.grad
    elif name == "jax":
        import jax

        gradient = jax.grad(tp.logsumexp)(x)
    else:
        import mlx.core as mx

        gradient = mx.grad(tp.logsumexp)(x)
    np.testing.assert_allclose(row.to_numpy(gradient), np.full(4, 0.25), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        (
            "silu",
            "library and device of `x`; half types are computed in float32. Minus infinity gives NaN",
        ),
        ("sigmoid", "x : array, floating point Input of any shape. Returns"),
        ("relu", "array Shape, dtype, library and device of `x`. NaN stays NaN"),
        ("gelu", "TypeError If `x` is not floating point. ValueError If `approximate` is neither form. References"),
        (
            "hard_sigmoid",
            "floating point, or `alpha` or `beta` not a number. ValueError If `alpha` or `beta` is not finite.",
        ),
        ("reglu", "gate, up : array, floating point Arrays of one shape and dtype. Returns"),
        ("reglu", "or they differ in dtype. ValueError If they differ in shape. References"),
    ],
)
def test_docstrings_say_what_activations_have_in_common(name, sections):
    said = " ".join(word for word in inspect.getdoc(getattr(tp, name)).split() if set(word) != {"-"})
    assert sections in said
