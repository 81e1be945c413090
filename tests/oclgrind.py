"""Kernels of native/gpu on Oclgrind, a simulator of OpenCL devices that checks each access to memory.

The process must run under the program `oclgrind`, as .ci/oclgrind does. `run` takes the arguments of `emulation.run`,
and buffers have not one element more than the arrays.
"""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import emulation
from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.plans import Launch, Operand, Plan
from tensorops.testing import DTYPES

# Oclgrind 21.10 follows the wrong elements, also beyond the vector, where a vector becomes a shorter one.
_PART_OF_VECTOR = re.compile(r"\.(lo|hi|even|odd)\b")
# The same happens where the prelude folds a vector of more than four lanes in halves: here it folds lanes.
_FOLD = re.compile(r"#define DEFINE_FOLD\(combine\)(.*\\\n)+.*")
_FOLD_BY_LANES = r"""#define DEFINE_FOLD(combine) \\
    INLINE real JOIN(JOIN(fold_, VEC), _##combine)(vec v) { \\
        real a[VEC]; \\
        to_memory(v, a); \\
        for (int n = VEC / 2; n > 0; n /= 2) \\
            for (int k = 0; k < n; ++k) a[k] = combine(a[k], a[k + n]); \\
        return a[0]; \\
    }"""
_ABOUT_VALUES = re.compile(r"Uninitialized|Controlflow depends on uninitialized")
IF_IT_CRASHES = {"OCLGRIND_UNINITIALIZED": "0"}
"""The environment of a second try, for the first reason."""

_LINES = 12  # of a report are shown
# Buffers are kept: of one that takes the place of another, Oclgrind 21.10 may say that it is not initialized.
_buffers: list[Any] = []
_LOG = Path(tempfile.gettempdir(), f"oclgrind-{os.getpid()}.log")
os.environ["OCLGRIND_LOG"] = str(_LOG)  # read at the first use of OpenCL; a file of its own for each process


@functools.cache
def _queue() -> Any:
    import pyopencl as cl

    (platform,) = [p for p in cl.get_platforms() if p.name == "Oclgrind"]
    return cl.CommandQueue(cl.Context(platform.get_devices()))


@functools.cache
def _program(text: str) -> Any:
    import pyopencl as cl

    return cl.Program(_queue().context, text).build(options=["-cl-opt-disable", "-w"], cache_dir=False)


def compile_all(plans: Iterable[Plan]) -> None:
    """Do nothing: programs are compiled as they are run."""


class _Memory:
    """A buffer in which an array has its first and its last element, or whose elements are undefined."""

    def __init__(self, operand: Operand, values: np.ndarray[Any, Any] | None = None) -> None:
        import pyopencl as cl

        dtype = DTYPES.get(operand.dtype) or np.dtype(operand.dtype)
        self.host = np.zeros(emulation.elements_of(operand), dtype)
        steps = tuple(s * dtype.itemsize for s in operand.strides)
        start = operand.offset * dtype.itemsize if self.host.size else 0
        self.array = np.ndarray(operand.shape, dtype, self.host, start, steps)
        self.buffer = cl.Buffer(_queue().context, cl.mem_flags.READ_WRITE, max(1, self.host.nbytes))
        _buffers.append(self.buffer)
        if values is not None:
            self.array[...] = values
            if self.host.size:
                cl.enqueue_copy(_queue(), self.buffer, self.host.view(np.uint8))

    def read(self) -> np.ndarray[Any, Any]:
        import pyopencl as cl

        if self.host.size:
            cl.enqueue_copy(_queue(), self.host.view(np.uint8), self.buffer)
        return self.array


def run(plan: Plan, arrays: emulation.Arrays, lead: int = 0, local_bytes: int = 0) -> emulation.Results:
    """Run a plan and return its results; raise `emulation.EmulationError` with what Oclgrind reports."""
    memory = {
        name: _Memory(emulation.operand_of(a, emulation.lead_of(plan, name, lead)), a) for name, a in arrays.items()
    }
    made = {name: y for name, y in plan.results.items() if y is not None} | (plan.temporaries or {})
    memory |= {name: _Memory(y.operand) for name, y in made.items()}
    for launch in plan.launches:
        if launch.groups:
            _launch(launch, memory)
    return {name: y and memory[name].read() for name, y in plan.results.items()}


def _launch(launch: Launch, memory: dict[str, _Memory]) -> None:
    import pyopencl as cl

    text = sources.program(launch.source, tuple(launch.defines.items()), "opencl.h")
    text = text.replace("__builtin_prefetch(p)", "")  # which it does not know
    text = _FOLD.sub(_FOLD_BY_LANES, text)
    kernel = cl.Kernel(_program(text), launch.kernel)
    kernel.set_args(*[memory[a].buffer if isinstance(a, str) else a for a in launch.arguments])
    before = _reports()
    cl.enqueue_nd_range_kernel(_queue(), kernel, (launch.groups * launch.block,), (launch.block,))
    _queue().finish()
    reports = _reports()[len(before) :].split("\n\n")
    if _PART_OF_VECTOR.search(sources.program(launch.source, ())):
        reports = [report for report in reports if not _ABOUT_VALUES.match(report.strip())]
    if said := "\n".join(filter(str.strip, reports)).splitlines():
        raise emulation.EmulationError(f"{launch.kernel}: Oclgrind reports\n" + "\n".join(said[:_LINES]))


def _reports() -> str:
    return _LOG.read_text(errors="replace") if _LOG.exists() else ""
