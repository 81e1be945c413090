"""The compiled module as a whole: memory over a million calls, many threads, fork, and how many threads compute.

Every operator that has a compiled kernel is called, with the arguments that the benchmarks give it. rms_norm alone, and
the pool by itself, are tested in `test_pool`; the bound of `configure` in `backends/test_options`.
"""

import concurrent.futures
import gc
import inspect
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import support
from support import resident_bytes
from tensorops._operator import OPERATORS
from tensorops.benchmarks.workloads import workload
from tensorops.testing import DTYPES

_native = support.require_native()
COMPILED = sorted(name for name, operator in OPERATORS.items() if "cpu" in operator.kernels)
lists_threads = pytest.mark.skipif(
    not pathlib.Path("/proc/self/task").exists(), reason="this system does not list threads"
)

HERE = pathlib.Path(__file__).parent
KIB, MIB = 1024, 1024 * 1024
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")  # which keeps what was freed for a while


def arrays_of(result):
    return result if isinstance(result, tuple) else (result,)


def same(a, b):
    """Tell whether two results are the same bits."""
    return all(x.tobytes() == y.tobytes() for x, y in zip(arrays_of(a), arrays_of(b), strict=True))


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


# --- sizes that no memory holds ----------------------------------------------------------------------


def wide(value, *shape):
    """An array of any size that takes the memory of one element."""
    return np.broadcast_to(value, shape)


HALF, BYTE = np.float16(1), np.uint8(1)
TOO_LARGE = {
    "add_rms_norm": lambda n: n.add_rms_norm(wide(HALF, 2**61, 1), wide(HALF, 2**61, 1)),
    "causal_conv1d": lambda n: n.causal_conv1d(wide(HALF, 2**61, 1, 1), np.ones((1, 1), np.float16)),
    "causal_conv1d with a large state": lambda n: n.causal_conv1d(
        wide(HALF, 2**40, 0, 2**10), wide(HALF, 2**10, 2**12).copy()
    ),
    "cross_entropy": lambda n: n.cross_entropy(wide(HALF, 2**61, 1), wide(np.int8(0), 2**61), reduction="none"),
    "dequantize": lambda n: n.dequantize(wide(BYTE, 2**60, 1), *[wide(HALF, 2**60, 1)] * 2, group_size=2),
    "embedding": lambda n: n.embedding(wide(np.int8(0), 2**62), np.ones((1, 2), np.float64)),
    "gated_delta_rule": lambda n: n.gated_delta_rule(*[wide(HALF, 1, 1, 2**60, 1)] * 3, *[wide(HALF, 1, 1, 2**60)] * 2),
    "gated_delta_rule with a large state": lambda n: n.gated_delta_rule(
        *[wide(np.ones(2**16, HALF.dtype), 2**30, 1, 1, 2**16)] * 3, *[wide(HALF, 2**30, 1, 1)] * 2
    ),
    "group_norm": lambda n: n.group_norm(wide(HALF, 2**61, 1), 1),
    "layer_norm": lambda n: n.layer_norm(wide(HALF, 2**61, 1)),
    "linear_cross_entropy": lambda n: n.linear_cross_entropy(
        wide(HALF, 2**61, 1), wide(HALF, 1, 1), wide(np.int8(0), 2**61), reduction="none"
    ),
    "linear": lambda n: n.linear(wide(HALF, 2**31, 1), wide(HALF, 2**31, 1)),
    "linear of 2**63 elements": lambda n: n.linear(wide(HALF, 2**32, 1), wide(HALF, 2**31, 1)),
    "linear of 2**64 elements": lambda n: n.linear(wide(HALF, 2**32, 1), wide(HALF, 2**32, 1)),
    "grouped_linear": lambda n: n.grouped_linear(wide(HALF, 2**61, 1), np.zeros(1, int), wide(HALF, 1, 1, 1)),
    "grouped_linear of many experts": lambda n: n.grouped_linear(
        wide(HALF, 2**61, 1), wide(np.int8(0), 2**61), wide(HALF, 1, 1, 1)
    ),
    "grouped_quantized_linear": lambda n: n.grouped_quantized_linear(
        wide(HALF, 2**61, 1), np.zeros(1, int), wide(BYTE, 1, 1, 1), *[wide(HALF, 1, 1, 1)] * 2, bits=8, group_size=1
    ),
    "moe": lambda n: n.moe(*[wide(HALF, 2**61, 1)] * 2, wide(HALF, 1, 2, 1), wide(HALF, 1, 1, 1), top_k=1),
    "logsumexp": lambda n: n.logsumexp(wide(HALF, 2**61, 1), axis=-1),
    "quantize": lambda n: n.quantize(wide(HALF, 2**61, 1), bits=8, group_size=1),
    "quantized_linear": lambda n: n.quantized_linear(
        wide(HALF, 2**32, 1), wide(BYTE, 2**32, 1), *[wide(HALF, 2**32, 1)] * 2, bits=8, group_size=1
    ),
    "rms_norm": lambda n: n.rms_norm(wide(HALF, 2**61, 1)),
    "rope": lambda n: n.rope(wide(np.ones(2, np.float16), 2**60, 1, 1, 2), wide(np.int8(0), 2**60, 1)),
    "rope with tables": lambda n: n.rope(
        wide(np.ones(2, np.float16), 2**60, 1, 1, 2), **dict.fromkeys(("cos", "sin"), wide(HALF, 2**60, 1, 1))
    ),
    "sample": lambda n: n.sample(wide(HALF, 2**60, 1), temperature=0.0),
    "top_k": lambda n: n.top_k(wide(HALF, 2**61, 1), 1),
    "linear_activation": lambda n: n.linear_activation(*[wide(HALF, 2**31, 1)] * 2, activation="gelu"),
    "sample with numbers": lambda n: n.sample(wide(HALF, 2**60, 1), rng=np.random.default_rng(0)),
    "scaled_dot_product_attention": lambda n: n.scaled_dot_product_attention(
        wide(1.0, 1, 1, 2**50, 1), np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 16384))
    ),
}


def of_equal_shapes(name):
    """Return a call with arrays of one shape for every argument that must be given."""
    count = sum(p.default is p.empty for p in inspect.signature(OPERATORS[name]).parameters.values())
    return lambda n: getattr(n, name)(*[wide(HALF, 2**61, 1)] * count)


TOO_LARGE |= {name: of_equal_shapes(name) for name in COMPILED if name not in TOO_LARGE}

ALL_TOO_LARGE = """
import test_robustness as this
from tensorops.kernels.cpu import _native

before = _native.memory_stats()["in_use"]
for name, call in this.TOO_LARGE.items():
    try:
        print(name, call(_native))
    except MemoryError:
        pass
assert _native.memory_stats()["in_use"] == before
"""


def test_results_that_no_memory_holds_are_an_error_at_once():
    """In a process of its own, with a limit of time: an endless loop would keep the interpreter."""
    result = support.python(ALL_TOO_LARGE, **support.only("numpy", folders=(HERE, HERE.parents[1])))
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


# --- Ctrl-C ------------------------------------------------------------------------------------------

LONG = """
import os, signal, sys, threading
import numpy as np
from tensorops.kernels.cpu import _native

threads, names = int(sys.argv[1]), sys.argv[2].split(",")
_native.set_num_threads(threads)
row = np.ones(1 << 14, np.float32)


def rows(count):
    return np.broadcast_to(row, (count, row.size))


def heads(count, length, value=1.0, dtype=np.float32):
    return np.broadcast_to(np.full(64, value, dtype), (1, count, length, 64))


def attention():
    return _native.scaled_dot_product_attention(heads(64, 1 << 15), heads(64, 1 << 22), heads(64, 1 << 22))


def one_long_item():
    keys = heads(64, 1 << 26, dtype=np.float64)
    return _native.scaled_dot_product_attention(heads(64, 140, dtype=np.float64), keys, keys)


def decode():
    return _native.scaled_dot_product_attention(heads(64, 1), heads(64, 1 << 28), heads(64, 1 << 28))


def beyond_the_range():
    q, k = heads(1, 1 << 13, 1e200, np.float64), heads(1, 1 << 15, 1e200, np.float64)
    return _native.scaled_dot_product_attention(q, k, k, softcap=1.0)


def linear():
    one = np.ones(1 << 16, np.float16)
    return _native.linear(np.broadcast_to(one, (1 << 14, one.size)), np.broadcast_to(one, (1 << 15, one.size)))


def quantized_linear():
    x, w, s = np.ones(1 << 16, np.float16), np.ones(1 << 15, np.uint8), np.ones(1 << 11, np.float16)
    w, s = np.broadcast_to(w, (1 << 15, w.size)), np.broadcast_to(s, (1 << 15, s.size))
    return _native.quantized_linear(np.broadcast_to(x, (1 << 14, x.size)), w, s, s, bits=4, group_size=32)


def logsumexp():
    return _native.logsumexp(rows(1 << 26), axis=-1)


def sample():
    return _native.sample(rows(1 << 26), rng=np.random.default_rng(0))


def top_k():
    return _native.top_k(rows(1 << 26), 1)


def add_rms_norm():
    return _native.add_rms_norm(rows(1 << 14), rows(1 << 14))


def cross_entropy():
    return _native.cross_entropy(rows(1 << 24), np.broadcast_to(np.int8(0), 1 << 24))


def dequantize():
    w = np.broadcast_to(np.zeros(1 << 13, np.uint8), (1 << 15, 1 << 13))
    s = np.broadcast_to(np.ones(1 << 9, np.float32), (1 << 15, 1 << 9))
    return _native.dequantize(w, s, s, bits=4, group_size=32)


def embedding():
    return _native.embedding(np.zeros(1 << 15, np.int8), row[None])


def gelu():
    return _native.gelu(rows(1 << 15))


def layer_norm():
    return _native.layer_norm(rows(1 << 15))


def quantize():
    return _native.quantize(rows(1 << 15), bits=4, group_size=32)


def rms_norm():
    return _native.rms_norm(rows(1 << 15))


def rope():
    return _native.rope(np.broadcast_to(row[:128], (1, 8, 1 << 19, 128)), np.arange(1 << 19))


def softmax():
    return _native.softmax(rows(1 << 15))


before = _native.memory_stats()["in_use"]
"""

INTERRUPTED = (
    LONG
    + """
x, ticks = np.ones((64, 4096), np.float32), []


def interrupt(stop):
    stop.wait(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    while not stop.wait(0.001):
        ticks.append(1)


for name in names:
    _native.set_num_threads(threads)
    stop = threading.Event()
    thread = threading.Thread(target=interrupt, args=(stop,))
    thread.start()
    try:
        globals()[name]()
    except KeyboardInterrupt:
        print(name)
    finally:
        stop.set()
        thread.join()
    assert _native.memory_stats()["in_use"] == before
    _native.set_num_threads(0)
    assert np.allclose(_native.rms_norm(x), 1)  # the threads are all there
"""
)

ENDLESS = [
    "attention",
    "one_long_item",
    "decode",
    "beyond_the_range",
    "cross_entropy",
    "linear",
    "quantized_linear",
    "logsumexp",
    "sample",
    "top_k",
]

has_signals = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system has no signals of a timer")


@has_signals
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_long_calls_are_interrupted(threads):
    """Each would take longer than the limit of time that the process has."""
    result = support.python(INTERRUPTED, str(threads), ",".join(ENDLESS), OMP_NUM_THREADS="3")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ENDLESS


SIGNALS = (
    LONG
    + """
handled = [0]


def handle(*_):
    handled[0] += 1


signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
most = 0
for _ in range(20):
    handled[0] = 0
    globals()[names[0]]()
    most = max(most, handled[0])
    if most > 1:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
print(most > 1)
"""
)

PARTS = ["add_rms_norm", "dequantize", "embedding", "gelu", "layer_norm", "quantize", "rms_norm", "rope", "softmax"]


@pytest.mark.exhaustive
@has_signals
@pytest.mark.parametrize("name", PARTS)
def test_signals_are_handled_during_a_long_call(name):
    """A signal during a call is handled once, after the call, however often it arrived."""
    result = support.python(SIGNALS, "0", name)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True"]


HANDLED = """
import os, signal, threading, time
import numpy as np
from tensorops.kernels.cpu import _native

seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(float(_native.rms_norm(np.ones((4096, 1024), np.float32))[0, 0])))
q = np.random.default_rng(0).standard_normal((1, 4, 4096, 64)).astype(np.float32)
alone = _native.scaled_dot_product_attention(q, q, q)
stop = threading.Event()


def send():
    # One at a time: a handler that takes longer than the pause would be interrupted by itself, again and again.
    while not stop.is_set():
        handled = len(seen)
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(seen) == handled and not stop.wait(0.01):
            pass


thread = threading.Thread(target=send, daemon=True)
thread.start()
while len(seen) < 3:
    assert np.array_equal(_native.scaled_dot_product_attention(q, q, q), alone)
stop.set()
thread.join()
assert set(seen) <= {1.0, np.float32(_native.rms_norm(np.ones((1, 1024), np.float32))[0, 0])}

# A thread that is not the main one leaves signals to it.
results = []
worker = threading.Thread(target=lambda: results.append(_native.scaled_dot_product_attention(q, q, q)))
worker.start()
try:
    os.kill(os.getpid(), signal.SIGINT)
    worker.join()
except KeyboardInterrupt:
    worker.join()
assert np.array_equal(results[0], alone)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no signals for programs")
def test_a_handler_that_raises_nothing_changes_no_result():
    result = support.python(HANDLED, OMP_NUM_THREADS="3")
    assert result.returncode == 0, result.stderr


def test_parts_of_a_long_call_are_the_whole(rng):
    """From the main thread long arrays go in parts; from another at once. The bits are the same."""
    x = rng.standard_normal((3, 700, 5000)).astype(np.float32)
    assert x.nbytes > 32 * MIB
    calls = [
        lambda: _native.silu(x),
        lambda: _native.silu(x[:, :, 1:]),
        lambda: _native.swiglu(x[:, 1:, 1:], x[:, :-1, :-1]),
        lambda: _native.softmax(x[:, ::-1]),
        lambda: _native.logsumexp(x.swapaxes(0, 1)),
        lambda: _native.rms_norm(x.swapaxes(0, 1)),
        lambda: _native.add_rms_norm(x.swapaxes(0, 1), x.reshape(700, 3, 5000)),
        lambda: _native.layer_norm(x[::-1]),
        lambda: _native.sample(x, rng=np.random.default_rng(0)),
        lambda: _native.sample(x, temperature=0.0),
        lambda: _native.top_k(x, 7)[1],
        lambda: _native.quantize(x.reshape(2100, 5000), bits=4, group_size=8),
        lambda: _native.dequantize(
            *_native.quantize(x.reshape(2100, 5000), bits=8, group_size=8), bits=8, group_size=8
        ),
        lambda: _native.embedding(np.arange(2100)[::-1].copy(), x.reshape(2100, 5000)),
        lambda: _native.rope(x.reshape(3, 7, 100, 5000), np.arange(100)),
    ]
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        for call in calls:
            here, there = call(), other.submit(call).result()
            assert here is not NotImplemented
            assert same(here, there)


# --- threads -----------------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.parametrize("seed", [0, 1])
def test_all_kernels_from_many_threads_at_once(pool, seed):
    """While another thread changes the bound of threads, the limit of the pool, and what it counts."""
    assert len(COMPILED) >= 13
    calls = []
    for name in COMPILED:
        for rows, dtype in ((3, "float32"), (256, "float32"), (128, "bfloat16")):
            made = workload(name, rows, 512, dtype)
            operator = OPERATORS[name]
            if operator.explain(*made.args, **made.options).kernel == "cpu":
                calls.append((operator, made, operator(*made.args, **made.options)))
    assert {operator.__name__ for operator, _, _ in calls} == set(COMPILED)
    stop = threading.Event()

    def compute(_):  # eight threads do the same at once
        for i in np.repeat(np.random.default_rng(seed).permutation(len(calls)), 4):
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
            assert set(threads.map(compute, range(8), timeout=240)) == {""}
        finally:
            stop.set()
        meddling.result(60)


HOW_MANY = """
import os, sys
import numpy as np
import tensorops as tp
from tensorops.kernels.cpu import _native, table

def started():
    before = len(os.listdir("/proc/self/task"))
    y = tp.rms_norm(x)
    assert y.shape == x.shape
    return len(os.listdir("/proc/self/task")) - before

_native.use_processors(0)  # else there are no more threads than processors
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


PROCESSORS = """
_native.use_processors(2)
print(started())
_native.use_processors(0)
print(started())
"""


@lists_threads
def test_there_are_no_more_threads_than_processors():
    result = support.python(HOW_MANY + PROCESSORS, OMP_NUM_THREADS="4")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1", "2"]


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
from tensorops.benchmarks.workloads import workload
from tensorops.kernels.cpu import _native, table

_native.use_processors(0)  # else there are no more threads than processors
# Later Pythons warn of fork with threads; what is tested is that it works all the same.
warnings.simplefilter("ignore", DeprecationWarning)
calls = []
for name in sys.argv[1].split(","):
    made = workload(name, 256, 512, "float32")
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
for _ in range(5):
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
    assert result.stdout.split() == ["right"] * 6


BESIDE_TORCH = {
    "torch computes before the first operator": ("torch.softmax(t, -1)", "tp.softmax(x)"),
    "tensorops is imported in the child": ("torch.softmax(t, -1)", "import tensorops; tensorops.softmax(x)"),
    "torch computes in the child": ("tp.softmax(x)", "torch.softmax(t, -1)"),
    "both compute in both": ("tp.softmax(x); torch.softmax(t, -1)", "torch.softmax(t, -1); tp.softmax(x)"),
}
IN_PARENT_AND_CHILD = """
import os, select, sys, warnings
import numpy as np
import torch

warnings.simplefilter("ignore", DeprecationWarning)
torch.set_num_threads(2)
in_parent, in_child = sys.argv[1:]
if "import" not in in_child:
    import tensorops as tp
x = np.random.default_rng(0).random((2048, 4096), dtype=np.float32)  # in several threads
t = torch.from_numpy(x)
exec(in_parent)
receiver, sender = os.pipe()
child = os.fork()
if child == 0:
    exec(in_child)
    os.write(sender, b"1")
    os._exit(0)
print("right" if select.select([receiver], [], [], 60)[0] else "no answer", flush=True)
os.kill(child, 9)
exec(in_parent)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("which", BESIDE_TORCH)
def test_a_forked_child_computes_beside_torch(which):
    """Both use OpenMP, whose threads are not in the child."""
    pytest.importorskip("torch")
    result = support.python(IN_PARENT_AND_CHILD, *BESIDE_TORCH[which], OMP_NUM_THREADS="2")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["right"]


# --- the end of a program, and of memory -------------------------------------------------------------

DAEMONS = """
import threading, time
import numpy as np
import tensorops as tp

x = np.ones((8, 4096), np.float32)


def compute():
    while True:
        tp.rms_norm(x)


for _ in range(3):
    threading.Thread(target=compute, daemon=True).start()
time.sleep(0.3)
"""


def test_a_program_ends_while_daemon_threads_compute():
    for _ in range(3):
        result = support.python(DAEMONS)
        assert (result.returncode, result.stderr) == (0, "")


FAILING_MALLOC = """
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
static atomic_long left = -1;
extern void *__libc_malloc(size_t), *__libc_memalign(size_t, size_t);
void fail_after(long count) { left = count; }
static int fails(size_t size) {
    return size >= 5000 && atomic_load(&left) >= 0 && (atomic_load(&left) == 0 || atomic_fetch_sub(&left, 1) <= 0);
}
void* malloc(size_t size) { return fails(size) ? 0 : __libc_malloc(size); }
int posix_memalign(void** place, size_t alignment, size_t size) {
    if (fails(size)) return ENOMEM;
    return (*place = __libc_memalign(alignment, size)) ? 0 : ENOMEM;
}
"""
LACKING = """
import ctypes, sys
import numpy as np
import tensorops as tp
from tensorops.benchmarks.workloads import workload

fail_after = ctypes.CDLL(sys.argv[1]).fail_after
fail_after.argtypes = [ctypes.c_long]
made = workload(sys.argv[2], 512, 512, "float32")
operator = getattr(tp, sys.argv[2])
operator(*made.args, **made.options)
told = 0
for count in range(6):
    tp.empty_cache()
    fail_after(count)
    try:
        operator(*made.args, **made.options)
    except MemoryError:
        told += 1
    fail_after(-1)
print(told)
"""


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs a C compiler on Linux")
@pytest.mark.parametrize("name", ["linear", "causal_conv1d", "linear_cross_entropy"])
def test_memory_that_a_thread_lacks_is_a_memory_error(name, tmp_path):
    (tmp_path / "failing.c").write_text(FAILING_MALLOC)
    library = str(tmp_path / "failing.so")
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", library, str(tmp_path / "failing.c")]
    subprocess.run(command, check=True)
    result = support.python(LACKING, library, name, LD_PRELOAD=library, OMP_NUM_THREADS="2")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 1


# --- without a global lock ---------------------------------------------------------------------------


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has its global lock")
def test_the_module_does_not_bring_the_lock_back():
    result = support.python("import sys, numpy, tensorops.kernels.cpu; print(sys._is_gil_enabled())")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False"]
