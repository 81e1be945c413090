"""Available means that it computed: a backend that hangs, crashes, lies or is broken only gives a reason."""

import dataclasses
import datetime
import json
import re
import sys
import textwrap
import time

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.backends import probing
from tensorops.backends.probing import probe, probe_all, probe_here
from tensorops.backends.registry import BACKENDS, resolve
from tensorops.libraries import FILES, LIBRARIES, Backend

# A fake optional package: it has the name of a real one, is found first, and is broken in its own way.
HANGS = "import time\ntime.sleep(3600)"
HANGS_HOLDING_THE_INTERPRETER = """
import ctypes, os
ctypes.PyDLL(None).sleep(3600)
"""
CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
EXITS = "raise SystemExit(7)"
EXITS_AT_ONCE = "import os\nos._exit(7)"
RAISES = 'raise RuntimeError("the driver is\\ntoo old")'
NO_LIBRARY = "import ctypes\nctypes.CDLL('libcuda_of_nowhere.so.1')"
RAISES_NOTHING_OF_EXCEPTION = 'class Odd(BaseException):\n    pass\nraise Odd("odd")'


def run(code, folder, package, text, **environment):
    """Run code with a fake optional package."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(text)
    return support.python(textwrap.dedent(code), PYTHONPATH=support.before_python_path(folder), **environment)


REASON = """
import sys
from tensorops.backends import probing
from tensorops.backends.registry import resolve
probing.SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
print(probing.probe(resolve("{name}")).reason)
print(sorted(set(sys.modules) & {{"cupy", "jax", "mlx", "torch"}}))
import tensorops
try:
    tensorops.set_backend("{name}")
except tensorops.BackendUnavailableError as error:
    print(error)
"""

BROKEN = {
    "hangs": (HANGS, "gave no answer within 2 seconds"),
    "raises": (RAISES, "failed with RuntimeError: the driver is"),
    "exits at once": (EXITS_AT_ONCE, "exited with 7"),
    "exits": (EXITS, "failed with SystemExit: 7"),
}
if sys.platform != "win32":
    BROKEN["hangs holding the interpreter"] = (HANGS_HOLDING_THE_INTERPRETER, "gave no answer within 2 seconds")
    BROKEN["crashes"] = (CRASHES, "was ended by signal 11")
    BROKEN["lacks a library"] = (NO_LIBRARY, "failed with OSError: libcuda_of_nowhere.so.1")
    BROKEN["raises no Exception"] = (RAISES_NOTHING_OF_EXCEPTION, "odd")


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("name", ["cuda", "jax"])
def test_a_broken_package_is_a_reason(name, how, tmp_path):
    text, expected = BROKEN[how]
    result = run(REASON.format(name=name), tmp_path, BACKENDS[name].library.packages[0], text)
    assert result.returncode == 0, result.stderr
    reason, imported, error = result.stdout.splitlines()
    assert expected in reason
    assert BACKENDS[name].library.name in reason
    assert imported == "[]", "this program imported what had not answered"
    assert error == f"backend {name!r} is not available: {reason}; to fix it: {BACKENDS[name].remedy}"


@pytest.mark.exhaustive  # it waits for 20 seconds
def test_listing_all_goes_on_while_one_hangs(tmp_path):
    """The others are probed at the same time, and all are listed."""
    code = """
    import tensorops
    from tensorops.backends import probing
    probing.SECONDS = 20.0
    print(*tensorops.get_available_backends())
    tensorops.list_backends(verbose=True)
    """
    result = run(code, tmp_path, "cupy", HANGS)
    assert result.returncode == 0, result.stderr
    names, *table = result.stdout.splitlines()
    assert "numpy" in names.split()
    assert "cuda" not in names.split()
    assert "not available: computing rms_norm with cupy gave no answer within 20 seconds" in " ".join(
        line.strip() for line in table
    )


def test_what_is_not_installed_says_how_to_install_it(tmp_path):
    code = """
    import sys
    class NotInstalled:
        def find_spec(self, name, path=None, target=None):
            return None
    import importlib.util
    found = importlib.util.find_spec
    missing = ("jax", "cupy", "array_api_strict")
    importlib.util.find_spec = lambda name, package=None: None if name in missing else found(name, package)
    import tensorops
    for name in ("jax", "cuda", "array_api_strict"):
        try:
            tensorops.set_backend(name)
        except tensorops.BackendUnavailableError as error:
            print(error)
    """
    result = support.python(textwrap.dedent(code))
    assert result.stdout.splitlines() == [
        "backend 'jax' is not available: jax is not installed; to fix it: pip install 'tensorops[jax]'",
        "backend 'cuda' is not available: cupy is not installed; to fix it: pip install 'tensorops[cuda]'",
        "backend 'array_api_strict' is not available: array_api_strict is not installed; to fix it: "
        "pip install array_api_strict",
    ], result.stderr


PLANNED = ("nnpack", "nki", "cudnn", "cusparselt")


@pytest.mark.parametrize("name", PLANNED)
def test_backends_without_kernels_are_listed_with_the_truth(name):
    info = tp.get_backend_info(name)
    assert name not in tp.get_available_backends()
    assert not tp.is_backend_available(name)
    assert info["verified"] is None
    assert re.search(r"not written yet|retired", info["reason"])
    assert info["remedy"]
    with pytest.raises(tp.BackendUnavailableError, match=rf"^backend '{name}' is not available: "):
        tp.set_backend(name)
    assert info["reason"] in " ".join(line.strip() for line in tp.list_backends(verbose=True).splitlines())
    assert name not in tp.list_backends()


def test_triton_is_torch_with_its_provider():
    support.require("torch")
    backend = BACKENDS["triton"]
    assert (backend.library, backend.providers[0], backend.needs) == (BACKENDS["torch"].library, "triton", "cuda")
    if tp.is_backend_available("triton"):
        with tp.set_backend("triton"):
            assert tp.get_backend() == "triton"
        return
    with pytest.raises(tp.BackendUnavailableError, match=r"^backend 'triton' is not available: .*(triton|NVIDIA)"):
        tp.set_backend("triton")


def test_what_is_not_known_of_a_device_is_left_out():
    assert tp.get_backend_info("numpy").get("compute_capability", 0) == 0
    info = tp.get_backend_info("nnpack")
    assert {"compute_capability", "simd", "device_name"}.isdisjoint(info)
    assert info["remedy"] == "use 'cpu'"


def test_the_compiled_kernels_say_what_they_were_compiled_for():
    module = support.require_native()
    info = tp.get_backend_info("cpu")
    assert (info["simd"], info["openmp"]) == (module.target(), module.uses_openmp())
    assert info["versions"]["kernels"] == f"compiled for {', '.join(module.targets())}"
    assert info["simd"] in module.targets()


@pytest.mark.parametrize("priority", [None, "numpy,cpu"])
def test_the_configuration_is_part_of_the_information(priority):
    code = "import json, tensorops as tp; print(json.dumps(tp.get_backend_info('cpu')['config']))"
    named = {"TENSOROPS_PRIORITY": priority} if priority else {"TENSOROPS_BACKEND": "numpy", "TENSOROPS_FORCE": "1"}
    found = json.loads(support.python(code, **named, **support.only("numpy")).stdout)
    assert found["backend_priority"] == (["numpy", "cpu"] if priority else [])
    assert found["force_backend"] == (None if priority else "numpy")
    assert (found["preferred_backend"], found["num_threads"]) == ("auto" if priority else "numpy", None)


def test_a_verbose_list_is_printed_where_nothing_shows_it():
    code = "import sys, tensorops as tp; {}; listed = tp.list_backends(verbose=True); print(len(listed))"
    lines = ("pass", "sys.ps1 = '>>> '")
    program, session = (support.python(code.format(line), **support.only("numpy")).stdout for line in lines)
    assert "NNPACK" in program
    assert session.strip() == program.splitlines()[-1]


def test_every_row_of_the_promised_table_is_there():
    promised = {
        "numpy": {"python"}, "cpu": {"cpp", "openmp", "xeon"}, "cuda": {"nvidia"}, "opencl": set(), "jax": set(),
        "tpu": set(), "mlx": {"mps"}, "torch": set(), "dask": set(), "onednn": {"mkldnn"}, "mkl": set(), "cudnn": set(),
        "triton": set(), "cusparselt": set(), "nki": set(), "nnpack": set(),
    }  # fmt: skip
    for name, aliases in promised.items():
        assert aliases <= set(BACKENDS[name].aliases)


def test_the_name_of_a_library_is_that_of_a_backend():
    """Errors name libraries, and say what to call with that name."""
    for file in FILES:
        assert resolve(file.LIBRARY.name).library is file.LIBRARY


@pytest.mark.parametrize(
    ("name", "operator"), [("opt_einsum", r"tensorops\.einsum"), ("mha", r"tensorops\.multi_head_attention")]
)
def test_operators_that_are_asked_for_as_backends_are_said_to_be_operators(name, operator):
    with pytest.raises(ValueError, match=rf"^'{name}' is not a backend, but the operator {operator},"):
        tp.set_backend(name)


# --- TPUs --------------------------------------------------------------------------------------------


@pytest.fixture
def jax_as_on_a_tpu(monkeypatch):
    """JAX, which takes the processor for a TPU and runs Pallas kernels in their interpreter."""
    support.require("jax")
    import jax

    from tensorops.kernels.pallas._launch import interpreted

    monkeypatch.setattr(probing, "_probes", {})
    monkeypatch.setattr(jax, "devices", lambda platform=None, devices=jax.devices: devices())
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with interpreted():
        yield jax


def test_without_a_tpu_its_backend_says_so():
    support.require("jax")
    if any(a.kind == "tpu" for a in tp.detect_hardware().accelerators):
        pytest.skip("this machine has a TPU")
    expected = r"^backend 'tpu' is not available: JAX finds no TPU here \(RuntimeError: .+\); to fix it: on a machine"
    with pytest.raises(tp.BackendUnavailableError, match=expected):
        tp.set_backend("tpu")
    assert not tp.is_backend_available("tpu")
    assert "tpu" not in tp.list_backends()
    assert "not yet run on one" in tp.list_backends(verbose=True)
    assert tp.get_optimal_backend(priority=["tpu", "numpy"]).name == "numpy"


def test_on_a_tpu_the_kernels_of_pallas_compute(jax_as_on_a_tpu):
    x = np.asarray([[3.0, 4.0, 0.0], [1.0, -1.0, 2.0]], dtype=np.float32)
    with tp.set_backend("tpu"), tp.trace() as log:
        y = tp.softmax(x)
        tp.relu(x)  # XLA computes it
    assert [str(r).partition(",")[0] for r in log] == ["softmax: pallas on jax", "relu: generic on jax"]
    e = np.exp(x.astype(float))
    np.testing.assert_allclose(y, e / e.sum(-1, keepdims=True), rtol=1e-5)
    assert tp.get_backend_info("tpu")["available"]


def test_a_tpu_that_jax_does_not_compute_on_is_not_used(jax_as_on_a_tpu, monkeypatch):
    monkeypatch.setattr(jax_as_on_a_tpu, "default_backend", lambda: "cpu")
    with pytest.raises(tp.BackendUnavailableError, match="JAX finds a TPU here, but computes on 'cpu' by default"):
        tp.set_backend("tpu")


# --- one process -------------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch):
    """A backend on NumPy arrays whose transfer function can be replaced."""
    yield Backend("fake", dataclasses.replace(LIBRARIES["numpy"]), "for this test", isolated=False, remedy="do nothing")
    probing._probes.pop("fake", None)


@pytest.fixture
def tried(monkeypatch):
    """The names of the backends that computed, once per computation."""
    names = []
    compute = probing._compute

    def slowly(backend, configured):
        names.append(backend.name)
        time.sleep(0.2)
        return compute(backend, configured)

    monkeypatch.setattr(probing, "_compute", slowly)
    return names


def test_a_backend_is_tried_once_and_again_on_request(fake, tried):
    before = datetime.datetime.now(datetime.UTC)
    found = probe(fake)
    assert (found.reason, found.here) == ("", True)
    assert before <= found.verified <= datetime.datetime.now(datetime.UTC)
    assert probe(fake) is probe_here(fake) is found
    assert tried == ["fake"]
    again = probe(fake, refresh=True)
    assert again.verified > found.verified
    assert tried == ["fake", "fake"]


def test_threads_try_a_backend_once(fake, tried):
    found = []
    support.in_threads(lambda _: found.append(probe(fake)), range(6))
    assert tried == ["fake"]
    assert len(found) == 6
    assert len({id(p) for p in found}) == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda: np.asarray([[0.8, 1.2]]), r"^rms_norm of \(3, 4\) came back as \[\[0.8, 1.2\]\]$"),
        (lambda: 1 // 0, r"^computing rms_norm with numpy failed with ZeroDivisionError: integer division"),
        (lambda: {}[""], r"^computing rms_norm with numpy failed with KeyError: ''$"),
    ],
)
def test_a_wrong_result_or_an_error_is_a_reason(fake, value, reason):
    object.__setattr__(fake.library, "to_numpy", lambda x: value())
    found = probe(fake)
    assert re.search(reason, found.reason)
    assert (found.remedy, found.verified, found.here) == ("do nothing", None, False)
    with pytest.raises(tp.BackendUnavailableError, match=r"to fix it: do nothing$"):
        probing.first_available([fake])


def test_what_this_program_imported_is_tried_in_this_process(monkeypatch):
    support.require("mlx")
    import mlx.core  # noqa: F401

    monkeypatch.setattr(probing, "_compute_elsewhere", lambda backend: pytest.fail("another process was started"))
    assert probe(BACKENDS["mlx"], refresh=True).here


IN_A_PROGRAM = {
    "elsewhere first, and here when it is used": """
        import sys
        from tensorops.backends import probing, registry
        import tensorops
        print(tensorops.is_backend_available("mlx"), "mlx.core" in sys.modules)
        print(probing.probe(registry.resolve("mlx")).here)
        with tensorops.set_backend("mlx"):
            print(probing.probe(registry.resolve("mlx")).here)
        """,
    "here, without a way to start processes": """
        import subprocess, sys
        def start(*args, **kwargs):
            raise OSError("no processes here")
        subprocess.Popen = start
        import tensorops
        print(tensorops.is_backend_available("mlx"), "mlx.core" in sys.modules)
        sys.executable = None
        print(tensorops.is_backend_available("mlx", refresh=True))
        """,
    "with an odd entry of the path": """
        import pathlib, sys
        sys.path.append(pathlib.Path("/nowhere"))
        import tensorops
        print(tensorops.is_backend_available("mlx"))
        """,
}


PRINTED = (["True", "False", "False", "True"], ["True"] * 3, ["True"])


@pytest.mark.parametrize(("how", "printed"), list(zip(IN_A_PROGRAM, PRINTED, strict=True)))
def test_what_a_program_did_not_import_is_tried(how, printed):
    support.require("mlx")
    result = support.python(textwrap.dedent(IN_A_PROGRAM[how]))
    assert result.stdout.split() == printed, result.stderr


def test_trying_does_not_inherit_a_forced_backend():
    """Otherwise each process would start another."""
    support.require("mlx")
    code = "import tensorops; print(tensorops.get_backend())"
    result = support.python(code, TENSOROPS_BACKEND="mlx", TENSOROPS_FORCE="1")
    assert result.stdout.split() == ["mlx"], result.stderr


def test_probe_all_is_probe_of_each():
    names = ["numpy", "array_api_strict", "nnpack"]
    rows = [BACKENDS[n] for n in names]
    assert probe_all(rows) == {n: probe(BACKENDS[n]) for n in names}


@pytest.fixture
def alone(monkeypatch):
    """A function that is slow and records how many threads are inside of it at a time."""
    monkeypatch.setattr(probing, "_probes", {})
    inside = []

    def enter(*_):
        inside.append(1)
        time.sleep(0.02)
        enter.together.append(len(inside))
        inside.pop()
        return probing.Probe("was tried")

    enter.together = []
    return enter


def test_backends_tried_at_the_same_time_search_one_after_another(monkeypatch, alone):
    """Python's own function is not thread-safe: two threads remove an entry, and one finds it gone."""
    monkeypatch.setattr(probing.importlib, "invalidate_caches", alone)
    row = dataclasses.replace(LIBRARIES["numpy"], packages=("no_such",))
    absent = [Backend(f"absent{i}", row, "") for i in range(6)]
    assert all("is not installed" in found.reason for found in probe_all(absent).values())
    assert alone.together == [1] * 6


def test_processes_try_backends_of_one_library_one_after_another(monkeypatch, alone):
    """A TPU refuses the second of two processes, whose backend would then seem to be unavailable."""
    monkeypatch.setattr(probing, "_compute_elsewhere", alone)
    rows = [Backend(f"of_one_library_{i}", LIBRARIES["numpy"], "", requires="cpu") for i in range(4)]
    assert {found.reason for found in probe_all(rows).values()} == {"was tried"}
    assert alone.together == [1] * 4


PRINTS = """
import subprocess, sys
sys.stdout.write("no newline at the end")
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(20)"])  # keeps what it inherited open
raise ImportError("for another reason")
"""


def test_what_a_library_prints_or_starts_does_no_harm(tmp_path):
    result = run(REASON.format(name="cuda"), tmp_path, "cupy", PRINTS)
    assert "failed with ImportError: for another reason" in result.stdout.splitlines()[0], result.stderr


def test_another_process_gets_the_options_of_the_device(tmp_path):
    """Otherwise it would probe a device other than the one that will be used."""
    support.require("jax")
    file = tmp_path / "config.json"
    file.write_text('{"devices": {"jax": {"platform": "cpu"}, "mlx": {"max_memory_fraction": 0.5}}}')
    code = """
    import sys
    from tensorops.backends import probing, registry
    for name in ("jax", "mlx"):
        found = probing.probe(registry.resolve(name))
        print(found.reason or "computed", "|", found.remedy, "|", found.misconfigured)
    print("jax" in sys.modules)
    """
    variables = {"TENSOROPS_CONFIG": str(file), "JAX_PLATFORMS": "no_such_platform"}
    result = support.python(textwrap.dedent(code), **variables)
    jax, mlx, imported = result.stdout.splitlines()
    assert jax == "computed |  | False"
    assert imported == "False"
    if not support.why_not("mlx"):
        assert mlx.startswith("its configured device was refused with ConfigurationError: backend 'mlx': max_memory")
        assert mlx.endswith("| change devices.mlx in the configuration file | True")


def test_a_wrong_cpu_target_is_mended_by_unsetting_it():
    support.require_provider("cpu")
    code = """
    from tensorops.backends import probing, registry
    found = probing.probe(registry.resolve("cpu"))
    print(found.reason, "|", found.remedy)
    """
    result = support.python(textwrap.dedent(code), TENSOROPS_CPU_TARGET="avx3")
    reason, _, remedy = result.stdout.strip().partition(" | ")
    assert "TENSOROPS_CPU_TARGET is avx3" in reason
    assert remedy == "unset TENSOROPS_CPU_TARGET"


def test_nothing_is_tried_at_import():
    code = """
    import subprocess
    subprocess.Popen.__init__ = None
    import tensorops
    from tensorops.backends import probing
    print(len(probing._probes))
    """
    assert support.python(textwrap.dedent(code), TENSOROPS_BACKEND="jax").stdout.split() == ["0"]
