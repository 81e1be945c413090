"""What a call with torch tensors in host memory costs: operators on 64 elements, where the kernel takes almost no time.

    python -m asv_benchmarks.bench_tensors [SECONDS]

prints the same, alternating in one process: on a NumPy array, on a tensor, on a tensor that Python reads (as with torch
before 2.10), and torch's own function. And how long it takes to describe an MLX array by its ``__dlpack__``, and by a
table of C functions as a package in Python would have to make one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from .shims import Task, in_turns

OWN = {"silu": "silu", "softmax": "softmax", "rms_norm": "rms_norm", "layer_norm": "layer_norm"}
WAYS = ("NumPy array", "tensor", "tensor, by Python", "torch's own")


def task(operator: str) -> Task:
    """Return the ways to compute an operator on 64 elements."""
    import torch

    import tensorops

    torch.set_num_threads(1)
    x, w = np.linspace(-1, 1, 64, dtype=np.float32)[None], np.ones(64, np.float32)
    ours = getattr(tensorops, operator)
    more = (w, w) if operator == "layer_norm" else (w,) if operator == "rms_norm" else ()
    given = tuple(map(torch.from_numpy, (x, *more)))
    own: Callable[..., Any] = getattr(torch.nn.functional, operator)
    options = ((64,), *given[1:]) if more else (-1,) if operator == "softmax" else ()
    ours(*given)
    by_python = ours.kernels["torch_cpu"].function.__self__[-1]
    ways = dict(
        zip(
            WAYS,
            (lambda: ours(x, *more), lambda: ours(*given), lambda: by_python(*given), lambda: own(given[0], *options)),
            strict=True,
        )
    )
    return Task(ways, lambda: None)


def description() -> Task:
    """Return the ways to describe an MLX array."""
    import array_api_mlx

    x = array_api_mlx.ones(64)
    describe = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object)(lambda array: int(array.__dlpack__() is None))
    return Task({"__dlpack__": x.__dlpack__, "a table of C functions": lambda: describe(x)}, lambda: None)


class Call:
    """The operators in each way, for asv."""

    params = (list(OWN), list(WAYS))
    param_names = ("operator", "way")

    def setup(self, operator: str, way: str) -> None:
        try:
            self.call = task(operator).ways[way]
        except (ImportError, KeyError, AttributeError, TypeError) as error:
            raise NotImplementedError(str(error)) from None
        self.call()

    def time_call(self, operator: str, way: str) -> None:
        self.call()


def main(seconds: float) -> None:
    """Print the least time of each way."""
    from rich.console import Console
    from rich.table import Table

    shown = Table("operator", *WAYS, "tensor / torch's own", title="calls with 64 float32 numbers, in us")
    for operator in OWN:
        times = {way: t.least * 1e6 for way, t in in_turns(task(operator), seconds, 1000, waits=False).items()}
        cells = (f"{time:.2f} µs" for time in times.values())
        shown.add_row(operator, *cells, f"{times['tensor'] / times[WAYS[-1]]:.2f}")
    console = Console(width=120)
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "mlx"))
    console.print(f"{platform.machine()}, {os.cpu_count()} processors; {versions}")
    console.print(shown)
    table = Table("array", *description().ways, title="a description by DLPack")
    found = in_turns(description(), seconds, 1000, waits=False)
    table.add_row("MLX, 64 numbers", *(f"{t.least * 1e6:.2f} µs" for t in found.values()))
    console.print(table)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
