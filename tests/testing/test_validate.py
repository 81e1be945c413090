"""Comparison of a function's results on several backends."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import _providers
from tensorops.testing import DTYPES
from tensorops.testing.validate import validate

X = np.linspace(-2.0, 2.0, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(0.5, 1.5, 4, dtype=np.float32)


def identity(x):
    return x


def one_row(*args, **kwargs):
    (row,) = validate(*args, **{"backends": ["numpy"], **kwargs}).rows
    return row


def on_strict_only(wrong, right=identity):
    """Return a function that is wrong on one backend."""

    def function(x):
        return (wrong if tp.get_backend() == "array_api_strict" else right)(x)

    return function


# --- what is compared with what ----------------------------------------------------------------------


def test_an_operator_is_compared_with_its_float64_reference():
    row = one_row(tp.rms_norm, X, W)
    assert (row.backend, row.dtype, row.status, row.compared_with) == ("numpy", "float32", "ran", "reference")
    y = np.asarray(tp.rms_norm.generic(X, W), dtype=np.float64)
    x = X.astype(np.float64)
    expected = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * W
    assert row.max_relative_error == pytest.approx(np.max(np.abs(y - expected) / np.abs(expected)), rel=1e-6)
    assert row.max_ulp == pytest.approx(row.max_relative_error / 2**-23)
    assert validate(tp.rms_norm, X, W, backends=["numpy"]).reference == "the float64 reference of rms_norm"


def test_errors_are_in_units_of_the_results_dtype():
    def off(x):
        return x * (1 + 2.0**-20)

    row = one_row(off, np.ones(3, dtype=np.float32), reference=identity)
    assert (row.status, row.max_ulp, row.max_relative_error) == ("ran", 8.0, 2.0**-20)
    row = one_row(off, np.ones(3), reference=identity)
    assert (row.status, row.max_ulp, row.max_relative_error) == ("differs", 2.0**32, 2.0**-20)


def test_the_reference_sees_the_rounded_inputs_in_float64():
    seen = []

    def reference(x, ids, *, scale):
        seen.append((x.dtype.name, float(x[0]), ids.dtype.name, scale))
        return x

    row = one_row(
        lambda x, ids, *, scale: x, np.array([0.1]), np.array([1]), scale=2, dtypes=["float16"], reference=reference
    )
    assert seen == [("float64", float(np.float16(0.1)), "int64", 2)]
    assert (row.dtype, row.max_ulp) == ("float16", 0.0)


def test_without_a_reference_the_function_itself_in_float64_is_it():
    def off(x):  # 1/3 is exact to about 2**-54 in float64, and to 2**-25 in float32
        return x / 3

    x = np.asarray([1.0, 2.0, 5.0], np.float32)
    report = validate(off, x, backends=["numpy"])
    (row,) = report.rows
    assert (row.status, row.compared_with) == ("ran", "numpy in float64")
    exact = x.astype(np.float64) / 3
    assert row.max_relative_error == pytest.approx(np.max(np.abs((x / np.float32(3)) - exact) / exact), rel=1e-6)
    assert row.max_relative_error > 0
    assert (report.reference, report.ok) == ("itself on numpy in float64", True)


def test_one_backend_is_found_wrong():
    def loses(x):  # (1 + x) - 1, which float64 computes well enough
        return (x + 1.0) - 1.0

    row = one_row(loses, np.full(3, 2.0**-26, np.float32))
    assert (row.status, row.max_relative_error) == ("differs", 1.0)


def test_the_reference_is_numpys_whatever_is_compared():
    support.require("array_api_strict")
    report = validate(on_strict_only(lambda x: x + 1), X, backends=["array_api_strict"])
    assert [row.status for row in report.rows] == ["differs"]
    assert not report.ok


def test_a_function_that_numpy_cannot_run_has_nothing_to_be_compared_with():
    def fails_on_numpy(x):
        if tp.get_backend() == "numpy":
            raise ZeroDivisionError("on purpose")
        return x

    support.require("array_api_strict")
    numpy, strict = validate(fails_on_numpy, X, backends=["numpy", "array_api_strict"]).rows
    assert (numpy.status, numpy.reason) == ("failed", "ZeroDivisionError: on purpose")
    assert strict.status == "failed"
    assert strict.reason == (
        "nothing to compare with: the function raised ZeroDivisionError: on purpose on numpy in float64; "
        "pass reference="
    )
    support.require("jax")
    import jax

    row = one_row(jax.jit(identity), X, backends=["jax"], jit=False)  # would be float32, were it called with float64
    assert row.reason == (
        "nothing to compare with: the function returned arrays of jax on numpy in float64; pass reference="
    )
    assert validate(jax.jit(identity), X, backends=["jax"], reference=identity).ok


@pytest.mark.parametrize("x", [np.ones(3), np.ones(3, np.int32)])
def test_nothing_compared_is_not_ok(x):
    report = validate(identity, x, backends=["numpy"])
    (row,) = report.rows
    assert (row.status, row.compared_with, row.max_ulp) == ("ran", "", None)
    assert row.reason.startswith("nothing to compare with")
    assert not report.ok
    assert not validate(identity, x, backends=["numpy", "python", "cpu"]).ok  # no kernel runs on any of them
    assert validate(identity, x, backends=["numpy"], reference=identity).ok


def test_a_kernel_is_compared_with_the_generic_bodies_in_float64_too():
    support.require_provider("cpu")

    def function(x):
        return tp.silu(x)

    cpu, numpy = validate(function, np.linspace(-3, 3, 7), backends=["cpu", "numpy"]).rows
    assert (cpu.status, cpu.dtype, cpu.compared_with) == ("ran", "float64", "numpy in float64")
    assert (numpy.status, numpy.compared_with) == ("ran", "")


def test_a_reference_goes_before_that_of_an_operator():
    row = one_row(tp.relu, X, reference=lambda x: 2 * np.maximum(x, 0))
    assert row.status == "differs"
    assert row.max_relative_error == pytest.approx(0.5)


def test_a_new_operator_is_its_own_reference():
    def doubled(x: Array) -> Array:  # noqa: F821 - the annotation is read as it is written
        return x + x

    with support.temporary_operator(doubled) as operator:
        report = validate(operator, X, backends=["numpy", "cpu"])
    assert report.rows[0].compared_with == "numpy in float64"
    assert report.rows[0].kernels == {"doubled": ("generic",)}


def test_a_reference_that_raises_leaves_nothing_to_compare_with():
    def broken(x):
        raise ZeroDivisionError("on purpose")

    row = one_row(identity, X, reference=broken)
    assert row.status == "failed"
    assert row.reason == "nothing to compare with: the reference raised ZeroDivisionError: on purpose"


# --- backends and dtypes -----------------------------------------------------------------------------


def test_every_available_backend_runs_by_default():
    report = validate(tp.silu, X)
    assert [row.backend for row in report.rows if not row.jit] == list(tp.get_available_backends())
    assert {row.status for row in report.rows} == {"ran"}
    assert report.ok
    assert all(row.max_ulp < 8 for row in report.rows)


def test_the_kernels_that_ran_are_named():
    support.require_provider("cpu")
    cpu, numpy = validate(tp.rms_norm, X, W, backends=["cpu", "numpy"]).rows
    assert cpu.kernels == {"rms_norm": ("cpu",)}
    assert numpy.kernels == {"rms_norm": ("generic",)}


def test_an_alias_names_the_backend():
    assert one_row(tp.relu, X, backends=["python", "numpy"]).backend == "numpy"


def test_an_unavailable_backend_is_a_row_with_the_reason(unavailable):
    name, reason = unavailable
    report = validate(tp.relu, X, backends=["numpy", name])
    assert [row.status for row in report.rows] == ["ran", "unavailable"]
    assert f"backend '{name}' is not available: {reason}" in report.rows[1].reason
    assert not report.ok


def test_all_dtypes_are_cast_to():
    report = validate(tp.rms_norm, X.astype(np.float64), W, backends=["numpy"], dtypes="all")
    assert [row.dtype for row in report.rows] == list(DTYPES)
    assert {row.status for row in report.rows} == {"ran"}


def test_a_dtype_that_a_backend_lacks_is_refused():
    support.require("array_api_strict")
    report = validate(tp.relu, X, backends=["numpy", "array_api_strict"], dtypes=["float16", "float64"])
    assert [(row.dtype, row.backend, row.status) for row in report.rows] == [
        ("float16", "numpy", "ran"),
        ("float16", "array_api_strict", "refused"),
        ("float64", "numpy", "ran"),
        ("float64", "array_api_strict", "ran"),
    ]
    assert "float16" in report.rows[1].reason
    assert report.ok
    assert not validate(tp.relu, X, backends=["array_api_strict"], dtypes=["float16"]).ok
    assert not validate(tp.relu, X, backends=["numpy", "array_api_strict"], dtypes=["float16"]).ok


def test_jax_says_why_it_holds_no_float64():
    support.require("jax")
    row = one_row(tp.relu, X, backends=["jax"], dtypes=["float64"])
    assert (row.dtype, row.status) == ("float64", "refused")
    assert "jax_enable_x64" in row.reason


def test_inputs_of_float64_are_compared_in_float32_where_a_library_has_no_other():
    support.require("jax")
    x = np.asarray([0.1, 0.7, 5.3])
    narrow = x.astype(np.float32)
    exact = narrow.astype(np.float64) ** 2  # the rounding of the inputs is no error of the function

    def squared(x):
        return x * x

    report = validate(squared, x, backends=["jax", "numpy"])
    eager, jitted, numpy = report.rows
    assert (numpy.dtype, numpy.compared_with) == ("float64", "")
    for row in (eager, jitted):
        assert (row.backend, row.dtype, row.status, row.compared_with) == ("jax", "float32", "ran", "numpy in float64")
        assert row.max_relative_error == pytest.approx(np.max(np.abs(narrow * narrow - exact) / exact), rel=1e-6)
    assert report.ok
    assert not validate(lambda x: squared(x) + 1e-3 * (x.dtype != np.float64), x, backends=["jax", "numpy"]).ok


def test_inputs_of_half_precision_are_compared_in_float32_where_a_library_has_no_other():
    support.require("array_api_strict")
    numpy, strict = validate(tp.relu, X.astype(np.float16), backends=["numpy", "array_api_strict"]).rows
    assert (numpy.dtype, strict.dtype) == ("float16", "float32")
    assert (numpy.status, strict.status) == ("ran", "ran")


# --- what is not agnostic ----------------------------------------------------------------------------


def branches(x):
    xp = tp.get_namespace(x)
    return x if xp.sum(x) > 100 else -x


def with_an_array_of_numpy(x):
    return tp.rms_norm(x, W)


@pytest.mark.parametrize("name", ["jax", "torch", "array_api_strict"])
@pytest.mark.parametrize("wrong", [lambda x: np.asarray(x), lambda x: {"y": [x, np.zeros(3)]}, lambda x: np.float32(1)])
def test_a_result_of_another_library_fails(name, wrong):
    support.require(name)
    report = validate(wrong, X, backends=[name], jit=False)
    (row,) = report.rows
    assert (row.status, row.compared_with) == ("failed", "")
    assert row.reason == f"the result is an array of numpy, not of {name}: take functions from xp"
    assert not report.ok
    assert validate(wrong, X, backends=["numpy", "cpu"]).ok


def test_numpys_function_of_an_array_of_jax_fails():
    support.require("jax")
    eager, jitted = validate(np.exp, X, backends=["jax"]).rows
    assert (eager.status, eager.jit) == ("failed", False)
    assert (jitted.status, jitted.jit) == ("failed", True)
    assert eager.reason == "the result is an array of numpy, not of jax: take functions from xp"
    assert jitted.reason == "NumPy was called with an array: take functions from xp"


@pytest.mark.parametrize("name", ["jax", "torch", "array_api_strict"])
def test_an_operator_that_is_given_an_array_of_another_library_fails(name):
    """It raises without a backend in force, and `validate` has one in force."""
    support.require(name)
    with pytest.raises(TypeError, match=f"x is an array of {name}, but weight of numpy"):
        with_an_array_of_numpy(support.there(X, name))
    for row in validate(with_an_array_of_numpy, X, backends=[name]).rows:
        assert row.status == "failed"
        assert row.reason == "rms_norm got an array of numpy: pass it as an argument, or make it with xp"
    assert validate(with_an_array_of_numpy, X, backends=["numpy"]).ok


def test_a_function_may_name_a_backend_itself():
    support.require("array_api_strict")

    def elsewhere(x):
        with tp.set_backend("numpy"):
            return tp.rms_norm(x)  # moved to NumPy and back

    def moved(x):
        return tp.to_backend(tp.to_backend(x, "numpy") * 2, "array_api_strict")

    (row,) = validate(elsewhere, X, backends=["array_api_strict"], reference=lambda x: tp.rms_norm.generic(x)).rows
    assert (row.status, row.reason) == ("ran", "")
    (row,) = validate(moved, X, backends=["array_api_strict"], reference=lambda x: x * 2).rows
    assert (row.status, row.reason) == ("ran", "")


TRACED = {
    "branch": (branches, "a branch on a value of an array: use xp.where"),
    "number": (lambda x: x * float(x[0, 0]), "a number is taken out of an array, as by float(x): keep it an array"),
    "mask": (lambda x: x[x > 0], "a mask is an index, so the shape depends on values: use xp.where"),
    "position": (
        lambda x: x * [1, 2][tp.get_namespace(x).argmax(x[0, :2])],
        "a value of an array is an index or a size in Python: keep it an array",
    ),
}


@pytest.mark.parametrize("name", TRACED)
def test_what_depends_on_a_value_fails_under_jit(name):
    support.require("jax")
    function, reason = TRACED[name]
    report = validate(function, X, backends=["jax"])
    assert [(row.jit, row.status, row.reason) for row in report.rows] == [(False, "ran", ""), (True, "failed", reason)]
    assert not report.ok
    assert validate(function, X, backends=["jax"], jit=False).ok


def test_only_arrays_are_traced_and_results_keep_their_structure():
    support.require("jax")
    layer = Layer(W, "first")

    def function(layers, x, axis, *, options):
        (layer,) = layers["layers"]
        assert (layer.name, axis) == ("first", -1)
        y = tp.rms_norm(x, layer.weight, options["eps"], axis=axis)
        return {"y": (y, None), "same": [y], "rows": x.shape[0]}

    report = validate(function, {"layers": [layer]}, X, -1, options={"eps": 1e-3}, backends=["jax"])
    assert [row.status for row in report.rows] == ["ran", "ran"], str(report)
    assert [row.compared_with for row in report.rows] == ["numpy in float64"] * 2


def test_a_refused_or_unavailable_backend_is_not_tried_under_jit():
    support.require("jax")
    assert len(validate(tp.relu, X, backends=["jax"], dtypes=["float64"]).rows) == 1


def test_a_constant_of_numpy_that_widens_results_differs():
    pytest.importorskip("array_api_strict")
    constant = np.linspace(0.0, 1.0, 4)

    def scaled(x):
        xp = tp.get_namespace(x)
        return x * xp.asarray(constant)

    def scaled_alike(x):
        xp = tp.get_namespace(x)
        return x * xp.asarray(constant, dtype=x.dtype, device=tp.device(x))

    support.require("jax")
    x = np.ones((2, 4), np.float32)
    rows = {row.backend: row for row in tp.validate(scaled, x, backends=["numpy", "jax"], jit=False).rows}
    assert rows["numpy"].status == "differs"
    assert rows["numpy"].reason == "the result is float64, but float32 on jax: make constants with dtype=x.dtype"
    assert rows["jax"].status == "ran"
    assert tp.validate(scaled_alike, x, backends=["numpy", "jax", "array_api_strict"]).ok


def test_a_reason_fits_a_line():
    def fails(x):
        raise ValueError("a text\nof lines " + "x" * 500)

    report = validate(fails, X, backends=["numpy"], reference=identity)
    (row,) = report.rows
    assert row.reason == "ValueError: a text"
    report = validate(lambda x: x * 0 + 3, X, backends=["numpy"], reference=identity)
    assert "\n" not in report.rows[0].reason
    assert len(str(report).splitlines()) == 3
    assert max(map(len, str(report).splitlines())) <= 160


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"backends": ["nunpy"]}, ValueError, r"^unknown backend 'nunpy' \(did you mean 'numpy'\?\)"),
        ({"backends": "numpy"}, TypeError, r"^validate: backends is a collection of names, not one string"),
        (
            {"dtypes": ["flaot32"]},
            ValueError,
            r"^validate: unknown dtype 'flaot32' \(did you mean 'float32'\?\); valid names: float16, bfloat16, float32",
        ),
        ({"dtypes": "float32"}, TypeError, r"^validate: dtypes is a collection of names or \"all\", not one string"),
    ],
)
def test_unknown_names_are_errors_before_anything_runs(options, kind, message):
    ran = []
    with pytest.raises(kind, match=message):
        validate(ran.append, X, **{"backends": ["numpy"], **options})
    assert ran == []


def test_a_name_is_no_function():
    with pytest.raises(TypeError, match=r"^validate: expected a function, such as tensorops.rms_norm, got 'rms_norm'$"):
        validate("rms_norm", X, backends=["numpy"])
    with pytest.raises(TypeError, match=r"such as tensorops.rms_norm, got numpy.ndarray$"):  # on one line
        validate(X, X)


@pytest.mark.parametrize(("args", "options"), [((), {}), ((1.0, [2, None]), {"x": "text"})])
def test_arguments_without_an_array_are_an_error(args, options):
    ran = []
    with pytest.raises(TypeError, match=r"^validate: there is no array among the arguments for append, at least one"):
        validate(ran.append, *args, backends=["numpy"], **options)
    assert ran == []


# --- arguments and results ---------------------------------------------------------------------------


@dataclasses.dataclass
class Layer:
    weight: object
    name: str


def test_arrays_are_found_in_nested_arguments_of_any_library():
    library = next((name for name in ("jax", "torch", "dask") if not support.why_not(name)), "numpy")
    weight = support.there(W, library)

    def function(layers, x, *, options):
        (layer,) = layers["layers"]
        return tp.rms_norm(x, layer.weight, options[0])

    report = validate(
        function, {"layers": [Layer(weight, "first")]}, X, options=(1e-3,), backends=["array_api_strict", "numpy"]
    )
    assert [row.status for row in report.rows] == ["ran", "ran"]
    assert report.rows[0].kernels == {"rms_norm": ("generic",)}
    assert report.ok


class Weights(dict):
    """A dict whose entries are also attributes, as in model libraries."""

    __getattr__ = dict.__getitem__


def test_containers_stay_what_they_are():
    def function(weights):
        assert weights.tied is weights.w
        return {"y": tp.relu(weights.w)}

    w = W.copy()
    report = validate(
        function, Weights(w=w, tied=w), backends=["numpy", "cpu"], reference=lambda weights: {"y": weights.w}
    )
    assert report.rows[0].status == "ran", report.rows[0].reason
    assert report.rows[0].max_ulp == 0.0


def test_a_function_that_writes_to_its_argument_does_so_alone():
    def doubles(x):
        x *= 2
        return x

    x = np.ones(3, dtype=np.float32)
    report = validate(doubles, x, backends=["numpy", "cpu"], reference=lambda x: 2 * x)
    assert all(row.max_ulp == 0.0 for row in report.rows if row.status == "ran")
    assert report.rows[0].status == "ran"
    np.testing.assert_array_equal(x, 1)


def test_results_may_be_nested():
    support.require("array_api_strict")

    def function(x):
        xp = tp.get_namespace(x)
        return {"y": (x, None), "n": [xp.argmax(x, axis=-1), 3], "s": float(xp.sum(x)), "b": xp.any(x > 0)}

    report = validate(function, X + 1, backends=["numpy", "array_api_strict"])
    assert report.ok, str(report)
    assert report.rows[1].max_ulp <= 1.0


@pytest.mark.parametrize(
    ("wrong", "right", "reason"),
    [
        (lambda x: x + 1, identity, r"the result: 8 of 8 elements differ \(tolerance 256 eps"),
        (lambda x: (x, x + 1), lambda x: (x, x), r"^the result\[1\]: 8 of 8 elements differ"),
        (lambda x: x[:1, :], identity, r"^the result: shape is \(1, 4\), expected \(2, 4\)"),
        (lambda x: (x,), lambda x: (x, x), r"^the result has 1 parts, expected 2"),
        (lambda x: (x, None), lambda x: (x, x), r"^the result\[1\] is NoneType, expected an array or a number"),
        (lambda x: {"a": x}, lambda x: {"b": x}, r"^the result has the keys \['a'\], not \['b'\]"),
        (lambda x: "x", identity, r"^the result is str, expected an array or a number"),
        (lambda x: x > 0, lambda x: x > 1, r"^the result: 2 of 8 elements differ, and must be equal"),
        (lambda x: x > 0, identity, r"^the result: dtype is bool, expected a floating one"),
        (lambda x: x / 0, identity, r"^the result: 8 of 8 elements differ"),
        (lambda x: 1.5, lambda x: 1.0, r"^the result: 1 of 1 elements differ"),
        (lambda x: 3, lambda x: 2, r"^the result: 1 of 1 elements differ, and must be equal"),
        (lambda x: 1j, lambda x: 1.0 + 0j, r"^the result: 2 of 2 elements differ"),
    ],
)
def test_a_result_that_differs_is_one(wrong, right, reason):
    support.require("array_api_strict")
    report = validate(on_strict_only(wrong, right), X, backends=["numpy", "array_api_strict"])
    first, second = report.rows
    assert first.status == "ran"
    assert second.status == "differs"
    assert second.compared_with == "numpy in float64"
    assert second.max_ulp > 1000
    assert not report.ok
    assert re.search(reason, second.reason), second.reason


def as_integer(x):
    xp = tp.get_namespace(x)
    return xp.astype(xp.round(x), xp.int32)


def rounded(x):
    return tp.get_namespace(x).round(x)


@pytest.mark.parametrize(
    ("wrong", "right", "reason"),
    [
        (as_integer, rounded, "the result: dtype is int32, expected a floating one"),
        (rounded, as_integer, "the result: dtype is float32, expected an integer one"),
        (lambda x: 0 * as_integer(x), lambda x: x > 9, "the result: dtype is int32, expected truth values"),
        (lambda x: x > 9, lambda x: 0 * as_integer(x), "the result: dtype is bool, expected an integer one"),
        (lambda x: 1.0, lambda x: 1.0 + 0j, "the result: dtype is float32, expected a complex one"),
        (lambda x: 1, lambda x: 1.0, "the result: dtype is int64, expected a floating one"),
    ],
)
def test_equal_values_of_another_kind_differ(wrong, right, reason):
    support.require("array_api_strict")
    _, row = validate(on_strict_only(wrong, right), X, backends=["numpy", "array_api_strict"]).rows
    assert (row.status, row.reason) == ("differs", reason)
    assert math.isinf(row.max_ulp)


def test_signed_and_unsigned_integers_are_of_one_kind():
    support.require("array_api_strict")
    function = on_strict_only(lambda x: tp.get_namespace(x).astype(x, tp.get_namespace(x).uint8), as_integer)
    assert validate(function, np.ones(3, dtype=np.float32), backends=["numpy", "array_api_strict"]).ok


# --- results narrower than the inputs ----------------------------------------------------------------

X64 = np.array([1.0, 1.5])  # in float32 they are the same


def in_float32(x):
    xp = tp.get_namespace(x)
    return xp.astype(x, xp.float32)


def test_an_operator_that_computes_in_less_than_its_inputs_differs(monkeypatch):
    body = tp.relu._body
    monkeypatch.setattr(tp.relu, "_body", lambda x: body(in_float32(x)))
    row = one_row(tp.relu, X64)
    assert (row.dtype, row.status, row.max_ulp) == ("float64", "differs", 0.0)
    assert row.reason == "the result: dtype is float32, narrower than the inputs' float64"
    assert one_row(tp.relu, X).status == "ran"


def test_a_narrower_result_than_the_inputs_differs_even_if_it_is_so_everywhere():
    support.require("array_api_strict")
    reason = "the result: dtype is float32, narrower than the inputs' float64"
    for function, wrong in ((on_strict_only(in_float32), [False, True]), (in_float32, [True, True])):
        rows = validate(function, X64, backends=["numpy", "array_api_strict"]).rows
        assert [(row.status, row.reason) == ("differs", reason) for row in rows] == wrong


def test_a_reference_may_be_as_narrow():
    row = one_row(in_float32, X64, reference=lambda x: x.astype(np.float32))
    assert (row.status, row.max_ulp) == ("ran", 0.0)


def test_complex_results_are_as_wide_as_their_parts():
    row = one_row(lambda x: (x * 1j).astype(np.complex64), X64, reference=lambda x: x * 1j)
    assert row.reason == "the result: dtype is float32, narrower than the inputs' float64"
    assert one_row(lambda x: x * 1j, X64, reference=lambda x: x * 1j).status == "ran"


@pytest.mark.parametrize("inputs", [(np.array([1, 2]),), (np.ones(2, dtype=np.float32), np.ones(2))])
def test_only_what_is_narrower_than_every_floating_input_is(inputs):
    assert one_row(lambda x, *_: in_float32(x), *inputs).status == "ran"


def test_a_narrower_dtype_inside_is_found():
    def narrow(x):
        return x.astype(np.float16).astype(np.float32)

    row = one_row(narrow, np.array([1 + 2.0**-12, 1.5], dtype=np.float32), reference=identity)
    assert row.status == "differs"
    assert row.max_relative_error == pytest.approx(2.0**-12, rel=1e-3)


def test_nan_and_infinity_are_values():
    x = np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)
    assert one_row(identity, x, reference=identity).max_ulp == 0.0
    row = one_row(lambda x: np.nan_to_num(x), x, reference=identity)
    assert row.status == "differs"
    assert math.isinf(row.max_ulp)


def test_a_lazy_result_that_fails_is_a_row():
    support.require("dask")

    def fails(x):
        def block(b):
            raise ZeroDivisionError("in a block")

        return x.map_blocks(block, dtype=x.dtype, meta=x._meta)

    row = one_row(fails, X, backends=["dask"])
    assert (row.status, row.reason) == ("failed", "ZeroDivisionError: in a block")


# --- the report --------------------------------------------------------------------------------------


def test_the_report_is_a_table_for_people(unavailable):
    report = validate(tp.rms_norm, X, W, backends=["numpy", unavailable[0]])
    title, head, *rows = str(report).splitlines()
    assert title == "rms_norm, compared with the float64 reference of rms_norm"
    assert head.split()[:3] == ["backend", "dtype", "status"]
    assert [row.split()[0] for row in rows] == ["numpy", unavailable[0]]
    for row, status in zip(rows, ("ran", "unavailable"), strict=True):
        assert row[head.index("status") :].startswith(status)
    assert rows[0][head.index("kernels") :].startswith("rms_norm: generic")
    assert rows[1][head.index("reason") :].startswith("backend")


def test_the_report_is_json_for_programs():
    support.require("array_api_strict")
    function = on_strict_only(lambda x: x / 0)
    report = validate(function, X, backends=["numpy", "array_api_strict"])
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert (read["function"], read["reference"]) == ("function", "itself on numpy in float64")
    assert read["ok"] is False
    assert [row["status"] for row in read["rows"]] == ["ran", "differs"]
    assert math.isinf(report.rows[1].max_ulp)
    assert read["rows"][1]["max_ulp"] is None
    assert set(read["rows"][0]) == {field.name for field in dataclasses.fields(report.rows[0])}


def test_rows_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        one_row(tp.relu, X).status = "ran"


def test_the_compiled_kernels_are_what_was_loaded():
    """The rows of the backend `cpu` must not say more than the provider can do."""
    (row,) = validate(tp.rms_norm, X, W, backends=["cpu"]).rows
    assert row.status == ("unavailable" if _providers.load("cpu") else "ran")


@pytest.mark.parametrize("name", ["torch", "jax", "array_api_strict"])
def test_a_dtype_becomes_that_of_the_library(name):
    support.require(name)
    report = validate(tp.softmax, X, backends=["numpy", name], dtype=np.dtype(np.float32))
    assert {row.status for row in report.rows} == {"ran"}, report
