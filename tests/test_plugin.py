"""A backend of another distribution: installed, found by its entry point and used; and how broken ones behave.

Everything runs in separate processes with the plug-in on the path, so nothing of it remains here.
"""

import ast
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import support
import test_docs

EXAMPLE = pathlib.Path(__file__).parent / "plugin_example"

PRELUDE = """
import sys
import numpy as np
import tensorops as tp

X = np.linspace(-2, 2, 6, dtype=np.float32)

def loaded():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "tensorops_tiny")
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Install the example as users do, into a separate folder."""
    for package in ("pip", "setuptools"):
        try:  # not find_spec: on pip, it would disable setuptools' replacement of distutils in this process
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed, the example cannot be built")
    folder = tmp_path_factory.mktemp("plugin")
    source, target = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source)  # building writes into it
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *options, "--target", str(target), str(source)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    return target


def run(code, *folders, **environment):
    """Run code with folders on the path and return what it printed."""
    result = support.python(PRELUDE + code, **support.only("numpy", folders=folders), **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


# --- a sound plug-in ---------------------------------------------------------------------------------


def test_importing_tensorops_loads_no_plugin(installed):
    code = """
print(loaded())
tp.silu(X)
with tp.set_backend("numpy"):
    tp.silu(X)
print(loaded())
tp.is_backend_available("tiny")
print("tensorops_tiny" in loaded())
"""
    assert run(code, installed) == ["[]", "[]", "True"]


def test_naming_the_backend_loads_it_and_runs_its_kernel(installed):
    code = """
with tp.set_backend("tiny"), tp.trace() as log:
    y = tp.silu(X)
    n = tp.rms_norm(X)
print(type(y).__name__, np.allclose(y, X / (1 + np.exp(-X))), np.allclose(n, X / np.sqrt(np.mean(X * X) + 1e-6)))
for record in log:
    print(record.operator, record.kernel, record.library, len(record.transfers))
"""
    assert run(code, installed) == ["ndarray True True", "silu tiny tiny 2", "rms_norm generic tiny 2"]


def test_its_arrays_are_recognised_without_naming_it(installed):
    code = """
from tensorops_tiny.array import Array
x = Array(X)
with tp.trace() as log:
    y, n = tp.silu(x), tp.rms_norm(x)
print(tp.get_backend(), type(y) is Array, type(n) is Array)
print([(r.operator, r.kernel, r.library, r.transfers) for r in log])
print(tp.get_namespace(x).__name__)
print(tp.silu.explain(Array(X.astype(np.float16))))
"""
    assert run(code, installed) == [
        "auto True True",
        "[('silu', 'tiny', 'tiny', ()), ('rms_norm', 'generic', 'tiny', ())]",
        "tensorops_tiny.xp",
        "silu: generic on tiny (backend auto)",
        "  not tiny: x has dtype float16, the kernel takes float32 and float64",
    ]


def test_arrays_of_two_libraries_do_not_meet(installed):
    code = """
from tensorops_tiny.array import Array
try:
    tp.swiglu(Array(X), X)
except TypeError as error:
    print(error)
print(type(tp.to_backend({"x": [X]}, "tiny")["x"][0]) is Array)
"""
    said, moved = run(code, installed)
    assert said.startswith("swiglu: gate is an array of tiny, but up of numpy; ")
    assert moved == "True"


def test_an_operator_of_its_own_is_one_for_every_library(installed):
    code = """
import pickle
from tensorops_tiny.array import Array
from tensorops_tiny.operators import softsign
expected = [value / (1 + abs(value)) for value in X.tolist()]
for x, y in ((X, softsign(X)), (Array(X), softsign(Array(X)).to_numpy())):
    print(type(softsign(x)) is type(x), y.dtype, np.allclose(y, expected), softsign.explain(x).kernel)
print(pickle.loads(pickle.dumps(softsign)) is softsign, softsign(X.astype(np.float16)).dtype)
try:
    softsign(np.arange(3))
except TypeError as error:
    print(error)
"""
    assert run(code, installed) == [
        "True float32 True generic",
        "True float32 True tiny",
        "True float16",
        "softsign: x has dtype int64, expected one of float16, bfloat16, float32, float64",
    ]


def modules_of_tensorops(source):
    """Return what a source imports from tensorops, in full."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sorted(EXAMPLE.rglob("*.py")), ids=lambda path: path.name)
def test_the_example_needs_no_private_module(path):
    names = modules_of_tensorops(path.read_text(encoding="utf-8"))
    assert not [name for name in names if name.startswith("tensorops.") and "._" in name]


def test_the_page_on_extending_needs_no_private_module():
    page = next(page for page in test_docs.PAGES if page.name == "extending.md")
    names = [name for each in test_docs.snippets(page) for name in modules_of_tensorops(each.source)]
    assert {"tensorops.extending.operator", "tensorops.backends.Backend"} <= set(names)
    assert not [name for name in names if name.startswith("tensorops.") and "._" in name]


def test_lists_and_queries_show_it(installed):
    code = """
print("tiny" in tp.get_available_backends(), tp.is_backend_available("tiny"))
print("a tiny array library, as an example" in tp.list_backends())
info = tp.get_backend_info("tiny")
print(info["backend"], info["dtypes"], info["reason"], info["verified"] is not None)
try:
    tp.set_backend("tinny")
except ValueError as error:
    print("did you mean 'tiny'?" in str(error))
"""
    available, listed, info, suggested = run(code, installed)
    assert (available, listed, suggested) == ("True True", "True", "True")
    assert info.startswith("tiny ")
    assert info.endswith(" None True")
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert f"'{dtype}'" in info


def test_the_environment_may_name_it(installed):
    code = "print(tp.get_backend()); print(type(tp.silu(X)).__name__)"
    assert run(code, installed, TENSOROPS_BACKEND="tiny") == ["tiny", "ndarray"]


@pytest.mark.exhaustive  # all cases of all operators
def test_its_own_tests_pass(installed):
    """The documentation tells authors of backends to write these two lines."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {**os.environ, **support.only("numpy", folders=[installed]), "TENSOROPS_CONFIG": ""}
    folder = installed.parent / "source"
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "1 passed" in process.stdout


def test_conformance_runs_its_kernel_and_sees_a_wrong_one(installed):
    code = """
from dataclasses import replace
from tensorops.testing import check_conformance
report = check_conformance("tiny", operators=["silu"])
print(sorted({(o.implementation, o.status) for o in report.outcomes}))
kernel = tp.silu.kernels["tiny"]
tp.silu._kernels["tiny"] = replace(kernel, function=lambda x: kernel.function(x) * 1.01)
try:
    check_conformance("tiny", operators=["silu"], dtypes=["float32"])
except AssertionError as error:
    print(str(error).splitlines()[1])
"""
    passed, failed = run(code, installed)
    assert passed == "[('generic', 'passed'), ('tiny', 'passed'), ('tiny', 'refused')]"
    assert failed == "silu tiny float32 typical: failed: 256 of 256 elements differ (tolerance 8 eps, eps = 1.19e-07)"


def test_a_kernel_that_deviates_runs_by_name_only(installed):
    code = """
from tensorops_tiny.array import Array
from tensorops.testing import REFERENCES
x = np.asarray([3e30, 4e30], np.float32)
right = REFERENCES["rms_norm"](x)
print(tp.rms_norm.explain(Array(x)).refused["tiny"])
print(tp.rms_norm.explain(Array(X.astype(np.float16))).kernel, np.allclose(tp.rms_norm(Array(x)).to_numpy(), right))
with tp.set_backend("tiny", providers=["tiny", "generic"]), tp.trace() as log:
    print(np.allclose(tp.rms_norm(x), right), np.allclose(tp.rms_norm(x / np.float32(1e30)), right))
print([record.kernel for record in log])
"""
    assert run(code, installed) == [
        "deviates in float32: squares overflow from 1.8e19 on; it runs where it is named: providers=['tiny']",
        "tiny True",
        "False True",
        "['tiny', 'tiny']",
    ]


AMONG_OURS = """
import pathlib, pkgutil

found = pkgutil.iter_modules

def and_the_example(path=None, prefix=""):
    package, room = pathlib.Path(path[0]).parts[-2:] if path else ("", "")
    if package == "tensorops" and room in ("libraries", "kernels"):
        path.append({folder!r} + "/" + room)  # the package's own list: its modules are imported from there, too
    return found(path, prefix)

pkgutil.iter_modules = and_the_example
"""


def test_a_file_and_a_folder_are_all_that_tensorops_needs(tmp_path):
    """The example's two parts as if they were in the folders of tensorops: nothing else names them."""
    arrays, folder = tmp_path / "arrays", tmp_path / "tensorops"
    package = EXAMPLE / "src" / "tensorops_tiny"
    shutil.copytree(package, arrays / package.name, ignore=shutil.ignore_patterns("library.py", "kernels"))
    folder.joinpath("libraries").mkdir(parents=True)
    shutil.copy(package / "library.py", folder / "libraries" / "tiny.py")
    shutil.copytree(package / "kernels", folder / "kernels" / "tiny")
    code = """
from tensorops_tiny.array import Array
from tensorops.testing import check_conformance
with tp.trace() as log:
    print(type(tp.rms_norm(Array(X))) is Array, type(tp.silu(Array(X))) is Array)
print([(record.operator, record.kernel, record.library) for record in log])
print(tp.libraries.LIBRARIES["tiny"].xp.__name__, sys.modules["tensorops.libraries.tiny"].LIBRARY.name)
print("a tiny array library, as an example" in tp.list_backends())
report = check_conformance("tiny", operators=["rms_norm", "silu"])
print(report.count("failed"), sorted({o.implementation for o in report.outcomes if o.status == "passed"}))
"""
    result = support.python(
        AMONG_OURS.format(folder=str(folder)) + PRELUDE + code, **support.only("numpy", folders=[arrays])
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "True True",
        "[('rms_norm', 'generic', 'tiny'), ('silu', 'tiny', 'tiny')]",
        "tensorops_tiny.xp tiny",
        "True",
        "0 ['generic', 'tiny']",
    ]


# --- broken plug-ins ---------------------------------------------------------------------------------


def write_plugin(folder, name, value, source, providers=""):
    """Write a distribution as an installer leaves it: one module and its entry points."""
    module = value.partition(":")[0]
    folder.joinpath(f"{module}.py").write_text(source, encoding="utf-8")
    information = folder / f"{module}_distribution-1.0.dist-info"
    information.mkdir()
    information.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}-distribution\nVersion: 1.0\n")
    information.joinpath("entry_points.txt").write_text(f"[tensorops.backends]\n{name} = {value}\n{providers}")


ROW = """
from tensorops.backends import LIBRARIES, Backend
backend = Backend({name!r}, LIBRARIES["numpy"], "one more", isolated=False{more})
"""

BROKEN = {
    "import_raises": ("odd:backend", "raise OSError('the driver is too old')", "OSError: the driver is too old"),
    "module_missing": ("odd:nothing", "backend = None", "AttributeError: "),
    "no_backend": ("odd:backend", "backend = 3", "TypeError: "),
    "function_returns_no_backend": (
        "odd:backend",
        "def backend():\n    return 'odd'",
        "TypeError: register_backend: expected a tensorops.backends.Backend",
    ),
    "name_is_taken": (
        "odd:backend",
        ROW.format(name="numpy", more=""),
        "ValueError: register_backend: the name 'numpy' already means the backend 'numpy'",
    ),
    "alias_is_taken": (
        "odd:backend",
        ROW.format(name="odd", more=", aliases=('nvidia',)"),
        "ValueError: register_backend: the name 'nvidia' already means the backend 'cuda'",
    ),
    "provider_is_unknown": (
        "odd:backend",
        ROW.format(name="odd", more=", providers=('odd',)"),
        "ValueError: register_backend: 'odd' uses an unknown provider, 'odd'",
    ),
}

LOOK = """
print(tp.is_backend_available("numpy"), tp.is_backend_available("odd"))
print(tp.get_backend_info("odd")["reason"])
for call in (lambda: tp.set_backend("odd"), lambda: tp.to_backend(X, "odd")):
    try:
        call()
    except tp.BackendUnavailableError as error:
        print(error)
with tp.set_backend("numpy"), tp.trace() as log:
    print(np.array_equal(tp.relu(X), np.maximum(X, 0)), log[0].library)
"""


@pytest.mark.costly
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_plugin_is_a_row_with_the_reason(tmp_path, broken):
    value, source, reason = BROKEN[broken]
    write_plugin(tmp_path, "odd", value, source)
    available, why, named, moved, computed = run(LOOK, tmp_path)
    assert available == "True False"
    expected = f"the plug-in of odd-distribution failed to load: {reason}"
    assert why.startswith(expected)
    assert named.startswith(f"backend 'odd' is not available: {expected}")
    assert moved == named
    assert computed == "True numpy"


ENDLESS = {
    "a module that sleeps": ("import time; time.sleep(3600)", "TimeoutError: importing odd took more than 3 seconds"),
    "a function that sleeps": (
        "import time\ndef backend():\n    time.sleep(3600)",
        "TimeoutError: importing odd took more than 3 seconds",
    ),
    "a module that ends the process": (
        "import os; os._exit(7)",
        "RuntimeError: a process importing odd exited with 7 (no output)",
    ),
    "a module that ends the process without an error": (
        "import os; os._exit(0)",
        "RuntimeError: a process importing odd exited with 0 before its end",
    ),
    "a module that crashes": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "RuntimeError: a process importing odd was ended by signal 9 (no output)",
    ),
}


@pytest.mark.costly
@pytest.mark.parametrize("what", ENDLESS)
def test_a_plugin_that_never_loads_holds_up_nobody_else(tmp_path, installed, what):
    """The working one beside it is probed in a separate process, which must not load this one either."""
    source, reason = ENDLESS[what]
    write_plugin(tmp_path, "odd", "odd:backend", source)
    code = """
import contextlib
from tensorops.backends import probing
with contextlib.suppress(AttributeError):
    assert probing.PLUGIN_SECONDS >= 10
probing.PLUGIN_SECONDS = 3.0
probing.SECONDS = 30.0
print(tp.is_backend_available("odd"), tp.is_backend_available("tiny"))
print(tp.backends.registry.plugin_failures["odd"])
print("tensorops_tiny" in loaded(), "odd" in sys.modules)
"""
    available, why, imported = run(code, tmp_path, installed)
    assert available == "False True"
    assert why == f"the plug-in of odd-distribution failed to load: {reason}"
    assert imported == "True False"


def test_a_plugin_that_the_program_has_imported_is_not_imported_elsewhere(tmp_path):
    """Its author vouches for it, and a second import costs time."""
    source = "import os, sys\nassert 'trusting' in sys.argv\n" + ROW.format(name="odd", more="")
    write_plugin(tmp_path, "odd", "odd:backend", source)
    code = """
sys.argv.append("trusting")
import odd
print(tp.is_backend_available("odd"), tp.backends.registry.plugin_failures)
"""
    assert run(code, tmp_path) == ["True {}"]


def test_control_characters_in_what_a_plugin_raises_are_not_printed(tmp_path):
    write_plugin(tmp_path, "odd", "odd:backend", r"raise OSError('\x1b[31mred\x07')")
    code = """
tp.is_backend_available("odd")
print(tp.backends.registry.plugin_failures["odd"])
"""
    (why,) = run(code, tmp_path)
    assert why == r"the plug-in of odd-distribution failed to load: OSError: \x1b[31mred\x07"


def test_a_broken_plugin_is_in_the_list(tmp_path):
    write_plugin(tmp_path, "odd", "odd:backend", "raise OSError('on purpose')")
    code = "print('odd' in tp.get_available_backends()); print(tp.list_backends(verbose=True))"
    available, *table = run(code, tmp_path)
    assert available == "False"
    words = " ".join(" ".join(table).split())  # the table's lines are wrapped
    assert "odd no" in words
    assert "the plug-in of odd-distribution failed to load: OSError: on purpose" in words


def test_an_entry_point_with_a_taken_name_gets_a_name_of_its_own(tmp_path):
    write_plugin(tmp_path, "numpy", "odd:backend", "raise OSError('on purpose')")
    code = """
print([name for name in tp.backends.registry.all_backends() if "numpy" in name])
print(tp.is_backend_available("numpy"))
"""
    names, available = run(code, tmp_path)
    assert names == "['numpy', 'numpy@odd-distribution']"
    assert available == "True"


def test_a_broken_plugin_leaves_a_sound_one_alone(tmp_path, installed):
    write_plugin(tmp_path, "odd", "odd:backend", "raise OSError('on purpose')")
    code = "print(tp.is_backend_available('tiny'), tp.is_backend_available('odd'))"
    assert run(code, tmp_path, installed) == ["True False"]


def test_a_broken_plugin_is_named_by_the_command_line(tmp_path):
    pytest.importorskip("click")
    pytest.importorskip("rich")
    write_plugin(tmp_path, "odd", "odd:backend", "raise OSError('on purpose')")
    command = [sys.executable, "-m", "tensorops", "backends", "--json"]
    environment = {**os.environ, **support.only("numpy", folders=[tmp_path]), "TENSOROPS_CONFIG": ""}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stderr
    assert "the plug-in of odd-distribution failed to load: OSError: on purpose" in process.stdout


def test_a_function_may_return_the_backend(tmp_path):
    source = (
        "def backend():\n    "
        + ROW.format(name="odd", more="").strip().replace("\n", "\n    ")
        + "\n    return backend"
    )
    write_plugin(tmp_path, "odd", "odd:backend", source)
    assert run("print(tp.is_backend_available('odd'))", tmp_path) == ["True"]


PROVIDER = """
from tensorops.backends import Provider
provider = Provider("odd", ("numpy",), "odd_kernels", "for tests", by_name={by_name})
"""
ENTRY = "[tensorops.providers]\nodd = odd:provider\n"


CONFORMANCE = """
from tensorops.testing import check_conformance
try:
    check_conformance("odd", operators=["relu"], dtypes=["float32"])
except AssertionError as error:
    print(str(error).replace(chr(10), " "))
"""


def test_kernels_that_do_not_load_leave_the_generic_bodies(tmp_path):
    source = ROW.format(name="odd", more=", providers=('odd',)") + PROVIDER.format(by_name=True)
    write_plugin(tmp_path, "odd", "odd:backend", source, ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text("raise OSError('the driver is too old')")
    code = """
with tp.set_backend("odd"), tp.trace() as log:
    y = tp.silu(X)
    explained = tp.silu.explain(X)
print(np.allclose(y, X / (1 + np.exp(-X))), log[0].kernel)
print(explained.refused)
print(tp.silu.explain(X).kernel == "odd", "odd" in tp.silu.explain(X).refused)
"""
    computed, refused, without = run(code, tmp_path)
    assert computed == "True generic"
    assert refused == "{'odd': 'OSError: the driver is too old'}"
    assert without == "False False", "a provider that is used by name only was used without a name"
    (said,) = run(CONFORMANCE, tmp_path)
    assert "the kernels of the provider 'odd' do not load: OSError: the driver is too old" in said


def test_a_provider_for_our_libraries_must_be_used_by_name(tmp_path):
    source = ROW.format(name="odd", more=", providers=('odd',)") + PROVIDER.format(by_name=False)
    write_plugin(tmp_path, "odd", "odd:backend", source, ENTRY)
    code = """
print(tp.is_backend_available("odd"))
with tp.set_backend("numpy", providers=["odd", "generic"]):
    print(tp.silu.explain(X).refused)
"""
    available, refused = run(code, tmp_path)
    assert available == "True"
    reason = "ValueError: register_provider: 'odd' supports arrays of numpy, which needs by_name=True"
    assert reason in refused
    assert reason in run(CONFORMANCE, tmp_path)[-1]
    assert f"not odd: the plug-in of odd-distribution failed to load: {reason}" in run(EXPLAINED, tmp_path)[1]
    report = doctor(tmp_path, status=1)
    (problem,) = report["problems"]
    assert reason in problem["problem"]
    assert problem["remedy"] == "pip install --upgrade odd-distribution"


# --- providers that nothing uses ---------------------------------------------------------------------


EXPLAINED = "print(tp.silu.explain(X))"
KERNEL = """
import tensorops
@tensorops.{operator}.kernel({name!r}, supports=lambda x: None)
def _(x):
    return x
"""


def doctor(*folders, status=0):
    """Return what `tensorops doctor` reports with folders on the path."""
    pytest.importorskip("click")
    pytest.importorskip("rich")
    command = [sys.executable, "-m", "tensorops", "doctor", "--json"]
    environment = {**os.environ, **support.only("numpy", folders=folders), "TENSOROPS_CONFIG": ""}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == status, process.stderr
    return json.loads(process.stdout)


def notes_on_kernels(folder):
    return [note for note in doctor(folder)["notes"] if "odd" in note]


def test_a_provider_that_no_backend_names_is_named_by_explain_and_doctor(tmp_path):
    write_plugin(tmp_path, "odd", "odd:backend", ROW.format(name="odd", more="") + PROVIDER.format(by_name=True), ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text(KERNEL.format(operator="silu", name="odd"))
    said = (
        "it has by_name=True, and no backend names it in its `providers`; to fix it: set_backend(..., "
        "providers=['odd', 'generic']) in a program; its author names it in the `providers` of a Backend in the entry "
        "points tensorops.backends"
    )
    explained = run(EXPLAINED, tmp_path)
    assert f"  not odd: {said}" in explained
    assert explained[0].startswith("silu: ")
    assert notes_on_kernels(tmp_path) == [f"kernels of odd are not used: {said}"]


def test_conformance_tests_a_provider_by_name(tmp_path):
    """Also one that no backend names."""
    write_plugin(tmp_path, "odd", "odd:backend", ROW.format(name="odd", more="") + PROVIDER.format(by_name=True), ENTRY)
    kernel = KERNEL.format(operator="relu", name="odd").replace("return x", "return x.clip({least})")
    code = """
from tensorops.testing import check_conformance
report = check_conformance("numpy", operators=["relu"], dtypes=["float32"], implementations=["odd"])
print({(o.implementation, o.status) for o in report.outcomes})
"""
    kernels = tmp_path / "odd_kernels.py"
    kernels.write_text(kernel.format(least=0))
    assert run(code, tmp_path) == ["{('odd', 'passed')}"]
    kernels.write_text(kernel.format(least=1))
    wrong = support.python(PRELUDE + code, **support.only("numpy", folders=[tmp_path]))
    assert "relu odd float32 typical: failed" in wrong.stderr
    kernels.write_text("raise OSError('the driver is too old')")
    unloaded = support.python(PRELUDE + code, **support.only("numpy", folders=[tmp_path]))
    assert "the kernels of the provider 'odd' do not load: OSError: the driver is too old" in unloaded.stderr


def test_explain_says_which_backend_uses_a_provider(tmp_path):
    source = ROW.format(name="odd", more=", providers=('odd',)") + PROVIDER.format(by_name=True)
    write_plugin(tmp_path, "odd", "odd:backend", source, ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text(KERNEL.format(operator="silu", name="odd"))
    assert "  not odd: it is asked by name only; to fix it: set_backend('odd')" in run(EXPLAINED, tmp_path)
    code = "with tp.set_backend('odd'):\n    print(tp.silu.explain(X), tp.silu.explain(X).unused)"
    assert run(code, tmp_path) == ["silu: odd on numpy (backend odd) {}"]
    assert notes_on_kernels(tmp_path) == []


def test_a_provider_for_a_library_that_there_is_not_is_named(tmp_path):
    source = ROW.format(name="odd", more="") + PROVIDER.format(by_name=True).replace('("numpy",)', '("nunpy",)')
    write_plugin(tmp_path, "odd", "odd:backend", source, ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text(KERNEL.format(operator="silu", name="odd"))
    said = (
        "no array library here has the name that it supports: 'nunpy' (did you mean 'numpy'?); to fix it: its author "
        "corrects `libraries`, or names a Backend of that library in the entry points tensorops.backends"
    )
    assert f"  not odd: {said}" in run(EXPLAINED, tmp_path)
    assert notes_on_kernels(tmp_path) == [f"kernels of odd are not used: {said}"]


def test_a_provider_without_its_package_is_named(tmp_path):
    provider = PROVIDER.format(by_name=True).replace("by_name=True", "by_name=True, distribution='odd-driver'")
    write_plugin(tmp_path, "odd", "odd:backend", ROW.format(name="odd", more="") + provider, ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text("")
    said = "odd-driver is not installed; to fix it: pip install odd-driver"
    assert f"  not odd: {said}" in run(EXPLAINED, tmp_path)
    assert notes_on_kernels(tmp_path) == [f"kernels of odd are not used: {said}"]


def test_a_provider_that_another_one_precedes_is_named(tmp_path, installed):
    provider = PROVIDER.format(by_name=False).replace('("numpy",)', '("tiny",)').replace("by_name", "rank=1, by_name")
    write_plugin(tmp_path, "odd", "odd:backend", ROW.format(name="odd", more="") + provider, ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text(KERNEL.format(operator="silu", name="odd"))
    code = "from tensorops_tiny.array import Array\nprint(tp.silu.explain(Array(X)))"
    assert run(code, tmp_path, installed) == [
        "silu: tiny on tiny (backend auto)",
        "  not odd: tiny is asked before it; to fix it: set_backend(..., providers=['odd', 'generic'])",
    ]


def test_a_provider_whose_module_registers_no_kernel_is_named_by_doctor(tmp_path):
    source = ROW.format(name="odd", more=", providers=('odd',)") + PROVIDER.format(by_name=True)
    write_plugin(tmp_path, "odd", "odd:backend", source, ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text("def unregistered(x): return x")
    assert notes_on_kernels(tmp_path) == [
        "kernels of odd are not used: importing odd_kernels registers no kernel; to fix it: its author registers them "
        "there: @tensorops.silu.kernel('odd', supports=...)"
    ]


def test_a_kernel_for_a_misspelt_provider_is_the_reason_why_its_provider_does_not_load(tmp_path):
    source = ROW.format(name="odd", more=", providers=('odd',)") + PROVIDER.format(by_name=True)
    write_plugin(tmp_path, "odd", "odd:backend", source, ENTRY)
    tmp_path.joinpath("odd_kernels.py").write_text(KERNEL.format(operator="silu", name="odds"))
    reason = "ValueError: unknown provider of kernels 'odds' (did you mean 'odd'?)"
    (explained,) = run("with tp.set_backend('odd'):\n    print(tp.silu.explain(X).refused['odd'])", tmp_path)
    assert explained.startswith(reason)
    (problem,) = doctor(tmp_path, status=1)["problems"]
    assert problem["problem"].startswith(f"kernels of odd: {reason}")


def test_entry_points_in_a_misspelt_group_are_named_by_doctor(tmp_path):
    source = ROW.format(name="odd", more="") + PROVIDER.format(by_name=True)
    write_plugin(tmp_path, "odd", "odd:backend", source, ENTRY.replace("providers", "provider"))
    assert notes_on_kernels(tmp_path) == [
        "odd-distribution has entry points in the group tensorops.provider, which nothing reads (did you mean "
        "'tensorops.providers'?); to fix it: its author corrects the name to one of tensorops.backends, "
        "tensorops.providers"
    ]
