"""The compiled module as a whole: memory over a million calls, many threads, fork, and how many threads compute.

Every operator that has a compiled kernel is called, with the arguments that the benchmarks give it. rms_norm alone, and
the pool by itself, are tested in `test_cpu_rms_norm`; the bound of `configure` in `test_devices`.
"""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import sys
import threading

import numpy as np
import pytest

import support
from tensorops import kernels
from tensorops._operator import OPERATORS
from tensorops.testing import DTYPES
from tensorops.testing.workloads import workload

WHY_NOT = kernels.load("cpu")
if WHY_NOT:
    COMPILED = []
else:
    from tensorops.kernels.cpu import _native

    COMPILED = sorted(name for name, operator in OPERATORS.items() if "cpu" in operator.kernels)

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"cpu: {WHY_NOT}")
lists_threads = pytest.mark.skipif(
    not pathlib.Path("/proc/self/task").exists(), reason="this system does not list threads"
)

KIB, MIB = 1024, 1024 * 1024
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")  # which keeps what was freed for a while


@pytest.fixture
def pool():
    """The module with an empty pool; its settings are put back."""
    gc.collect()
    limit, bound = _native.memory_stats()["limit"], _native.num_threads()
    _native.empty_cache()
    yield _native
    _native.set_cache_limit(limit)
    _native.set_num_threads(bound)
    _native.empty_cache()


def arrays_of(result):
    return result if isinstance(result, tuple) else (result,)


def same(a, b):
    """Tell whether two results are the same bits."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(arrays_of(a), arrays_of(b), strict=True))


def resident_bytes():
    """Return the process's resident memory where the system tells, else 0."""
    path = pathlib.Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


# --- memory ------------------------------------------------------------------------------------------


def test_memory_does_not_grow_over_a_million_calls(pool, rng):
    """Results of 16 bytes to 1 KiB, some of 64 to 256 KiB, and calls that are refused or fail."""
    pool.set_cache_limit(MIB)
    pool.set_num_threads(1)
    x = rng.standard_normal((1024, 64)).astype(np.float32)
    foreign = x.astype(np.int32)
    calls = [pool.rms_norm, pool.layer_norm, pool.softmax, pool.logsumexp, pool.silu, pool.gelu]
    rows = [x[:1, :4], *(x[:n] for n in (1, 2, 3, 4))]
    large = [x[:n] for n in (256, 300, 511, 1024)]

    def ten_thousand():
        for i in range(10_000 // 30):
            for call in calls:
                for a in rows:
                    call(a)
            call = calls[i % len(calls)]
            call(large[i % 4] if i % 3 == 0 else rows[0])
            assert call(foreign) is NotImplemented
            with pytest.raises(TypeError):
                call()

    ten_thousand()
    gc.collect()
    start = pool.memory_stats()["in_use"]
    blocks, resident = sys.getallocatedblocks(), resident_bytes()
    references = [sys.getrefcount(a) for a in (x, *rows, *large)]
    for _ in range(100 if not SANITIZED else 5):
        ten_thousand()
        assert pool.memory_stats()["cached"] <= MIB
    gc.collect()
    assert pool.memory_stats()["in_use"] == start
    assert [sys.getrefcount(a) for a in (x, *rows, *large)] == references
    assert sys.getallocatedblocks() - blocks <= 1000
    if not SANITIZED:
        assert resident_bytes() - resident <= 4 * MIB


@pytest.mark.parametrize("name", COMPILED)
def test_no_call_keeps_its_arguments(name):
    for dtype in DTYPES:
        made = workload(name, 2, 64, dtype)
        operator = OPERATORS[name]
        operator(*made.args, **made.options)
        before = [sys.getrefcount(a) for a in made.args]
        descriptions = [sys.getrefcount(a.dtype) for a in made.args if isinstance(a, np.ndarray)]
        for _ in range(50):
            operator(*made.args, **made.options)
            operator.explain(*made.args, **made.options)
        assert [sys.getrefcount(a) for a in made.args] == before
        after = [sys.getrefcount(a.dtype) for a in made.args if isinstance(a, np.ndarray)]
        assert max(b - a for a, b in zip(descriptions, after, strict=True)) < 10


# --- threads -----------------------------------------------------------------------------------------


def test_all_kernels_from_many_threads_at_once(pool):
    """While another thread changes the bound of threads, the limit of the pool, and what it counts."""
    assert len(COMPILED) >= 13
    calls = []
    for name in COMPILED:
        for rows, dtype in ((3, "float32"), (256, "float32"), (128, "bfloat16")):
            made = workload(name, rows, 1024, dtype)
            operator = OPERATORS[name]
            if operator.explain(*made.args, **made.options).kernel == "cpu":
                calls.append((operator, made, operator(*made.args, **made.options)))
    assert {operator.__name__ for operator, _, _ in calls} == set(COMPILED)
    stop = threading.Event()

    def compute(seed):
        order = np.random.default_rng(seed // 8).permutation(len(calls))  # eight threads do the same at once
        for i in np.repeat(order, 4):
            operator, made, expected = calls[i]
            if not same(operator(*made.args, **made.options), expected):
                return f"{operator.__name__} gave other bits than alone"
        return ""

    def meddle():
        i = 0
        while not stop.wait(0.001):
            i += 1
            pool.set_num_threads(i % 4)
            pool.set_cache_limit(MIB if i % 2 else 64 * MIB)
            pool.reset_peak()
            pool.use_target(pool.target())
            if i % 8 == 0:
                pool.empty_cache()
            stats = pool.memory_stats()
            assert stats["peak"] >= 0
            assert stats["cached"] <= 64 * MIB

    with concurrent.futures.ThreadPoolExecutor(9) as threads:
        meddling = threads.submit(meddle)
        try:
            assert set(threads.map(compute, range(16), timeout=240)) == {""}
        finally:
            stop.set()
        meddling.result(60)


HOW_MANY = """
import os, sys
import numpy as np
import tensorops as tp
from tensorops.kernels.cpu import _native

def started():
    before = len(os.listdir("/proc/self/task"))
    y = tp.rms_norm(x)
    assert y.shape == x.shape
    return len(os.listdir("/proc/self/task")) - before

x = np.ones((4096, 1024), np.float32)
tp.rms_norm(x[:1])  # one row has nothing to share
assert tp.rms_norm.explain(x).kernel == "cpu"
"""


@lists_threads
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMP_NUM_THREADS": "1"}, 0),
        ({"OMP_NUM_THREADS": "3"}, 2),
        ({"OMP_NUM_THREADS": "4", "TENSOROPS_NUM_THREADS": "2"}, 1),
        ({"OMP_NUM_THREADS": "2", "TENSOROPS_NUM_THREADS": "5"}, 1),
        ({"OMP_THREAD_LIMIT": "2", "OMP_NUM_THREADS": "4"}, 1),
    ],
)
def test_the_environment_bounds_the_threads(environment, expected):
    result = support.python(HOW_MANY + "print(started(), started())", **environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(expected), "0"]  # they stay, and serve the next call


LIMITS = """
import threadpoolctl

openmp = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "openmp"]
print(*{one["num_threads"] for one in openmp})
for limit in (1, 2, 3):
    with threadpoolctl.threadpool_limits(limit, user_api="openmp"):
        print(started())
print(started())
"""


@lists_threads
def test_the_limits_of_threadpoolctl_are_kept():
    pytest.importorskip("threadpoolctl")
    result = support.python(HOW_MANY + LIMITS, OMP_NUM_THREADS="4")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["4", "0", "1", "1", "1"]  # each more than there are already


# --- fork --------------------------------------------------------------------------------------------

FORK = """
import multiprocessing, os, signal, sys, threading, time, warnings
import numpy as np
from tensorops._operator import OPERATORS
from tensorops.testing.workloads import workload

# Later Pythons warn of fork with threads; what is tested is that it works all the same.
warnings.simplefilter("ignore", DeprecationWarning)
calls = []
for name in sys.argv[1].split(","):
    made = workload(name, 256, 1024, "float32")
    if OPERATORS[name].explain(*made.args, **made.options).kernel != "cpu":
        continue  # what NumPy's own libraries do in a forked child is their affair
    calls.append((OPERATORS[name], made, OPERATORS[name](*made.args, **made.options)))  # on four threads
stop = threading.Event()


def compute():
    while not stop.is_set():
        for operator, made, _ in calls:
            operator(*made.args, **made.options)


def all_right():
    for operator, made, expected in calls:
        result = operator(*made.args, **made.options)
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (result, expected))):
            if a.tobytes() != b.tobytes():
                return operator.__name__
    return "right"


threads = [threading.Thread(target=compute) for _ in range(3)]
for thread in threads:
    thread.start()
context = multiprocessing.get_context("fork")
for _ in range(10):
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(all_right()))
    child.start()
    print(receiver.recv() if receiver.poll(60) else "no answer", flush=True)
    child.kill()
    child.join(60)
stop.set()
for thread in threads:
    thread.join(60)
print(all_right())
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_child_forked_while_other_threads_compute_computes_as_well():
    result = support.python(FORK, ",".join(COMPILED), OMP_NUM_THREADS="4")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["right"] * 11


# --- without a global lock ---------------------------------------------------------------------------


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has its global lock")
def test_the_module_does_not_bring_the_lock_back():
    result = support.python("import sys, numpy, tensorops.kernels.cpu; print(sys._is_gil_enabled())")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False"]
