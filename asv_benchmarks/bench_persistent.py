"""A decoding step as a `PersistentKernel` beside the same step from Python, and what a replay costs by itself.

    python -m asv_benchmarks.bench_persistent [MODEL.gguf]

prints the same, timed in turns in one process, with the time that reading the weights takes, and many sequences in one
step beside one after another. Without a file, ``$TENSOROPS_MODEL`` names one.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorops
from tensorops.benchmarks.model import read_bandwidth, weight_bytes

POSITION = 64
CAPACITY = 256
ROUNDS = 7
STEPS = 40  # at a time: threads of another way are awake for a moment
BATCH = 8
NEW_TOKENS = 64
LIBRARIES = {"cpu": "numpy", "jax": "jax", "mlx": "mlx"}


def chain(count: int) -> tensorops.PersistentKernel:
    """Return a compiled step of so many additions of one number, whose kernels do nearly nothing."""

    def step(x: Any) -> Any:
        for _ in range(count):
            x = x + 1
        return x

    kernel = tensorops.PersistentKernel(step, [np.ones(1, np.float32)], backend="cpu")
    kernel.compile()
    return kernel


class Replay:
    """A replay by itself."""

    params = ([1, 1001],)
    param_names = ("calls",)

    def setup(self, calls):
        try:
            self.kernel = chain(calls)
        except ValueError as error:
            raise NotImplementedError(str(error)) from None
        self.x = np.ones(1, np.float32)

    def time_replay(self, calls):
        self.kernel(self.x)


def steps(path: str, backend: str) -> dict[str, Callable[[], object]]:
    """Return a step from a token to the next as a persistent kernel, and as models call it, at the same position."""
    from tensorops.libraries import LIBRARIES as ROWS
    from tensorops.models import Llama

    compiler = ROWS[LIBRARIES[backend]].jit
    llama = Llama.from_gguf(path, backend, compile=compiler)
    kernel = llama.persistent(max_seq_length=CAPACITY)
    cache = llama.new_cache(CAPACITY)
    there = [tensorops.to_backend(np.asarray([n], np.int32), backend) for n in (5, POSITION)]
    state = {"keys": cache.keys, "values": cache.values}
    beside = llama.new_cache(CAPACITY)

    def persistent() -> object:
        token, state["keys"], state["values"] = kernel(*there, state["keys"], state["values"])
        return int(tensorops.to_backend(token, "numpy")[0])

    pick = {"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None, "rng": None}

    def unrecorded() -> object:
        beside.length = POSITION
        token = llama._step(np.asarray([5], np.int32), beside, pick)
        return int(tensorops.to_backend(token, "numpy")[0])

    ways: dict[str, Callable[[], object]] = {"persistent": persistent, "from Python": unrecorded}
    for way in ways.values():
        way()
    return ways


class Decode:
    """A step of a model from a token to the next."""

    params = (list(LIBRARIES), ["persistent", "from Python"])
    param_names = ("backend", "way")

    def setup(self, backend, way):
        path = os.environ.get("TENSOROPS_MODEL")
        if not path or not tensorops.is_backend_available(backend):
            raise NotImplementedError("no model, or no such backend")
        self.way = steps(path, backend)[way]

    def time_step(self, backend, way):
        self.way()


def in_turns(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Return the seconds of each way, several at a time, in turns."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(STEPS):
                way()
            found[name].append((time.perf_counter() - start) / STEPS)
    return found


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
    x = np.ones(1, np.float32)
    calls = {str(count): (lambda kernel: lambda: kernel(x))(chain(count)) for count in (1, 1001)}
    times = {name: min(found) for name, found in in_turns(calls).items()}
    print(f"a replay of one call      {times['1'] * 1e6:8.2f} µs")  # noqa: T201
    print(f"each further call         {(times['1001'] - times['1']) / 1000 * 1e6:8.3f} µs")  # noqa: T201
    bound = weight_bytes(Path(path)) / read_bandwidth()
    print(f"{Path(path).name}: the weights are read in {bound * 1e3:.2f} ms")  # noqa: T201
    for backend in LIBRARIES:
        if not tensorops.is_backend_available(backend):
            continue
        found = in_turns(steps(path, backend))
        persistent, python = (statistics.median(found[name]) for name in ("persistent", "from Python"))
        of_bound = f", {bound / persistent:.2f} of the bound" if backend == "cpu" else ""
        print(  # noqa: T201
            f"{backend:4} persistent {persistent * 1e3:7.2f} ms, from Python {python * 1e3:7.2f} ms: "
            f"x {python / persistent:.2f}{of_bound}"
        )
    alone, together = batch(path)
    speeds = f"one after another {alone:.0f} tokens/s, together {together:.0f}: x {together / alone:.2f}"
    print(f"cpu  {BATCH} sequences {speeds}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else os.environ["TENSOROPS_MODEL"])
