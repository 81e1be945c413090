"""The memory pool of results: what is kept, what is released, and what its statistics report."""

import concurrent.futures
import gc
import weakref

import numpy as np
import pytest

import support
from support import resident_bytes

_native = support.require_native()


KIB, MIB = 1024, 1024 * 1024


def result_of(nbytes, fill=1.0):
    """Return a result of that many bytes whose elements are all near `fill`, in sign."""
    x = np.full((max(1, nbytes // (64 * 4)), 64), fill, np.float32)
    return _native.rms_norm(x)


def test_results_are_ordinary_arrays(pool):
    for nbytes in (KIB, 256 * KIB, 4 * MIB):
        y = result_of(nbytes)
        assert type(y) is np.ndarray
        assert y.flags.writeable
        assert y.flags.c_contiguous
        assert y.flags.aligned
        if nbytes >= 64 * KIB:
            assert y.ctypes.data % 64 == 0
        y += 1.0
        np.testing.assert_allclose(y, 2.0, rtol=1e-5)
        assert weakref.ref(y)() is y


def test_statistics_go_up_and_down(pool):
    start = pool.memory_stats()
    assert start["cached"] == 0
    y = result_of(MIB)
    up = pool.memory_stats()
    taken = up["in_use"] - start["in_use"]
    assert MIB <= taken <= 1.34 * MIB
    assert up["cached"] == 0
    view = y[3:].T
    del y
    assert pool.memory_stats()["in_use"] == up["in_use"]  # a view keeps its memory
    np.testing.assert_allclose(view, 1.0, rtol=1e-5)
    del view
    down = pool.memory_stats()
    assert down["in_use"] == start["in_use"]
    assert down["cached"] == taken
    again = result_of(MIB)
    assert pool.memory_stats()["cached"] == 0  # taken from what was kept
    del again
    pool.empty_cache()
    assert pool.memory_stats() | {"peak": start["peak"]} == start


def test_the_peak_is_the_highest_in_use(pool):
    pool.reset_peak()
    start = pool.memory_stats()
    assert start["peak"] == start["in_use"]
    first = result_of(MIB)
    second = result_of(2 * MIB)
    most = pool.memory_stats()["in_use"]
    assert most >= start["in_use"] + 3 * MIB
    del second
    third = result_of(256 * KIB)
    assert pool.memory_stats()["peak"] == most
    again = result_of(2 * MIB)  # from what was kept: it counts as well
    most = pool.memory_stats()["in_use"]
    assert pool.memory_stats()["peak"] == most
    del again, third
    pool.reset_peak()
    now = pool.memory_stats()
    assert now["peak"] == now["in_use"] < most
    del first
    assert pool.memory_stats()["peak"] == now["peak"]


def test_emptying_says_what_it_freed(pool):
    assert pool.empty_cache() == 0
    results = [result_of(MIB) for _ in range(3)]
    assert pool.empty_cache() == 0
    del results
    kept = pool.memory_stats()["cached"]
    assert kept >= 3 * MIB
    assert pool.empty_cache() == kept
    assert pool.memory_stats()["cached"] == 0


def test_memory_that_there_is_not_counts_nowhere(pool):
    pool.reset_peak()
    start = pool.memory_stats()
    too_large = np.broadcast_to(np.ones(1024, np.float32), (1 << 40, 1024))
    with pytest.raises(MemoryError):
        _native.rms_norm(too_large)
    assert pool.memory_stats() | {"peak": start["peak"]} == start


def test_small_results_are_not_the_pools_affair(pool):
    start = pool.memory_stats()
    y = result_of(32 * KIB)
    assert pool.memory_stats() | {"peak": start["peak"]} == start
    del y
    assert pool.memory_stats() | {"peak": start["peak"]} == start


def test_the_limit_bounds_what_is_kept(pool):
    results = [result_of(MIB) for _ in range(8)]
    del results
    assert pool.memory_stats()["cached"] >= 8 * MIB
    pool.set_cache_limit(3 * MIB)
    assert pool.memory_stats()["cached"] <= 3 * MIB
    assert pool.memory_stats()["limit"] == 3 * MIB
    results = [result_of(MIB) for _ in range(8)]
    del results
    assert 2 * MIB <= pool.memory_stats()["cached"] <= 3 * MIB
    too_large = result_of(4 * MIB)
    cached = pool.memory_stats()["cached"]
    del too_large
    assert pool.memory_stats()["cached"] == cached
    pool.set_cache_limit(0)
    y = result_of(MIB)
    del y
    assert pool.memory_stats()["cached"] == 0
    with pytest.raises(TypeError):
        pool.set_cache_limit(-1)


def test_results_keep_their_values_while_others_come_and_go(pool, rng):
    pool.set_cache_limit(16 * MIB)
    kept = []
    for i in range(400):
        y = result_of(int(rng.integers(64 * KIB, 1024 * KIB)), fill=1.0 if i % 2 else -1.0)
        if i % 5 == 0:
            y[...] = i
            kept.append((i, y))
        if i % 50 == 49:
            del kept[:: len(kept) // 2]
    assert len(kept) > 20
    for i, y in kept:
        assert (y == i).all()


def test_memory_is_bounded_over_many_calls(pool, rng):
    """30000 results of 64 to 120 KiB, every fiftieth up to 512 KiB, up to six of them alive at a time."""
    limit = 2 * MIB
    pool.set_cache_limit(limit)
    start = pool.memory_stats()["in_use"]
    rows = np.ones((2048, 64), np.float32)
    sizes = rng.integers(256, 480, 1000)
    sizes[::50] = rng.integers(480, 2049, 20)
    alive = [None] * 6
    worst = 0
    resident = resident_bytes()
    for i in range(30_000):
        alive[i % 6] = _native.rms_norm(rows[: sizes[i % 1000]])
        if i % 997 == 0:
            stats = pool.memory_stats()
            assert stats["cached"] <= limit
            worst = max(worst, stats["in_use"] - start)
    assert worst <= 6 * 1.34 * 512 * KIB
    assert resident_bytes() - resident <= 16 * MIB
    alive.clear()
    assert pool.memory_stats()["in_use"] == start


def test_the_pool_serves_many_threads(pool):
    pool.set_cache_limit(4 * MIB)

    def work(seed):
        rng = np.random.default_rng(seed)
        kept = []
        for i in range(200):
            y = result_of(int(rng.integers(64 * KIB, 256 * KIB)))
            y[...] = seed * 1000 + i
            kept.append((seed * 1000 + i, y))
            if len(kept) > 4:
                kept.pop(int(rng.integers(5)))
            if any((array != value).any() for value, array in kept):
                return False
        return True

    start = pool.memory_stats()["in_use"]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6), timeout=120))
    gc.collect()
    assert pool.memory_stats()["in_use"] == start
    assert pool.memory_stats()["cached"] <= 4 * MIB
