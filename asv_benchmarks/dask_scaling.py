"""Weak scaling over Dask's worker processes: the time of a kernel per block with one, and with two and twice the data.

    python -m asv_benchmarks.dask_scaling [SECONDS] [MEBIBYTES ...]

starts a cluster of two processes on this machine, each with one thread, and gives each the same number of blocks. One
of them computes its blocks alone, then both compute theirs at the same time, and so on. What is timed is the call of
the operator on a block, in the worker; a copy of the same bytes shows how much of a loss is the memory's. `linear` has
128 outputs: it computes more than it moves.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np

import tensorops

# Dask is imported in functions, as asv imports every file of this folder.
BLOCKS = 6  # of each worker
COLUMNS = 1024
OUTPUTS = 128
OPERATORS = {
    "linear": lambda x, weight: tensorops.linear(x, weight),
    "rms_norm": lambda x, weight: tensorops.rms_norm(x, weight[0]),
    "softmax": lambda x, weight: tensorops.softmax(x),
    "silu": lambda x, weight: tensorops.silu(x),
    "gelu": lambda x, weight: tensorops.gelu(x),
}
COPY = "copy"


def watch() -> None:
    """Note in this worker how long each call of an operator on a block takes, and by which kernels."""
    from tensorops.kernels.dask._launch import Task

    run = Task.__call__

    def timed(task: Task, *blocks: Any) -> Any:
        begun = time.perf_counter()
        result = run(task, *blocks)
        Task.seconds.append(time.perf_counter() - begun)  # type: ignore[attr-defined]
        return result

    Task.__call__ = timed  # type: ignore[method-assign]
    Task.seconds = []  # type: ignore[attr-defined]


def taken() -> list[float]:
    """Return what `watch` has noted in this worker, and forget it."""
    from tensorops.kernels.dask._launch import Task

    seconds, Task.seconds = Task.seconds, []  # type: ignore[attr-defined]
    return seconds  # type: ignore[no-any-return]


def copied(block: Any) -> Any:
    """Copy a block to memory that was written before, note the time, and return an array of one element."""
    from tensorops.kernels.dask._launch import Task

    if getattr(Task, "memory", np.empty(0)).shape != block.shape:
        Task.memory = np.zeros_like(block)  # type: ignore[attr-defined]
    begun = time.perf_counter()
    np.copyto(Task.memory, block)  # type: ignore[attr-defined]
    Task.seconds.append(time.perf_counter() - begun)  # type: ignore[attr-defined]
    return block[:1, :1]


def work(name: str, x: Any, weight: Any) -> Any:
    """Return an array whose computation runs an operator on every block of `x`, and keeps nothing of the results."""
    few = {"chunks": ((1,) * x.numblocks[0], (1,)), "dtype": x.dtype, "meta": x._meta}
    if name == COPY:
        return x.map_blocks(copied, **few)
    return OPERATORS[name](x, weight).map_blocks(lambda block: block[:1, :1].copy(), **few)


@contextmanager
def two_workers() -> Iterator[Any]:
    """Start two workers, record there what they compute, and return their client."""
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": "2GiB", "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        client.run(watch)
        yield client


def measure(client: Any, name: str, mebibytes: int, seconds: float) -> tuple[float, float]:
    """Return the median time per block with one worker and with two."""
    import dask.array as da
    from distributed import wait

    rows = mebibytes * (1 << 20) // (4 * COLUMNS)
    workers = list(client.scheduler_info()["workers"])

    def blocks(seed: int) -> Any:
        a = da.random.default_rng(seed).standard_normal(
            (rows * BLOCKS, COLUMNS), chunks=(rows, COLUMNS), dtype=np.float32
        )
        return client.persist(a, workers=[workers[seed]])

    parts = [blocks(i) for i in range(2)]
    wait(parts)
    weight = da.from_array(np.ones((OUTPUTS, COLUMNS), np.float32))

    def once(count: int) -> list[float]:
        futures = [client.compute(work(name, parts[i], weight), workers=[workers[i]]) for i in range(count)]
        wait(futures)
        return [each for times in client.run(taken).values() for each in times]

    times: dict[int, list[float]] = {1: [], 2: []}
    once(2)  # loads the kernels, and touches the memory
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for count in times:
            found = once(count)
            assert len(found) == count * BLOCKS
            times[count] += found
    return median(times[1]), median(times[2])


def report(seconds: float, sizes: list[int], say: Callable[[str], object]) -> None:
    """Measure every operator, each for so long."""
    import dask

    say(f"{platform.machine()}, {os.cpu_count()} processors; dask {dask.__version__}, numpy {np.__version__}")
    say(f"float32, rows of {COLUMNS}; {BLOCKS} blocks for each worker; the median time of a call on one block")
    say(f"{'operator':12}{'MiB':>5}{'one worker':>12}{'GB/s':>8}{'two workers':>14}{'GB/s both':>11}{'scaling':>9}")
    with two_workers() as client:
        for mebibytes in sizes:
            for name in (*OPERATORS, COPY):
                one, two = measure(client, name, mebibytes, seconds)
                moved = (1 + (OUTPUTS / COLUMNS if name == "linear" else 1)) * mebibytes * (1 << 20) / 1e9
                speeds = f"{one * 1e3:9.3f} ms{moved / one:8.1f}{two * 1e3:11.3f} ms{2 * moved / two:11.1f}"
                say(f"{name:12}{mebibytes:5}{speeds}{one / two:9.2f}")


if __name__ == "__main__":
    arguments = [float(a) for a in sys.argv[1:]]
    report(arguments[0] if arguments else 1.0, [int(a) for a in arguments[1:]] or [8, 64], print)
