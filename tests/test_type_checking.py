"""What a type checker infers about a user's program: mypy and pyright check the files in `type_checking`.

These files call operators, state the type of the result, and contain mistakes that must be found. pyright runs as
basedpyright, which is self-contained. Both are in the extra `dev`; `.ci/run` runs these tests once it is installed.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tensorops
from tensorops._operator import OPERATORS

HERE = Path(__file__).parent / "type_checking"
ROOT = Path(tensorops.__file__).parents[1]
PLUGIN = Path(__file__).parent / "plugin_example" / "src"

# Each library's name, and how its array type is imported.
LIBRARIES = {
    "numpy": "import numpy as np\nimport numpy.typing as npt\n\nArray = npt.NDArray[np.float32]",
    "jax": "from jax import Array",
    "mlx.core": "from mlx.core import array as Array",
    "torch": "from torch import Tensor as Array",
    "array_api_strict": "from array_api_strict._array_object import Array",
    "dask.array": "from dask.array import Array",
    "pyopencl": "from pyopencl.array import Array",
    "tensorops_tiny": "from tensorops_tiny.array import Array",  # from the example plug-in
}
ITEMS_UNKNOWN = {"dask.array", "pyopencl", "tensorops_tiny"}
"""Where mypy or pyright does not know the type of `x[...]`."""
NOT_STANDARD = {"dask.array", "pyopencl", "tensorops_tiny"}
"""Where lengths may be unknown, operators are missing, or are defined where checkers do not see them."""
OTHERS = {"dtypes_and_shapes": "numpy", "parameters_of_modules": "torch", "mistakes": "numpy", "authors": "numpy"}


def cases():
    """Yield the name of a user's file, the library that it needs, and its text."""
    for file, library in OTHERS.items():
        yield file, library, (HERE / f"{file}.py").read_text(encoding="utf-8")
    page = (HERE.parents[1] / "docs" / "types.md").read_text(encoding="utf-8")
    for number, snippet in enumerate(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)):
        yield f"documentation_{number}", "numpy", snippet
    for file, left_out in (("shape_kept", set()), ("shape_changed", ITEMS_UNKNOWN), ("functions", NOT_STANDARD)):
        text = (HERE / f"{file}.py").read_text(encoding="utf-8")
        assert text.count("from jax import Array\n") == 1
        for library, statement in LIBRARIES.items():
            if library not in left_out:
                name = f"{file}_{library.replace('.', '_')}"
                yield name, library, text.replace("from jax import Array\n", f"{statement}\n")


def is_installed(library):
    return library == "tensorops_tiny" or importlib.util.find_spec(library.partition(".")[0]) is not None


FILES = {name: (library, text) for name, library, text in cases()}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Write the files whose library is installed into a folder."""
    folder = tmp_path_factory.mktemp("program")
    for name, (library, text) in FILES.items():
        if is_installed(library):
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def search_path():
    """Return where checkers find packages that are not installed for them: only Python finds an editable install."""
    return [str(path) for path in (ROOT, PLUGIN) if path.name != "site-packages"]


@functools.cache
def mypy(folder):
    """Return mypy's messages on the files in a folder, one per line."""
    # mypy reads no configuration, and does not report on imported modules, as for installed packages.
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "."]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "users"), "--no-error-summary", "--hide-error-context"]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(search_path())}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert process.returncode in (0, 1), process.stdout + process.stderr
    return process.stdout.splitlines()


@functools.cache
def pyright(folder):
    """Return pyright's messages on the files in a folder, one per line."""
    configuration = {
        "include": ["*.py"],
        "extraPaths": search_path(),
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": False,  # those are mypy's
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(configuration), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert process.returncode in (0, 1), process.stdout + process.stderr
    report = json.loads(process.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    return [
        f"{Path(said['file']).name}:{said['range']['start']['line'] + 1}: {said['message']}"
        for said in report["generalDiagnostics"]
        if said["severity"] == "error"
    ]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("module", "check"), [("mypy", mypy), ("basedpyright", pyright)], ids=["mypy", "pyright"])
def test_a_checker_knows_what_operators_take_and_return(program, module, check, file):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; it is in the extra dev")
    library, _ = FILES[file]
    if not is_installed(library):
        pytest.skip(f"{library} is not installed")
    said = [line for line in check(program) if line.startswith(f"{file}.py:")]
    assert not said, "\n".join(said)


# What has another dtype than every input: indices, the integers of a quantized matrix, the state of half types.
LEFT_OPEN = {
    "sample": "Array",
    "top_k": "tuple[KindT, Array]",
    "quantize": "tuple[Array, KindT | None, KindT | None]",
    "gated_delta_rule": "tuple[ArrayInputT, Array]",
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_typed(name):
    """`Array` leaves types open; results whose type or kind is not that of an input are listed here deliberately."""
    signature = inspect.signature(OPERATORS[name])
    for parameter in signature.parameters.values():
        assert not re.search(r"\bArray\b", parameter.annotation), f"{parameter.name} is left open"
    if name in LEFT_OPEN:
        assert signature.return_annotation == LEFT_OPEN[name]
    else:
        assert re.search(r"\b(ArrayInputT|KindT)\b", signature.return_annotation)
        assert not re.search(r"\bArray\b", signature.return_annotation)
