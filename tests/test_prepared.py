"""Arguments fixed for many calls: repacked if this speeds up a kernel, else as if given each time."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._operator import OPERATORS
from tensorops.testing import REFERENCES, assert_matches

FORM = {"bits": 4, "group_size": 32}


def quantized(rng, outputs=70, inputs=128):
    weight, scales, biases = tp.quantize.generic(rng.standard_normal((outputs, inputs)).astype(np.float32), **FORM)
    return {"weight": weight, "scales": scales, "biases": biases}


def assert_product(y, x, parts):
    expected = REFERENCES["quantized_linear"](x, *parts.values(), **FORM)
    assert_matches(y, expected, "float32", tolerance=64, scale_axis=None)


@pytest.fixture
def packed(rng):
    """Weights that the compiled kernel repacks, and their plain arrays; skipped where repacking does not help."""
    support.require_provider("cpu")
    parts = quantized(rng)
    product = tp.prepare("quantized_linear", **parts, **FORM)
    if not product.provider:
        pytest.skip(product.refused["cpu"])
    return product, parts


def test_packed_arrays_compute_and_come_back(packed, rng):
    product, parts = packed
    x = rng.standard_normal((3, 128)).astype(np.float32)
    assert (product.provider, product.refused, product.options) == ("cpu", {}, FORM)
    assert product.shapes == {name: part.shape for name, part in parts.items()}
    assert repr(product).endswith(f"prepared by cpu, {product.nbytes} bytes>")
    with tp.trace() as log:
        y = product(x)
    assert (log[0].operator, log[0].kernel, log[0].library) == ("quantized_linear", "cpu", "numpy")
    assert log[0].shapes == ((3, 128), *product.shapes.values())
    assert log[0].dtypes == ("float32", "uint8", "float32", "float32")
    assert_product(y, x, parts)
    explained = product.explain(x)
    assert (explained.kernel, explained.prepared) == ("cpu", "weight, scales, biases")
    assert "with weight, scales, biases prepared" in str(explained)
    assert "with weight, scales, biases prepared" in explained._repr_html_()
    for name, part in parts.items():
        np.testing.assert_array_equal(product.plain()[name], part)


def test_arguments_that_the_packed_form_does_not_support_get_the_plain_arrays(packed, rng):
    product, parts = packed
    x = rng.standard_normal((3, 128))  # float64
    explained = product.explain(x)
    assert (explained.kernel, explained.prepared) == ("generic", "")
    assert explained.refused["cpu with prepared arrays"].startswith("x has dtype float64")
    with tp.trace() as log:
        y = product(x)
    assert log[0].kernel == "generic"
    assert y.dtype == np.float64
    assert_product(y.astype(np.float32), x, parts)


def test_wrong_arguments_get_the_operators_own_words(packed):
    product, _ = packed
    with pytest.raises(ValueError, match=r"^quantized_linear: weight has 128 columns, but the last axis of x has 5$"):
        product(np.ones((2, 5), np.float32))
    with pytest.raises(TypeError, match=r"^quantized_linear: x is list, expected an array of "):
        product([1.0])
    with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
        product(np.ones((2, 128), np.float32), axis=0)
    with pytest.raises(TypeError, match=r"^quantized_linear: bits was fixed by prepare$"):
        product(np.ones((2, 128), np.float32), bits=8)


def test_another_choice_of_providers_is_obeyed(packed, rng):
    product, parts = packed
    x = rng.standard_normal((2, 128)).astype(np.float32)
    with tp.set_backend("numpy"), tp.trace() as log:
        y = product(x)
        assert product.explain(x).kernel == "generic"
    assert log[0].kernel == "generic"
    assert_product(y, x, parts)
    with tp.set_backend("cpu", providers=["generic"]):
        assert product.explain(x).refused == {"cpu with prepared arrays": "cpu is not the first to be asked"}
        assert tp.prepare("quantized_linear", **parts, **FORM).provider == ""
    with tp.set_backend("cpu"):
        assert product.explain(x).kernel == "cpu"


def test_another_backend_gets_the_plain_arrays(packed, rng):
    support.require("jax")
    product, parts = packed
    x = rng.standard_normal((2, 128)).astype(np.float32)
    with tp.set_backend("jax"), tp.trace() as log:
        y = product(x)
    assert log[0].library == "jax"
    assert len(log[0].transfers) == 5
    assert_product(y, x, parts)


@pytest.mark.parametrize("copied", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy, copy.copy])
def test_copies_are_packed_again(packed, copied, rng):
    product, parts = packed
    x = rng.standard_normal((2, 128)).astype(np.float32)
    again = copied(product)
    assert again.explain(x).prepared
    np.testing.assert_array_equal(again(x), product(x))
    assert_product(again(x), x, parts)


def test_where_no_kernel_repacks_the_arrays_are_held_as_they_are(library, rng):
    w = support.there(rng.standard_normal(8).astype(np.float32), library.name)
    x = rng.standard_normal((2, 8)).astype(np.float32)
    norm = tp.prepare(tp.rms_norm, weight=w)
    assert norm.provider == ""
    assert norm.plain()["weight"] is w
    assert norm.nbytes == 8 * 4
    assert "not prepared" in repr(norm)
    y = norm(support.there(x, library.name))
    assert library.owns(y)
    assert_matches(support.back(y), REFERENCES["rms_norm"](x, support.back(w)), "float32", tolerance=16)


@pytest.mark.parametrize("inputs", [16, 2048])
def test_what_is_not_packed_says_why(inputs, rng):
    support.require_provider("cpu")
    form = {"bits": 8, "group_size": 16 if inputs == 16 else 2048}
    weight, scales, biases = tp.quantize.generic(rng.standard_normal((4, inputs)).astype(np.float32), **form)
    product = tp.prepare("quantized_linear", weight=weight, scales=scales, biases=biases, **form)
    assert product.provider == ""
    assert "group_size is not a multiple of 32 up to 1024" in product.refused["cpu"] or "on the target" in str(
        product.refused["cpu"]
    )
    x = np.ones((2, inputs), np.float32)
    expected = REFERENCES["quantized_linear"](x, weight, scales, biases, **form)
    assert_matches(product(x), expected, "float32", tolerance=64, scale_axis=None)


def test_arguments_beside_those_that_a_kernel_packs(rng):
    support.require_provider("cpu")
    x = np.ones((2, 128), np.float32)
    product = tp.prepare("quantized_linear", x=x, **quantized(rng), **FORM)
    assert product.refused["cpu"].startswith("cannot prepare these arguments: ")
    assert product().shape == (2, 70)


@pytest.mark.parametrize(
    ("operator", "constants", "error", "message"),
    [
        ("linaer", {}, ValueError, r"^prepare: unknown operator 'linaer' \(did you mean 'linear'\?\)"),
        (np.dot, {}, TypeError, "^prepare: operator is .*, expected an operator or its name$"),
        ("linear", {"wieght": 1}, TypeError, r"^prepare: linear has no parameter 'wieght' \(did you mean 'weight'\?\)"),
        ("linear", {}, TypeError, "^prepare: no array among the arguments of linear"),
        ("linear", {"weight": None}, TypeError, "^prepare: no array among the arguments of linear"),
    ],
)
def test_what_cannot_be_prepared(operator, constants, error, message):
    with pytest.raises(error, match=message):
        tp.prepare(operator, **constants)


def test_arrays_of_several_libraries():
    support.require("array_api_strict")
    strict = support.there(np.ones(3, np.float32), "array_api_strict")
    with pytest.raises(TypeError, match=r"^prepare: weight is an array of numpy, but bias of array_api_strict$"):
        tp.prepare("linear", weight=np.ones((3, 4), np.float32), bias=strict)


def test_every_kernel_that_packs_has_a_test():
    packing = {(name, provider) for name, o in OPERATORS.items() for provider, k in o.kernels.items() if k.pack}
    by_cpu = {(name, "cpu") for name in ("linear", "linear_activation", "quantized_linear")}
    assert packing == by_cpu | {("quantized_linear", "mlx")}  # test_mlx.py


# ------------------------------------------------------------------------------------- linear


@pytest.fixture
def by_cpu():
    """Asks the compiled kernels first: a library of matrices may be installed."""
    support.require_provider("cpu")
    with tp.set_backend("cpu"):
        yield


@pytest.fixture
def matrix(rng, by_cpu):
    """Return a function that makes a matrix and a bias, and their product, packed."""

    def made(outputs, inputs):
        weight = rng.standard_normal((outputs, inputs), dtype=np.float32)
        bias = rng.standard_normal(outputs, dtype=np.float32)
        return weight, bias, tp.prepare("linear", weight=weight, bias=bias)

    return made


def assert_linear(y, x, weight, bias, dtype="float32"):
    """Compare with float64, in units of the rounding of each product."""
    x, weight = (np.asarray(a, np.float64) for a in (x, weight))
    exact, size = x @ weight.T + bias, np.abs(x) @ np.abs(weight).T + np.abs(bias)
    eps = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert y.dtype == dtype
    assert (np.abs(np.asarray(y, np.float64) - exact) <= 2.0**-22 * size + eps * np.abs(exact)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (23, 7), (24, 256), (33, 257), (70, 1100)])
def test_packed_matrices_of_linear(outputs, inputs, dtype, matrix, target, rng):
    weight, bias, product = matrix(outputs, inputs)
    assert (product.provider, product.refused) == ("cpu", {})
    for rows in (1, 2, 3, 4, 5, 8, 9, 12, 13, 31, 200):  # to either side of how many are multiplied at a time
        x = rng.standard_normal((rows, inputs)).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        with tp.trace() as log:
            y = product(x)
        assert [(r.operator, r.kernel, r.shapes[1:]) for r in log] == [("linear", "cpu", (weight.shape, bias.shape))]
        assert_linear(y, x, weight, bias, dtype)
    for name, given in (("weight", weight), ("bias", bias)):
        np.testing.assert_array_equal(product.plain()[name], given)


def test_packed_matrices_take_rows_in_several_axes_and_with_strides(matrix, rng):
    weight, bias, product = matrix(40, 64)
    x = rng.standard_normal((3, 5, 128), dtype=np.float32)[:, ::-1, 32:96]
    assert product.explain(x).kernel == "cpu"
    assert_linear(product(x), x, weight, bias)


def test_a_bias_may_be_fixed_given_or_left_out(rng, by_cpu):
    weight, x = (rng.standard_normal(shape, dtype=np.float32) for shape in ((40, 64), (3, 64)))
    bias = rng.standard_normal(40, dtype=np.float32)
    product = tp.prepare("linear", weight=weight)
    for given in ({}, {"bias": bias}):
        assert product.explain(x, **given).prepared == "weight"
        assert_linear(product(x, **given), x, weight, given.get("bias", np.zeros(40)))
    with pytest.raises(TypeError, match="bias was fixed by prepare"):
        tp.prepare("linear", weight=weight, bias=bias)(x, bias=bias)


def test_an_activation_is_fixed_or_given(rng, by_cpu):
    weight, x = (rng.standard_normal(shape, dtype=np.float32) for shape in ((40, 64), (3, 64)))
    expected = REFERENCES["linear_activation"](x, weight, activation="gelu")
    fixed, free = (
        tp.prepare("linear_activation", weight=weight, activation="gelu"),
        tp.prepare("linear_activation", weight=weight),
    )
    assert fixed.plain()["activation"] == "gelu"
    for product, options in ((fixed, {}), (free, {"activation": "gelu"})):
        assert product.explain(x, **options).prepared == "weight"
        assert_matches(product(x, **options), expected, "float32", tolerance=64)
    with pytest.raises(ValueError, match=r"^linear_activation: activation is 'tanh', expected one of 'relu'"):
        tp.prepare("linear_activation", weight=weight, activation="tanh")(x)


def test_numbers_that_are_not_finite_stay_in_their_row_and_column(matrix):
    weight, bias, _ = matrix(40, 64)
    x = np.ones((14, 64), np.float32)
    x[3, 5], weight[7, 9] = np.nan, np.inf
    y = tp.prepare("linear", weight=weight, bias=bias)(x)
    expected = np.zeros((14, 40), bool)
    expected[3, :] = expected[:, 7] = True
    np.testing.assert_array_equal(~np.isfinite(y), expected)


def test_what_packed_matrices_refuse(matrix, rng):
    weight, bias, product = matrix(40, 64)
    x = rng.standard_normal((3, 64))
    refused = product.explain(x).refused["cpu with prepared arrays"]
    assert refused.startswith("x has dtype float64")
    np.testing.assert_allclose(product(x), x @ weight.T + bias, rtol=1e-12)  # from the plain arrays
    with pytest.raises(ValueError, match=r"^linear: weight has 64 columns, but the last axis of x has 5$"):
        product(np.ones((2, 5), np.float32))
    assert product(np.ones((0, 64), np.float32)).shape == (0, 40)
    for constants, reason in (
        ({"weight": weight.astype(np.float16)}, "weight has dtype float16: only float32 is packed"),
        ({"weight": np.zeros((1, 16385), np.float32)}, "packed rows have 1 to 16384 elements"),
        ({"weight": np.zeros((0, 8), np.float32)}, "packed rows have 1 to 16384 elements"),
        ({"bias": bias}, "cannot prepare these arguments: "),
        ({"weight": weight, "bias": bias[:3]}, "bias"),
    ):
        refused = tp.prepare("linear", **constants)
        assert refused.provider == ""
        assert reason in refused.refused["cpu"]


def test_a_matrix_packed_for_another_target_is_unpacked(matrix, rng):
    from tensorops.kernels.cpu import _native

    weight, bias, product = matrix(40, 64)
    x, own = rng.standard_normal((3, 64), dtype=np.float32), _native.target()
    others = [name for name in _native.targets() if name.startswith("v4") != own.startswith("v4")]
    if not others:
        pytest.skip("one kind of target only was compiled, or runs here")
    try:
        _native.use_target(others[0])
        refused = product.explain(x).refused["cpu with prepared arrays"]
        assert refused == "weight was packed for another target"
        assert_linear(product(x), x, weight, bias)
    finally:
        _native.use_target(own)
