"""A model's step from a token to the next on several backends, and the bound that reading the weights sets.

Each way has processes of its own, which alternate: threads of one would be awake while the other computes. A process
reads a long vector between its steps: how fast memory is changes within seconds where others use it as well, and
twofold where a virtual machine's processors are moved.

    python -m tensorops.benchmarks.decode MODEL.gguf BACKEND WAY SECONDS

is such a process; it prints the seconds of its steps and reads as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorops
from tensorops.backends.registry import resolve
from tensorops.benchmarks.measuring import is_unsteady, median_and_quartiles, threads
from tensorops.libraries import Backend

PERSISTENT, FROM_PYTHON = "persistent", "from Python"
WAYS = (PERSISTENT, FROM_PYTHON)
POSITION = 64  # tokens in the cache
CAPACITY = 256
ROUNDS = 3  # processes
STEPS_PER_READ = 10
BANDWIDTH_BYTES = 1 << 28


@dataclass
class Speed:
    """The speed of a way to decode on a backend, or the reason for which there is none."""

    backend: str
    way: str
    tokens_per_second: float | None = None
    seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    steps: int = 0
    read_bandwidth: float | None = None  # in the same processes
    of_bound: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        return f"decode on {self.backend}, {self.way}"

    @property
    def unsteady(self) -> bool:
        """Whether the times vary much between steps."""
        return self.quartiles is not None and is_unsteady(self.quartiles)


@dataclass
class Decoding:
    """A model, what it reads for each token, and the speeds."""

    model: str
    weight_bytes: int
    read_bandwidth: float = 0.0  # the median of all processes' reads
    position: int = POSITION
    speeds: list[Speed] = field(default_factory=list)

    @property
    def bound(self) -> float:
        """Tokens per second if reading the weights were the only work."""
        return self.read_bandwidth / self.weight_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, including the bound."""
        return vars(self) | {"bound": self.bound, "speeds": [vars(speed) for speed in self.speeds]}


def steps(path: str, backend: str) -> dict[str, Callable[[], object]]:
    """Return a step as a persistent kernel, and as models call it, at the same position; each prepared when asked."""
    from tensorops.models import LanguageModel
    from tensorops.models.persistent import on_host

    llama = LanguageModel.load(path, backend, compile=resolve(backend).library.jit)
    kernel = llama.persistent(max_seq_length=CAPACITY)
    cache = filled_cache(llama)
    there = [tensorops.to_backend(np.asarray([n], np.int32), backend) for n in (5, POSITION)]
    state = {"keys": cache.keys, "values": cache.values}

    def persistent() -> object:
        token, state["keys"], state["values"] = kernel(*there, state["keys"], state["values"])
        return on_host(token)

    return {PERSISTENT: persistent, FROM_PYTHON: from_python(llama)}


def filled_cache(llama: Any) -> Any:
    """Return a cache of keys and values with numbers: untouched zeros are one page of memory, read again."""
    rng, cache = np.random.default_rng(0), llama.new_cache(CAPACITY)
    for blocks in (cache.keys, cache.values):
        numbers = [rng.standard_normal(block.shape, dtype=np.float32) for block in blocks]
        blocks[:] = tensorops.to_backend(numbers, llama.backend)
    return cache


def from_python(llama: Any) -> Callable[[], object]:
    """Return a step as models call it."""
    from tensorops.models.persistent import on_host

    cache = filled_cache(llama)
    pick = {"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None, "rng": None}

    def step() -> object:
        cache.length = POSITION
        token = llama._step(np.asarray([5], np.int32), cache, pick)
        return on_host(token)

    return step


def prepare(path: str, backend: str, way: str) -> Callable[[], object]:
    """Return one way alone: a backend that cannot replay steps can still be called."""
    if way == PERSISTENT:
        return steps(path, backend)[way]
    from tensorops.models import LanguageModel

    return from_python(LanguageModel.load(path, backend, compile=resolve(backend).library.jit))


def weight_bytes(path: Path) -> int:
    """Return how many bytes of a file are read for one token: all weights, but only one row of an embedding table."""
    from tensorops.models.files.gguf import open_gguf

    tensors = dict(open_gguf(path).tensors)
    if "output.weight" in tensors:
        del tensors["token_embd.weight"]  # otherwise it is also the output matrix
    return sum(tensor.nbytes for tensor in tensors.values())


class Reader:
    """Reads a long vector by dot products of its parts, one for each thread.

    A single product would not do: on some processors, BLAS computes it on one thread.

    Parameters
    ----------
    threads : int
        How many threads read.
    """

    def __init__(self, threads: int) -> None:
        x = np.ones(BANDWIDTH_BYTES // 4, dtype=np.float32)
        self.nbytes = x.nbytes
        self._parts = np.array_split(x, threads)
        self._pool = ThreadPoolExecutor(threads)

    def seconds(self) -> float:
        """Read the vector once, and return how long that took."""
        start = time.perf_counter()
        list(self._pool.map(np.dot, self._parts, self._parts))
        return time.perf_counter() - start


def read_bandwidth(threads: int) -> float:
    """Return how many bytes per second that many threads read, at best."""
    reader = Reader(threads)
    return reader.nbytes / min(reader.seconds() for _ in range(8))


@dataclass
class Times:
    """Seconds of steps, and seconds per byte of the reads between them."""

    steps: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)

    def __iadd__(self, other: Times) -> Times:
        self.steps += other.steps
        self.reads += other.reads
        return self


def time_steps(step: Callable[[], object], seconds: float) -> Times:
    """Time steps and reads for that many seconds, after two steps that compile and touch the memory."""
    reader, times = Reader(threads()), Times()
    for _ in range(2):
        step()
    reader.seconds()
    end = time.perf_counter() + seconds

    def is_over() -> bool:
        return len(times.steps) > 1 and time.perf_counter() >= end

    while not is_over():
        times.reads.append(reader.seconds() / reader.nbytes)
        step()  # not timed: the read has driven Python out of the caches
        for _ in range(STEPS_PER_READ):
            start = time.perf_counter()
            step()
            times.steps.append(time.perf_counter() - start)
            if is_over():
                break
    return times


def jobs(path: Path, backends: Sequence[Backend], seconds: float) -> dict[str, Callable[[], Decoding]]:
    """Return functions, by readable label, that time every way on every backend alternately; each returns the same."""
    found = Decoding(path.name, weight_bytes(path))
    found.speeds = [Speed(backend.name, way) for backend in backends for way in WAYS]
    times = [Times() for _ in found.speeds]

    def measure(index: int) -> Decoding:
        speed = found.speeds[index]
        if speed.reason is None:
            add(speed, times[index], path, seconds / ROUNDS, found.weight_bytes)
            found.read_bandwidth = 1 / statistics.median(read for each in times for read in each.reads)
        return found

    return {
        f"{speed}, {number}": partial(measure, i)
        for number in range(1, ROUNDS + 1)
        for i, speed in enumerate(found.speeds)
    }


def add(speed: Speed, times: Times, path: Path, seconds: float, weights: int) -> None:
    """Time a way in a process of its own, and fill in its speed by all processes so far."""
    command = [sys.executable, "-m", __name__, str(path), speed.backend, speed.way, str(seconds)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this module
    if child.returncode:
        speed.reason = (child.stderr.strip().splitlines() or [f"it ended with {child.returncode}"])[-1]
        return
    times += Times(**json.loads(child.stdout))
    speed.seconds, speed.quartiles = median_and_quartiles(times.steps)
    speed.steps = len(times.steps)
    speed.tokens_per_second = 1 / speed.seconds
    speed.read_bandwidth = 1 / statistics.median(times.reads)
    speed.of_bound = weights / speed.read_bandwidth / speed.seconds


def main(path: str, backend: str, way: str, seconds: str) -> None:
    """Print the times as JSON; on standard error, why there are none."""
    try:
        step = prepare(path, backend, way)
        times = time_steps(step, float(seconds))
    except Exception as error:  # a backend may lack anything: the report says what
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")
    print(json.dumps(vars(times)))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
