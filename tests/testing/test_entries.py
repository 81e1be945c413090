"""Cases, refusals and references of tensorops.testing: sound, complete, and free of the code under test."""

import ast
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import support
import tensorops
from tensorops._operator import OPERATORS
from tensorops.testing import CASES, DTYPES, INVALID, REFERENCES, assert_matches, cases, cast
from tensorops.testing.workloads import WORKLOADS

ROOT = Path(tensorops.__file__).parent


references = SimpleNamespace(**REFERENCES)


# The family modules import only the standard library, NumPy and each other.
FREE = ("_stored_blocks", "assertions", "entries", "values", *(path.stem for path in (ROOT / "ops").glob("[a-z]*.py")))


@pytest.mark.parametrize("file", FREE)
def test_references_share_no_code_with_operators(file):
    tree = ast.parse((ROOT / "testing" / f"{file}.py").read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    ours = {f"tensorops.testing.{name}" for name in FREE}
    assert imported - ours <= {*sys.stdlib_module_names, "collections.abc", "ml_dtypes", "numpy", "numpy.typing"}


def test_every_operator_has_a_reference_cases_refusals_and_a_workload():
    for table in (REFERENCES, CASES, INVALID, WORKLOADS):
        assert set(table) == set(OPERATORS)
        assert all(table.values())


def test_an_operator_is_described_in_the_file_of_its_family():
    for name, operator in OPERATORS.items():
        family = operator.__module__.rpartition(".")[2]
        assert REFERENCES[name].__module__ == f"tensorops.testing.{family}"


def test_cases_names_the_operators_it_knows():
    assert cases("silu") is CASES["silu"]
    with pytest.raises(ValueError, match="'sillu'; there are cases for silu, sigmoid"):
        cases("sillu")


def arrays(args, kwargs):
    named = {**dict(enumerate(args)), **kwargs}
    return {name: value for name, value in named.items() if isinstance(value, np.ndarray)}


def results(case, dtype_name="float64"):
    """Return the arrays that the reference makes of a case."""
    args, kwargs = case.build(dtype_name=dtype_name)
    result = REFERENCES[case.operator](*args, **kwargs)
    return [r for r in (result if isinstance(result, tuple) else (result,)) if r is not None]


@pytest.mark.parametrize("operator", OPERATORS)
def test_names_are_unique(operator):
    for group in (CASES[operator], INVALID[operator]):
        names = [case.name for case in group]
        assert len(set(names)) == len(names) >= 2
        assert {case.operator for case in group} == {operator}


@support.for_each(CASES)
def test_a_case_is_deterministic_small_and_tagged(case):
    first, again = arrays(*case.build(seed=3)), arrays(*case.build(seed=3))
    assert first.keys() == again.keys()
    for name, x in first.items():
        assert_array_equal(x, again[name])
        assert x.size <= 20_000
        assert x.dtype in (np.float64, np.float32, np.int64, np.int32, np.int8, np.uint8, np.bool_)
        if name != "mask" and not np.isfinite(x).all():
            assert "special" in case.tags
    assert ("empty" in case.tags) == any(x.size == 0 for x in first.values())


def test_seeds_and_cases_differ():
    typical, other = cases("rms_norm")[0], cases("layer_norm")[0]
    x = typical.build()[0][0]
    assert not np.array_equal(x, typical.build(seed=1)[0][0])
    assert not np.array_equal(x, other.build()[0][0])


@support.for_each(CASES)
def test_arguments_are_within_the_range_of_every_dtype(case):
    wide = arrays(*case.build())
    assert case.dtypes
    for dtype_name in case.dtypes:
        for name, x in arrays(*case.build(dtype_name=dtype_name)).items():
            if wide[name].dtype == np.float64 and name not in case.uncast:
                assert x.dtype == DTYPES[dtype_name]
                assert_array_equal(np.isfinite(x), np.isfinite(wide[name]))
                assert_array_equal(x == 0, wide[name] == 0)
            else:
                assert x.dtype == wide[name].dtype


@support.for_each(CASES)
def test_the_reference_runs_on_every_case(case):
    signature = inspect.signature(REFERENCES[case.operator])
    args, kwargs = case.build()
    signature.bind(*args, **kwargs)
    for result in results(case):
        assert isinstance(result, np.ndarray)
        assert result.dtype in (np.float64, np.uint8, np.int64)
        masked_logarithms = case.operator == "log_softmax" and "where" in kwargs
        if "special" not in case.tags and not masked_logarithms:
            assert np.isfinite(result).all()


@support.for_each(CASES)
def test_a_case_accepts_the_rounded_reference_and_refuses_a_wrong_one(case):
    for dtype_name in case.dtypes:
        eps = float(ml_dtypes.finfo(DTYPES[dtype_name]).eps)
        tolerance = case.tolerance_for(dtype_name)
        for expected in results(case, dtype_name):
            name = dtype_name if expected.dtype == np.float64 else expected.dtype.name

            def check(actual, expected=expected, name=name, tolerance=tolerance):
                assert_matches(actual, expected, name, tolerance=tolerance, scale_axis=case.scale_axis)

            with np.errstate(over="ignore"):
                rounded = expected.astype(DTYPES.get(name, expected.dtype))
            check(rounded)
            if expected.size == 0:
                continue
            wrong = rounded.copy()
            finite = np.where(np.isfinite(rounded.astype(np.float64)), np.abs(rounded), 0).astype(np.float64)
            worst = np.unravel_index(np.argmax(finite), finite.shape)
            if name not in DTYPES:
                wrong[worst] ^= 1
            elif finite[worst] == 0:
                wrong[worst] = 1.0 if not np.isfinite(rounded[worst]) else 0.5
            else:
                wrong[worst] *= 1 - 3 * (tolerance + 1) * eps
            with pytest.raises(AssertionError, match="differ"):
                check(wrong)


def near(value, by):
    return [value * (1 - by), value * (1 + by)]


@pytest.mark.parametrize("case", cases("sample"), ids=str)
def test_rounding_cannot_move_a_sample(case):
    """The uniforms and thresholds are far from where the index changes: float32 draws what float64 does."""
    (logits,), options = case.build()
    expected = references.sample(logits, **options)
    for dtype_name in case.dtypes:
        assert_array_equal(cast(logits, dtype_name).astype(np.float64), logits)
    for option in {"rng", "top_p", "min_p", "temperature"} & options.keys():
        for moved in near(options[option], 1e-4):
            if option in ("top_p", "min_p"):
                moved = min(moved, 1.0)
            assert_array_equal(references.sample(logits, **{**options, option: moved}), expected)


@pytest.mark.parametrize("case", cases("quantize"), ids=str)
def test_rounding_cannot_move_a_code(case):
    args, kwargs = case.build()
    codes = references.quantize(*args, **kwargs)[0]
    for dtype_name in case.dtypes:
        assert_array_equal(references.quantize(*case.build(dtype_name=dtype_name)[0], **kwargs)[0], codes)


def test_cast_reaches_into_containers_and_leaves_the_rest():
    ids, half = np.array([1]), np.array([1.0], dtype=np.float16)
    value = {"a": (np.array([1.5]), [ids, half, None]), "eps": 1e-6}
    result = cast(value, "bfloat16")
    assert result["a"][0].dtype == ml_dtypes.bfloat16
    assert result["a"][1][0] is ids
    assert result["a"][1][1] is half
    assert result["a"][1][2] is None
    assert result["eps"] == 1e-6
    assert value["a"][0].dtype == np.float64


@support.for_each(INVALID)
def test_refusals_name_an_argument(case):
    case.build("float32")
    assert case.exception in (ValueError, TypeError)
    parsed = re.match(r"\^(\w+): \(?([\w|]+)\)?", case.message)
    assert parsed is not None
    assert parsed[1] == case.operator
    assert set(parsed[2].split("|")) <= set(inspect.signature(REFERENCES[case.operator]).parameters)
    example = f"{case.operator}: {parsed[2].split('|')[0]} has 7 elements, but axis -1 of x has 8"
    assert re.search(case.message, example)
    assert not re.search(case.message, example.replace(f": {parsed[2].split('|')[0]} ", ": other "))
