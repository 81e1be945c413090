"""A process that times operators under the conditions in which it was started.

It reads requests line by line and answers them. ``["prepare", {…}]`` creates arrays and loads the model, and returns
the kernels by task; ``["time", task, seconds]`` times calls and returns the `summary` of all times of that task so far;
``["spin", seconds]`` computes and returns how many processors it had meanwhile.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from tensorops._operator import OPERATORS
from tensorops.benchmarks.workloads import workload

Call: TypeAlias = Callable[[], object]

DECODE = "decode"
TOKENS = 64  # decoded before the text starts again

TASKS: dict[str, tuple[str, int, int]] = {
    "rms_norm 16x4096": ("rms_norm", 16, 4096),
    "rms_norm 128x4096": ("rms_norm", 128, 4096),
    "rms_norm 2048x4096": ("rms_norm", 2048, 4096),
    "silu 16x4096": ("silu", 16, 4096),
    "silu 128x4096": ("silu", 128, 4096),
    "layer_norm 16x4096": ("layer_norm", 16, 4096),
    "softmax 128x4096": ("softmax", 128, 4096),
    "linear 64x1024": ("linear", 64, 1024),
    "attention 512x512": ("scaled_dot_product_attention", 512, 512),
    "quantized_linear 1x2048": ("quantized_linear", 1, 2048),
}
"""Operators, rows and features of their workloads: matrices are square, and attention has heads of 64 features."""


@dataclass
class Timed:
    """A task and its times.

    Attributes
    ----------
    make : callable
        Returns a call for one thread of Python.
    first : callable or None
        What another library computes before each call, outside the clock.
    seconds, alone : array of float
        The times of calls; with several threads of Python, the wall time per call in each round, and that of one.
    calls : int
        How many calls were timed.
    """

    make: Callable[[], Call]
    first: Call | None = None
    seconds: array[float] = field(default_factory=lambda: array("d"))
    alone: array[float] = field(default_factory=lambda: array("d"))
    calls: int = 0

    def summary(self) -> dict[str, float | None]:
        """Return the number of calls, and their mean, median and longest time in seconds."""
        return {
            "calls": self.calls,
            "mean": float(np.mean(self.seconds)),
            "median": float(np.median(self.seconds)),
            "longest": max(self.seconds),
            "one_python_thread": float(np.mean(self.alone)) if self.alone else None,
        }


# --- what is timed -----------------------------------------------------------------------------------


def operator_task(name: str, *, after_torch: bool) -> tuple[str, Timed]:
    """Return the kernel of an operator for its workload, and the task."""
    operator_name, rows, features = TASKS[name]
    work, operator = workload(operator_name, rows, features), OPERATORS[operator_name]
    call = partial(operator, *work.args, **work.options)
    largest = max(work.args, key=lambda a: int(a.size))
    first = torch_call(largest.shape) if after_torch else None
    return operator.explain(*work.args, **work.options).kernel, Timed(lambda: call, first)


def decode_task(path: str, *, after_torch: bool) -> tuple[str, Timed]:
    """Return the backend of a model, and the task to decode one token."""
    from tensorops.models import Llama
    from tensorops.models.language_model import default_backend

    backend = default_backend()
    llama = Llama.from_gguf(path, backend)

    def make() -> Call:
        cache, tokens = llama.new_cache(), 0

        def decode() -> None:
            nonlocal cache, tokens
            if tokens == TOKENS:
                cache, tokens = llama.new_cache(), 0
            np.asarray(llama([1 + tokens], cache))
            tokens += 1

        return decode

    return backend, Timed(make, torch_call((128, 4096)) if after_torch else None)


def torch_call(shape: tuple[int, ...]) -> Call:
    """Return a call of torch that uses its threads, on an array of a shape."""
    import torch

    return partial(torch.nn.functional.silu, torch.ones(shape))


# --- timing ------------------------------------------------------------------------------------------


def seconds_of_calls(task: Timed, seconds: float) -> None:
    """Time calls one by one, at least one, after a call that is not timed: it wakes threads and touches memory."""
    call, first, samples = task.make(), task.first, task.seconds
    call()
    calls, end = 0, time.perf_counter() + seconds
    while calls == 0 or time.perf_counter() < end:
        if first is not None:
            first()
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
        calls += 1
    task.calls += calls


def seconds_of_threads(task: Timed, threads: int, seconds: float) -> None:
    """Time one thread of Python for a third of the seconds, then several at once."""
    task.alone.append(wall_time_per_call(task, 1, seconds / 3)[0])
    mean, calls = wall_time_per_call(task, threads, seconds * 2 / 3)
    task.seconds.append(mean)
    task.calls += calls


def wall_time_per_call(task: Timed, threads: int, seconds: float) -> tuple[float, int]:
    """Return the wall time of calls by several threads of Python, divided by the number of calls, and that number."""
    calls, ready, begun = [0] * threads, threading.Barrier(threads + 1), threading.Event()
    end = 0.0

    def work(number: int) -> None:
        call = task.make()
        call()
        ready.wait()
        begun.wait()
        while calls[number] == 0 or time.perf_counter() < end:
            call()
            calls[number] += 1

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    start = time.perf_counter()
    end = start + seconds
    begun.set()
    for worker in workers:
        worker.join()
    return (time.perf_counter() - start) / sum(calls), sum(calls)


def spin(seconds: float) -> float:
    """Compute for some seconds; return how many processors this process had on average."""
    start, used = time.perf_counter(), time.process_time()
    while time.perf_counter() < start + seconds:
        pass
    return (time.process_time() - used) / (time.perf_counter() - start)


# --- requests ----------------------------------------------------------------------------------------


class Answers:
    """The answers to requests."""

    def __init__(self) -> None:
        self.tasks: dict[str, Timed] = {}
        self.python_threads = 1

    def prepare(self, tasks: list[str], model: str | None, python_threads: int, after_torch: bool) -> dict[str, str]:
        """Create what is to be timed, and call each once; return the kernels."""
        self.python_threads, kernels = python_threads, {}
        for name in tasks:
            if name == DECODE:
                assert model is not None
                kernels[name], self.tasks[name] = decode_task(model, after_torch=after_torch)
            else:
                kernels[name], self.tasks[name] = operator_task(name, after_torch=after_torch)
            self.tasks[name].make()()
        return kernels

    def time(self, name: str, seconds: float) -> dict[str, float | None]:
        """Time a task again; return the summary of all its times."""
        task = self.tasks[name]
        if self.python_threads > 1:
            seconds_of_threads(task, self.python_threads, seconds)
        else:
            seconds_of_calls(task, seconds)
        return task.summary()


def main() -> None:
    """Answer requests until the input ends."""
    answers = Answers()
    known: dict[str, Callable[..., Any]] = {"prepare": answers.prepare, "time": answers.time, "spin": spin}
    for line in sys.stdin:
        what, *args = json.loads(line)
        sys.stdout.write(json.dumps(known[what](*args)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
