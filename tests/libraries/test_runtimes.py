"""What each library reports on its device and memory, how to wait for it, and how its errors are handled."""

import gc
import os
import re
import sys
import time
import tracemalloc
import types

import numpy as np
import pytest

import support
from tensorops import _dtypes, _providers, hardware
from tensorops.backends.registry import resolve
from tensorops.hardware.machine import Machine
from tensorops.libraries import (
    LIBRARIES,
    Backend,
    Change,
    ConfigurationError,
    DeviceConfig,
    DeviceFacts,
    MemoryStats,
    Runtime,
    _host,
    _runtime,
    runtime_of,
)
from tensorops.libraries.cupy import CUDAConfig
from tensorops.libraries.numpy import NumpyRuntime

MIB = 1024 * 1024
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def runtime(name):
    """Return the runtime of a backend that can compute here, loaded; or skip."""
    support.require(resolve(name).library.name)
    if name == "cpu":
        support.require_provider("cpu")
    found = runtime_of(resolve(name))
    found.load()
    return found


# --- facts -------------------------------------------------------------------------------------------


def test_every_row_names_a_runtime():
    for row in LIBRARIES.values():
        assert isinstance(runtime_of(Backend("x", row, "")), Runtime)
    assert type(runtime_of(resolve("numpy"))) is NumpyRuntime
    assert type(runtime_of(resolve("dask"))) is NumpyRuntime


def test_a_row_that_names_something_else_is_an_error():
    row = types.SimpleNamespace(name="odd", runtime="tensorops.backends.trace:Trace")
    with pytest.raises(RuntimeError, match=r"^backend .odd.: tensorops.backends.trace:Trace is not a tensorops R"):
        runtime_of(Backend("odd", row, ""))
    row.runtime = "types:SimpleNamespace"
    with pytest.raises(RuntimeError, match=r"^backend 'odd': making types:SimpleNamespace failed with TypeError: "):
        runtime_of(Backend("odd", row, ""))
    row.runtime = "builtins:id"
    with pytest.raises(RuntimeError, match=r"^backend 'odd': builtins:id is not a tensorops Runtime$"):
        runtime_of(Backend("odd", row, ""))


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("no_such_module:Runtime", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("tensorops.libraries:NoSuchClass", "AttributeError: module 'tensorops.libraries' has no attrib"),
    ],
)
def test_a_class_that_cannot_be_had_names_the_backend(path, error):
    row = types.SimpleNamespace(name="odd", runtime=path)
    with pytest.raises(RuntimeError, match=rf"^backend 'odd': making {path} failed with {error}"):
        runtime_of(Backend("odd", row, ""))


@pytest.mark.parametrize("name", ["numpy", "cpu", "jax", "mlx", "torch", "dask", "array_api_strict"])
def test_facts_of_libraries_on_the_processor(name):
    if name == "mlx":
        import mlx.core as mx

        if mx.default_device().type != mx.cpu:
            pytest.skip("MLX's default device is a GPU")
    facts = runtime(name).facts()
    if hasattr(os, "sched_getaffinity"):
        assert facts.compute_units == len(os.sched_getaffinity(0))
    if hasattr(os, "sysconf"):
        assert facts.max_memory == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts.device_count == 1
    assert facts.device_name == _host.processor_name()
    assert facts.compute_capability is None
    assert facts.max_shared_memory is None
    package = resolve(name).library.packages[0]
    assert facts.versions[package] == sys.modules[package].__version__ if package != "mlx" else facts.versions["mlx"]


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("numpy", ("float16", "bfloat16", "float32", "float64", *INTEGERS)),
        ("torch", ("float16", "bfloat16", "float32", "float64", *INTEGERS)),
        ("array_api_strict", ("float32", "float64", *INTEGERS)),
    ],
)
def test_dtypes_are_those_that_the_library_holds(name, dtypes):
    assert runtime(name).facts().dtypes == dtypes


def test_jax_holds_wide_dtypes_only_if_told_to():
    import_jax = pytest.importorskip("jax")
    jax = runtime("jax")
    narrow = tuple(d for d in (*_dtypes.FLOATING, *_dtypes.INTEGER) if not d.endswith("64"))
    with import_jax.enable_x64(False):
        assert jax.facts().dtypes == narrow
    with import_jax.enable_x64(True):
        assert jax.facts().dtypes == (*_dtypes.FLOATING, *_dtypes.INTEGER)


def test_facts_of_opencl_are_its_devices():
    cl = pytest.importorskip("pyopencl")
    try:
        device = cl.choose_devices(interactive=False)[0]
    except Exception as error:  # any error of a machine without OpenCL
        pytest.skip(f"no OpenCL device: {error}")
    facts = runtime_of(resolve("opencl")).facts()
    assert facts.compute_units == device.max_compute_units
    assert facts.max_memory == device.global_mem_size
    assert facts.max_shared_memory == device.local_mem_size
    assert facts.device_name == device.name.strip()
    assert ("float64" in facts.dtypes) == ("cl_khr_fp64" in device.extensions)
    assert runtime_of(resolve("opencl")).memory_stats() == MemoryStats(
        "opencl", device.name.strip(), total=device.global_mem_size
    )


def test_facts_of_a_gpu(cupy):
    facts = runtime_of(resolve("cuda")).facts()
    assert facts == DeviceFacts(
        compute_capability=90,
        compute_units=132,
        max_memory=1000 * MIB,
        max_shared_memory=232448,
        device_count=2,
        device_name="Fake H100",
        dtypes=("float16", "float32", "float64", *INTEGERS),  # the fake library refuses bfloat16
        versions={"cupy": "99.1", "cuda": "13.0", "driver": "13.1"},
    )


def test_a_library_that_nobody_wrote_a_class_for():
    support.require("array_api_strict")
    plain = Runtime(resolve("array_api_strict"))
    facts = plain.facts()
    assert facts.dtypes == ("float32", "float64", *INTEGERS)
    assert (facts.compute_units, facts.max_memory, facts.device_name) == (None, None, None)
    assert plain.memory_stats() == MemoryStats("array_api_strict", "array_api_strict")
    assert plain.empty_cache() is None
    assert plain.reset_peak() is False
    assert plain.gauge()() is None
    with pytest.raises(ConfigurationError, match=r"^backend 'array_api_strict': its library has no options"):
        plain.configure(DeviceConfig())


def test_asking_for_a_runtime_imports_no_library():
    result = support.python(
        "import sys, tensorops\n"
        "from tensorops.backends.registry import all_backends\n"
        "from tensorops.libraries import runtime_of\n"
        "print(sorted(b.name for b in all_backends().values() if runtime_of(b).loaded))\n"
        "print(sorted({'jax', 'mlx.core', 'torch', 'cupy', 'dask', 'pyopencl'} & set(sys.modules)))"
    )
    assert result.returncode == 0, result.stderr
    loaded, imported = result.stdout.splitlines()
    assert imported == "[]"
    assert "'numpy'" in loaded
    assert "'jax'" not in loaded
    assert "'cpu'" not in loaded


# --- memory ------------------------------------------------------------------------------------------


def test_the_pool_of_results_is_cpus_and_not_numpys():
    cpu, numpy = runtime("cpu"), runtime("numpy")
    cpu.empty_cache()
    rms_norm = sys.modules["tensorops.kernels.cpu._native"].rms_norm
    before = cpu.memory_stats()
    assert before.cached == 0
    y = rms_norm(np.ones((1024, 256), np.float32))
    during = cpu.memory_stats()
    assert during.in_use - before.in_use == y.nbytes == MIB
    assert during.peak >= during.in_use
    assert during.total == _host.memory_bytes()
    del y
    after = cpu.memory_stats()
    assert (after.in_use, after.cached) == (before.in_use, MIB)
    assert numpy.memory_stats().in_use is None
    assert numpy.empty_cache() == 0
    assert cpu.empty_cache() == MIB
    assert cpu.memory_stats().cached == 0
    assert cpu.reset_peak() is True
    assert cpu.memory_stats().peak == before.in_use


def test_numpys_memory_is_known_while_it_is_traced():
    numpy = runtime("numpy")
    assert not tracemalloc.is_tracing()
    assert numpy.reset_peak() is False
    tracemalloc.start()
    try:
        before = numpy.memory_stats().in_use
        a = np.empty(4 * MIB, np.uint8)
        assert 4 * MIB <= numpy.memory_stats().in_use - before <= 4.1 * MIB
        del a
        stats = numpy.memory_stats()
        assert stats.in_use - before < MIB
        assert stats.peak - before >= 4 * MIB
        assert numpy.reset_peak() is True
        assert numpy.memory_stats().peak - before < MIB
    finally:
        tracemalloc.stop()
    assert numpy.memory_stats().in_use is None


def test_jax_on_the_processor_counts_living_arrays():
    jax = runtime("jax")
    import jax.numpy as jnp

    if jax.memory_stats().peak is not None:
        pytest.skip("JAX's platform counts its memory")
    gc.collect()
    before = jax.memory_stats().in_use
    x = jnp.ones((256, 1024), jnp.float32) * 2
    read = jax.gauge()
    assert jax.memory_stats().in_use - before == read() - before == MIB
    x.delete()
    assert jax.memory_stats().in_use == read() == before
    assert jax.empty_cache() is None


def test_jax_platforms_that_count_are_asked(monkeypatch):
    stats = {"bytes_in_use": 5, "peak_bytes_in_use": 9, "pool_bytes": 7, "bytes_limit": 100}
    jax = runtime("jax")
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: dict(stats))
    monkeypatch.setattr(type(jax), "_device", lambda self, module: device)
    found = jax.memory_stats()
    assert (found.in_use, found.peak, found.cached, found.limit, found.total) == (5, 9, 2, 100, None)
    assert jax.gauge()() == 5


def test_mlx_counts_its_memory():
    mlx = runtime("mlx")
    import mlx.core as mx

    gc.collect()
    mlx.empty_cache()
    before = mlx.memory_stats()
    assert before.cached == 0
    x = mx.ones((256, 1024)) * 2
    mx.eval(x)
    during = mlx.memory_stats()
    assert during.in_use - before.in_use == MIB
    assert mlx.reset_peak() is True
    del x
    after = mlx.memory_stats()
    assert after.in_use == before.in_use
    assert after.cached >= MIB
    assert mlx.empty_cache() == after.cached
    assert mlx.memory_stats().cached == 0


def test_torch_tells_nothing_of_the_processors_memory():
    torch = runtime("torch")
    if sys.modules["torch"].cuda.is_initialized():
        pytest.skip("CUDA is in use")
    assert torch.memory_stats() == MemoryStats("torch", "cpu", total=_host.memory_bytes())
    assert torch.empty_cache() == 0
    assert torch.reset_peak() is False


def test_a_gpus_memory_is_that_of_cupys_pool(cupy):
    cuda = runtime_of(resolve("cuda"))
    cupy.pool.used, cupy.pool.free = 3 * MIB, 5 * MIB
    assert cuda.memory_stats() == MemoryStats(
        "cuda", "cuda:0", in_use=3 * MIB, cached=5 * MIB, limit=None, total=1000 * MIB
    )
    cupy.pool.set_limit(size=64 * MIB)
    assert cuda.memory_stats().limit == 64 * MIB
    assert cuda.empty_cache() == 5 * MIB
    assert cuda.memory_stats().cached == 0
    assert cuda.reset_peak() is False


def test_a_gpus_gauge_reads_the_device_it_began_on(cupy):
    cupy.current = 1
    read = runtime_of(resolve("cuda")).gauge()
    cupy.current = 0
    cupy.pool.used_on = {0: 1, 1: 22}
    assert read() == 22
    assert cupy.current == 0


def test_resident_memory_grows_with_what_is_touched():
    before = _host.resident_bytes()
    if before is None:
        pytest.skip("this system does not tell")
    a = np.ones(64 * MIB, np.uint8)
    assert 48 * MIB <= _host.resident_bytes() - before <= 80 * MIB
    assert a.all()
    assert before < _host.memory_bytes()


def test_a_system_that_tells_nothing(monkeypatch):
    def fail():
        raise OSError

    monkeypatch.setattr(_host, "_resident", fail)
    assert _host.resident_bytes() is None


def test_figures_of_the_host_are_those_of_its_container(monkeypatch, tmp_path):
    """The limits of `docker run --memory --cpus` hold for every library that computes on the CPU."""
    files = {
        "proc/cpuinfo": "".join(f"processor : {n}\nmodel name : Made Up 9000\n\n" for n in range(8)),
        "proc/meminfo": "MemTotal: 32768000 kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{512 * MIB}\n",
        "sys/fs/cgroup/cpu.max": "250000 100000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    here = Machine("Linux", "x86_64", root=tmp_path, usable_cpus=frozenset(range(8)))
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: here))
    monkeypatch.setattr(hardware, "detect_processor", hardware.detect_processor.__wrapped__)
    assert (_host.memory_bytes(), _host.processors(), _host.processor_name()) == (512 * MIB, 3, "Made Up 9000")
    assert runtime("numpy").memory_stats().total == 512 * MIB
    for name in ("numpy", "torch"):
        facts = runtime(name).facts()
        assert (facts.max_memory, facts.compute_units, facts.device_name) == (512 * MIB, 3, "Made Up 9000")


# --- waiting -----------------------------------------------------------------------------------------


def test_jax_is_waited_for():
    jax = runtime("jax")
    import jax as module
    import jax.numpy as jnp

    @module.jit
    def slow(x):
        return module.lax.fori_loop(0, 60, lambda _, y: jnp.sin(y @ y), x)

    x = jnp.ones((512, 512), jnp.float32)
    slow(x).block_until_ready()
    y = slow(x)
    jax.synchronize()
    assert y.is_ready()
    dead = x + 1
    dead.delete()
    jax.synchronize()


def test_jax_effects_are_waited_for(monkeypatch):
    """That JAX is asked to: on a processor it returns from functions with effects only when these are over."""
    jax = runtime("jax")
    import jax as module

    module.numpy.ones(1).block_until_ready()
    asked, barrier = [], module.effects_barrier
    monkeypatch.setattr(module, "effects_barrier", lambda: asked.append(barrier()))
    jax.synchronize()
    assert len(asked) == 1


def test_waiting_for_jax_does_not_start_it():
    runtime("jax")
    result = support.python(
        "import jax\n"
        "from jax._src import xla_bridge\n"
        "from tensorops.backends.memory import synchronize\n"
        "synchronize()\n"
        "print(xla_bridge.backends_are_initialized())"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "False\n"


def test_mlx_is_waited_for_and_leaves_lazy_graphs_alone():
    mlx = runtime("mlx")
    import mlx.core as mx

    gc.collect()
    before = mx.get_active_memory()
    lazy = mx.ones((1024, 1024)) + 1
    mlx.synchronize()
    assert mx.get_active_memory() - before < MIB
    x = mx.random.normal((512, 512))
    y = x
    for _ in range(30):
        y = mx.sin(y @ x)
    began = time.perf_counter()
    mx.async_eval(y)
    mlx.synchronize()
    waited = time.perf_counter() - began
    mx.eval(y)  # nothing is left to do
    assert time.perf_counter() - began - waited < waited / 5
    assert float(lazy[0, 0]) == 2.0


def test_a_gpu_is_waited_for(cupy):
    cupy.current = 1
    runtime_of(resolve("cuda")).synchronize()
    assert cupy.calls == [("synchronize", 1)]


def test_queues_of_living_opencl_arrays_are_finished(monkeypatch):
    class Array:
        def __init__(self, queue):
            self.queue = queue

    class Queue:
        finished = 0

        def finish(self):
            self.finished += 1

    module = types.ModuleType("pyopencl")
    module.array = types.ModuleType("pyopencl.array")
    module.array.Array = Array
    monkeypatch.setitem(sys.modules, "pyopencl", module)
    monkeypatch.setitem(sys.modules, "pyopencl.array", module.array)
    shim = types.ModuleType("array_api_pyopencl")
    shim.Array = type("Wrapper", (), {"__init__": lambda self, queue: setattr(self, "device", Array(queue))})
    one, other, dropped, wrapped = Queue(), Queue(), Queue(), Queue()
    alive = [Array(one), Array(one), Array(other), Array(None)]
    Array(dropped)
    monkeypatch.delitem(sys.modules, "array_api_pyopencl", raising=False)
    runtime_of(resolve("opencl")).synchronize()
    assert [q.finished for q in (one, other, dropped)] == [1, 1, 0]
    monkeypatch.setitem(sys.modules, "array_api_pyopencl", shim)
    alive.append(shim.Array(types.SimpleNamespace(finish=wrapped.finish)))
    alive[-1].device = types.SimpleNamespace(queue=wrapped)  # a device of the library, which has a queue
    runtime_of(resolve("opencl")).synchronize()
    assert [q.finished for q in (one, other, dropped, wrapped)] == [2, 2, 0, 1]
    assert len(alive) == 5


# --- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "doing"),
    [
        ("facts", "describing its device"),
        ("synchronize", "waiting for it"),
        ("memory_stats", "reading its memory"),
        ("empty_cache", "emptying its cache"),
        ("reset_peak", "resetting its peak"),
        ("gauge", "reading its memory"),
    ],
)
def test_a_librarys_errors_name_the_backend(method, doing):
    class Broken(Runtime):
        def fail(self):
            raise KeyError("the driver\nis gone")

        do_facts = do_synchronize = do_memory_stats = do_empty_cache = do_reset_peak = do_gauge = fail

    pattern = rf"^backend 'numpy': {doing} failed with KeyError: .*the driver"
    with pytest.raises(RuntimeError, match=pattern) as caught:
        getattr(Broken(resolve("numpy")), method)()
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_library_that_cannot_be_imported_names_the_backend():
    row = types.SimpleNamespace(name="nowhere", packages=("nowhere",), array_type="no_such_library:Array")
    with pytest.raises(RuntimeError, match=r"^backend 'nowhere': importing it failed with ModuleNotFoundError: No"):
        Runtime(Backend("nowhere", row, "")).load()


def test_missing_kernels_are_said(monkeypatch):
    reason = "there is no compiler"
    monkeypatch.delitem(sys.modules, "tensorops.kernels.cpu._native", raising=False)
    monkeypatch.setattr(_providers, "load", lambda provider: reason)
    cpu = runtime_of(resolve("cpu"))
    assert not cpu.loaded
    with pytest.raises(RuntimeError, match=rf"^backend 'cpu': {reason}$"):
        cpu.load()


# --- changes -----------------------------------------------------------------------------------------


@pytest.fixture
def originals(monkeypatch):
    """The record of settings before tensorops changed them: empty, and restored afterwards."""
    monkeypatch.setattr(_runtime, "_original", {})
    return _runtime._original


def test_a_change_is_made_seen_and_undone(originals):
    box = {"size": 1}
    change = Change("size", lambda: box["size"], lambda v: box.update(size=v), 5)
    undo = change.apply()
    assert box == {"size": 5}
    assert originals == {"size": 1}
    undo()
    assert box == {"size": 1}
    assert originals == {}


def test_none_puts_back_what_was_there_before_the_first_change(originals):
    box = {"size": 1}

    def to(value):
        return Change("size", lambda: box["size"], lambda v: box.update(size=v), value)

    to(None).apply()
    assert box == {"size": 1}
    to(5).apply()
    to(6).apply()
    to(None).apply()
    assert box == {"size": 1}
    box["size"] = 9  # by the user, so nothing of ours is left to restore
    to(None).apply()
    assert box == {"size": 9}


def test_a_change_that_does_not_hold_is_an_error(originals):
    box = {"size": 1}
    change = Change("size", lambda: box["size"], lambda v: box.update(size=min(v, 3)), 5)
    with pytest.raises(ConfigurationError, match=r"^size is 3 after it was set to 5$"):
        change.apply()
    assert box == {"size": 1}
    assert originals == {}


@pytest.mark.parametrize("error", [ConfigurationError("no"), OSError("no")])
def test_nothing_stays_half_applied(originals, error):
    box = {"a": 1, "b": 1, "c": 1}

    def refuse(value):
        if value != 1:
            raise error
        box["c"] = value

    class Three(Runtime):
        def do_changes(self, config):
            yield Change("a", lambda: box["a"], lambda v: box.update(a=v), 2)
            yield Change("b", lambda: box["b"], lambda v: box.update(b=v), 3)
            assert box == {"a": 2, "b": 3, "c": 1}
            yield Change("c", lambda: box["c"], refuse, 4)

    words = "backend 'numpy': no" if isinstance(error, ConfigurationError) else "backend 'numpy' refused: OSError: no"
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(words)}$"):
        Three(resolve("numpy")).configure(CUDAConfig())
    assert box == {"a": 1, "b": 1, "c": 1}
    assert originals == {}
