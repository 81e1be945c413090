"""The arrangement of the C++ sources: what is defined only once, and where an operator is bound."""

from __future__ import annotations

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
    code = {name: re.sub(r"//.*", "", text) for name, text in sources("cpu/*.h", "*/*.cpp").items()}
    assert {name: found for name, text in code.items() if (found := set(named.findall(text)))} == {}
    listed = re.findall(r"^ *add_target\((\w+)", (NATIVE / "cpu" / "CMakeLists.txt").read_text(), re.MULTILINE)
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
    found = [name for name, text in sources("cpu/*").items() for _ in re.finditer(definition, text)]
    assert len(found) == 1, found


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
def test_operators_are_bound_in_the_file_of_their_family(operator):
    family = operator.__wrapped__.__module__.rpartition(".")[2]
    named = {
        name
        for name, text in sources("cpu/bind_*.cpp").items()
        if re.search(rf'(?<!= )"{operator.__name__}"(?!_a)', text)  # neither an argument nor the value of one
    }
    assert named == {f"bind_{family}.cpp"}
    handled = {name for name, text in sources("cpu/xla_*.cpp").items() if f'{{"{operator.__name__}"' in text}
    assert handled <= {f"xla_{family}.cpp"}
