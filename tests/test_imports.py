"""What importing tensorops imports, and the examples in its documentation."""

import ast
import doctest
import importlib
import importlib.util
import re

import numpy as np
import pytest

import support
from tensorops import _providers
from tensorops.libraries import LIBRARIES
from test_public_api import PACKAGE, modules

# Every array library but NumPy, and what only the command line or other subpackages need.
OTHERS = sorted(
    {package for row in LIBRARIES.values() for package in row.packages} - {"numpy"}
    | {"array_api_compat", "array_api_mlx", "array_api_pyopencl", "ml_dtypes", "opt_einsum", "rich", "click", "gguf"}
    | {"tokenizers", "jinja2", "platformdirs", "hypothesis", "pytest"}
)

LOADED = """
import sys

def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1].split(",")))

def providers():
    tables = [name.split(".") for name in sys.modules if name.endswith(".table")]
    return sorted(names[2] for names in tables if names[:2] == ["tensorops", "kernels"])
"""


def run(code, **environment):
    result = support.python(LOADED + code, ",".join(OTHERS), **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_importing_imports_no_array_library():
    lines = run("import tensorops; print(loaded(), providers(), 'numpy' in sys.modules)")
    assert lines == ["[] [] False"]


def test_the_check_sees_what_is_loaded():
    """The test above fails if something is imported."""
    assert run("import ml_dtypes; print(loaded())") == ["['ml_dtypes']"]


@pytest.mark.parametrize(
    "code",
    [
        "from tensorops import silu",
        "import tensorops; tensorops.set_backend",
        "import tensorops; tensorops.get_backend()",
        "import tensorops; tensorops.bind_settings(tensorops.silu)",
        "import tensorops, pickle; pickle.loads(pickle.dumps(tensorops.silu))",
    ],
)
def test_looking_at_it_imports_nothing_either(code):
    assert run(f"{code}; print(loaded(), providers())") == ["[] []"]


def test_the_environment_names_a_backend_without_importing_it():
    assert run("import tensorops; print(loaded())", TENSOROPS_BACKEND="jax") == ["[]"]


NUMPY_CALL = """
import numpy as np
import tensorops
tensorops.rms_norm(np.ones((2, 4), np.float32))
print(loaded(), providers())
"""


def test_the_namespace_of_numpy_imports_what_numpy_does_on_first_use():
    code = """import numpy as np, tensorops
xp = tensorops.get_namespace(np.ones(3))
print([name for name in ("f2py", "testing", "random", "ma") if f"numpy.{name}" in sys.modules])
import array_api_compat.numpy
print(xp is array_api_compat.numpy, xp.random is np.random, "f2py" in np.__all__, "f2py" in dir(np))"""
    assert run(code) == ["[]", "True True True True"]


def test_a_call_with_numpy_loads_the_provider_of_numpy_only():
    (line,) = run(NUMPY_CALL)
    if _providers.load("cpu"):
        assert "'cpu'" not in line
        return
    # The compiled module reads ml_dtypes.bfloat16; array_api_compat is not needed until a body runs.
    assert line == "['ml_dtypes'] ['cpu']"


def test_a_body_with_numpy_loads_its_namespace_only():
    code = "import numpy as np, tensorops; tensorops.silu.generic(np.ones(3)); print(loaded(), providers())"
    assert run(code) == ["['array_api_compat'] []"]


@pytest.mark.parametrize("module", ["tensorops.testing", "tensorops.backends", "tensorops.kernels"])
def test_subpackages_import_no_library(module):
    (line,) = run(f"import {module}; print(loaded())")
    assert line == ("['ml_dtypes']" if module == "tensorops.testing" else "[]")


@pytest.mark.parametrize(("library", "others"), [("jax", {"torch", "mlx", "dask"}), ("torch", {"jax", "mlx"})])
def test_a_call_with_one_library_loads_no_other(library, others):
    support.require(library)
    module = {"jax": "jax.numpy", "torch": "torch", "dask": "dask.array"}[library]
    code = f"import {module} as xp\nimport tensorops\ntensorops.silu(xp.ones(3))\nprint(loaded(), providers())"
    (line,) = run(code)
    assert f"'{library}'" in line
    for other in others:
        assert f"'{other}'" not in line
    if library == "dask":  # its blocks load what they need when they are computed
        loaded = ["dask"]
    else:
        ours = {"jax": ["jax_ffi", "pallas"], "torch": ["torch_cpu"]}[library]  # JAX compiles for TPUs as well
        loaded = [] if _providers.load("cpu") else ["cpu", *ours]
    assert line.endswith(str(loaded))


# --- examples ----------------------------------------------------------------------------------------


def needs(path):
    """Return the top-level packages that a file imports when it is itself imported, and those of its examples."""
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module)
    names += re.findall(r">>> import (\w+)$", path.read_text(), re.M)  # of examples
    return {name.partition(".")[0] for name in names}


def examples(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = finder.find(module, module.__name__)
    # To the finder, operators and decorated classes are objects, not functions: their source is found by name.
    seen = {test.name for test in found}
    for attribute, value in vars(module).items():
        full = f"{name}.{attribute}"
        own = getattr(value, "__module__", None) == name
        if own and full not in seen and ">>>" in (getattr(value, "__doc__", None) or ""):
            found += finder.find(getattr(value, "__wrapped__", value), full, module)
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", modules())
def test_examples(name):
    path = PACKAGE.joinpath(*name.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if path.stem == "__main__":
        pytest.skip("runs the command line when imported")
    for package in sorted(needs(path)):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    provider = name.split(".")[2] if name.startswith("tensorops.kernels.") else None
    if provider in _providers.PROVIDERS:
        support.require_provider(provider)
    tests = examples(name)
    shown = path.read_text().count("    >>> ")
    assert sum(len(t.examples) for t in tests) >= shown, f"{path.name} shows {shown} lines, not all were found"
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    output = []
    with np.printoptions(legacy=False):
        for test in tests:
            runner.run(test, out=output.append)
    assert runner.failures == 0, "".join(output)
    assert runner.tries >= len(tests)
