"""The arrangement of the C++ sources: what is defined only once, and where an operator is bound."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tensorops import _providers

WHY_NOT = _providers.load("cpu")
if WHY_NOT:
    OPERATORS, TARGETS = (), []
else:
    from tensorops.kernels.cpu import _native
    from tensorops.kernels.cpu.table import OPERATORS

    TARGETS = _native.targets()

NATIVE = Path(__file__).parents[3] / "native"

pytestmark = pytest.mark.skipif(bool(WHY_NOT) or not NATIVE.exists(), reason=WHY_NOT or "no C++ sources here")


def sources(*patterns):
    return {path.name: path.read_text(encoding="utf-8") for pattern in patterns for path in NATIVE.glob(pattern)}


def test_targets_are_listed_for_cmake_only():
    named = re.compile(rf"\b({'|'.join(TARGETS)})\b(?!\.)")
    code = {name: re.sub(r"//.*", "", text) for name, text in sources("*/*.h", "*/*.cpp").items()}
    assert {name: found for name, text in code.items() if (found := set(named.findall(text)))} == {}
    listed = re.findall(r"^ *add_target\((\w+)", (NATIVE / "kernels" / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert [name for name in reversed(listed) if name in TARGETS] == TARGETS


@pytest.mark.parametrize(
    "definition",
    [
        r"class Scratch \{",
        r"\bbool any\(",
        r"\bvoid careful_row\(",
        r"\bReason refuse_matrix\(",
        r"typedef std::int32_t \w+ __attribute__",
        r"case Dtype::float16:|== Dtype::float16\) return \w+\(",  # from a dtype to its element type
        r"omp_get_num_threads\(\)",
    ],
)
def test_words_are_defined_once(definition):
    code = sources("core/*", "kernels/*", "operators/*")
    found = [name for name, text in code.items() for _ in re.finditer(definition, text)]
    assert len(found) == 1, found


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_operators_are_in_the_file_of_their_family(operator):
    family = operator.__wrapped__.__module__.rpartition(".")[2]
    defined = rf"^TENSOROPS_OPERATOR\({operator.__name__},"
    named = [name for name, text in sources("operators/*.cpp").items() if re.search(defined, text, re.MULTILINE)]
    assert named == [f"{family}.cpp"]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_signatures_are_those_of_operators(operator):
    bare = [p.replace(annotation=p.empty) for p in inspect.signature(operator.__wrapped__).parameters.values()]
    compiled = inspect.signature(getattr(_native, operator.__name__))
    assert compiled == inspect.Signature(bare)
