"""``tensorops doctor``: what it finds on this machine and on broken ones, and what fixes them."""

import json
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import support
from command_line import configuration_restored, run

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

import tensorops as tp
from tensorops import _hooks, _providers
from tensorops._messages import installing
from tensorops.backends import probing, ranking, registry
from tensorops.cli import doctor as module
from tensorops.cli._app import app
from tensorops.hardware import CPU, Hardware, OpenCLDevice, detect_hardware
from tensorops.libraries import LIBRARIES, Backend


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    """Run the command in this process under a configuration; return the exit code and the report."""

    def run_here(configuration="{}", *options, json_wanted=True):
        path = tmp_path / "config.json"
        path.write_text(configuration)
        monkeypatch.setenv("TENSOROPS_CONFIG", str(path))
        result = CliRunner().invoke(
            app, ["doctor", *options, *(["--json"] if json_wanted else [])], env={"COLUMNS": "200"}
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result.exit_code, json.loads(result.stdout) if json_wanted else result.stdout

    with configuration_restored():
        yield run_here


def problems(report):
    return [(problem["problem"], problem["remedy"]) for problem in report["problems"]]


# --- a sound machine ---------------------------------------------------------------------------------


def test_a_sound_machine_has_no_problems(doctor, tmp_path):
    support.require_provider("cpu")
    code, report = doctor('{"preferred_backend": "numpy"}')
    assert (code, report["problems"]) == (0, [])
    assert report["configuration"]["file"] == str(tmp_path / "config.json")
    assert report["configuration"]["in_force"] == "numpy"
    assert report["native"]["loaded"] is True
    assert report["native"]["target"] in report["native"]["targets"]


def test_one_command_detects_and_measures(doctor, monkeypatch):
    support.require_provider("cpu")
    monkeypatch.setattr(module, "SECONDS", 1e-6)
    monkeypatch.setattr(module.bench, "_available", lambda: (registry.resolve("cpu"), registry.resolve("numpy")))
    _, report = doctor('{"preferred_backend": "numpy"}', "--bench")
    assert {(row["operator"], row["backend"]) for row in report["bench"]["results"]} == {
        (operator, backend) for operator in module.TIMED for backend in ("cpu", "numpy")
    }
    _, printed = doctor('{"preferred_backend": "numpy"}', "--bench", json_wanted=False)
    assert printed.index("No problems") < printed.index("rms_norm")


def test_it_says_what_it_stands_on(doctor):
    _, report = doctor()
    assert report["versions"]["numpy"] == np.__version__
    assert report["versions"]["tensorops"] == tp.__version__
    assert report["versions"]["python"].startswith(platform.python_version())
    assert report["hardware"] == detect_hardware().to_dict()
    assert report["optimal"]["name"] == tp.get_available_backends()[0]
    assert report["optimal"]["reasons"]


def test_every_backend_works_or_says_what_mends_it(doctor):
    _, report = doctor()
    rows = {row["name"]: row for row in report["backends"]}
    assert set(rows) == set(registry.all_backends())
    assert [name for name, row in rows.items() if row["available"]] == list(tp.get_available_backends())
    for row in rows.values():
        assert row["available"] == (row["reason"] is None)
        assert row["available"] or row["remedy"]
    assert rows["nnpack"]["planned"]
    assert not rows["numpy"]["planned"]


def test_the_report_for_people_says_the_same(doctor):
    support.require_provider("cpu")
    code, text = doctor("{}", "--all", json_wanted=False)
    assert code == 0
    lines = [line.strip() for line in text.splitlines()]
    assert f"numpy {np.__version__}" in lines
    assert "works    numpy" in lines
    nnpack = next(line for line in lines if line.startswith("planned  nnpack: NNPACK is retired"))
    assert nnpack.endswith("instead: use 'cpu'")
    assert lines[-1] == "No problems."


# --- what is wrong with the configuration ------------------------------------------------------------


def test_a_broken_file(doctor, tmp_path):
    code, report = doctor('{"preferred": "numpy"}')
    assert code == 1
    ((problem, remedy),) = problems(report)
    assert problem.startswith(f"configuration file {tmp_path / 'config.json'}, line 1: unknown key 'preferred'")
    assert "tensorops config --reset" in remedy
    assert report["configuration"]["problem"] == problem


@pytest.mark.parametrize(("key", "how"), [("preferred_backend", "preferred"), ("force_backend", "forced")])
def test_a_backend_that_is_named_and_missing(doctor, tmp_path, key, how):
    code, report = doctor(json.dumps({key: "nnpack"}))
    assert code == 1
    ((problem, remedy),) = problems(report)
    assert problem.startswith(
        f"backend 'nnpack' is {how} by {tmp_path / 'config.json'} and not available: NNPACK is retired"
    )
    assert remedy == "use 'cpu'; or choose another: tensorops config --backend=auto --no-force"
    _, text = doctor(json.dumps({key: "nnpack"}), json_wanted=False)
    assert "Problems\n  * backend 'nnpack' is " in text
    assert "No problems." not in text


@pytest.mark.parametrize(
    ("variable", "value", "said", "way_out"),
    [
        ("TENSOROPS_BACKEND", "nnpack", "backend 'nnpack' is preferred by TENSOROPS_BACKEND and not available", "use "),
        ("TENSOROPS_BACKENDS", "numpy", "unknown environment variable TENSOROPS_BACKENDS (did you mean 'TENSOR", ""),
    ],
)
def test_a_variable_that_is_wrong(doctor, monkeypatch, variable, value, said, way_out):
    monkeypatch.setenv(variable, value)
    code, report = doctor()
    assert code == 1
    ((problem, remedy),) = problems(report)
    assert problem.startswith(said)
    assert remedy.startswith(way_out)
    assert remedy.endswith(f"unset {variable}")
    assert report["configuration"]["environment"][variable] == value
    assert report["configuration"]["unknown_variables"] == [variable] * (not way_out)


def test_a_variable_with_an_unknown_value(doctor, monkeypatch):
    monkeypatch.setenv("TENSOROPS_FORCE", "yes")
    _, report = doctor()
    assert problems(report) == [("environment variable TENSOROPS_FORCE is 'yes', valid: 1, 0", "unset TENSOROPS_FORCE")]


@pytest.mark.costly
@pytest.mark.parametrize("preferred", ["mlx", "numpy"])
def test_an_option_of_a_device_that_cannot_be_honoured(tmp_path, preferred):
    support.require("mlx")
    path = tmp_path / "config.json"
    path.write_text(f'{{"preferred_backend": "{preferred}", "devices": {{"mlx": {{"max_memory_fraction": 0.5}}}}}}')
    # In a process where MLX has not computed yet
    result = run("doctor", "--json", TENSOROPS_CONFIG=str(path), **support.only("mlx"))
    assert result.returncode == 1, result.stderr
    ((problem, remedy),) = problems(json.loads(result.stdout))
    assert "max_memory_fraction cannot be honoured" in problem
    if preferred == "mlx":
        assert problem.startswith(f"backend 'mlx' is preferred by {path} and not available: ")
        assert remedy.endswith("; or choose another: tensorops config --backend=auto --no-force")
    else:
        assert problem.startswith(f"{path}: devices: mlx: ")
        assert remedy == f"remove that option from {path}"


# --- what is wrong with the installation -------------------------------------------------------------


def test_kernels_that_do_not_load(doctor, monkeypatch):
    monkeypatch.setitem(_providers._reasons, "cpu", "there was no compiler")
    monkeypatch.delitem(probing._probes, "cpu", raising=False)
    code, report = doctor()
    assert code == 1
    assert report["native"] == {"loaded": False, "reason": "there was no compiler"}
    remedy = registry.resolve("cpu").remedy
    assert "install a C++ compiler" in remedy
    assert problems(report) == [("the compiled kernels do not load: there was no compiler", remedy)]


def test_kernels_compiled_for_older_processors(doctor, monkeypatch):
    native = support.require_native()
    assert native.better_targets() == []  # an installation on this machine has its best target
    monkeypatch.setattr(native, "better_targets", lambda: ["v9", "v8"])
    code, report = doctor()
    compiled = ", ".join(native.targets())
    problem = f"the kernels were compiled for {compiled}, but this processor can run v9"
    assert (problem, "pip install -e . -C cmake.define.TENSOROPS_TARGETS=all") in problems(report)
    assert code == 1


def test_a_target_that_this_processor_lacks():
    support.require_provider("cpu")
    result = run("doctor", "--json", TENSOROPS_CPU_TARGET="z80", **support.only("numpy"))
    assert result.returncode == 1
    report = json.loads(result.stdout)
    problem, remedy = problems(report)[0]
    assert "environment variable TENSOROPS_CPU_TARGET is z80" in problem
    row = next(row for row in report["backends"] if row["name"] == "cpu")
    assert remedy == row["remedy"] == "unset TENSOROPS_CPU_TARGET"


def test_a_requirement_that_is_missing(doctor, monkeypatch):
    """Everything fails without it, and no compiler would mend that."""
    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    wrong = ModuleNotFoundError("No module named 'array_api_compat'", name="array_api_compat")
    monkeypatch.setattr(_hooks, "wrong_result", [raising(wrong)])
    monkeypatch.setattr(probing, "_probes", {})
    code, report = doctor()
    assert code == 1
    said = "tensorops cannot compute without packages that are not installed: array_api_compat"
    assert (said, "pip install array_api_compat") in problems(report)
    rows = {row["name"]: row for row in report["backends"]}
    assert {rows[name]["remedy"] for name in ("cpu", "numpy")} == {"pip install array_api_compat"}
    monkeypatch.setattr(ranking, "_unavailable_reason", lambda name: "nothing computes")
    _, text = doctor(json_wanted=False)
    assert "Best backend here\n  none\n  no backend can compute here; " in text


def test_the_requirements_are_those_of_the_package():
    required = metadata.requires("tensorops") or []
    names = {re.split(r"[^\w.-]", row)[0].replace("-", "_") for row in required if "extra ==" not in row}
    assert names == {"numpy", *probing.REQUIREMENTS}


def raising(error):
    def fail(*arguments):
        raise error

    return fail


def test_a_source_tree_that_was_never_installed(doctor, monkeypatch):
    def not_there(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_there)
    monkeypatch.setitem(_providers._reasons, "cpu", "it holds no compiled module")
    monkeypatch.setattr(probing, "_probes", {})
    _, report = doctor()
    assert ("the compiled kernels do not load: it holds no compiled module", "pip install -e .") in problems(report)
    assert installing("jax") == "pip install -e '.[jax]'"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("in place", "installed without its compiled module"),
        ("of another tree", "imported from its source tree"),
        ("as a copy", "imported from its source tree"),
        ("not at all", "imported from its source tree"),
    ],
)
def test_without_compiled_kernels_the_reason_depends_on_the_installation(how, said):
    """After an installation in place without a compiler, starting Python in another folder would not help."""
    tree = Path(tp.__file__).parents[1]
    if not (tree / "native" / "CMakeLists.txt").exists():
        pytest.skip("tensorops is not imported from its source tree")
    url = tree.as_uri() if how == "in place" else "file:///elsewhere"
    origin = json.dumps({"url": url, "dir_info": {"editable": how != "as a copy"}})
    code = f"""
import sys
from importlib import metadata
sys.modules["tensorops.kernels.cpu._native"] = None
def distribution(name):
    if {how!r} == "not at all":
        raise metadata.PackageNotFoundError(name)
    return type("Found", (), {{"read_text": lambda self, name: {origin!r}}})()
metadata.distribution = distribution
from tensorops import _providers
print(_providers.load("cpu"))
"""
    result = support.python(code)
    assert result.stdout.startswith(f"tensorops was {said}"), result.stderr


class _Point:
    """An entry point of an installed distribution, in a module that is already imported."""

    module = "tensorops"
    group = registry.BACKENDS_GROUP

    def __init__(self, name, loaded):
        self.name, self.loaded = name, loaded

    def load(self):
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def test_plugins_and_why_one_failed(doctor, monkeypatch):
    good = Backend("good", LIBRARIES["numpy"], "NumPy again", isolated=False)
    points = [
        ("good-dist", _Point("entry", good)),
        ("bad-dist", _Point("bad", ImportError("no such thing"))),
        ("late-dist", _Point("numpy", ImportError("on purpose"))),
    ]
    monkeypatch.setattr(registry, "_entry_points", lambda: points)
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    for table in ("BACKENDS", "_by_any_name", "plugins", "plugin_failures"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    _, report = doctor()
    reason = "the plug-in of bad-dist failed to load: ImportError: no such thing"
    late = "the plug-in of late-dist failed to load: ImportError: on purpose"
    assert report["plugins"] == [
        {"name": "bad", "distribution": "bad-dist", "reason": reason},
        {"name": "good", "distribution": "good-dist", "reason": None},
        {"name": "numpy@late-dist", "distribution": "late-dist", "reason": late},
    ]
    row = next(row for row in report["backends"] if row["name"] == "bad")
    assert (row["reason"], row["remedy"]) == (reason, "pip install --upgrade bad-dist")


def opencl_device(kind="cpu", maker=module.POCL):
    return OpenCLDevice("cpu-Intel", maker, kind, 2**30, 4)


INTELS = opencl_device(maker="Intel(R) OpenCL")


def test_several_copies_of_pocl_are_noted():
    (note,) = module.notes_on_opencl(Hardware(opencl_devices=(opencl_device(), opencl_device(), INTELS)))
    assert note.startswith("OpenCL lists the processor 2 times, because several copies of PoCL are installed")
    assert module.notes_on_opencl(Hardware(opencl_devices=(opencl_device(), opencl_device("gpu")))) == []


@pytest.mark.parametrize("devices", [(), (opencl_device(),)], ids=["none", "PoCL"])
@pytest.mark.parametrize("installed", [False, True])
def test_intels_driver_is_recommended_where_there_is_none_but_pocl(monkeypatch, devices, installed):
    def notes(architecture="x86_64", devices=devices):
        return module.notes_on_opencl(Hardware(cpu=CPU(architecture=architecture), opencl_devices=devices))

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module, "has_opencl", lambda: True)
    monkeypatch.setattr(module, "intels_driver", lambda: "libintelocl.so" if installed else "")
    (note,) = notes()
    assert ("pip install intel-opencl-rt intel-cmplr-lib-rt" in note) is not installed
    assert ("unset OCL_ICD_VENDORS" in note) is installed
    assert ("PoCL" in note) is bool(devices)
    assert notes("aarch64") == []
    assert notes(devices=(*devices, INTELS)) == []
    assert notes(devices=(*devices, opencl_device("gpu", "NVIDIA CUDA"))) == []
    monkeypatch.setattr(module, "has_opencl", lambda: False)
    assert notes() == []


@pytest.mark.parametrize("others", [(), (INTELS,)], ids=["alone", "beside Intel's"])
def test_a_driver_whose_compiler_fails_is_named_with_what_helps(monkeypatch, others):
    from tensorops.kernels.opencl import _drivers

    code = _drivers._TRIAL.replace("compute(*arguments)", "os.abort() if 'Portable' in arguments[0] else 0")
    monkeypatch.setattr(_drivers, "_TRIAL", f"import os; {code.replace('_drivers.os', 'os')}")
    monkeypatch.setattr(_drivers.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module, "has_opencl", lambda: True)
    for installed, words in (("", "pip install intel-opencl-rt"), ("driver", "pip uninstall pocl-binary-distribution")):
        monkeypatch.setattr(_drivers, "intels_driver", lambda installed=installed: installed)
        found = []
        notes = module.examine_drivers(Hardware(opencl_devices=(opencl_device(), *others)), found)
        if others:
            assert found == []
            (said,) = notes
        else:
            assert notes == []
            said = " ".join(found[0].values())
        assert f"computes by OpenCL with {module.POCL} was ended by signal 6" in said
        assert words in said


def test_intels_driver_is_not_taken_from_the_current_folder(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libintelocl.so").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "elsewhere"))
    monkeypatch.setattr("site.USER_BASE", None)
    assert module.intels_driver() == ""


def test_intels_driver_is_found_where_pip_put_it():
    """In a program that imports tensorops and then asks PyOpenCL for platforms; alone, if the system has none."""
    support.require("pyopencl")
    if not module.intels_driver():
        pytest.skip("intel-opencl-rt is not installed")
    code = "import tensorops, pyopencl as cl; print([p.name for p in cl.get_platforms()])"
    done = support.python(code, OCL_ICD_VENDORS="")
    assert "Intel(R) OpenCL" in done.stdout, done.stderr
    if not list(Path("/etc/OpenCL/vendors").glob("*.icd")):
        assert "Portable" not in done.stdout


# --- as a process ------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("script", [True, False])
def test_it_starts_under_a_forced_backend_that_is_missing(tmp_path, script):
    path = tmp_path / "config.json"
    path.write_text('{"force_backend": "nnpack"}')
    result = run("doctor", script=script, TENSOROPS_CONFIG=str(path), **support.only("numpy"))
    assert result.returncode == 1
    assert "backend 'nnpack' is forced by" in result.stdout
    assert "Traceback" not in result.stderr


def test_it_needs_no_array_library_but_numpy():
    """Every optional array library is hidden: each gets the command that installs it."""
    hidden = ("cupy", "jax", "jaxlib", "mlx", "torch", "dask", "pyopencl", "array_api_strict")
    code = f"""
import sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
sys.argv = ["tensorops", "doctor", "--json"]
from tensorops.cli import main
main()
"""
    result = support.python(code)
    report = json.loads(result.stdout)
    rows = {row["name"]: row for row in report["backends"]}
    available = {name for name, row in rows.items() if row["available"]}
    assert {"numpy"} <= available <= {"cpu", "onednn", "mkl", "numpy"}  # what computes on NumPy arrays
    for name in ("jax", "mlx", "torch", "dask", "cuda"):
        assert rows[name]["reason"].endswith("is not installed")
        assert rows[name]["remedy"] == f"pip install 'tensorops[{name}]'"
    assert result.returncode == (0 if rows["cpu"]["available"] else 1), result.stderr
