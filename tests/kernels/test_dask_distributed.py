"""Operators on Dask arrays whose blocks two other processes compute: which kernels run there, under which settings,
when, and in how much memory."""

from __future__ import annotations

import os
import re
import time
from unittest import mock

import numpy as np
import pytest

import support
import tensorops as tp
from tensorops.testing import REFERENCES, assert_matches

support.require("dask")
distributed = pytest.importorskip("distributed", reason="distributed is not installed: pip install distributed")

import dask.array as da  # noqa: E402

LIMIT = 224 << 20
"""The memory of each of the two workers; one that has imported everything and computed nothing uses 90 MB."""
A = np.random.default_rng(3).standard_normal((24, 64)).astype(np.float32)
W = np.random.default_rng(4).standard_normal(64).astype(np.float32)
BLOCKS = 8

# Functions that workers run are nested in others: they are then pickled whole, as workers cannot import this file.


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": LIMIT, "dashboard_address": None}
    with mock.patch.dict(os.environ):  # in which Dask sets OMP_NUM_THREADS and others, also for programs of later tests
        made = distributed.LocalCluster(**options, env={"TENSOROPS_NUM_THREADS": "1"})
    with made, distributed.Client(made) as client:
        yield client


@pytest.fixture
def client(cluster):
    """A client of workers that record what they run on blocks."""

    def begin():
        from tensorops.backends.settings import Settings
        from tensorops.backends.trace import Trace
        from tensorops.kernels.dask import _launch

        _launch.original = activate = _launch.activate
        _launch.log, _launch.tuned = log, tuned = Trace(), set()

        def recording(settings):
            tuned.update(settings.tuned)
            return activate(Settings(settings.backend, settings.providers, log, settings.tuned))

        _launch.activate = recording

    def end():
        from tensorops.kernels.dask import _launch

        _launch.activate = _launch.original

    cluster.run(begin)
    yield cluster
    cluster.run(end)


def ran(client):
    """Return what each worker has run on blocks: operators, kernels and libraries, in no order."""

    def read():
        from tensorops.kernels.dask import _launch

        return [(r.operator, r.kernel, r.library) for r in _launch.log]

    return list(client.run(read).values())


def every(by_worker):
    return [record for records in by_worker for record in records]


def rows(a=A, seconds=0.0):
    """Return an array as blocks of rows, each of which takes so long that one worker cannot do all."""

    def slowly(block):
        time.sleep(seconds)
        return block

    x = da.from_array(a, chunks=(len(a) // BLOCKS, a.shape[1]))
    return x.map_blocks(slowly, meta=x._meta) if seconds else x


def test_workers_choose_the_kernels_for_their_blocks(client):
    support.require_provider("cpu")
    y = tp.rms_norm(rows(seconds=0.05), da.from_array(W)).compute()
    assert_matches(y, REFERENCES["rms_norm"](A, W), "float32", tolerance=8)
    by_worker = ran(client)
    assert all(by_worker), "both workers have computed blocks"
    assert every(by_worker) == [("rms_norm", "cpu", "numpy")] * BLOCKS


def test_nothing_is_computed_or_sent_before_it_is_asked_for(client):
    def steps(dask_scheduler):
        return dask_scheduler.transition_counter  # of all tasks, also of those that it has forgotten

    before = client.run_on_scheduler(steps)
    with tp.trace() as log:
        y = tp.logsumexp(tp.rms_norm(tp.silu(rows()), da.from_array(W)))
    names = ["silu", "rms_norm", "logsumexp"]
    assert [(r.operator, r.kernel, r.library) for r in log] == [(name, "dask", "dask") for name in names]
    assert client.run_on_scheduler(steps) == before
    assert ran(client) == [[], []]
    expected = REFERENCES["logsumexp"](REFERENCES["rms_norm"](REFERENCES["silu"](A), W))
    assert_matches(y.compute(), expected, "float32", tolerance=8)
    assert client.run_on_scheduler(steps) > before
    assert sorted(operator for operator, *_ in every(ran(client))) == sorted(names * BLOCKS)


def test_the_choice_at_the_building_of_a_graph_reaches_workers(client):
    support.require_provider("cpu")
    weight = da.from_array(W[None])
    with tp.set_backend("dask", providers=["dask", "generic"]):
        chosen = tp.silu(rows())
    with tp.tune("linear", "cpu", few_rows=2):
        tuned = tp.linear(rows(), weight)
    assert_matches(chosen.compute(), REFERENCES["silu"](A), "float32", tolerance=8)
    assert_matches(tuned.compute(), REFERENCES["linear"](A, W[None]), "float32", tolerance=64)

    def values():
        from tensorops.kernels.dask import _launch

        return [tuple(t) for t in _launch.tuned]

    assert {("silu", "generic", "numpy"), ("linear", "cpu", "numpy")} == set(every(ran(client)))
    assert set(every(client.run(values).values())) == {("linear", "cpu", "few_rows", 2)}


def test_neither_a_worker_s_default_nor_a_block_around_compute_changes_blocks(client):
    support.require_provider("cpu")
    client.run(tp.set_default_backend, "numpy")  # which has no kernels
    try:
        assert set(client.run(tp.get_backend).values()) == {"numpy"}
        y = tp.silu(rows())
        with tp.set_backend("dask", providers=["generic"]):
            y.compute()
    finally:
        client.run(tp.set_default_backend, None)
    assert every(ran(client)) == [("silu", "cpu", "numpy")] * BLOCKS


def test_trying_the_backend_does_not_wait_for_a_cluster(client):
    """Its workers may not have started yet."""
    assert tp.is_backend_available("dask", refresh=True)
    assert ran(client) == [[], []]


def test_functions_of_one_s_own_take_settings_along_if_bound(client):
    x = rows()

    def name(block):
        return np.full(block.shape, float(tp.get_backend() == "numpy"), np.float32)

    with tp.set_backend("numpy"):
        assert client.submit(tp.get_backend, pure=False).result() == "auto"
        assert client.submit(tp.bind_settings(tp.get_backend), pure=False).result() == "numpy"
        free, bound = (x.map_blocks(f, meta=x._meta) for f in (name, tp.bind_settings(name)))
    assert free.sum().compute() == 0.0
    assert bound.sum().compute() == A.size


def test_the_environment_of_workers_bounds_their_threads(client):
    support.require_provider("cpu")
    assert "TENSOROPS_NUM_THREADS" not in os.environ

    def most_threads():
        tp.silu(np.ones(3, np.float32))  # the compiled kernels are configured when they are first used
        from tensorops.kernels.cpu import _native

        return _native.num_threads()

    assert set(client.run(most_threads).values()) == {1}


@pytest.mark.exhaustive
def test_arrays_larger_than_the_memory_of_all_workers(client):
    """Each worker holds a few blocks at a time, and none is restarted."""
    support.require_provider("cpu")
    length, each, count = 4096, 512, 96  # blocks of 8 MiB
    v = np.linspace(-2, 3, length)

    def block(block_info):
        begin, end = block_info[None]["array-location"][0]
        return np.multiply.outer(1 + np.arange(begin, end) % 97, v).astype(np.float32)

    def process():
        from pathlib import Path

        return os.getpid(), 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])

    x = da.map_blocks(block, chunks=((each,) * count, (length,)), meta=np.empty((0, 0), np.float32))
    assert x.nbytes > 1.5 * 2 * LIMIT
    before = client.run(process)
    y = tp.rms_norm(x, eps=0.0)  # each row is a multiple of v
    error, sums = da.compute(abs(y - v / np.sqrt(np.mean(v * v))).max(), tp.softmax(y).sum(axis=1))
    after = client.run(process)
    assert error < 1e-6
    np.testing.assert_allclose(sums, np.ones(each * count), rtol=1e-5)
    assert {pid for pid, _ in before.values()} == {pid for pid, _ in after.values()}
    assert max(peak for _, peak in after.values()) < LIMIT
    assert sorted(every(ran(client))) == [("rms_norm", "cpu", "numpy")] * count + [("softmax", "cpu", "numpy")] * count
