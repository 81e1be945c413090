"""The public names, their signatures and documentation, and who may import whom."""

import ast
import importlib
import inspect
import pathlib
import re
import types

import pytest

import tensorops as tp
from tensorops import _providers
from tensorops._operator import OPERATORS
from tensorops.backends.registry import BACKENDS
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, REFERENCES

PACKAGE = pathlib.Path(tp.__file__).parent
PUBLIC_MODULES = {"formats", "models", "persistent", "rope_scaling"}

NORMS = {name for name, op in OPERATORS.items() if op.__module__ == "tensorops.ops.normalization"}
POSITIONAL_OPTIONS = {key: ["eps"] for key in NORMS} | {"group_norm": ["num_groups", "eps"], "top_k": ["k"]}
ACTIVATIONS = {name for name, op in OPERATORS.items() if op.__module__ == "tensorops.ops.activation"}


def public_names(module):
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def modules():
    """Return the names of the package's Python modules, derived from its files."""
    dotted = [".".join(["tensorops", *path.relative_to(PACKAGE).with_suffix("").parts]) for path in sources()]
    return [name.removesuffix(".__init__") for name in dotted]


def sources(*parts):
    """Return the Python files below a part of the package."""
    return sorted((PACKAGE.joinpath(*parts)).rglob("*.py"))


def imports(path):
    """Return the modules that a file of the package imports anywhere, and the names it imports from them."""
    package = ["tensorops", *path.relative_to(PACKAGE).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.extend((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found.extend((module, alias.name) for alias in node.names)
    return found


# --- names -------------------------------------------------------------------------------------------


def test_all_is_what_is_public():
    for name in tp.__all__:  # this imports some of them
        assert getattr(tp, name) is not None
    assert set(tp.__all__) == public_names(tp) - {"TYPE_CHECKING", "Any", "annotations"}
    assert set(tp.__all__) <= set(dir(tp))
    with pytest.raises(AttributeError, match=r"^module 'tensorops' has no attribute 'rms_nrom'$"):
        tp.rms_nrom  # noqa: B018


def test_what_is_imported_later_is_what_types_are_checked_with():
    """The package lists these names twice: for type checkers, and for attribute access."""
    block = next(n for n in ast.parse(pathlib.Path(tp.__file__).read_text()).body if isinstance(n, ast.If))
    checked = {alias.name: node.module for node in block.body for alias in node.names}
    assert checked == tp._MODULE_OF
    assert len(tp.__all__) == len(set(tp.__all__))
    assert tp.__all__ == sorted(tp.__all__)


@pytest.mark.parametrize("name", [f"tensorops.{name}" for name in ("backends", "extending", "testing", "typing")])
def test_all_of_subpackages_exists(name):
    module = importlib.import_module(name)
    assert len(module.__all__) == len(set(module.__all__))
    for public in module.__all__:
        assert hasattr(module, public)


def test_every_operator_is_exported_and_nothing_else_is_one():
    families = {operator.__module__ for operator in tp.ops.every_operator()}
    listed = [name for family in families for name in importlib.import_module(family).__all__]
    assert sorted(listed) == sorted(OPERATORS)
    assert set(OPERATORS) <= set(tp.__all__)
    for name in tp.__all__:
        assert (name in OPERATORS) == isinstance(getattr(tp, name), type(tp.silu))


def test_public_functions_and_classes_say_where_they_are_defined():
    for name in tp.__all__:
        module = importlib.import_module(getattr(tp, name).__module__)
        assert getattr(module, name) is getattr(tp, name)


@pytest.mark.parametrize("name", OPERATORS)
def test_signatures_follow_the_conventions(name):
    """Arrays first, options by keyword only. Names and defaults are compared with those of the reference below."""
    parameters = list(inspect.signature(OPERATORS[name]).parameters.values())
    if name == "einsum":  # as in NumPy
        assert parameters.pop(0).name == "subscripts"
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    by_keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert by_position + by_keyword == parameters
    arrays = [p for p in parameters if p.annotation.startswith("Array")]
    positional_options = POSITIONAL_OPTIONS.get(name, [])  # as in PyTorch
    assert [p.name for p in by_position if p not in arrays] == positional_options
    assert by_position[0].default is inspect.Parameter.empty
    assert all(p.default is None for p in arrays if p in by_keyword or p.default is not p.empty)


@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_take_the_parameters_of_their_operator(name):
    operator = OPERATORS[name]
    expected = inspect.signature(operator)
    for kernel in operator.kernels.values():
        for function in (kernel.function, kernel.supports):
            if isinstance(function, types.BuiltinFunctionType) and function.__doc__ is None:
                function = function.__self__[-1]
            try:
                signature = inspect.signature(function)
            except ValueError:  # compiled: its documentation begins with a signature
                text = function.__doc__.partition("\n")[0]
                listed = re.findall(r"[(,] ?(\w+):", text)
                assert listed == list(expected.parameters), text
                continue
            by_name = {p.name: None for p in expected.parameters.values() if p.kind is p.KEYWORD_ONLY}
            by_position = [name for name in expected.parameters if name not in by_name]
            bound = signature.bind(*by_position, **by_name)  # the form of canonical arguments
            assert all(bound.arguments[name] == name for name in by_position)


@pytest.mark.parametrize("name", OPERATORS)
def test_references_take_the_parameters_of_their_operator(name):
    """They are written apart from it, so that a change of a name or a default is a decision."""
    expected = inspect.signature(OPERATORS[name]).parameters
    assert list(inspect.signature(REFERENCES[name]).parameters) == list(expected)
    for parameter in inspect.signature(REFERENCES[name]).parameters.values():
        assert parameter.kind == expected[parameter.name].kind
        if name != "sample" or parameter.name != "rng":  # an oracle draws only from given numbers
            assert parameter.default == expected[parameter.name].default


# --- documentation -----------------------------------------------------------------------------------


def parse(function):
    """Return the sections of a function's docstring, or skip the test without numpydoc."""
    return pytest.importorskip("numpydoc.docscrape").FunctionDoc(function)


@pytest.mark.parametrize("name", OPERATORS)
def test_documentation_has_its_sections(name):
    doc = parse(OPERATORS[name].__wrapped__)
    assert len(doc["Summary"]) == 1
    assert doc["Summary"][0].endswith(".")
    for section in ("Parameters", "Returns", "Raises", "Examples"):
        assert doc[section], f"{name} has no section {section}"
    documented = [n.lstrip("*") for p in doc["Parameters"] for n in p.name.split(", ")]
    assert documented == list(inspect.signature(OPERATORS[name]).parameters)
    for section in ("Parameters", "Returns", "Raises"):
        for entry in doc[section]:
            assert "".join(entry.desc).strip(), f"{name}: {section}: {entry.name or entry.type} is empty"
    assert any(".. math::" in line for line in doc["Extended Summary"]) or name in ("sample", "embedding")
    examples = "\n".join(doc["Examples"])
    assert ">>>" in examples
    assert f"tensorops.{name}(" in examples


@pytest.mark.parametrize("name", sorted(set(tp.__all__) - set(OPERATORS)))
def test_other_public_names_are_documented(name):
    value = getattr(tp, name)
    doc = inspect.getdoc(value)
    assert doc
    assert doc.splitlines()[0].endswith((".", "?"))
    if inspect.isfunction(value):
        parsed = parse(value)
        documented = [n.lstrip("*") for p in parsed["Parameters"] for n in p.name.split(", ")]
        missing = set(inspect.signature(value).parameters) - set(documented)
        assert not missing or not documented, f"{name} does not document {missing}"
        assert parsed["Examples"]


@pytest.mark.parametrize("name", modules())
def test_every_module_is_documented(name):
    if name.rpartition(".")[2] == "__main__":
        pytest.skip("runs the command line when imported")
    path = PACKAGE.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert ast.get_docstring(ast.parse(path.read_text()))


# --- who may import whom -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", sources("models"), ids=lambda path: path.stem)
def test_models_use_the_public_interface_only(path):
    for module, name in imports(path):
        if module.partition(".")[0] != "tensorops":
            continue
        if module == "tensorops":
            assert name is None or name in tp.__all__ or name in PUBLIC_MODULES, f"{name} is not public"
        else:
            _, package, *inner = module.split(".")
            is_public = package == "persistent" and not any(each.startswith("_") for each in (*inner, name or ""))
            assert package == "models" or is_public, f"{module} is private to the library"
    names = {alias for alias in ("tensorops", "tp") if re.search(rf"\b{alias}\b", path.read_text())}
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in names
            and node.attr not in PUBLIC_MODULES
        ):
            assert node.attr in tp.__all__, f"{path.name}: {node.value.id}.{node.attr} is not public"


PACKAGES = {package for row in LIBRARIES.values() for package in row.packages} - {"numpy"}
# Adding a library means adding its own file, without editing any other.
WHERE_LIBRARIES_ARE_NAMED = ("libraries/", "kernels/", "persistent/engines/", "torch/")
# Not about the library whose arrays a caller has.
EXCEPTIONS = {
    "hardware/__init__.py": "OpenCL tells of its devices through PyOpenCL",
    "hardware/opencl.py": "OpenCL tells of its devices through PyOpenCL",
    "models/mesh.py": "a mesh is an object of JAX",
    "benchmarks/measuring.py": "torch copies with all threads, which NumPy does not",
}


def elsewhere():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(WHERE_LIBRARIES_ARE_NAMED) and name not in EXCEPTIONS:
            yield pytest.param(path, id=name)


@pytest.mark.parametrize("path", list(elsewhere()))
def test_libraries_are_named_in_their_own_files_only(path):
    assert not {module.partition(".")[0] for module, _ in imports(path)} & PACKAGES
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in PACKAGES, f"line {node.lineno} names {node.value}"


@pytest.mark.parametrize("path", sources("ops"), ids=lambda path: path.stem)
def test_bodies_do_not_import_numpy(path):
    """NumPy's generator is a parameter of `sample`, and the trial of a backend begins and ends with NumPy arrays."""
    if path.stem not in ("sampling", "_trial"):
        assert "numpy" not in {module.partition(".")[0] for module, _ in imports(path)}


def test_bodies_import_nothing_of_kernels():
    for path in sources("ops"):
        assert not [m for m, _ in imports(path) if m.startswith("tensorops.kernels")]


def test_providers_are_directories_and_each_serves_a_library():
    directories = {
        path.name for path in (PACKAGE / "kernels").iterdir() if path.is_dir() and not path.name.startswith("_")
    }
    assert directories == set(_providers.PROVIDERS)
    served = {provider for row in LIBRARIES for provider in _providers.serving_library(row)}
    served |= {provider for backend in BACKENDS.values() for provider in _providers.serving(backend)}
    installed = {name for name, row in _providers.PROVIDERS.items() if row.is_installed()}
    assert installed <= served <= set(_providers.PROVIDERS)


def kernels_of(provider):
    """Return the names of the operators that have a provider's kernel, or skip the test."""
    if reason := _providers.load(provider):
        pytest.skip(f"{provider}: {reason}")
    return {name for name, operator in OPERATORS.items() if provider in operator.kernels}


def test_the_readme_says_which_kernels_there_are_in_c():
    """Every operator for which a function is compiled has it as a kernel, and that is nearly all operators."""
    found = kernels_of("cpu")
    assert found == set(OPERATORS) & set(dir(importlib.import_module("tensorops.kernels.cpu._native")))
    assert len(found) >= 0.9 * len(OPERATORS)


def test_the_readme_says_which_of_them_torch_and_jax_use():
    """Which activations JAX uses exactly is tested with its provider."""
    compiled = kernels_of("cpu")
    # linear_activation calls others, as torch has a product of its own
    assert kernels_of("torch_cpu") == compiled - {"sample", "linear_activation"}
    products = {"quantized_linear", "grouped_linear", "grouped_quantized_linear", "moe", "linear_cross_entropy"}
    softmaxes = {"softmax", "log_softmax", "logsumexp"}
    tokens = {"scaled_dot_product_attention", "linear", "rope", "cross_entropy", "sample", "top_k"}
    recurrent = {"causal_conv1d", "gated_delta_rule"}
    most = NORMS - {"add_layer_norm"} | products | softmaxes | tokens | recurrent  # which calls layer_norm
    assert most <= kernels_of("jax_ffi") <= (most | ACTIVATIONS - {"relu"}) & compiled


IN_OPENCL_C = """
    add_rms_norm cross_entropy dequantize elu embedding geglu gelu group_norm hard_sigmoid hard_swish
    instance_norm l2_norm layer_norm leaky_relu linear log_softmax logsumexp mish quantize quantized_linear
    quick_gelu reglu relu relu_squared rms_norm rope sample scaled_dot_product_attention selu sigmoid silu
    softmax softplus swiglu top_k
"""


def test_the_readme_says_which_kernels_there_are_in_opencl_c():
    """No operator loses its kernel. Others may have one as well, so a new operator needs no line here."""
    assert set(IN_OPENCL_C.split()) <= kernels_of("opencl")
    experts = {"grouped_linear", "grouped_quantized_linear", "moe"}
    # the last two call others, which have them
    without = experts | {"einsum", "linear_cross_entropy", "multi_head_attention", "gated_linear_unit"}
    assert not kernels_of("opencl") & without


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        # multi_head_attention calls others, which have them
        ("dask", set(OPERATORS) - {"quantize", "dequantize", "sample", "einsum", "multi_head_attention"}),
        ("mlx", {"quantized_linear", "grouped_quantized_linear"}),
        ("mlx_fast", {"rms_norm", "add_rms_norm", "layer_norm", "rope", "scaled_dot_product_attention"}),
    ],
)
def test_the_readme_says_which_kernels_there_are(provider, expected):
    assert kernels_of(provider) == expected


def test_the_folders_of_kernels_are_described_beside_them():
    text = pathlib.Path(tp.kernels.__file__).with_name("README.md").read_text(encoding="utf-8")
    folders, _declarations = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    ours = [row.name for row in _providers.PROVIDERS.values() if row.kernels.startswith("tensorops.")]
    assert set(re.findall(r"^\| `(\w+)` ", folders, re.MULTILINE)) == set(ours)


def test_an_operator_without_an_entry_is_told_what_is_missing():
    with pytest.raises(LookupError, match=r"no Entry for the operator 'smelu': add its reference, .*activation"):
        CASES["smelu"]
