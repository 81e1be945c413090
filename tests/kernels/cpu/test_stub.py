"""The types written for the compiled module, compared with the module: every name, parameter and default."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tensorops
from tensorops import _providers

WHY_NOT = _providers.load("cpu")
if not WHY_NOT:
    from tensorops.kernels.cpu import _native

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"cpu: {WHY_NOT}")

STUB = Path(tensorops.__file__).parent / "kernels" / "cpu" / "_native.pyi"


def functions(source):
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def compiled(name):
    """The signature that nanobind keeps of a function, as its stub generator would write it."""
    ((signature, _, defaults),) = getattr(_native, name).__nb_signature__  # one of each: nothing is overloaded
    written = re.sub(r"\\(\d+)", lambda index: repr(defaults[int(index[1])]), signature)
    return functions(f"{written}: ...")[name]


def parameters(function):
    """Names, kinds and defaults, without annotations."""
    bare = ast.parse(ast.unparse(function)).body[0].args
    for parameter in (*bare.posonlyargs, *bare.args, *bare.kwonlyargs):
        parameter.annotation = None
    return ast.unparse(bare)


def annotations(function):
    given = {p.arg: p.annotation for p in (*function.args.args, *function.args.kwonlyargs)}
    return {name: ast.unparse(node) for name, node in {**given, "return": function.returns}.items()}


WRITTEN = functions(STUB.read_text())


def test_every_name_has_types():
    classes = {node.name for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)}
    operators = {f"{name}{end}" for name in _native.operators() for end in ("", "_supports")}
    known = {*WRITTEN, *classes, *operators} - {"Array", "__getattr__"}
    assert known == {name for name in dir(_native) if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - {"__getattr__"}))
def test_types_are_of_the_compiled_parameters(name):
    assert parameters(WRITTEN[name]) == parameters(compiled(name))


@pytest.mark.parametrize("name", sorted(WRITTEN.keys() - {"__getattr__"}))
def test_types_are_at_least_as_exact_as_the_compiled_ones(name):
    """To nanobind, arrays and options are objects; what it knows better must be what is written."""
    known = {
        key: kind.removeprefix(f"{_native.__name__}.")
        for key, kind in annotations(compiled(name)).items()
        if "object" not in kind and kind != "dict"
    }
    written = annotations(WRITTEN[name])
    assert {key: written[key] for key in known} == known
