"""Settings under concurrency: threads, tasks, notebook cells, worker processes, and changes during a call.

The blocks and the default themselves are tested in test_scopes.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import json
import multiprocessing
import os
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops import _providers
from tensorops._providers import Provider
from tensorops.backends import config_file, probing

X = np.linspace(-2.0, 2.0, 24, dtype=np.float32).reshape(4, 6)
RMS_NORM = X / np.sqrt((X.astype(np.float64) ** 2).mean(axis=-1, keepdims=True) + 1e-6)

# What rms_norm of a NumPy array must report, by the backend in force.
RUNS = {
    "auto": ("cpu", "numpy", 0),
    "cpu": ("cpu", "numpy", 0),
    "numpy": ("generic", "numpy", 0),
    "array_api_strict": ("generic", "array_api_strict", 2),
}


@pytest.fixture(autouse=True)
def default(monkeypatch):
    """Run every test without a configuration file or a chosen backend, and restore the settings afterwards."""
    support.require_provider("cpu")
    support.require("array_api_strict")
    for name in RUNS:
        tp.set_default_backend(name)  # probes it now, so no test waits for that
    tp.set_default_backend(None)
    yield monkeypatch
    monkeypatch.undo()
    tp.set_default_backend(None)
    tp.reload_config()
    assert tp.get_backend() == "auto"


@pytest.fixture
def marked():
    """An operator whose result shows what ran without a trace: x + 2 is its kernel's, x + 1 its body's."""

    def which(x: Array) -> Array:  # noqa: F821 - annotations are read as they are written
        return x + 1

    with support.temporary_operator(which) as made:
        made.kernel("cpu", supports=lambda x: None, declines=True)(lambda x: x + 2)
        yield made


def ran(x, result):
    """Return which of them ran."""
    assert type(result) is np.ndarray
    (added,) = np.unique(result - x)
    return {1: "generic", 2: "cpu"}[added]


def traced():
    """Compute once and check the result; return the backend in force and what the record says."""
    with tp.trace() as log:
        name = tp.get_backend()
        result = tp.rms_norm(X)
    (record,) = log
    assert type(result) is np.ndarray
    np.testing.assert_allclose(result, RMS_NORM, rtol=1e-6)
    return name, (record.kernel, record.library, len(record.transfers))


def explained():
    """Return the same, as reported by `explain`."""
    found = tp.rms_norm.explain(X)
    return found.backend, (found.kernel, found.library, 2 * len(found.transfers))


def check_everything_says(name, marked):
    """Assert that every way to ask reports `name` as the backend in force."""
    assert tp.get_backend() == name
    assert traced() == (name, RUNS[name])
    assert explained() == (name, RUNS[name])
    zero = np.zeros(3)
    for _ in range(3):  # from the second call on, a kept plan is used
        assert ran(zero, marked(zero)) == RUNS[name][0]


# --- threads -----------------------------------------------------------------------------------------


def test_a_default_holds_in_threads_that_run_already(marked):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check_everything_says, "auto", marked).result(60)
        for name in (*RUNS, "numpy", "cpu"):
            tp.set_default_backend(name)
            pool.submit(check_everything_says, name, marked).result(60)
            check_everything_says(name, marked)


def test_a_default_changes_nothing_within_blocks_and_bound_functions(marked):
    changed = threading.Event()

    def within_a_block():
        with tp.set_backend("numpy"):
            check_everything_says("numpy", marked)
            assert changed.wait(60)
            check_everything_says("numpy", marked)
        check_everything_says("array_api_strict", marked)

    def wait_and_check(name):
        assert changed.wait(60)
        check_everything_says(name, marked)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(within_a_block), pool.submit(tp.bind_settings(wait_and_check), "auto")]
        with tp.set_backend("cpu"):
            running.append(pool.submit(tp.bind_settings(wait_and_check), "cpu"))
        tp.set_default_backend("array_api_strict")
        changed.set()
        for future in running:
            future.result(60)


def _choose(name):
    tp.set_default_backend(name)


def _configure(name):
    os.environ["TENSOROPS_BACKEND"] = name
    tp.reload_config()


CHANGES = pytest.mark.parametrize("change", [_choose, _configure], ids=["set_default_backend", "reload_config"])


@contextlib.contextmanager
def call_in_progress(where, x):
    """An operator, a thread's call that has begun, and a function that resumes the call and returns its future."""
    begun, go_on = threading.Event(), threading.Event()

    def wait_once(here):
        if here == where and not begun.is_set():
            begun.set()
            assert go_on.wait(60)

    def which(x: Array) -> Array:  # noqa: F821
        wait_once("body")
        return x + 1

    def supports(x):
        wait_once("supports")

    def kernel(x):
        wait_once("kernel")
        return x + 2

    def finish():
        go_on.set()
        return call.result(60)

    with support.temporary_operator(which) as made, ThreadPoolExecutor(1) as pool:
        made.kernel("cpu", supports=supports, declines=True)(kernel)
        call = pool.submit(made, x)
        try:
            assert begun.wait(60)
            yield made, finish, pool
        finally:
            go_on.set()


@CHANGES
@pytest.mark.parametrize("where", ["supports", "kernel"])
def test_a_plan_of_a_call_that_began_before_a_change_serves_no_call_after_it(change, where, default):
    default.setenv("TENSOROPS_BACKEND", "cpu")
    change("cpu")
    with call_in_progress(where, X) as (operator, finish, pool):
        change("numpy")
        np.testing.assert_array_equal(operator(X), X + 1)
        np.testing.assert_array_equal(finish(), X + 2)  # with the settings it began with
        assert operator.explain(X).kernel == "generic"
        for _ in range(3):
            np.testing.assert_array_equal(operator(X), X + 1)
            np.testing.assert_array_equal(pool.submit(operator, X).result(60), X + 1)
        change("cpu")
        assert operator.explain(X).kernel == "cpu"
        np.testing.assert_array_equal(operator(X), X + 2)
        np.testing.assert_array_equal(pool.submit(operator, X).result(60), X + 2)


@CHANGES
@pytest.mark.parametrize("name", ["numpy", "array_api_strict"])
def test_a_call_that_began_under_the_old_default_ends_under_it(change, name, default):
    default.setenv("TENSOROPS_BACKEND", name)
    change(name)
    with call_in_progress("body", X) as (operator, finish, pool):
        change("cpu")
        np.testing.assert_array_equal(operator(X), X + 2)
        result = finish()
        assert type(result) is np.ndarray  # transferred back from where it was computed
        np.testing.assert_array_equal(result, X + 1)
        np.testing.assert_array_equal(pool.submit(operator, X).result(60), X + 2)


def test_a_trace_that_began_under_the_old_default_ends_under_it(marked):
    tp.set_default_backend("numpy")
    with tp.trace() as log:
        tp.set_default_backend("cpu")
        assert tp.get_backend() == "numpy"
        assert ran(np.zeros(3), marked(np.zeros(3))) == "generic"
    assert [r.kernel for r in log] == ["generic"]
    check_everything_says("cpu", marked)


# --- changes while others compute --------------------------------------------------------------------

SECONDS = 1.2


class Crowd:
    """Threads that compute while others change settings; the first error of any ends the test."""

    def __init__(self):
        self.stop = threading.Event()
        self.seen = collections.Counter()
        self.switching = sys.getswitchinterval()

    def repeat(self, work):
        """Repeat some work; count the results that it returns."""
        counts = collections.Counter()
        try:
            while not self.stop.is_set():
                counts[work()] += 1
        finally:
            self.stop.set()
        return counts

    def run(self, *work):
        sys.setswitchinterval(1e-5)  # so threads interrupt each other mid-operation
        try:
            with ThreadPoolExecutor(len(work)) as pool:
                futures = [pool.submit(self.repeat, w) for w in work]
                self.stop.wait(SECONDS)
                self.stop.set()
                return [future.result(60) for future in futures]
        finally:
            sys.setswitchinterval(self.switching)


def assert_each_is_one_setting(counts, names):
    """Assert that every call matches exactly one of the backends, and that several of them were seen."""
    for name, what in counts:
        assert name in names
        assert what == RUNS[name]
    assert len(counts) > 1, "nothing changed while this thread computed"


@pytest.mark.parametrize("look", [traced, explained])
def test_every_call_runs_under_exactly_one_of_the_settings(look, default, tmp_path, marked):
    path = tmp_path / "config.json"
    path.write_text('{"preferred_backend": "numpy"}')
    default.setenv("TENSOROPS_CONFIG", str(path))
    tp.reload_config()

    def write_and_reload():
        name = random.choice(list(RUNS))
        config_file.write_file(path, config_file.Configuration(preferred_backend=name))
        tp.reload_config()

    def choose():
        tp.set_default_backend(random.choice([*RUNS, None, None]))

    def choose_in_a_block():
        name = random.choice(list(RUNS)[1:])
        with tp.set_backend(name):
            assert look() == (name, RUNS[name])

    computed, _, _, _, _ = Crowd().run(look, look, write_and_reload, choose, choose_in_a_block)
    assert_each_is_one_setting(computed, RUNS)

    for name in ("cpu", "numpy", "array_api_strict", "auto"):
        tp.set_default_backend(name)
        with ThreadPoolExecutor(3) as pool:
            for future in [pool.submit(check_everything_says, name, marked) for _ in range(3)]:
                future.result(60)
    tp.set_default_backend(None)
    check_everything_says(json.loads(path.read_text())["preferred_backend"], marked)


def test_plans_are_those_of_one_of_the_settings(marked):
    """Without a trace, as only then a call goes by its plan; and each thread's own choice is never another's."""
    zero = np.zeros(5)

    def compute():
        return ran(zero, marked(zero))

    def compute_within(name):
        with tp.set_backend(name):
            assert {ran(zero, marked(zero)) for _ in range(5)} == {RUNS[name][0]}

    counts = Crowd().run(
        compute,
        compute,
        lambda: compute_within("numpy"),
        lambda: compute_within("cpu"),
        lambda: tp.set_default_backend(random.choice([*RUNS, None])),
        lambda: tp.reload_config(),
    )
    for each in counts[:2]:
        assert set(each) == {"generic", "cpu"}
    for name in ("cpu", "numpy", "cpu", "auto", "array_api_strict"):
        tp.set_default_backend(name)
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(check_everything_says, name, marked) for _ in range(2)]:
                future.result(60)


def test_the_default_that_many_threads_ask_for_first_is_found_once(default, marked):
    default.setenv("TENSOROPS_BACKEND", "numpy")
    for _ in range(20):
        tp.reload_config()  # this default has not been used yet
        together = threading.Barrier(4, timeout=60)

        def ask(together=together):
            together.wait()
            return tp.get_backend(), traced(), tp.get_default_backend()

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(ask) for _ in range(4)]
            assert {f.result(60) for f in futures} == {("numpy", ("numpy", RUNS["numpy"]), "numpy")}


def test_of_two_threads_that_reload_the_one_that_read_later_decides(default):
    default.setenv("TENSOROPS_BACKEND", "cpu")
    has_read, other_is_done = threading.Event(), threading.Event()
    read = config_file.read

    def read_slowly():
        found = read()
        if not has_read.is_set():
            has_read.set()
            other_is_done.wait(1)
        return found

    default.setattr(config_file, "read", read_slowly)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(tp.reload_config)
        assert has_read.wait(60)
        os.environ["TENSOROPS_BACKEND"] = "numpy"
        tp.reload_config()
        other_is_done.set()
        slow.result(60)
    assert tp.get_backend() == "numpy"


BROKEN = """
import time
import {counter} as counter

counter.attempts += 1
counter.begun.set()
time.sleep(0.3)  # long enough for another thread to wait for this import
raise ImportError("attempt %d" % counter.attempts)
"""


def test_of_a_provider_that_cannot_be_loaded_all_threads_learn_the_first_reason(default, tmp_path):
    default.syspath_prepend(tmp_path)
    (tmp_path / "counter_of_attempts.py").write_text("import threading\nattempts, begun = 0, threading.Event()\n")
    (tmp_path / "broken_provider.py").write_text(BROKEN.format(counter="counter_of_attempts"))
    import counter_of_attempts

    default.setitem(_providers.PROVIDERS, "broken", Provider("broken", (), "broken_provider", "for tests"))
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(_providers.load, "broken")
            assert counter_of_attempts.begun.wait(60)
            second = pool.submit(_providers.load, "broken")
            assert first.result(60) == "attempt 1"
            assert second.result(60) == "attempt 1"
        assert _providers.load("broken") == "attempt 1"
    finally:
        _providers._reasons.pop("broken", None)
        del sys.modules["counter_of_attempts"]


def test_backends_may_be_tried_while_others_are_forgotten():
    names = [f"made_up_{i}" for i in range(50)]

    def try_them():
        for name in names:
            probing._probes[name] = probing.Probe("refused", misconfigured=True)
        for name in names:
            probing._probes.pop(name, None)

    try:
        Crowd().run(try_them, probing.forget_misconfigured, probing.forget_misconfigured)
    finally:
        for name in names:
            probing._probes.pop(name, None)


# --- tasks -------------------------------------------------------------------------------------------


def test_tasks_see_a_new_default_at_once_and_keep_their_blocks():
    async def plain(meet):
        seen = [tp.get_backend()]
        await meet.wait()
        await meet.wait()
        return [*seen, tp.get_backend()]

    async def within_a_block(meet):
        with tp.set_backend("array_api_strict"):
            return await plain(meet)

    async def main():
        meet = asyncio.Barrier(3)
        tasks = [asyncio.create_task(plain(meet)), asyncio.create_task(within_a_block(meet))]
        await meet.wait()
        tp.set_default_backend("numpy")
        await meet.wait()
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [["auto", "numpy"], ["array_api_strict", "array_api_strict"]]


def test_asyncio_carries_settings_to_threads_as_its_own_rules_say():
    async def main():
        loop = asyncio.get_running_loop()
        with tp.set_backend("numpy"):
            return [
                await asyncio.to_thread(traced),  # copies the context
                await loop.run_in_executor(None, traced),  # does not
                await loop.run_in_executor(None, tp.bind_settings(traced)),
            ]

    numpy, auto = ("numpy", RUNS["numpy"]), ("auto", RUNS["auto"])
    assert asyncio.run(main()) == [numpy, auto, numpy]


def test_tasks_that_wait_in_turn_within_one_block_object():
    block = tp.set_backend("numpy")

    async def work(delays):
        seen = []
        for delay in delays:
            with block:
                await asyncio.sleep(delay)
                seen.append(tp.get_backend())
            await asyncio.sleep(delay)
            seen.append(tp.get_backend())
        return seen

    async def main():
        return await asyncio.gather(work([0, 0.01, 0]), work([0.01, 0, 0.005]), work([0.002] * 3))

    assert asyncio.run(main()) == [["numpy", "auto"] * 3] * 3
    assert tp.get_backend() == "auto"


# --- cells: a block entered in one and left in another -----------------------------------------------


def leave(block):
    block.__exit__(None, None, None)


def test_cells_in_one_context():
    shell = contextvars.copy_context()
    block = tp.set_backend("numpy")
    shell.run(block.__enter__)
    assert shell.run(traced) == ("numpy", RUNS["numpy"])
    shell.run(leave, block)
    assert shell.run(traced) == ("auto", RUNS["auto"])


@pytest.mark.parametrize("context", [contextvars.copy_context, contextvars.Context], ids=["copies", "fresh"])
def test_cells_in_contexts_of_their_own(context):
    block, inner = tp.set_backend("numpy"), tp.set_backend("array_api_strict")
    entered = context()
    entered.run(block.__enter__)
    assert entered.run(tp.get_backend) == "numpy"
    for _ in range(2):  # it was never entered there, and a cell may run again
        cell = context()
        cell.run(leave, block)
        assert cell.run(traced) == ("auto", RUNS["auto"])

    def nested():
        with inner:
            leave(block)
            assert tp.get_backend() == "array_api_strict"
        return tp.get_backend()

    assert context().run(nested) == "auto"
    assert tp.get_backend() == "auto"


def test_a_default_holds_in_all_cells():
    contextvars.copy_context().run(tp.set_default_backend, "numpy")
    for cell in (contextvars.copy_context(), contextvars.Context()):
        assert cell.run(traced) == ("numpy", RUNS["numpy"])
    contextvars.Context().run(tp.set_default_backend, None)
    assert traced() == ("auto", RUNS["auto"])


def test_a_block_left_in_a_copy_of_the_context_it_was_entered_in():
    outer, block = tp.set_backend("array_api_strict"), tp.set_backend("numpy")
    original = contextvars.copy_context()
    original.run(outer.__enter__)
    original.run(block.__enter__)
    copied = original.copy()
    assert copied.run(tp.get_backend) == "numpy"
    copied.run(leave, block)
    assert copied.run(tp.get_backend) == "array_api_strict"
    copied.run(leave, outer)
    assert copied.run(tp.get_backend) == "auto"
    assert original.run(tp.get_backend) == "numpy"  # where it has not been left
    original.run(leave, block)
    original.run(leave, outer)
    assert original.run(tp.get_backend) == "auto"


def test_a_block_left_where_it_was_entered_and_in_a_copy():
    block = tp.set_backend("numpy")
    original = contextvars.copy_context()
    original.run(block.__enter__)
    copied = original.copy()
    original.run(leave, block)
    assert original.run(tp.get_backend) == "auto"
    copied.run(leave, block)
    assert copied.run(tp.get_backend) == "auto"


@pytest.mark.parametrize("copied", [False, True])
def test_a_trace_left_in_another_context_than_it_was_entered_in(copied):
    block = tp.trace()
    first = contextvars.copy_context()
    log = first.run(block.__enter__)
    first.run(tp.silu, X)
    last = first.copy() if copied else contextvars.copy_context()
    last.run(block.__exit__, None, None, None)
    last.run(tp.relu, X)
    assert [r.operator for r in log] == ["silu"]


def test_blocks_leave_nothing_behind_in_their_context():
    def enter_many(count):
        before = len(contextvars.copy_context())
        for _ in range(count):
            with tp.set_backend("numpy"):
                pass
        return len(contextvars.copy_context()) - before

    assert contextvars.Context().run(enter_many, 50) <= 2


CELLS = """
import asyncio, contextvars, os
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
shell.run_cell("import numpy as np, tensorops as tp; block = tp.set_backend('numpy'); seen = []; x = np.ones((2, 4))")
cells = [
    "_ = block.__enter__(); seen.append(tp.get_backend())",
    "seen.append(tp.rms_norm.explain(x).backend)",
    "block.__exit__(None, None, None); seen.append(tp.get_backend())",
    "seen.append(tp.rms_norm.explain(x).backend)",
    "tp.set_default_backend('numpy')",
    "seen.append(tp.rms_norm.explain(x).backend)",
    "with tp.set_backend('cpu', fallback=['array_api_strict']):\\n    seen.append(tp.get_backend() != 'numpy')",
    "seen.append(tp.get_backend()); tp.set_default_backend(None)",
    "seen.append(tp.get_backend())",
]


async def in_tasks():
    return [await asyncio.create_task(shell.run_cell_async(cell, transformed_cell=cell)) for cell in cells]


def say(way, results):
    assert all(result.success for result in results), [r.error_in_exec or r.error_before_exec for r in results]
    print(way, *shell.user_ns["seen"])
    shell.user_ns["seen"].clear()


say("together", [shell.run_cell(cell) for cell in cells])
say("copies", [contextvars.copy_context().run(shell.run_cell, cell) for cell in cells])
say("fresh", [contextvars.Context().run(shell.run_cell, cell) for cell in cells])
say("tasks", asyncio.run(in_tasks()))
"""


def test_an_interactive_shell(tmp_path):
    pytest.importorskip("IPython")
    result = support.python(CELLS, IPYTHONDIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "together numpy numpy auto auto numpy True numpy auto",
        "copies numpy auto auto auto numpy True numpy auto",
        "fresh numpy auto auto auto numpy True numpy auto",
        "tasks numpy auto auto auto numpy True numpy auto",
    ]


# --- joblib and process pools ------------------------------------------------------------------------

JOBLIB = """
import sys
import joblib
import numpy as np
import tensorops as tp

x = np.ones((2, 4), dtype=np.float32)


def ran(x):
    with tp.trace() as log:
        tp.rms_norm(x)
    return log[0].kernel


def main(backend):
    with tp.set_backend("numpy"):
        functions = [tp.get_backend, tp.bind_settings(tp.get_backend), tp.bind_settings(tp.rms_norm.explain)]
        arguments = [(), (), (x,)]
    with tp.set_backend("cpu"):
        functions.append(tp.bind_settings(ran))
        arguments.append((x,))
    with tp.set_backend("array_api_strict"), joblib.Parallel(n_jobs=2, backend=backend) as parallel:
        for answer in parallel(joblib.delayed(f)(*a) for f, a in zip(functions * 3, arguments * 3)):
            print(answer)
        print(tp.get_backend())
    if backend == "loky":
        choose = {"initializer": tp.set_default_backend, "initargs": ("numpy",)}
        with joblib.parallel_config(backend, **choose):
            print(joblib.Parallel(n_jobs=2)(joblib.delayed(f)(*a) for f, a in [(tp.get_backend, ()), (ran, (x,))]))
    else:
        tp.set_default_backend("numpy")
        print(joblib.Parallel(n_jobs=2, backend=backend)([joblib.delayed(tp.get_backend)(), joblib.delayed(ran)(x)]))


main(sys.argv[1])
"""


@pytest.mark.costly
@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_joblib_workers(backend):
    pytest.importorskip("joblib")
    result = support.python(JOBLIB, backend)
    assert result.returncode == 0, result.stderr
    once = ["auto", "numpy", "rms_norm: generic on numpy (backend numpy)", "cpu"]
    assert result.stdout.splitlines() == [*once * 3, "array_api_strict", "['numpy', 'generic']"]


POOL = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import tensorops as tp


def compute():
    x = np.linspace(1, 2, 1 << 21, dtype=np.float32).reshape(512, 4096)
    with tp.trace() as log:
        y = tp.rms_norm(x)
    return tp.get_backend(), log[0].kernel, float(abs(y * y).mean(dtype=np.float64)).__round__(3)


if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    tp.set_default_backend("cpu")
    print(*compute())  # starts the threads of the kernels, which no child inherits
    with ProcessPoolExecutor(1, context) as pool:
        print(*pool.submit(compute).result(120))
        print(*pool.submit(tp.bind_settings(compute)).result(120))
    with ProcessPoolExecutor(1, context, initializer=tp.set_default_backend, initargs=("numpy",)) as pool:
        print(*pool.submit(compute).result(120))
        with tp.set_backend("array_api_strict"):
            print(*pool.submit(compute).result(120))
            print(*pool.submit(tp.bind_settings(compute)).result(120))
        print(*pool.submit(compute).result(120))
    print(tp.get_backend())
"""


@pytest.mark.costly
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_process_pools(method, tmp_path):
    script = tmp_path / "pool.py"  # a file, because its functions must be importable by name
    script.write_text(POOL)
    result = support.python(f"import runpy, sys; runpy.run_path({str(script)!r}, run_name='__main__')", method)
    assert result.returncode == 0, result.stderr
    # What set_default_backend chose goes along only where the whole process is copied.
    inherited = "cpu" if method == "fork" else "auto"
    assert result.stdout.splitlines() == [
        "cpu cpu 1.0",
        f"{inherited} cpu 1.0",
        "cpu cpu 1.0",
        "numpy generic 1.0",
        "numpy generic 1.0",
        "array_api_strict generic 1.0",
        "numpy generic 1.0",
        "cpu",
    ]


FORK = """
import os, signal, sys, threading, warnings
import tensorops as tp
from tensorops.backends import LIBRARIES

warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads about, which is the point here
trying, go_on = threading.Event(), threading.Event()
row = LIBRARIES["array_api_strict"]
from_numpy = row.from_numpy


def slow(*arguments):
    trying.set()
    go_on.wait(60)
    return from_numpy(*arguments)


object.__setattr__(row, "from_numpy", slow)
thread = threading.Thread(target=tp.set_default_backend, args=("array_api_strict",))
thread.start()
trying.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(2)  # ends a child that waits for a thread it does not have
    tp.set_default_backend("numpy")
    os._exit(0 if tp.get_backend() == "numpy" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
thread.join(60)
print(tp.get_backend())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_process_forked_while_another_thread_chooses_may_choose():
    result = support.python(FORK)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["0", "array_api_strict"]
