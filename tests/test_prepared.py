"""Arguments fixed for many calls: repacked if this speeds up a kernel, else as if given each time."""

import copy
import pickle

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
    w = support.there(rng.standard_normal((6, 8)).astype(np.float32), library.name)
    x = rng.standard_normal((2, 8)).astype(np.float32)
    product = tp.prepare(tp.linear, weight=w)
    assert product.provider == ""
    assert product.plain()["weight"] is w
    assert product.nbytes == 6 * 8 * 4
    assert "not prepared" in repr(product)
    y = product(support.there(x, library.name))
    assert library.owns(y)
    assert_matches(support.back(y), REFERENCES["linear"](x, support.back(w)), "float32", tolerance=16)


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
    assert packing - {("quantized_linear", "mlx")} == {("quantized_linear", "cpu")}  # test_mlx.py has MLX's
