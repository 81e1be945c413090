"""The conformance cases of every operator that has a plan for GPUs, on devices that are only described.

What computes is an *executor*, which runs a plan: `emulation.run` is one. As a program, it prints a table of what ran:

    python tests/gpu_cases.py [--executor emulation|oclgrind] [--devices …] [--layouts …] [--dtypes …]
                              [--some N | --every] [--part 2/3] [regular expression]

Operators are those of `PLANNERS` whose name the expression matches, each in a process of its own, two at a time. Each
case is run with each device, layout and dtype, and each of these with each of the others; with ``--every``, in all
combinations.
"""

from __future__ import annotations

# ruff: noqa: T201
import argparse
import copy
import dataclasses
import functools
import itertools
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

import emulation
from covering import covering
from tensorops._operator import Operator
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels._gpu.plans import Device, Plan
from tensorops.libraries import LIBRARIES
from tensorops.testing import CASES, DTYPES, REFERENCES, Case, quantization
from tensorops.testing._libraries import arrays_in
from tensorops.testing._running import check_result
from tensorops.testing.entries import Arguments, Maker
from tensorops.testing.tables import WORKLOADS

OPERATORS = {operator.__name__: operator for operator in PLANNERS}

DEVICES = {
    "cuda": Device("gpu", units=4, lanes=32, local_bytes=48 * 1024, max_block=1024, float64=True),
    "no-shuffles": Device("gpu", units=4, lanes=0, local_bytes=48 * 1024, max_block=256, float64=True),
    "small": Device("gpu", units=1, lanes=32, local_bytes=16 * 1024, max_block=64, float64=True),
    "processor": Device("cpu", units=2, lanes=0, local_bytes=32 * 1024, max_block=1024, float64=True),
}
OPENCL_ONLY = ("linear", "quantize", "dequantize", "quantized_linear")
"""Operators whose code for processors has OpenCL's vectors of integers or parts of vectors, which C++ does not compile:
Oclgrind runs it."""
LAYOUTS = ("dense", "shifted", "strided", "hostile")
"""How arguments are laid out: aligned; from their second element on; every second element, from the last row on.
"hostile": aligned, with values that no caller should pass, such as indices beyond every array; only that no memory is
accessed that should not be is checked then."""

_ROWS = 3
_LONG = ((_ROWS, 4096), (_ROWS, 10240), (_ROWS, 20480), (_ROWS, 36864), (1, 2**17))
"""Numbers and lengths of rows beyond those of conformance cases: of several warps, in registers and beyond them; and
one so long that several blocks may share it."""
_MOST_BYTES = 2**22


class Call(NamedTuple):
    """A case with what is planned for it: a refusal in words, or a plan."""

    operator: Operator[..., Any]
    case: Case
    dtype: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plan: Plan | str
    arrays: emulation.Arrays
    device: Device
    lead: int
    compared: bool  # with the reference


class Outcome(NamedTuple):
    """What became of a case: "passed", "refused" or "failed", and why."""

    case: str
    status: str
    message: str = ""


def calls_of(
    operator: Operator[..., Any],
    dtype: str,
    device: Device,
    layout: str = "dense",
    some: int = 0,
    names: Container[str] | None = None,
) -> list[Call]:
    """Return an operator's cases, planned for a device: those named, or with `some` that many of different programs."""
    calls = [
        planned(operator, case, dtype, *case.build(dtype_name=dtype), device, layout)
        for case in cases_of(operator.__name__, dtype)
        if names is None or case.name in names
    ]
    if not some:
        return calls
    different = {_programs(call.plan): call for call in reversed(calls) if not isinstance(call.plan, str)}
    return [*reversed(different.values())][:: max(1, -(-len(different) // some))]


def cases_of(name: str, dtype: str) -> list[Case]:
    """Return an operator's cases for a dtype, and further ones with long rows."""
    return [*(case for case in CASES[name] if dtype in case.dtypes), *_long_cases(name, dtype)]


def _long_cases(name: str, dtype: str) -> Iterator[Case]:
    """Yield an operator's workload with long rows, if it is small all the same."""
    everyday = CASES[name][0]
    short, longer = (_bytes(_workload(name, dtype, _ROWS, features)) for features in (256, 512))
    for rows, features in _LONG:
        growth = features / 512 if longer < 3 * short else (features / 512) ** 2  # with matrices, the square
        if longer * growth <= _MOST_BYTES:
            call = _workload(name, dtype, rows, features)
            make = functools.partial(_same, call)
            yield dataclasses.replace(everyday, name=f"{rows}x{features}", arguments=make, scale_axis=-1)


def _workload(name: str, dtype: str, rows: int, features: int) -> Arguments:
    made = WORKLOADS[name](Maker(rows, features, dtype))
    if name != "quantize":
        return made.args, made.options
    # Between levels, rounding a scale changes codes; those whose levels are exact show all the same what long rows do.
    exact = quantization.on_levels(np.random.default_rng(0), rows, features, made.options["bits"])
    return (exact.astype(made.args[0].dtype),), made.options


def _bytes(call: Arguments) -> int:
    return sum(a.nbytes for a in arrays_in(call))


def _same(call: Arguments, rng: np.random.Generator) -> Arguments:
    return call


def _programs(plan: Plan) -> tuple[str, ...]:
    return tuple(f"{launch.source} {sorted(launch.defines.items())}" for launch in plan.launches)


def planned(
    operator: Operator[..., Any],
    case: Case,
    dtype: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: Device,
    layout: str = "dense",
) -> Call:
    """Return a call with its plan, which is made as providers make it."""
    lead = int(layout == "shifted")
    arguments = operator.canonical(*args, **kwargs)
    arrays = {name: a for name, a in arguments.items() if isinstance(a, np.ndarray)}
    if layout == "strided":
        arrays = {name: _strided(a) for name, a in arrays.items()}
    if layout == "hostile":
        arrays = {name: _hostile(a) for name, a in arrays.items()}
    metadata = {**arguments, **{name: emulation.operand_of(a, lead) for name, a in arrays.items()}}
    plan = operator.apply(functools.partial(PLANNERS[operator], device), metadata)
    if not isinstance(plan, str):
        arrays |= plan.constants or {}
        for name, drawn in (plan.drawn or {}).items():  # the reference draws the same
            arrays[name] = copy.deepcopy(arguments[name]).random(drawn.shape, dtype=np.float32)
    return Call(operator, case, dtype, args, kwargs, plan, arrays, device, lead, layout != "hostile")


def _strided(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if a.ndim == 0:
        return a
    wide = np.empty((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2]
    made = wide[::-1] if a.ndim > 1 else wide
    made[...] = a
    return made


def _hostile(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if a.dtype == bool:
        return ~a
    values, every = np.array([np.nan, np.inf, -np.inf, -0.0, 1e30]), 3
    if a.dtype.kind in "iu":
        info = np.iinfo(a.dtype)
        values, every = np.array([info.max, info.min, info.max - 1, info.min + 1, info.max // 2]), 2
    made = a.copy()
    with np.errstate(all="ignore"):
        np.put(made, np.arange(0, a.size, every), values.astype(a.dtype))
    return made


def check(call: Call, execute: Callable[..., emulation.Results]) -> Outcome:
    """Run a call and compare its result with the reference."""
    if isinstance(call.plan, str):
        return Outcome(call.case.name, "refused", call.plan)
    try:
        results = tuple(execute(call.plan, call.arrays, call.lead, call.device.local_bytes).values())
        if not call.compared:
            return Outcome(call.case.name, "passed")
        with np.errstate(all="ignore"):
            expected = REFERENCES[call.case.operator](*call.args, **call.kwargs)
        result = results if isinstance(expected, tuple) else results[0]
        check_result(result, expected, call.case, LIBRARIES["numpy"], call.dtype, (call.args, call.kwargs))
    except Exception as error:  # of whatever kind, it is the outcome
        text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return Outcome(call.case.name, "failed", text)
    return Outcome(call.case.name, "passed")


# --- as a program ------------------------------------------------------------------------------------


def main() -> int:
    """Run the cases of all operators, each in a process of its own, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="", help="a regular expression for the names of operators")
    parser.add_argument("--executor", default="emulation", help="the module whose `run` computes")
    parser.add_argument("--devices", default=",".join(DEVICES), help=f"of {', '.join(DEVICES)}")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--some", type=int, default=0, help="at most so many cases of a table's row, by their programs")
    parser.add_argument("--part", default="1/1", help="such as 2/3: the second third of the cases")
    parser.add_argument("--every", action="store_true", help="all combinations of device, layout, dtype and case")
    parser.add_argument("--alone", action="store_true", help="in this process")
    options = parser.parse_args()
    names = [name for name in OPERATORS if re.search(options.pattern, name)]
    if not names:
        parser.error(f"no operator matches {options.pattern!r}; those with kernels: {', '.join(OPERATORS)}")
    if options.alone:
        return max([run_operator(name, options) for name in names])
    started = time.monotonic()
    print(f"{'operator':28} {'device':12} {'layout':8} passed refused failed", flush=True)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(functools.partial(_in_a_process, options), names))
    failed = [name for name, code in zip(names, ended, strict=True) if code]
    print(f"{len(names)} operators in {time.monotonic() - started:.0f} s; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def _in_a_process(options: argparse.Namespace, name: str) -> int:
    command = [sys.executable, __file__, f"^{name}$", "--alone"]
    for option in ("executor", "devices", "dtypes", "layouts", "some", "part"):
        command += [f"--{option}", str(getattr(options, option))]
    command += ["--every"] * options.every
    environment = dict(os.environ)
    done = _run(command, environment)
    if done.returncode < 0 and (change := getattr(__import__(options.executor), "IF_IT_CRASHES", None)):
        print(f"{name}: the process ended with {done.returncode}; once more, with {change}", flush=True)
        done = _run(command, environment | change)
    said = done.stdout
    if done.returncode not in (0, 1):
        said += f"{name}: the process ended with {done.returncode}\n"
    print(said, end="", flush=True)
    return done.returncode


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False
    )


def run_operator(name: str, options: argparse.Namespace) -> int:
    """Print a row for each device and layout, then the failures; return whether there are any."""
    executor = __import__(options.executor)
    failures: Counter[str] = Counter()
    cases = selected(name, options)
    for device, layout in dict.fromkeys(key[:2] for key in cases):
        counts: Counter[str] = Counter()
        for dtype in options.dtypes.split(","):
            names = cases[device, layout, dtype]
            calls = calls_of(OPERATORS[name], dtype, DEVICES[device], layout, options.some, names)
            executor.compile_all([call.plan for call in calls if not isinstance(call.plan, str)])
            for call in calls:
                outcome = check(call, executor.run)
                counts[outcome.status] += 1
                if outcome.status == "failed":
                    failures[outcome.message] += 1
                    if failures[outcome.message] == 1:
                        where = f"{device} {layout} {dtype} {outcome.case}"
                        print(f"  {name}: {where}: {outcome.message}", flush=True)
        numbers = " ".join(f"{counts[s]:{len(s)}}" for s in ("passed", "refused", "failed"))
        print(f"{name:28} {device:12} {layout:8} {numbers}", flush=True)
    return int(bool(failures))


def selected(name: str, options: argparse.Namespace) -> dict[tuple[str, ...], set[str]]:
    """Return the names of the cases to run for each device, layout and dtype."""
    devices, layouts, dtypes = (getattr(options, each).split(",") for each in ("devices", "layouts", "dtypes"))
    if options.executor == "emulation" and name in OPENCL_ONLY:
        devices = [device for device in devices if device != "processor"]
    rows = [
        (device, layout, dtype, case.name)
        for dtype in dtypes
        for case in cases_of(name, dtype)
        for device, layout in itertools.product(devices, layouts)
    ]
    if not (options.every or options.some):
        random.Random(0).shuffle(rows)  # else a device would have but one layout
        rows = [rows[index] for index in sorted(covering(rows, 2))]
    part, parts = map(int, options.part.split("/"))
    rows = rows[part - 1 :: parts]
    found: dict[tuple[str, ...], set[str]] = {key: set() for key in itertools.product(devices, layouts, dtypes)}
    for *key, case in rows:
        found[tuple(key)].add(case)
    return found


if __name__ == "__main__":
    sys.exit(main())
