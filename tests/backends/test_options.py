"""Device options: what is valid, what a library actually receives, and that nothing is applied partially."""

import concurrent.futures
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import threading

import numpy as np
import pytest

import fake_cupy
import support
import tensorops as tp
from tensorops.backends import options
from tensorops.backends.configure import configure
from tensorops.backends.options import apply_configured, device_config, get_config
from tensorops.backends.registry import BACKENDS, resolve
from tensorops.libraries import ConfigurationError, DeviceConfig, _runtime, cupy as _cupy, runtime_of
from tensorops.libraries.cupy import CUDAConfig
from tensorops.libraries.jax import JAXConfig
from tensorops.libraries.mlx import MLXConfig
from tensorops.libraries.numpy import CPUConfig
from tensorops.libraries.pyopencl import OpenCLConfig

CONFIGS = {backend.name: backend.options for backend in BACKENDS.values() if backend.options is not None}

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch):
    """Begin without any configuration, and restore every library afterwards."""
    for name in ("_chosen", "_configured", "_in_force"):
        monkeypatch.setattr(options, name, {})
    monkeypatch.setattr(_runtime, "_original", {})
    monkeypatch.setattr(_cupy, "_configured", None)
    monkeypatch.setattr(_cupy, "_thread", threading.local())
    yield
    for name in ("cpu", "mlx", "jax"):
        if runtime_of(resolve(name)).loaded:
            runtime_of(resolve(name)).configure(CONFIGS[name]())


@pytest.fixture
def cupy(cupy, monkeypatch):
    """A fake CuPy with which the backend cuda is available."""
    monkeypatch.setattr("tensorops.backends.configure.first_available", lambda backends: next(iter(backends)))
    monkeypatch.setattr(type(resolve("cuda").library), "is_installed", lambda row: True)
    return cupy


# --- what is valid -----------------------------------------------------------------------------------


def test_every_option_has_a_default_and_is_frozen():
    for config_class in CONFIGS.values():
        config = config_class()
        assert isinstance(config, DeviceConfig)
        for option in dataclasses.fields(config):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(config, option.name, None)
    assert set(CONFIGS) == {"cpu", "cuda", "jax", "mlx", "opencl", "tpu"}


@pytest.mark.parametrize(
    ("config_class", "option", "values", "error", "expected"),
    [
        (CPUConfig, "num_threads", ["2", 2.0, True, [2]], TypeError, "a whole number from 1 to 65536"),
        (CPUConfig, "num_threads", [0, -1, 2**17], ValueError, "a whole number from 1 to 65536"),
        (CPUConfig, "cache_bytes", ["1GiB", 1e9, False], TypeError, "a number of bytes, at least 0"),
        (CPUConfig, "cache_bytes", [-1, 2**63], ValueError, "a number of bytes, at least 0"),
        (CUDAConfig, "device", [None, "0", True], TypeError, "a whole number of at least 0"),
        (CUDAConfig, "device", [-1], ValueError, "a whole number of at least 0"),
        (CUDAConfig, "pool_initial_bytes", [0, -5], ValueError, "a number of bytes, at least 1"),
        (CUDAConfig, "pool_growth", [0, 1, "yes", None], TypeError, "true or false"),
        (CUDAConfig, "max_memory_fraction", ["half", True], TypeError, "a number above 0 and at most 1"),
        (CUDAConfig, "max_memory_fraction", [0, 1.5, -0.1, float("nan")], ValueError, "a number above 0 and at most 1"),
        (CUDAConfig, "precision", ["float16", ""], ValueError, "one of 'float32', 'tensorfloat32'"),
        (CUDAConfig, "precision", [32], TypeError, "one of 'float32', 'tensorfloat32'"),
        (CUDAConfig, "fp8", [1, "no"], TypeError, "true or false"),
        (JAXConfig, "platform", [""], ValueError, "a non-empty string"),
        (JAXConfig, "precision", ["exact"], ValueError, "one of 'default', 'high', 'highest', "),
        (JAXConfig, "compilation_cache_dir", [3, b"x"], TypeError, "the path of a folder"),
        (JAXConfig, "compilation_cache_dir", [""], ValueError, "the path of a folder"),
        (JAXConfig, "compilation_cache_bytes", [0], ValueError, "a number of bytes, at least 1"),
        (JAXConfig, "memory_fraction", [2], ValueError, "a number above 0 and at most 1"),
        (MLXConfig, "device", ["metal"], ValueError, "one of 'cpu', 'gpu'"),
        (MLXConfig, "cache_bytes", [-1], ValueError, "a number of bytes, at least 0"),
        (OpenCLConfig, "device", [0], TypeError, "a non-empty string"),
    ],
)
def test_values_are_checked(config_class, option, values, error, expected):
    backend = next(name for name, c in CONFIGS.items() if c is config_class and name != "tpu")
    for value in values:
        words = re.escape(f"{option} is {value!r}, expected {expected}")
        with pytest.raises(error, match=rf"^{config_class.__name__}: {words}"):
            config_class(**{option: value})
        if value is not None:
            with pytest.raises(ValueError, match=rf"^{backend}: {words}"):
                device_config(backend, {option: value})


def test_valid_values_are_kept():
    assert CPUConfig(num_threads=1, cache_bytes=0) == device_config("cpu", {"num_threads": 1, "cache_bytes": 0})
    assert CUDAConfig(max_memory_fraction=1, pool_growth=False).max_memory_fraction == 1
    assert JAXConfig(compilation_cache_dir=pathlib.Path("x")).compilation_cache_dir == pathlib.Path("x")
    assert device_config("xeon", {"num_threads": None}) == CPUConfig()
    assert device_config("tpu", {"platform": "tpu"}) == JAXConfig(platform="tpu")


def test_unknown_options_list_the_valid_ones_and_suggest():
    with pytest.raises(ValueError, match=r"^cpu: unknown option 'num_thread' \(did you mean 'num_threads'\?\); valid"):
        device_config("cpu", {"num_thread": 2})
    with pytest.raises(ValueError, match=r"^mlx: unknown option 'xyz'; valid options: device, cache_bytes, max_mem"):
        device_config("mlx", {"xyz": 2})
    with pytest.raises(ValueError, match=r"^cpu: unknown option 3; valid options: num_threads, cache_bytes$"):
        device_config("cpu", {3: 2})
    with pytest.raises(ValueError, match=r"^cpu: expected options by name, got \['num_threads'\]$"):
        device_config("cpu", ["num_threads"])


@pytest.mark.parametrize("call", [lambda name: device_config(name, {}), lambda name: configure(CPUConfig(), name)])
def test_backends_without_options_are_errors(call):
    with pytest.raises(ValueError, match=r"^backend 'torch' has no options; those with options: cuda, tpu"):
        call("torch")
    with pytest.raises(ValueError, match=r"^unknown backend 'cpuu' \(did you mean 'cpu'\?\)"):
        call("cpuu")
    assert get_config("torch") is None


def test_configure_takes_configurations_only():
    for odd in ({"num_threads": 2}, CPUConfig, None, DeviceConfig()):
        with pytest.raises(
            TypeError, match=r"^configure: expected one of CPUConfig, CUDAConfig, JAXConfig, MLXConfig, "
        ):
            configure(odd)
    with pytest.raises(TypeError, match=r"^configure: backend 'cpu' needs CPUConfig, got MLXConfig$"):
        configure(MLXConfig(), "cpp")


def test_an_unavailable_backend_is_not_configured(unavailable):
    name, reason = unavailable
    if name not in CONFIGS:
        pytest.skip(f"{name} has no options")
    with pytest.raises(tp.BackendUnavailableError, match=re.escape(reason)):
        configure(CONFIGS[name](), name)
    assert get_config(name) == CONFIGS[name]()


def test_importing_it_imports_no_library():
    result = support.python(
        "import sys\nfrom tensorops.backends import options, memory\noptions.get_config('cuda')\n"
        "print(sorted({'jax', 'mlx', 'torch', 'cupy', 'dask', 'pyopencl', 'ml_dtypes'} & set(sys.modules)))"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[]\n"


# --- cpu ---------------------------------------------------------------------------------------------


def test_the_pool_and_the_threads_of_the_kernels(pool):
    limit = pool.memory_stats()["limit"]
    pool.empty_cache()  # blocks of other sizes would use up part of the limit
    configure(CPUConfig(num_threads=3, cache_bytes=2 * MIB))
    assert pool.num_threads() == 3
    assert pool.memory_stats()["limit"] == 2 * MIB
    assert get_config("cpu") == CPUConfig(num_threads=3, cache_bytes=2 * MIB)
    results = [pool.rms_norm(np.ones((1024, 256), np.float32)) for _ in range(4)]
    del results
    assert pool.memory_stats()["cached"] == 2 * MIB  # and not 4
    configure(CPUConfig(cache_bytes=0), "openmp")
    assert pool.num_threads() == 0  # the other option has its default value again
    assert pool.memory_stats()["cached"] == 0
    configure(CPUConfig())
    assert pool.memory_stats()["limit"] == limit
    assert get_config("cpu") == CPUConfig()


def test_what_is_not_touched_stays_the_programs_own(pool):
    pool.set_num_threads(5)
    configure(CPUConfig(cache_bytes=MIB))
    assert pool.num_threads() == 5
    configure(CPUConfig())
    assert pool.num_threads() == 5


def test_a_failure_leaves_everything_as_it_was(pool, monkeypatch):
    before = pool.memory_stats()["limit"]
    configure(CPUConfig(num_threads=2))
    runtime = type(runtime_of(resolve("cpu")))

    def broken(self, config):
        yield _runtime.Change("threads", pool.num_threads, pool.set_num_threads, config.num_threads)
        raise OSError("disk on fire")

    with monkeypatch.context() as patch:
        patch.setattr(runtime, "do_changes", broken)
        with pytest.raises(ConfigurationError, match=r"^backend 'cpu' refused: OSError: disk on fire$"):
            configure(CPUConfig(num_threads=7, cache_bytes=5))
    assert pool.num_threads() == 2
    assert pool.memory_stats()["limit"] == before
    assert get_config("cpu") == CPUConfig(num_threads=2)


def test_what_is_configured_is_applied_and_the_program_goes_first(pool):
    limit = pool.memory_stats()["limit"]
    apply_configured("cpu", {"num_threads": 4, "cache_bytes": MIB})
    assert (pool.num_threads(), pool.memory_stats()["limit"]) == (4, MIB)
    assert get_config("cpu") == CPUConfig(num_threads=4, cache_bytes=MIB)
    configure(CPUConfig(num_threads=2))
    assert (pool.num_threads(), pool.memory_stats()["limit"]) == (2, MIB)
    apply_configured("cpu", {"num_threads": 6})  # the configuration has changed
    assert (pool.num_threads(), pool.memory_stats()["limit"]) == (2, limit)
    configure(CPUConfig())
    assert pool.num_threads() == 6
    apply_configured("cpu", {})
    assert (pool.num_threads(), get_config("cpu")) == (0, CPUConfig())


def test_what_is_configured_wrongly_is_an_error(pool):
    with pytest.raises(ValueError, match=r"^cpu: unknown option 'threads'"):
        apply_configured("cpu", {"threads": 4})
    with pytest.raises(ConfigurationError, match=r"^backend 'cuda': fp8 needs"):
        apply_configured("cuda", {"fp8": True})
    assert pool.num_threads() == 0


THREADS = """
import os
import numpy as np
from tensorops.libraries.numpy import CPUConfig
from tensorops.backends.configure import configure
from tensorops.kernels.cpu import _native, table
_native.use_processors(0)  # else there are no more threads than processors
bound = int(os.environ["BOUND"])
if bound:
    configure(CPUConfig(num_threads=bound))
x = np.ones((4096, 1024), np.float32)
before = len(os.listdir("/proc/self/task"))
_native.rms_norm(x)
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="this system does not list threads")
@pytest.mark.parametrize(("bound", "started"), [(0, 3), (1, 0), (2, 1), (9, 3)])
def test_the_bound_is_that_of_the_threads_that_run(bound, started):
    support.require_provider("cpu")
    result = support.python(THREADS, BOUND=str(bound), OMP_NUM_THREADS="4")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(started)]


# --- cuda, made up -----------------------------------------------------------------------------------


def test_a_gpus_options_reach_cupy(cupy):
    configure(CUDAConfig(device=1, pool_initial_bytes=10 * MIB + 1, max_memory_fraction=0.5, precision="float32"))
    assert cupy.current == 1
    assert cupy.pool.limits == {0: 0, 1: 500 * MIB}
    assert cupy.calls == [("malloc", 10 * MIB + 512)]  # in the pool's granularity
    assert cupy.pool.total_bytes() == 10 * MIB + 512
    assert cupy.compute_types == {"float32": 4}
    assert get_config("nvidia").device == 1
    configure(CUDAConfig())
    assert cupy.current == 0
    assert cupy.compute_types == {"float32": 0}
    assert get_config("cuda") == CUDAConfig()


def in_another_thread(function):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_every_thread_begins_on_the_configured_gpu(cupy):
    """CUDA's current device belongs to each thread and is initially 0."""
    row, runtime = resolve("cuda").library, runtime_of(resolve("cuda"))
    x = np.ones(3, np.float32)
    configure(CUDAConfig(device=1))

    def transfer():
        cupy.current = 0
        row.from_numpy(x, None)
        return cupy.current

    def wait():
        cupy.current = 0
        runtime.synchronize()
        return cupy.calls[-1]

    def stats():
        cupy.current = 0
        return runtime.memory_stats().device

    assert in_another_thread(transfer) == 1
    assert in_another_thread(wait) == ("synchronize", 1)
    assert in_another_thread(stats) == "cuda:1"


def test_the_program_may_leave_the_configured_gpu(cupy):
    row, runtime = resolve("cuda").library, runtime_of(resolve("cuda"))

    def leave():
        row.from_numpy(np.ones(3, np.float32), None)
        cupy.current = 1
        row.from_numpy(np.ones(3, np.float32), None)
        runtime.synchronize()
        return cupy.current, cupy.calls[-1]

    assert leave() == (1, ("synchronize", 1))  # nothing was configured
    cupy.current = 0
    configure(CUDAConfig())
    assert leave() == (1, ("synchronize", 1))
    assert in_another_thread(leave) == (1, ("synchronize", 1))
    assert leave() == (1, ("synchronize", 1))
    configure(CUDAConfig(device=0))
    assert cupy.current == 0


def test_the_thread_that_configured_is_not_sent_there_again(cupy):
    configure(CUDAConfig())  # already the current one
    cupy.current = 1
    resolve("cuda").library.from_numpy(np.ones(3, np.float32), None)
    assert cupy.current == 1


def test_a_pool_that_may_not_grow_is_bounded_by_its_size(cupy):
    configure(CUDAConfig(pool_initial_bytes=8 * MIB, pool_growth=False))
    assert cupy.pool.limits[0] == 8 * MIB
    assert cupy.pool.total_bytes() == 8 * MIB
    with pytest.raises(MemoryError):
        cupy.pool.malloc(1)


def test_matrices_in_tensorfloat32(cupy):
    configure(CUDAConfig(precision="tensorfloat32"))
    assert cupy.compute_types == {"float32": 7}
    with pytest.raises(
        ConfigurationError, match=r"'tensorfloat32' needs compute capability 8\.0, the device has 7\.5$"
    ):
        configure(CUDAConfig(device=1, precision="tensorfloat32"))
    assert cupy.current == 0
    assert cupy.compute_types == {"float32": 7}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": 2}, "device 2 does not exist; CUDA sees 2, counted from 0"),
        ({"fp8": True}, "fp8 needs a GPU of compute capability 8.9 and kernels that use it; this version has none"),
        ({"pool_growth": False}, "pool_growth=False needs pool_initial_bytes"),
        ({"pool_initial_bytes": 2000 * MIB}, f"pool_initial_bytes of {2000 * MIB} is more than the device's"),
        (
            {"pool_initial_bytes": 600 * MIB, "max_memory_fraction": 0.5},
            f"pool_initial_bytes of {600 * MIB} is more than max_memory_fraction, which is {500 * MIB} bytes here",
        ),
        ({"max_memory_fraction": 0.001}, f"CuPy's memory pool holds {4 * MIB} bytes already, more than the limit of"),
    ],
)
def test_what_a_gpu_cannot_honour_is_refused(cupy, options, reason):
    cupy.pool.used = 4 * MIB
    with pytest.raises(ConfigurationError, match=rf"^backend 'cuda': {re.escape(reason)}"):
        configure(CUDAConfig(**options))
    assert (cupy.current, cupy.calls, cupy.pool.limits) == (0, [], {0: 0, 1: 0})
    assert get_config("cuda") == CUDAConfig()


def test_another_allocator_is_not_bounded(cupy):
    cupy.allocator = lambda nbytes: None
    with pytest.raises(ConfigurationError, match=r"^backend 'cuda': the program has chosen another allocator than"):
        configure(CUDAConfig(max_memory_fraction=0.5))
    configure(CUDAConfig(device=1))
    assert cupy.current == 1


def test_memory_that_cannot_be_had_undoes_the_rest(cupy):
    cupy.memory = MIB
    with pytest.raises(ConfigurationError, match=r"^backend 'cuda' refused: MemoryError: out of memory allocating"):
        configure(CUDAConfig(device=1, pool_initial_bytes=100 * MIB, max_memory_fraction=0.5))
    assert cupy.current == 0
    assert cupy.pool.limits == {0: 0, 1: 0}


def test_real_cupy_has_what_is_asked_of_it():
    """Also without a GPU: the names that the fake module has."""
    cupy = pytest.importorskip("cupy")
    routines = pytest.importorskip("cupy._core")._routines_linalg
    made = fake_cupy.make()
    for name in ("COMPUTE_TYPE_FP32", "COMPUTE_TYPE_TF32"):
        assert getattr(routines, name) == getattr(made._core._routines_linalg, name)
    assert cupy.cuda.get_allocator().__self__ is cupy.get_default_memory_pool()
    for name in ("used_bytes", "free_bytes", "total_bytes", "free_all_blocks", "get_limit", "set_limit", "malloc"):
        assert callable(getattr(cupy.get_default_memory_pool(), name))
    for name in vars(made.cuda.runtime):
        assert callable(getattr(cupy.cuda.runtime, name))
    assert isinstance(cupy.is_available(), bool)


# --- jax ---------------------------------------------------------------------------------------------


def test_jax_precision_is_set_and_put_back():
    support.require("jax")
    import jax

    before = jax.config.jax_default_matmul_precision
    configure(JAXConfig(precision="highest"))
    assert jax.config.jax_default_matmul_precision == "highest"
    assert get_config("jax") == get_config("tpu") == JAXConfig(precision="highest")
    configure(JAXConfig())
    assert jax.config.jax_default_matmul_precision == before


def test_a_platform_that_comes_too_late_is_refused():
    support.require("jax")
    import jax

    here = jax.default_backend()
    configure(JAXConfig(platform={"gpu": "cuda"}.get(here, here)))
    other = "tpu" if here != "tpu" else "cpu"
    precision = jax.config.jax_default_matmul_precision
    pattern = (
        rf"^backend 'jax': platform '{other}' is set too late, JAX already computes on '{here}': configure it before"
    )
    with pytest.raises(ConfigurationError, match=pattern):
        configure(JAXConfig(platform=other, precision="highest"))
    assert jax.config.jax_default_matmul_precision == precision


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        (None, "no platform is named; on a GPU, set platform='cuda' as well"),
        ("cpu", "the platform is 'cpu'; on a GPU, set"),
        ("tpu", "the platform is 'tpu'"),
        ("cuda", "memory_fraction is set too late, JAX has already allocated its memory"),
    ],
)
def test_jax_takes_a_share_of_a_gpus_memory_only(platform, reason, monkeypatch):
    support.require("jax")
    import jax

    if platform is None and jax.config.jax_platforms:
        pytest.skip("the platform is named elsewhere")
    assert jax.devices()
    with pytest.raises(ConfigurationError, match=rf"^backend 'jax': .*{re.escape(reason)}"):
        configure(JAXConfig(platform=platform, memory_fraction=0.5))
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ


JAX = """
import os, sys
import jax
from jax._src import xla_bridge
from tensorops.libraries import ConfigurationError
from tensorops.libraries.jax import JAXConfig
from tensorops.backends.configure import configure

share = "XLA_PYTHON_CLIENT_MEM_FRACTION"
configure(JAXConfig(precision="high"))
print(xla_bridge.backends_are_initialized())
try:
    configure(JAXConfig(platform="no_such_platform", precision="highest"))
except ConfigurationError as error:
    print(error)
print(jax.config.jax_default_matmul_precision, jax.config.jax_platforms, xla_bridge.backends_are_initialized())
if sys.argv[1] == "no plug-ins":
    try:
        configure(JAXConfig(platform="cuda", memory_fraction=0.25))
    except ConfigurationError as error:
        print(error, share in os.environ)  # JAX itself fails without a word
configure(JAXConfig(platform="cpu"))
print(jax.config.jax_platforms, jax.default_backend(), jax.numpy.ones(3).sum())
"""


def test_a_platform_is_chosen_before_jax_starts():
    support.require("jax")
    plugins = importlib.util.find_spec("jax_plugins") is not None  # perhaps of a GPU, which JAX would start
    result = support.python(JAX, "plug-ins" if plugins else "no plug-ins")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "False"  # setting a precision does not start it
    assert lines[1].startswith("backend 'jax': JAX has no platform 'no_such_platform' here: ")
    assert lines[2] == "high None False"
    if not plugins:
        assert lines[3].startswith("backend 'jax': JAX has no platform 'cuda' here; it is installed with: cpu")
        assert lines[3].endswith(" False")
    assert lines[-1] == "cpu cpu 3.0"


CACHE = """
import os, pathlib, sys
import jax, jax.numpy as jnp
from tensorops.libraries import ConfigurationError
from tensorops.libraries.jax import JAXConfig
from tensorops.backends.configure import configure

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
first, second, third = sys.argv[1:]
count = lambda folder: sum(name.endswith("-cache") for name in os.listdir(folder)) if os.path.isdir(folder) else 0
jax.jit(lambda x: x * 2 + 1)(jnp.ones(3))
configure(JAXConfig(compilation_cache_dir=first))
jax.jit(lambda x: x * 3 + 1)(jnp.ones(3))
seen = count(first)
print(seen > 0, count(second))
configure(JAXConfig(compilation_cache_dir=second))
jax.jit(lambda x: x * 4 + 1)(jnp.ones(3))
print(count(first) == seen, count(second) > 0)
configure(JAXConfig(compilation_cache_dir=third, compilation_cache_bytes=6000))
for factor in range(5, 9):
    jax.jit(lambda x: x * factor + 1)(jnp.ones(3))
kept = sum(path.stat().st_size for path in pathlib.Path(third).glob("*-cache"))
print(jax.config.jax_compilation_cache_max_size, 0 < kept <= 6000)
configure(JAXConfig())
print(jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size)
"""


def test_compiled_functions_are_kept_where_configured(tmp_path):
    support.require("jax")
    pytest.importorskip("filelock")
    folders = [str(tmp_path / "a" / "b"), str(tmp_path / "c"), str(tmp_path / "d")]
    result = support.python(CACHE, *folders)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True", "0", "True", "True", "6000", "True", "None", "-1"]


def test_a_cache_that_cannot_be_is_refused(tmp_path):
    support.require("jax")
    import jax

    if jax.config.jax_compilation_cache_dir is not None:
        pytest.skip("this program has a cache already")
    with pytest.raises(
        ConfigurationError, match=r"^backend 'jax': compilation_cache_bytes limits a cache on disk, but"
    ):
        configure(JAXConfig(compilation_cache_bytes=MIB))
    file = tmp_path / "file"
    file.write_text("")
    pattern = rf"^backend 'jax': compilation_cache_dir .* cannot be written: {re.escape(repr(str(file)))} is in the way"
    for path in (file, file / "below"):
        with pytest.raises(ConfigurationError, match=pattern):
            configure(JAXConfig(compilation_cache_dir=path, precision="high"))
    assert jax.config.jax_default_matmul_precision is None
    assert jax.config.jax_compilation_cache_dir is None


def test_a_bound_of_the_cache_needs_filelock(tmp_path, monkeypatch):
    support.require("jax")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "filelock" else found(name))
    with pytest.raises(ConfigurationError, match=r"filelock to limit its cache: pip install filelock$"):
        configure(JAXConfig(compilation_cache_dir=tmp_path, compilation_cache_bytes=MIB))


def test_the_file_comes_before_jax_starts(tmp_path):
    support.require("jax")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"devices": {"jax": {"platform": "cpu", "precision": "highest"}}}))
    code = (
        "import tensorops as tp, numpy as np\n"
        "with tp.set_backend('jax'):\n    print(float(tp.relu(np.ones(1, np.float32))[0]))\n"
        "import jax\nprint(jax.config.jax_platforms, jax.config.jax_default_matmul_precision)\n"
    )
    result = support.python(code, TENSOROPS_CONFIG=str(file))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1.0", "cpu", "highest"]


# --- mlx ---------------------------------------------------------------------------------------------


def test_mlx_keeps_what_is_configured():
    support.require("mlx")
    import mlx.core as mx

    before = mx.set_cache_limit(MIB)
    mx.set_cache_limit(before)
    mx.clear_cache()
    configure(MLXConfig(device="cpu", cache_bytes=0))
    x = mx.ones((1024, 1024)) * 2
    mx.eval(x)
    del x
    assert mx.get_cache_memory() < MIB
    configure(MLXConfig(cache_bytes=64 * MIB))
    x = mx.ones((1024, 1024)) * 2
    mx.eval(x)
    del x
    assert 4 * MIB <= mx.get_cache_memory() < 64 * MIB
    configure(MLXConfig())
    assert mx.set_cache_limit(before) == before


def test_mlx_takes_a_limit_as_a_guideline():
    """As the refusal says, MLX allocates memory beyond its own limit."""
    support.require("mlx")
    import mlx.core as mx

    with pytest.raises(ConfigurationError, match=r"^backend 'mlx': max_memory_fraction cannot be honoured: MLX"):
        configure(MLXConfig(max_memory_fraction=0.5, device="cpu"))
    if mx.default_device().type != mx.cpu:
        pytest.skip("measured on the processor only")
    mx.synchronize()
    limit, cache = mx.set_memory_limit(MIB), mx.set_cache_limit(1 << 30)
    try:
        # A single operation: beyond its limit, MLX waits for one of several to end, occasionally forever.
        x = mx.arange(1 << 20, dtype=mx.float32)
        mx.eval(x)
        assert mx.get_active_memory() >= 4 * MIB
    finally:
        mx.set_memory_limit(limit)
        mx.set_cache_limit(cache)


def test_a_device_that_mlx_has_not_is_refused():
    support.require("mlx")
    import mlx.core as mx

    if mx.is_available(mx.gpu):
        pytest.skip("MLX has a GPU here")
    limit = mx.set_cache_limit(MIB)
    mx.set_cache_limit(limit)
    with pytest.raises(ConfigurationError, match=r"^backend 'mlx': MLX has no device 'gpu' here$"):
        configure(MLXConfig(device="gpu", cache_bytes=3))
    assert mx.set_cache_limit(limit) == limit
    assert mx.default_device() == mx.Device(mx.cpu)


# --- opencl ------------------------------------------------------------------------------------------


def test_pyopencl_chooses_what_is_configured(monkeypatch):
    cl = pytest.importorskip("pyopencl")
    monkeypatch.delenv("PYOPENCL_CTX", raising=False)
    try:
        platform = cl.get_platforms()[0]
        device = platform.get_devices()[0]
    except Exception as error:  # any error of a machine without OpenCL
        pytest.skip(f"no OpenCL device: {error}")
    runtime = runtime_of(resolve("opencl"))
    for name in ("0", "0:0", platform.name.split()[0].lower(), f"{platform.name}:{device.name.strip()}"):
        runtime.configure(OpenCLConfig(device=name))
        assert os.environ["PYOPENCL_CTX"] == "0:0"
        assert cl.create_some_context(interactive=False).devices == [device]
    runtime.configure(OpenCLConfig())
    assert "PYOPENCL_CTX" not in os.environ
    with pytest.raises(
        ConfigurationError, match=r"^backend 'opencl': OpenCL has no device 'nonesuch'; there are: 0:0 is"
    ):
        runtime.configure(OpenCLConfig(device="nonesuch"))
    with pytest.raises(ConfigurationError, match=r"OpenCL has no device '0:77'"):
        runtime.configure(OpenCLConfig(device="0:77"))
    assert "PYOPENCL_CTX" not in os.environ
