"""Operators on busy machines: the same calls on all threads, with passive waits and on one thread, under loads.

Each scenario starts a process for each configuration. They time the same tasks alternately, so that whatever else slows
the machine down slows all of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from asv_benchmarks import _busy_child
from asv_benchmarks._busy_child import DECODE, TASKS
from asv_benchmarks.processes import Child, Spinners
from asv_benchmarks.quota import PERIOD, control_group
from tensorops.benchmarks.measuring import CannotMeasureError, processors

__all__ = ["CONFIGURATIONS", "DECODE", "ONE_THREAD", "OPERATORS", "SCENARIOS", "TASKS", "Cell", "Result", "jobs"]

OPERATORS = (*dict.fromkeys(operator for operator, _, _ in TASKS.values()), DECODE)
"""What can be chosen."""

ROUNDS = 3
REST = 0.02  # seconds; OpenMP's threads spin for some milliseconds before they sleep
PYTHON_THREADS = 8
THREADS_PER_PROCESSOR = 4
QUOTA = 0.5
PATIENCE = 3.0  # seconds; a task that has taken as long in a configuration is not timed again
FEW = 10  # calls, whose mean says little
LEAST_PERIODS = 4  # of a quota, in a measurement: a process is stopped at the end of each

ONE_THREAD = "one thread"
CONFIGURATIONS: dict[str, dict[str, str]] = {
    "default": {},
    "passive waits": {"OMP_WAIT_POLICY": "passive"},
    ONE_THREAD: {"TENSOROPS_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # the latter for NumPy's products
}
"""Environment variables of the processes; all others that concern threads are removed."""

_REMOVED = ("TENSOROPS_NUM_THREADS", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
_START = f"import runpy; runpy.run_path({_busy_child.__file__!r}, run_name='__main__')"


@dataclass(frozen=True)
class Scenario:
    """A load.

    Attributes
    ----------
    title : str
        What the machine does.
    spinners : int or None
        Processes that spin; ``None`` means one for each processor.
    after_torch : bool
        Whether each timed call follows a call of torch.
    python_threads : int
        Threads of Python that call at once.
    threads_per_processor : int or None
        OpenMP's threads, if they are not left to OpenMP.
    quota : float or None
        Processors that a process has on average, if it does not have all of them.
    """

    title: str
    spinners: int | None = 0
    after_torch: bool = False
    python_threads: int = 1
    threads_per_processor: int | None = None
    quota: float | None = None


SCENARIOS: dict[str, Scenario] = {
    "idle": Scenario("on an idle machine"),
    "spinner": Scenario("next to one spinning process", spinners=1),
    "spinners": Scenario("next to one spinning process per processor", spinners=None),
    "torch": Scenario("alternating with torch", after_torch=True),
    "python-threads": Scenario(f"{PYTHON_THREADS} Python threads at once", python_threads=PYTHON_THREADS),
    "quota": Scenario(f"with {QUOTA} processors by a control group", quota=QUOTA),
    "openmp-threads": Scenario(
        f"with {THREADS_PER_PROCESSOR} threads of OpenMP per processor", threads_per_processor=THREADS_PER_PROCESSOR
    ),
}
"""The loads, by name."""


@dataclass
class Cell:
    """A task in one configuration under a load.

    Attributes
    ----------
    task, configuration, kernel : str
        What was called, how, and the implementation that ran.
    calls : int
        How many calls were timed.
    mean, median, longest : float
        Seconds of a call; with several threads of Python, wall time divided by their calls, over rounds.
    one_python_thread : float or None
        The mean seconds of a call by one thread of Python, if several were timed.
    """

    task: str
    configuration: str
    kernel: str
    calls: int = 0
    mean: float = float("nan")
    median: float = float("nan")
    longest: float = float("nan")
    one_python_thread: float | None = None

    @property
    def few(self) -> bool:
        """Whether so few calls were timed, because they are slow, that their mean says little."""
        return self.calls < FEW

    @property
    def throughput(self) -> float | None:
        """Calls per second of several threads of Python, divided by those of one."""
        return None if self.one_python_thread is None else self.one_python_thread / self.mean

    def to_dict(self) -> dict[str, Any]:
        """Return the cell for JSON, including derived values."""
        return vars(self) | {"throughput": self.throughput, "few": self.few}


@dataclass
class Result:
    """A scenario's cells, or the reason for which there are none."""

    name: str
    scenario: Scenario
    cells: list[Cell] = field(default_factory=list)
    reason: str = ""

    def of(self, task: str) -> dict[str, Cell]:
        """Return the cells of a task by configuration."""
        return {cell.configuration: cell for cell in self.cells if cell.task == task}

    def ratios(self, task: str) -> dict[str, float]:
        """Return the mean time of each configuration divided by that of one thread; empty if nothing was timed."""
        cells = self.of(task)
        return {name: cell.mean / cells[ONE_THREAD].mean for name, cell in cells.items() if name != ONE_THREAD}

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON, including the ratios."""
        tasks = dict.fromkeys(cell.task for cell in self.cells)
        return {
            "scenario": self.name,
            "load": vars(self.scenario),
            "reason": self.reason or None,
            "cells": [cell.to_dict() for cell in self.cells],
            "of_one_thread": {task: self.ratios(task) for task in tasks},
        }


def jobs(
    scenarios: Sequence[str], operators: Sequence[str], seconds: float, model: Path | None
) -> dict[str, Callable[[], Result]]:
    """Return functions that measure each scenario, by readable label; `model` is what is decoded, if anything is."""
    tasks = [task for task, (operator, _, _) in TASKS.items() if operator in operators]
    if model is not None:
        tasks.append(DECODE)
    return {SCENARIOS[name].title: partial(measure, name, tasks, seconds, model) for name in scenarios}


def measure(name: str, tasks: Sequence[str], seconds: float, model: Path | None) -> Result:
    """Time tasks under a load, for about `seconds` each in each configuration."""
    result = Result(name, SCENARIOS[name])
    try:
        result.cells = _cells(result.scenario, tasks, seconds, model)
    except CannotMeasureError as error:
        result.reason = str(error)
    return result


def _cells(scenario: Scenario, tasks: Sequence[str], seconds: float, model: Path | None) -> list[Cell]:
    if scenario.after_torch and importlib.util.find_spec("torch") is None:
        raise CannotMeasureError("torch is not installed")
    with contextlib.ExitStack() as stack:
        groups = [stack.enter_context(control_group(q)) for q in [scenario.quota] * len(CONFIGURATIONS) if q]
        children = {name: stack.enter_context(_child(name, scenario)) for name in CONFIGURATIONS}
        for move, child in zip(groups, children.values(), strict=False):  # first, as in containers
            move(child.pid)
            _require_quota(child)
        for child in children.values():  # all at the same time, and before the load
            path = None if model is None else str(model)
            child.send(["prepare", list(tasks), path, scenario.python_threads, scenario.after_torch])
        kernels = {name: child.receive() for name, child in children.items()}
        stack.enter_context(Spinners(processors() if scenario.spinners is None else scenario.spinners))
        seconds = max(seconds / ROUNDS, LEAST_PERIODS * PERIOD * 1e-6 if scenario.quota else 0.0)
        return _in_turns(tasks, children, kernels, seconds)


def _in_turns(
    tasks: Sequence[str], children: dict[str, Child], kernels: dict[str, dict[str, str]], seconds: float
) -> list[Cell]:
    """Let each process time each task in every round, unless that takes too long."""
    cells = [Cell(task, name, kernels[name][task]) for task in tasks for name in children]
    left = [max(PATIENCE, 2 * ROUNDS * seconds)] * len(cells)
    for _ in range(ROUNDS):
        for number, cell in enumerate(cells):
            if left[number] > 0:
                time.sleep(REST)
                start = time.perf_counter()
                vars(cell).update(children[cell.configuration].ask(["time", cell.task, seconds]))
                left[number] -= time.perf_counter() - start
    return cells


def _child(configuration: str, scenario: Scenario) -> Child:
    """Return a process that has imported nothing yet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED)}
    own = {"TENSOROPS_BACKEND": "cpu"} | CONFIGURATIONS[configuration]
    if scenario.threads_per_processor is not None:
        own["OMP_NUM_THREADS"] = str(scenario.threads_per_processor * processors())
    start = f"import torch; {_START}" if scenario.after_torch else _START  # as in programs that use torch first
    return Child(f"the process with {configuration}", [sys.executable, "-P", "-c", start], kept | own)


def _require_quota(child: Child) -> None:
    """Refuse a quota that the system accepts and ignores, as some sandboxes do."""
    had = child.ask(["spin", LEAST_PERIODS * PERIOD * 1e-6])
    if had > (1 + QUOTA) / 2:
        raise CannotMeasureError(f"the quota has no effect: the process had {had:.2f} processors")
