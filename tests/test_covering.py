"""The short run: it covers every value of every dimension, and what it leaves out is reported and can be run."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import support
from covering import covering
from tensorops._operator import OPERATORS
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES
from test_conformance import SLOW, every_implementation, some_cases

HERE = Path(__file__).parent


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_occurs(strength):
    rows = [row for row in itertools.product("abcd", range(3), (True, False), (None, 1.5)) if row[:2] != ("a", 1)]
    taken = [rows[index] for index in covering(rows, strength)]
    for columns in itertools.combinations(range(4), strength):
        assert {tuple(row[c] for c in columns) for row in taken} == {tuple(row[c] for c in columns) for row in rows}
    assert len(taken) < len(rows) / 2 ** (3 - strength)


def test_conformance_keeps_every_pair():
    """Operators, libraries, dtypes and implementations; on slow libraries with some cases each, else with all."""
    rows = [parameters.values for parameters in every_implementation()]
    rows = [row for row in rows if not support.why_not(row[1].name)]
    quick = [row for row in rows if row[1].name not in SLOW]
    taken = [quick[index] for index in covering([tuple(map(id, row)) for row in quick], 2)]
    assert {row[0] for row in taken} == set(OPERATORS.values())
    taken += [parameters.values for parameters in some_cases()]
    here = [library for library in LIBRARIES.values() if not support.why_not(library.name)]
    assert {row[:2] for row in taken} == set(itertools.product(OPERATORS.values(), here))
    kernels = {(operator, implementation) for operator, _, _, implementation in rows}
    assert {(operator, implementation) for operator, _, _, implementation in taken} == kernels
    dtypes = {(operator, dtype) for operator, _, dtype, _ in rows}
    assert {(operator, dtype) for operator, _, dtype, _ in taken} == dtypes
    assert len(taken) < len(rows) / 2
    assert {tag for cases in CASES.values() for case in cases for tag in case.tags} >= {"extreme", "special", "empty"}


def collected(*arguments):
    """Return the tests that pytest selects from one file with these arguments, and its summary."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *arguments]
    run = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, timeout=300, check=True)
    lines = run.stdout.splitlines()
    return {line for line in lines if line.startswith("tests/")}, run.stdout


@pytest.mark.exhaustive
def test_what_is_left_out_is_said_and_can_be_run():
    file = "tests/ops/test_arrays_refused.py"
    short, said = collected(file)
    rest, nothing = collected(file, "-m", "exhaustive")
    assert short
    assert rest
    assert not short & rest
    assert f"{len(rest)} tests, further combinations of parameters and slow ones: test_arrays_refused.py" in said
    assert "pytest --exhaustive" in said
    assert "left out" not in nothing
