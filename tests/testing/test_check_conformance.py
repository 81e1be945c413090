"""The check that authors of backends run: correct backends pass, and failures are named."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops._kernel import Kernel
from tensorops._operator import OPERATORS
from tensorops._trees import map_arrays
from tensorops.backends.settings import Settings
from tensorops.testing import CASES, DTYPES, INVALID, ConformanceReport, Outcome, _running, check_conformance
from tensorops.testing._libraries import arrays_in
from tensorops.testing.conformance import conformance, subjects

SILU = {"operators": ["silu"], "dtypes": ["float32"]}
FLOAT32 = [case.name for case in CASES["silu"] if "float32" in case.dtypes]


@pytest.fixture
def wrong_body(monkeypatch):
    """Return a function that puts another body into `silu`, for the length of a test."""
    return lambda body: monkeypatch.setattr(OPERATORS["silu"], "_body", body)


@pytest.fixture
def wrong_kernel(monkeypatch):
    """Return a function that gives `silu` a kernel of the provider `cpu`, for the length of a test."""
    support.require_provider("cpu")
    tp.silu(np.ones(3, np.float32))  # else the default settings would keep a plan of the wrong kernel

    def put(function, supports=lambda x: None, **declared):
        monkeypatch.setattr(_running, "PLAIN", Settings())  # without plans of the right kernel
        monkeypatch.setitem(OPERATORS["silu"]._kernels, "cpu", Kernel("cpu", function, supports, **declared))

    return put


def silu(x):
    with np.errstate(all="ignore"):
        return x / (1 + np.exp(-x))


def failures(backend="numpy", **options):
    return {outcome.case: outcome.message for outcome in conformance(backend, **options) if outcome.status == "failed"}


# --- what is right -----------------------------------------------------------------------------------


def test_every_case_and_refusal_has_an_outcome():
    outcomes = list(conformance("numpy", **SILU))
    assert {outcome.status for outcome in outcomes} == {"passed"}
    assert [outcome.case for outcome in outcomes] == FLOAT32 + [f"invalid: {case.name}" for case in INVALID["silu"]]
    assert {(o.operator, o.implementation, o.dtype) for o in outcomes} == {("silu", "generic", "float32")}


def test_everything_is_tested_by_default():
    chosen = subjects("numpy")
    assert [(s.operator.__name__, s.dtype) for s in chosen] == [(name, d) for name in OPERATORS for d in DTYPES]
    report = check_conformance("python", operators=["relu"])
    assert report.backend == "numpy"
    assert report.count("passed") == len(report.outcomes) == sum(map(len, subjects("numpy", operators=["relu"])))


def test_kernels_of_the_backend_are_tested():
    support.require_provider("cpu")
    report = check_conformance("cpu", operators=["group_norm"], implementations=["cpu"])
    assert {outcome.implementation for outcome in report.outcomes} == {"cpu"}
    assert report.count("passed") > report.count("refused") > 0
    assert all(outcome.message for outcome in report.outcomes if outcome.status == "refused")


def test_a_dtype_that_the_library_lacks_is_skipped():
    support.require("array_api_strict")
    (outcome,) = conformance("array_api_strict", operators=["relu"], dtypes=["float16"])
    assert (outcome.status, outcome.message) == ("skipped", "array_api_strict holds no float16")
    with pytest.raises(AssertionError, match=r"nothing was tested\narray_api_strict holds no float16"):
        check_conformance("array_api_strict", operators=["relu"], dtypes=["float16"])


def test_what_is_in_force_around_it_changes_nothing():
    support.require("array_api_strict")
    with tp.set_backend("array_api_strict"), tp.trace():
        assert check_conformance("numpy", **SILU).count("passed") == len(FLOAT32) + len(INVALID["silu"])


# --- what is wrong -----------------------------------------------------------------------------------


def test_a_wrong_value_is_named(wrong_body):
    wrong_body(lambda x: silu(x) * np.float32(1.0001))
    with pytest.raises(AssertionError) as caught:
        check_conformance("numpy", **SILU)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("numpy: ")
    assert f" {sum(line.startswith('silu ') for line in lines)} failed, " in first
    assert not any("float32 empty:" in line for line in lines)  # an array without elements has no wrong value
    assert lines[0].startswith("silu generic float32 typical: failed: 256 of 256 elements differ (tolerance 8 eps")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda x: silu(x).astype(np.float64), r"dtype is float64, expected float32"),
        (lambda x: silu(x)[..., None], r"shape is"),
        (lambda x: (silu(x), None), r"result is tuple, no numpy array"),
        (lambda x: None, r"result is NoneType, no numpy array"),
        (lambda x: tp.relu(x) * 0 + silu(x), r"expected one call in the trace, got 2"),
        (lambda x: 1 / 0, r"ZeroDivisionError: division by zero"),
    ],
)
def test_every_kind_of_mistake_is_found(wrong_body, body, message):
    wrong_body(body)
    found = failures(**SILU)
    assert message in found["typical"]
    assert message in found["special"]


def test_a_result_of_another_library_is_found(wrong_body):
    support.require("array_api_strict")
    wrong_body(lambda x: np.asarray(silu(support.back(x))))
    assert failures("array_api_strict", **SILU)["typical"] == "result is ndarray, no array_api_strict array"


def test_a_result_on_another_device_is_found(wrong_body):
    row = support.require("array_api_strict")
    wrong_body(lambda x: row.from_numpy(silu(support.back(x)), row.xp.Device("device1")))
    assert "result is on device" in failures("array_api_strict", **SILU)["typical"]


def test_a_mistake_under_jit_is_found_case_by_case(wrong_body):
    support.require("jax")

    def body(x):
        if x.ndim == 0:
            raise ZeroDivisionError("on purpose")
        return x if x.shape == (17,) else x * tp.get_namespace(x).reciprocal(1 + tp.get_namespace(x).exp(-x))

    wrong_body(body)
    found = failures("jax", **SILU)
    assert found["scalar"] == "ZeroDivisionError: on purpose"
    assert "elements differ" in found["length_17"]
    assert not {"typical", "length_33", "batch"} & set(found)


def test_a_check_that_is_missing_is_found(wrong_body, monkeypatch):
    monkeypatch.setattr(OPERATORS["silu"], "_check", None)
    wrong_body(lambda x: silu(np.asarray(x, dtype=np.float32)))
    found = failures(**SILU)
    assert set(found) == {"invalid: integer_x", "invalid: bool_x"}
    assert found["invalid: integer_x"] == r"under_backend: raised nothing, expected TypeError: ^silu: (x)\b"


def test_a_refusal_in_other_words_is_found(monkeypatch):
    def check(name, x):
        if x.dtype.kind != "f":
            raise TypeError("no")

    monkeypatch.setattr(OPERATORS["silu"], "_check", check)
    assert (
        failures(**SILU)["invalid: bool_x"]
        == r"under_backend: the message is 'no', expected it to match '^silu: (x)\\b'"
    )


# --- kernels -----------------------------------------------------------------------------------------


def test_a_right_kernel_passes(wrong_kernel):
    wrong_kernel(lambda x: silu(x) if x.dtype == np.float32 else NotImplemented, supports_float32)
    report = check_conformance("cpu", operators=["silu"])
    assert {(o.dtype, o.status) for o in report.outcomes if o.implementation == "cpu" and "invalid" not in o.case} == {
        ("float16", "refused"),
        ("bfloat16", "refused"),
        ("float32", "passed"),
        ("float64", "refused"),
    }


def supports_float32(x):
    return None if x.dtype == np.float32 else f"x has dtype {x.dtype.name}"


def test_a_wrong_kernel_is_found_beside_a_right_body(wrong_kernel):
    wrong_kernel(lambda x: silu(x) * np.float32(1.0001), supports_float32)
    outcomes = list(conformance("cpu", **SILU))
    assert {o.implementation for o in outcomes if o.status == "failed"} == {"cpu"}
    assert {o.case for o in outcomes if o.implementation == "generic"} >= set(FLOAT32)


def test_a_kernel_that_refuses_everything_was_not_tested(wrong_kernel):
    wrong_kernel(silu, lambda x: "not today")
    with pytest.raises(AssertionError, match=r"but kernels refused every case:\nsilu cpu: not today$"):
        check_conformance("cpu", operators=["silu"])


def test_a_kernel_that_takes_what_it_should_refuse_is_found(wrong_kernel):
    wrong_kernel(lambda x: silu(np.asarray(x, dtype=np.float32)), declines=True, checks=True)
    found = failures("cpu", **SILU, implementations=["cpu"])
    assert "raised nothing, expected TypeError" in found["invalid: integer_x"]


def test_explain_and_the_call_must_agree(wrong_kernel):
    answers = iter(range(1000))
    wrong_kernel(silu, lambda x: f"reason {next(answers)}")
    said = failures("cpu", **SILU)["typical"]
    assert re.match(r"explain says 'reason \d+', but the call says: .* cpu: reason \d+$", said)


# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"operators": ["sillu"]},
            ValueError,
            r"^unknown operator 'sillu' \(did you mean 'silu'\?\); valid names: .*rms_norm",
        ),
        ({"dtypes": ["float8"]}, ValueError, r"^unknown dtype 'float8' .*; valid names: float16, bfloat16, float32"),
        ({"implementations": ["cuda"]}, ValueError, r"^unknown implementation 'cuda'; valid names: generic$"),
        ({"operators": "silu"}, TypeError, r"^operators is a collection of names, not one string$"),
    ],
)
def test_unknown_names_list_the_valid_ones(options, kind, message):
    with pytest.raises(kind, match=message):
        check_conformance("numpy", **options)
    with pytest.raises(kind, match=message):
        conformance("numpy", **options)  # at once, not when the first outcome is taken


def doubled(x: Array) -> Array:  # noqa: F821 - the annotation is read as it is written
    return x + x


def test_an_operator_of_ones_own_has_no_cases():
    with support.temporary_operator(doubled):
        assert {s.operator.__name__ for s in subjects("numpy")} == set(CASES)
        with pytest.raises(ValueError, match=r"^operator 'doubled' has no cases to be tested with; .*: rms_norm, "):
            check_conformance("numpy", operators=["relu", "doubled"])
        with pytest.raises(ValueError, match=r"^unknown operator 'doublet'; valid names: rms_norm, "):
            check_conformance("numpy", operators=["doublet"])


def test_an_unknown_or_unavailable_backend_is_an_error(unavailable):
    with pytest.raises(ValueError, match=r"^unknown backend 'nunpy' \(did you mean 'numpy'\?\)"):
        check_conformance("nunpy")
    with pytest.raises(tp.BackendUnavailableError, match=rf"^backend '{unavailable[0]}' is not available: "):
        check_conformance(unavailable[0])


# --- the report --------------------------------------------------------------------------------------


def test_the_report_counts_and_lists():
    passed = Outcome("silu", "generic", "float32", "typical", "passed")
    failed = dataclasses.replace(passed, case="wide", status="failed", message="off by 1")
    report = ConformanceReport("tiny", (passed, failed, failed))
    assert (report.count("passed"), report.count("failed"), report.count("refused")) == (1, 2, 0)
    assert report.failures == (failed, failed)
    assert str(report).splitlines() == [
        "tiny: 1 passed, 2 failed, 0 refused, 0 skipped",
        *["silu generic float32 wide: failed: off by 1"] * 2,
    ]
    assert str(passed) == "silu generic float32 typical: passed"
    many = ConformanceReport("tiny", (failed,) * 100)
    assert str(many).splitlines()[-1] == "... and 60 more"


# --- arrays in nested containers ---------------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    left: object
    right: object = None
    made: object = dataclasses.field(default=None, init=False)


def test_arrays_are_found_and_replaced_in_nested_containers():
    a, b, c = np.zeros(1), np.ones(2), np.float32(2)
    tree = {"pair": Pair(a, [b, "text"]), "more": (c, None, 3)}
    assert [x is y for x, y in zip(arrays_in(tree), (a, b, c), strict=True)] == [True] * 3
    shapes = map_arrays(np.shape, tree)
    assert shapes == {"pair": Pair((1,), [(2,), "text"]), "more": ((), None, 3)}
    assert tree["pair"].left is a
