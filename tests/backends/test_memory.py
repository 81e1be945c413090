"""Waiting for libraries, their memory statistics, and the monitor: which library a call affects, and what it sees."""

import os
import re
import sys
import threading
import time

import numpy as np
import pytest

import fake_cupy
import support
import tensorops as tp
from tensorops.backends import memory
from tensorops.backends.memory import MemoryMonitor, empty_cache, get_memory_stats, synchronize
from tensorops.backends.registry import BACKENDS, resolve
from tensorops.libraries import MemoryStats, Runtime, runtime_of
from tensorops.libraries.jax import JaxRuntime
from tensorops.libraries.numpy import NumpyRuntime

MIB = 1024 * 1024
FUNCTIONS = (synchronize, get_memory_stats, empty_cache)


def result_of(pool, nbytes):
    """Return a result from the pool."""
    return pool.rms_norm(np.ones((nbytes // 1024, 256), np.float32))


class Counted(Runtime):
    """A fake library: the test sets its bytes in use, and it counts no peak."""

    in_use = 100

    def do_gauge(self):
        return lambda: self.in_use

    def do_memory_stats(self):
        return MemoryStats(self.name, "here", in_use=self.in_use)


@pytest.fixture
def counted(monkeypatch):
    """Let monitors of the backend numpy watch a fake library."""
    made = Counted(resolve("numpy"))
    monkeypatch.setattr(memory, "runtime_of", lambda backend: made)
    return made


# --- whom a call is for ------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [*FUNCTIONS, MemoryMonitor])
def test_unknown_backends_are_errors(function):
    with pytest.raises(ValueError, match=r"^unknown backend 'nunpy' \(did you mean 'numpy'\?\); valid names: .*cpu"):
        function("nunpy")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_unavailable_backends_are_errors(function, unavailable):
    name, reason = unavailable
    with pytest.raises(tp.BackendUnavailableError, match=re.escape(f"backend '{name}' is not available: {reason}")):
        function(name)
    with pytest.raises(tp.BackendUnavailableError, match=re.escape(reason)), MemoryMonitor(name):
        raise AssertionError("the block must not begin")


def test_a_named_backend_comes_before_the_one_in_force(pool):
    with tp.set_backend("numpy"):
        assert get_memory_stats().backend == "numpy"
        assert get_memory_stats("cpp").backend == "cpu"
    assert get_memory_stats().backend == "cpu"
    with tp.set_backend("cpu"):
        assert get_memory_stats("numpy").backend == "numpy"


def test_figures_are_those_of_the_pool(pool):
    before = get_memory_stats()
    y = result_of(pool, 2 * MIB)
    stats = get_memory_stats("cpu")
    assert stats.in_use - before.in_use == 2 * MIB
    assert stats.limit == pool.memory_stats()["limit"]
    del y
    assert get_memory_stats("cpu").cached == 2 * MIB
    with tp.set_backend("numpy"):
        assert empty_cache() == 0  # numpy does not use the pool
    assert get_memory_stats("cpu").cached == 2 * MIB
    assert empty_cache("cpu") == 2 * MIB
    assert get_memory_stats("cpu").cached == 0


def test_without_a_choice_every_imported_library_is_meant(pool, monkeypatch):
    support.require("jax")
    import jax.numpy as jnp

    jnp.ones(3)
    called = []
    monkeypatch.setattr(JaxRuntime, "do_synchronize", lambda self: called.append(self.memory))
    monkeypatch.setattr(NumpyRuntime, "do_synchronize", lambda self: called.append(self.memory))
    synchronize()
    assert sorted(called) == ["jax", "pool", "python"]  # each memory once, however many backends share it
    called.clear()
    with tp.set_backend("jax"):
        synchronize()
    assert called == ["jax"]


def test_what_is_freed_is_added_up(pool, monkeypatch):
    support.require("jax")
    result_of(pool, 3 * MIB)
    monkeypatch.setattr(JaxRuntime, "do_empty_cache", lambda self: None)  # a library that does not report it
    for name in ("mlx", "torch"):
        if runtime_of(resolve(name)).loaded:
            runtime_of(resolve(name)).empty_cache()
    assert empty_cache() == 3 * MIB
    assert empty_cache("jax") is None


def test_without_a_choice_nothing_is_imported():
    result = support.python(
        "import sys\n"
        "from tensorops.backends.memory import empty_cache, synchronize\n"
        "synchronize()\n"
        "print(empty_cache())\n"
        "print(sorted({'jax', 'mlx', 'torch', 'cupy', 'dask', 'pyopencl', 'array_api_strict'} & set(sys.modules)))"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["0", "[]"]


@pytest.mark.parametrize("name", [n for n in BACKENDS if n not in ("cpu", "numpy")])
def test_every_backend_answers(name):
    if reason := support.why_not(resolve(name).library.name):
        pytest.skip(reason)
    if not tp.is_backend_available(name):
        pytest.skip(f"{name} is not available")
    synchronize(name)
    stats = get_memory_stats(name)
    assert stats.backend == name
    for figure in (stats.in_use, stats.peak, stats.cached, stats.limit, stats.total, empty_cache(name)):
        assert figure is None or (type(figure) is int and figure >= 0)


# --- the monitor -------------------------------------------------------------------------------------


def test_a_monitor_sees_a_peak_between_two_looks(pool):
    before = pool.memory_stats()["in_use"]
    with MemoryMonitor("cpu", interval=100) as watched:
        kept = result_of(pool, MIB)
        result_of(pool, 8 * MIB)
    assert [in_use - before for _, in_use, _ in watched.samples] == [0, MIB]
    assert watched.start == before
    assert watched.end == before + MIB
    assert watched.peak == before + 9 * MIB
    assert kept.nbytes == MIB


def test_an_earlier_peak_is_not_the_blocks(pool):
    result_of(pool, 8 * MIB)
    before = pool.memory_stats()["in_use"]
    with MemoryMonitor("cpu") as watched:
        result_of(pool, MIB)
    assert watched.peak == before + MIB


def test_monitors_nest_and_lose_no_peak(pool):
    before = pool.memory_stats()["in_use"]
    with MemoryMonitor("cpu", interval=100) as outer:
        result_of(pool, 8 * MIB)
        with MemoryMonitor("cpu", interval=100) as first:
            result_of(pool, MIB)
        with MemoryMonitor("cpu", interval=100) as second:
            result_of(pool, 2 * MIB)
            assert second.peak == before + 2 * MIB  # also while it runs
        assert outer.peak == before + 8 * MIB
    assert [m.peak - before for m in (outer, first, second)] == [8 * MIB, MIB, 2 * MIB]
    with MemoryMonitor("cpu", interval=100) as outer:
        with MemoryMonitor("cpu", interval=100):
            result_of(pool, 4 * MIB)
        result_of(pool, MIB)
    assert outer.peak == before + 4 * MIB


def test_mlx_peaks_are_seen():
    support.require("mlx")
    import mlx.core as mx

    mx.eval(mx.ones(3))
    with MemoryMonitor("mlx", interval=100) as watched:
        x = mx.ones((1024, 1024)) * 2
        mx.eval(x)
        del x
    assert watched.peak - watched.start >= 4 * MIB
    assert watched.end - watched.start < MIB


def test_a_library_without_a_count_is_looked_at(counted):
    with MemoryMonitor("numpy", interval=0.001) as watched:
        counted.in_use = 700
        deadline = time.perf_counter() + 30
        while watched.peak < 700 and time.perf_counter() < deadline:
            time.sleep(0.001)
        counted.in_use = 300
    assert (watched.start, watched.peak, watched.end) == (100, 700, 300)
    seconds = [t for t, _, _ in watched.samples]
    assert seconds == sorted(seconds)
    assert 0 <= seconds[0] < seconds[-1] < 60


def test_a_long_block_keeps_a_bounded_number_of_samples(counted, monkeypatch):
    monkeypatch.setattr(memory, "MOST_SAMPLES", 16)
    monitor = MemoryMonitor("numpy", interval=3600)
    with monitor:
        watch = monitor._watch
        for look in range(1, 1000):
            before, interval = len(monitor.samples), watch._interval
            counted.in_use = 5000 if look == 801 else look  # a peak whose sample is dropped
            watch._look()
            assert monitor.end == counted.in_use
            full = before == 16
            assert (len(monitor.samples), watch._interval) == ((9, 2 * interval) if full else (before + 1, interval))
        counted.in_use = 77
    assert (monitor.start, monitor.peak, monitor.end) == (100, 5000, 77)
    assert 5000 not in [in_use for _, in_use, _ in monitor.samples]
    seconds = [t for t, _, _ in monitor.samples]
    assert seconds == sorted(seconds)
    assert "(1001 readings in" in str(monitor)
    with monitor:
        pass
    assert (len(monitor.samples), monitor.peak) == (2, 77)


def test_the_process_is_watched_too(counted):
    if MemoryMonitor("numpy").peak_resident is None and sys.platform not in ("linux", "darwin", "win32"):
        pytest.skip("this system does not tell")
    with MemoryMonitor("numpy", interval=0.001) as watched:
        a = np.ones(64 * MIB, np.uint8)
        time.sleep(0.05)
        del a
    assert watched.peak_resident - watched.samples[0][2] >= 48 * MIB


def test_a_monitor_prints_as_one_line(counted):
    assert str(MemoryMonitor("numpy")) == "MemoryMonitor: nothing watched yet"
    counted.in_use = 3 * MIB // 2
    with MemoryMonitor("numpy", interval=100) as watched:
        counted.in_use = 20
    assert re.fullmatch(
        r"numpy: 1\.5 MiB in use at the start, 1\.5 MiB at the peak, 20 bytes at the end; "
        r"process (unknown|[\d.]+ [KMG]iB) at the peak \(2 readings in 0\.\d\d s\)",
        str(watched),
    )
    counted.in_use = None
    with watched:
        pass
    assert str(watched).startswith("numpy: unknown in use at the start, unknown at the peak, unknown at the end")


def test_what_is_unknown_stays_unknown():
    support.require("array_api_strict")
    with MemoryMonitor("array_api_strict") as watched:
        pass
    assert (watched.start, watched.peak, watched.end) == (None, None, None)


def test_the_blocks_error_passes_and_the_thread_ends(counted):
    def fail():
        with MemoryMonitor("numpy", interval=0.001):
            raise ZeroDivisionError("the block's own")

    with pytest.raises(ZeroDivisionError, match=r"^the block's own$"):
        fail()
    assert not [t for t in threading.enumerate() if t.name == "tensorops-memory"]
    assert memory._Watch._running["python"] == []


def test_a_librarys_error_is_raised_when_the_block_ends(counted, monkeypatch):
    def gone():
        raise OSError("the device is gone")

    def watch(error=None):
        counted.do_gauge = lambda: lambda: gone() if counted.in_use is None else counted.in_use
        counted.in_use = 100
        with MemoryMonitor("numpy", interval=0.001):
            counted.in_use = None
            time.sleep(0.05)
            if error:
                raise error

    with pytest.raises(RuntimeError, match=r"^backend 'numpy': reading its memory failed with OSError: the device is"):
        watch()
    with pytest.raises(ZeroDivisionError):
        watch(ZeroDivisionError())
    counted.do_gauge = gone
    with pytest.raises(RuntimeError, match=r"the device is gone$"), MemoryMonitor("numpy"):
        raise AssertionError("the block must not begin")
    assert memory._Watch._running["python"] == []


def test_one_object_watches_one_block_at_a_time(counted):
    watched = MemoryMonitor("numpy")
    with watched:
        counted.in_use = 200
        with pytest.raises(RuntimeError, match=r"^MemoryMonitor: this object already watches a block"), watched:
            raise AssertionError("the block must not begin")
    with watched:  # and another one after it, from the beginning
        pass
    assert watched.start == watched.peak == 200


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), True, "0.1", None])
def test_the_interval_is_checked(interval):
    with pytest.raises(ValueError, match=rf"^MemoryMonitor: interval is {re.escape(repr(interval))}, expected seconds"):
        MemoryMonitor("numpy", interval=interval)


def test_a_monitor_watches_the_backend_in_force(pool):
    with tp.set_backend("numpy"), MemoryMonitor() as watched:
        pass
    assert str(watched).startswith("numpy: ")
    with MemoryMonitor() as watched:
        pass
    assert str(watched).startswith("cpu: ")


def test_monitors_in_several_threads_see_each_others_peaks(pool):
    before = pool.memory_stats()["in_use"]
    began, done = threading.Event(), threading.Event()
    peaks = []

    def other():
        with MemoryMonitor("cpu", interval=100) as watched:
            began.set()
            done.wait(30)
        peaks.append(watched.peak)

    with MemoryMonitor("cpu", interval=100) as watched:
        result_of(pool, 4 * MIB)
        thread = threading.Thread(target=other)
        thread.start()
        assert began.wait(30)
        result_of(pool, 2 * MIB)
        done.set()
        thread.join(30)
    assert peaks == [before + 2 * MIB]
    assert watched.peak == before + 4 * MIB


BROKEN_RUNTIME = """
import numpy as np
import tensorops as tp
from tensorops.libraries import Library
from tensorops.backends import Backend

row = Library("mine", ("mine",), "mine:Array", "mine", np.asarray, np.asarray, runtime="no_such_module:Runtime")
tp.register_backend(Backend("mine", row, "its library is not imported"))
tp.synchronize()
print(tp.empty_cache() is None or tp.empty_cache() >= 0)
"""


def test_a_plug_in_whose_library_nobody_imported_is_left_alone():
    result = support.python(BROKEN_RUNTIME)
    assert result.stdout.split() == ["True"], result.stderr


IMPORTED = """
import sys, types
import numpy as np
import tensorops as tp
from tensorops.libraries import Library
from tensorops.backends import Backend
from tensorops.libraries.numpy import NumpyRuntime

sys.modules["mine"] = types.ModuleType("mine")
row = Library("mine", ("mine",), "mine:Array", "mine", np.asarray, np.asarray, runtime="no_such_module:Runtime")
for name in ("mine", "second"):
    tp.register_backend(Backend(name, row, "its runtime's module is missing"))
asked = []
NumpyRuntime.do_synchronize = lambda self: asked.append(self.name)
NumpyRuntime.do_empty_cache = lambda self: asked.append(self.name)
for function in (tp.synchronize, tp.empty_cache):
    try:
        function()
    except RuntimeError as error:
        print(error)
    print(len(asked) > 0)
    asked.clear()
"""


def test_a_plug_in_that_fails_keeps_no_other_library_from_being_asked():
    result = support.python(IMPORTED)
    assert result.returncode == 0, result.stderr
    error, others, *again = result.stdout.splitlines()
    reason = "making no_such_module:Runtime failed with ModuleNotFoundError: No module named 'no_such_module'"
    assert error == f"backend 'mine': {reason}; backend 'second': {reason}"
    assert others == "True"
    assert again == [error, others]


def test_a_cupy_without_a_gpu_is_not_waited_for(monkeypatch):
    """Other libraries import CuPy on machines without a GPU."""
    made = fake_cupy.make()
    made.is_available = lambda: False
    monkeypatch.setitem(sys.modules, "cupy", made)
    synchronize()
    empty_cache()
    assert made.calls == []
    made.is_available = lambda: True
    synchronize()
    assert made.calls == [("synchronize", 0)]


FORKED = """
import os, threading, warnings
import tensorops as tp
from tensorops.backends import options, memory

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
held, done = threading.Event(), threading.Event()

def hold():
    with options._lock, memory._Watch._lock:
        held.set()
        done.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    import faulthandler
    faulthandler.dump_traceback_later(20, exit=True)
    with tp.MemoryMonitor("numpy"):
        pass
    with options._lock:
        os._exit(0)
done.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent():
    result = support.python(FORKED)
    assert result.stdout.split() == ["0"], result.stderr
