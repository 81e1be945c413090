"""A language model compared with llama.cpp and with the time needed to read its weights."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asv_benchmarks import _llama_cpp
from asv_benchmarks.processes import Child
from tensorops.benchmarks.decode import read_bandwidth, weight_bytes
from tensorops.benchmarks.measuring import CannotMeasureError

if TYPE_CHECKING:
    from tensorops.models import Llama

OURS, LLAMA_CPP = "tensorops", "llama.cpp"
ROUNDS = 3
TEXT = "The capital of France is"
NEW_TOKENS = 128
PREFILL = 512

NOTE = (
    "llama.cpp runs as installed: weights are repacked where it does so by default, and its products round inputs to 8 "
    "bits, as ours do with precision low"
)

Runner = Callable[[list[int], int], list[float]]
"""Reads a prompt and adds tokens; returns the seconds of the prompt and of each added token."""


@dataclass
class ModelLine:
    """The speed of a model.

    Attributes
    ----------
    model : str
        The file's name.
    weight_bytes : int
        Bytes of the file that are read for each token.
    read_bandwidth : float
        Bytes that this machine reads per second.
    decode, prefill : dict of str to float
        Tokens per second of each program, the median over rounds.
    new_tokens, prefill_tokens : int
        The number of tokens added to a short prompt, and the length of the long prompt.
    missing : dict of str to str
        Why a program was not timed.
    """

    model: str
    weight_bytes: int
    read_bandwidth: float
    new_tokens: int
    prefill_tokens: int
    decode: dict[str, float] = field(default_factory=dict)
    prefill: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def bound(self) -> float:
        """Tokens per second if reading the weights were the only work."""
        return self.read_bandwidth / self.weight_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return the line for JSON, including derived values."""
        speedup = {what: ratio(getattr(self, what)) for what in ("decode", "prefill")}
        of_bound = {name: speed / self.bound for name, speed in self.decode.items()}
        return vars(self) | {"bound": self.bound, "of_bound": of_bound, "ratios": speedup, "note": NOTE}


def ratio(speeds: dict[str, float]) -> float | None:
    """Return llama.cpp's time divided by ours."""
    return speeds[OURS] / speeds[LLAMA_CPP] if LLAMA_CPP in speeds else None


def compare_model(llama: Llama, path: Path, threads: int) -> ModelLine:
    """Run a model here and, from the same file, in llama.cpp, alternating."""
    assert llama.tokenizer is not None  # files without a tokenizer are refused when read
    context = min(llama.config.context_length, PREFILL + NEW_TOKENS)
    prompt = llama.tokenizer.encode(TEXT)[: context // 2]
    new_tokens, prefill = min(NEW_TOKENS, context - len(prompt)), min(PREFILL, context - 1)
    long = np.random.default_rng(0).integers(0, llama.config.vocab_size, prefill).tolist()
    line = ModelLine(path.name, weight_bytes(path), read_bandwidth(threads), new_tokens, prefill)
    with Process(path, context, threads) as process:
        runners: dict[str, Runner] = {OURS: lambda ids, count: run(llama, ids, count)}
        if process.problem:
            line.missing[LLAMA_CPP] = process.problem
        else:
            runners[LLAMA_CPP] = process.run
        take_turns(line, runners, prompt, long)
    return line


def take_turns(line: ModelLine, runners: dict[str, Runner], prompt: list[int], long: list[int]) -> None:
    """Let each runner decode and read in every round, and record the medians."""
    decode: dict[str, list[float]] = {name: [] for name in runners}
    prefill: dict[str, list[float]] = {name: [] for name in runners}
    for runner in runners.values():
        runner(prompt, 2)  # touches memory and starts threads
    for _ in range(ROUNDS):
        for name, runner in runners.items():
            _, *steps = runner(prompt, line.new_tokens)
            decode[name].append(statistics.median(steps))
            prefill[name].append(runner(long, 0)[0])
    line.decode = {name: 1 / statistics.median(times) for name, times in decode.items()}
    line.prefill = {name: len(long) / statistics.median(times) for name, times in prefill.items()}


def run(llama: Llama, prompt: list[int], count: int) -> list[float]:
    """Read a prompt and add the likeliest tokens; return the seconds of each step."""
    start = time.perf_counter()
    if count == 0:  # in pieces, computing only the logits of the last token
        next(llama.generate_ids(prompt, max_new_tokens=1), None)
        return [time.perf_counter() - start]
    cache, tokens, stamps = llama.new_cache(), prompt, [start]
    for _ in range(count + 1):  # even if the text ends
        logits = np.asarray(llama(tokens, cache))
        tokens = [int(logits[-1].argmax())]
        stamps.append(time.perf_counter())
    return np.diff(stamps).tolist()


class Process(Child):
    """llama.cpp in a separate process; `problem` says why it does not run."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        command = [sys.executable, "-P", _llama_cpp.__file__, str(path), str(context), str(threads)]
        super().__init__("llama.cpp", command)
        self.problem = ""

    def __enter__(self) -> Process:
        import importlib.util

        if importlib.util.find_spec("llama_cpp") is None:
            self.problem = "not installed"
            return self
        super().__enter__()
        try:
            self.run([1], 0)
        except CannotMeasureError as error:
            self.problem = str(error)
        return self

    def run(self, prompt: list[int], count: int) -> list[float]:
        """Let it read a prompt and add tokens, as `run` does."""
        times: list[float] = self.ask([prompt, count])
        return times
