"""What huge pages bring to large results under JAX: the derivative of `silu` in a program of `jax.jit`.

usage: python -m asv_benchmarks.huge_pages [--processes 10] [--calls 80]

Half of the processes decline huge pages (`prctl`); they take turns with the others. Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from statistics import fmean, median, quantiles

_CHILD = """
import ctypes, sys, time

PR_SET_THP_DISABLE = 41
if sys.argv[1] == "without":
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)

import jax
import numpy as np
import tensorops as tp

x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((2048, 4096), dtype=np.float32))
call = jax.jit(lambda x: jax.vjp(tp.silu, x)[1](x))
jax.block_until_ready(call(x))
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    jax.block_until_ready(call(x))
    print(time.perf_counter() - start)
"""


def seconds(which: str, calls: int) -> list[float]:
    """Return the times of the calls of one process."""
    command = [sys.executable, "-c", _CHILD, which, str(calls)]
    return [*map(float, subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split())]


def main() -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=10, help="of each kind")
    parser.add_argument("--calls", type=int, default=80, help="in each process")
    options = parser.parse_args()
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(options.processes):
        for which, all_times in times.items():
            all_times += seconds(which, options.calls)
    title = f"the derivative of silu, {options.calls} calls in each of {options.processes} processes"
    table = Table("huge pages", "median", "mean", "9 of 10 below", "longest", title=title)
    for which, all_times in times.items():
        figures = median(all_times), fmean(all_times), quantiles(all_times, n=10)[-1], max(all_times)
        table.add_row(which, *(f"{figure * 1e3:.1f} ms" for figure in figures))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
