"""A decoding step as a `PersistentKernel` compared with the same step from Python, and what a replay costs by itself.

    python -m asv_benchmarks.bench_persistent [MODEL.gguf]

prints the same as medians, as `tensorops bench --decode` measures it: each way in processes of its own, which read a
long vector between their steps for the bound. Then come many sequences in one step compared with one after another.
Without a file, it is that of ``$TENSOROPS_MODEL``, or the one that `tensorops generate` has downloaded.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorops
from asv_benchmarks.harness import Prepared
from tensorops.backends.registry import resolve
from tensorops.benchmarks.decode import jobs, steps
from tensorops.benchmarks.measuring import Contender, in_rounds

SECONDS = 6.0  # for each way
BATCH = 8
NEW_TOKENS = 64
LIBRARIES = {"cpu": "numpy", "jax": "jax", "mlx": "mlx", "opencl": "pyopencl"}
CHAINS = ("cpu", "opencl")  # whose replays are calls one by one


def chain(count: int, backend: str = "cpu") -> Callable[[], object]:
    """Return a run of a compiled step of that many additions of one number, whose kernels do nearly nothing."""

    def step(x: Any) -> Any:
        for _ in range(count):
            x = x + 1
        return x

    from tensorops.libraries import LIBRARIES as ROWS

    x = tensorops.to_backend(np.ones(1, np.float32), backend)
    kernel = tensorops.PersistentKernel(step, [x], backend=backend)
    kernel.compile()
    wait = ROWS[LIBRARIES[backend]].wait
    return partial(kernel, x) if wait is None else lambda: wait([kernel(x)])


def rows_of_calls() -> dict[str, Callable[[], object]]:
    """Return four calls on the same rows, 32 MiB of float32: as a compiled step and from Python."""

    def step(x: Any) -> Any:
        return tensorops.silu(tensorops.rms_norm(x)) * x + 1

    x = np.ones((2048, 4096), np.float32)
    kernel = tensorops.PersistentKernel(step, [x], backend="cpu")
    kernel.compile()
    return {"persistent": partial(kernel, x), "from Python": partial(step, x)}


class Rows(Prepared):
    """Calls that a plan runs by rows, compared with the same calls from Python."""

    params = (["persistent", "from Python"],)
    param_names = ("way",)

    def setup(self, way):
        if not tensorops.is_backend_available("cpu"):
            raise NotImplementedError("no backend cpu")
        self.way = rows_of_calls()[way]
        self.way()

    def time_rows(self, way):
        self.way()


class Replay(Prepared):
    """A replay by itself."""

    params = ([1, 1001], list(CHAINS))
    param_names = ("calls", "backend")

    def setup(self, calls, backend):
        if not tensorops.is_backend_available(backend):
            raise NotImplementedError(f"no backend {backend}")
        self.replay = chain(calls, backend)
        self.replay()

    def time_replay(self, calls, backend):
        self.replay()


def model_path() -> str:
    """Return the model's file: that of ``$TENSOROPS_MODEL``, or the one that `tensorops generate` has downloaded."""
    from tensorops.models.files.download import cached_model_path

    path = os.environ.get("TENSOROPS_MODEL") or str(cached_model_path())
    if not Path(path).is_file():
        raise NotImplementedError(f"there is no model {path}; `tensorops generate` downloads it")
    return path


class Decode(Prepared):
    """A step of a model from a token to the next."""

    params = (list(LIBRARIES), ["persistent", "from Python"])
    param_names = ("backend", "way")

    def setup(self, backend, way):
        path = model_path()
        if not tensorops.is_backend_available(backend):
            raise NotImplementedError(f"{backend} does not compute here")
        self.way = steps(path, backend)[way]
        self.way()

    def time_step(self, backend, way):
        self.way()


def batch(path: str) -> tuple[float, float]:
    """Return the tokens per second of sequences one after another, and of as many at once."""
    from tensorops.models import Llama

    llama = Llama.from_gguf(path, "cpu")
    prompts = [np.random.default_rng(seed).integers(1000, 9000, 8).tolist() for seed in range(BATCH)]
    speeds: dict[str, list[float]] = {"alone": [], "together": []}
    for _ in range(3):
        start = time.perf_counter()
        count = sum(len(list(llama.generate_ids(ids, max_new_tokens=NEW_TOKENS))) for ids in prompts)
        speeds["alone"].append(count / (time.perf_counter() - start))
        start = time.perf_counter()
        count = len(list(llama.generate_batch(prompts, max_new_tokens=NEW_TOKENS, max_batch=BATCH)))
        speeds["together"].append(count / (time.perf_counter() - start))
    alone, together = (statistics.median(each) for each in speeds.values())
    return alone, together


def main(path: str) -> None:
    """Print the times and their ratios."""
    for backend in CHAINS:
        if tensorops.is_backend_available(backend):
            one, many = (min(timeit.repeat(chain(n, backend), number=10, repeat=50)) / 10 for n in (1, 1001))
            print(  # noqa: T201
                f"{backend:6} a replay of one call {one * 1e6:8.2f} µs, each further call {(many - one) * 1e3:8.3f} µs"
            )
    if tensorops.is_backend_available("cpu"):
        ways = list(rows_of_calls().values())
        persistent, python = map(statistics.median, in_rounds([Contender(way, "cpu") for way in ways], SECONDS / 2))
        print(  # noqa: T201
            f"cpu    four calls on rows of 32 MiB persistent {persistent * 1e3:7.2f} ms, from Python "
            f"{python * 1e3:7.2f} ms: x {python / persistent:.2f}"
        )
    print(f"{Path(path).name}; the bound is the time in which its weights could be read, measured between steps")  # noqa: T201
    for backend in LIBRARIES:
        if not tensorops.is_backend_available(backend):
            continue
        for measure in jobs(Path(path), [resolve(backend)], SECONDS).values():
            found = measure()
        persistent, python = (speed.seconds or float("nan") for speed in found.speeds)
        of_bound = found.speeds[0].of_bound or float("nan")
        bound = f", {of_bound:.2f} of the bound of {of_bound * persistent * 1e3:.2f} ms" if backend == "cpu" else ""
        print(  # noqa: T201
            f"{backend:6} persistent {persistent * 1e3:7.2f} ms, from Python {python * 1e3:7.2f} ms: "
            f"x {python / persistent:.2f}{bound}"
        )
    alone, together = batch(path)
    speeds = f"one after another {alone:.0f} tokens/s, together {together:.0f}: x {together / alone:.2f}"
    print(f"cpu    {BATCH} sequences {speeds}")  # noqa: T201


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else model_path())
    except NotImplementedError as error:
        sys.exit(str(error))
