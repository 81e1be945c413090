"""Kernels of native/gpu on a GPU that C++ emulates, with native/gpu/host.h and host.cpp.

`run` takes a plan and NumPy arrays. Every array is in memory of its own, whose surroundings cannot be accessed; results
and temporaries begin as NaN. The threads of each block run in ascending order, and then once more in descending order,
which must not change a bit of the result: else some thread reads what another has not written yet, or no longer.

`gpu_cases` runs the conformance cases with it, and .ci/gpu-emulated does so with sanitizers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tensorops.kernels._gpu import sources
from tensorops.kernels._gpu.plans import Launch, Operand, Plan
from tensorops.testing import DTYPES

ROOT = Path(__file__).parents[1]
SANITIZERS = os.environ.get("GPU_EMULATION_SANITIZE", "")
"""What -fsanitize= is to be given. The sanitizer's library must be loaded before Python."""
_LINES = 14  # of a report are shown

# Sanitizers' checks are compiled four times faster without optimization, and later standards' <cmath> takes long.
_FLAGS = ["-std=gnu++14", "-O0" if SANITIZERS else "-O1", "-g1", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-w"]


Arrays: TypeAlias = dict[str, np.ndarray[Any, Any]]
Results: TypeAlias = dict[str, "np.ndarray[Any, Any] | None"]


class EmulationError(AssertionError):
    """A defect of a kernel or of its plan."""


# --- compiling ---------------------------------------------------------------------------------------


@functools.cache
def compiler() -> str:
    """Return the C++ compiler, or an empty string if there is none."""
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++")))), "")


@functools.cache
def _flags() -> tuple[str, ...]:
    """Return the compiler's options: among them that variables begin as garbage, if it can do that."""
    flags = list(_FLAGS)
    if SANITIZERS:
        flags += [f"-fsanitize={SANITIZERS}", f"-fsanitize-recover={SANITIZERS}"]
    garbage = [*flags, "-ftrivial-auto-var-init=pattern"]
    probe = [compiler(), *garbage, "-x", "c++", "-fsyntax-only", "-"]
    known = subprocess.run(probe, input="", text=True, capture_output=True, env=_environment(), check=False)
    return tuple(flags if known.returncode else garbage)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def _built(text: str) -> Path:
    """Return the shared library of a C++ program: compiled once, as the name of the file tells what is in it."""
    folder = Path(os.environ.get("GPU_EMULATION_CACHE", ROOT / "build" / "emulated"))
    identity = "\0".join([compiler(), *_flags(), text])
    library = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    source, made = library.with_suffix(".cpp"), library.with_suffix(f".{os.getpid()}.tmp")
    source.write_text(text, encoding="utf-8")
    command = [compiler(), *_flags(), "-o", str(made), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)
    if done.returncode:
        raise EmulationError(f"the kernel is not valid C++:\n{done.stderr[:4000]}")
    made.replace(library)
    return library


@functools.cache
def _host() -> Any:
    text = (sources.FOLDER / "host.cpp").read_text(encoding="utf-8")
    host = ctypes.CDLL(str(_built(text)), mode=ctypes.RTLD_GLOBAL)
    host.host_launch.restype = ctypes.c_char_p
    pointer, number, count = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    host.host_launch.argtypes = [pointer, pointer, number, number, count, count, number]
    host.host_allocate.restype = ctypes.c_void_p
    host.host_allocate.argtypes = [ctypes.c_longlong, ctypes.c_int]
    host.host_free.restype = None
    host.host_free.argtypes = [ctypes.c_void_p]
    return host


def program(launch: Launch) -> str:
    """Return the C++ program of a launch."""
    text = sources.program(launch.source, tuple(launch.defines.items()), "host.h")
    return f"{text}\nHOST_ENTRY({launch.kernel})\n"


def compile_all(plans: Iterable[Plan]) -> None:
    """Compile the programs of plans, two at a time; those that fail do so again when they are run."""
    texts = {program(launch) for plan in plans for launch in plan.launches if launch.groups}
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(_built, text) for text in texts]:
            future.exception()


# --- memory ------------------------------------------------------------------------------------------


def operand_of(a: np.ndarray[Any, Any], lead: int = 0) -> Operand:
    """Return the metadata of an array in memory that begins with `lead` unused elements."""
    strides = tuple(stride // a.itemsize for stride in a.strides)
    first = lead + sum(-s * (n - 1) for n, s in zip(a.shape, strides, strict=True) if s < 0 and a.size)
    address = first * a.itemsize
    return Operand(a.dtype.name, a.shape, strides, first, min(16, address & -address or 16))


def lead_of(plan: Plan, name: str, lead: int) -> int:
    """Return how many unused elements come first in an array: none in those that a plan brings itself."""
    return 0 if name in (plan.constants or {}) or name in (plan.drawn or {}) else lead


def elements_of(operand: Operand) -> int:
    """Return how many elements there are up to an array's last one in memory."""
    if 0 in operand.shape:
        return 0
    return operand.offset + 1 + sum(s * (n - 1) for n, s in zip(operand.shape, operand.strides, strict=True) if s > 0)


class _Memory:
    """The memory of one array, the first and last element of which are its bounds; it begins as NaN and -1."""

    def __init__(self, operand: Operand, *, at_end: bool) -> None:
        self.operand = operand
        dtype = DTYPES.get(operand.dtype) or np.dtype(operand.dtype)
        elements = elements_of(operand)
        self.bytes = elements * dtype.itemsize
        self.address = _host().host_allocate(self.bytes, at_end)
        if not self.address:
            raise MemoryError(f"no guarded memory for {self.bytes} bytes")
        self.raw = np.ctypeslib.as_array((ctypes.c_uint8 * self.bytes).from_address(self.address))
        self.raw[:] = 255
        steps = tuple(s * dtype.itemsize for s in operand.strides)
        self.array = np.ndarray(
            operand.shape, dtype, self.raw, operand.offset * dtype.itemsize if elements else 0, steps
        )

    def free(self) -> None:
        _host().host_free(self.address)


# --- running -----------------------------------------------------------------------------------------


def run(plan: Plan, arrays: Arrays, lead: int = 0, local_bytes: int = 48 * 1024) -> Results:
    """Run a plan twice and return its results; raise `EmulationError` if anything is wrong with it.

    In the memory of each argument, `lead` unused elements come first.
    """
    upwards = _run(plan, arrays, lead, local_bytes, descending=False)
    downwards = _run(plan, arrays, lead, local_bytes, descending=True)
    for name, y in upwards.items():
        if y is not None and y.tobytes() != downwards[name].tobytes():
            raise EmulationError(f"{name} depends on the order in which threads run: a barrier is missing")
    return upwards


def _run(plan: Plan, arrays: Arrays, lead: int, local_bytes: int, *, descending: bool) -> Results:
    memory: dict[str, _Memory] = {}
    try:
        for name, a in arrays.items():
            memory[name] = _Memory(operand_of(a, lead_of(plan, name, lead)), at_end=not descending)
            memory[name].array[...] = a
        before = {name: memory[name].raw.tobytes() for name in arrays}
        made = {name: y for name, y in plan.results.items() if y is not None} | (plan.temporaries or {})
        for name, y in made.items():
            memory[name] = _Memory(y.operand, at_end=not descending)
        for launch in plan.launches:
            _launch(launch, memory, set(arrays), local_bytes, descending=descending)
        for name, was in before.items():
            if memory[name].raw.tobytes() != was:
                raise EmulationError(f"{name} is not a result, but was written")
        return {name: y and memory[name].array.copy() for name, y in plan.results.items()}
    finally:
        for m in memory.values():
            m.free()


def _launch(
    launch: Launch, memory: dict[str, _Memory], inputs: set[str], local_bytes: int, *, descending: bool
) -> None:
    if not launch.groups:
        return
    text = program(launch)
    library = ctypes.CDLL(str(_built_with_host(text)))
    block = ctypes.c_int.in_dll(library, "host_block_size").value
    if block != launch.block:
        raise EmulationError(f"{launch.kernel}: the plan has {launch.block} threads in a block, the program {block}")
    library.host_parameters.restype = ctypes.c_char_p
    parameters = library.host_parameters().decode().split(",")[:-1]
    values = _arguments(launch, parameters, memory, inputs)
    pointers = (ctypes.c_void_p * len(values))(*[v.ctypes.data for v in values])
    warp = int(launch.defines.get("WARP", 0))
    with _no_reports(launch.kernel):
        error = _host().host_launch(library.host_call, pointers, block, warp, launch.groups, local_bytes, descending)
    if error is not None:
        lines = text.splitlines()
        said = re.sub(r"line (\d+)", lambda found: f"`{lines[int(found[1]) - 1].strip()}`", error.decode())
        raise EmulationError(f"{launch.kernel}: {said}")


def _built_with_host(text: str) -> Path:
    _host()  # what the program refers to
    return _built(text)


def _bytes_of(dtype: str) -> str:
    """Return a dtype, one for signed and unsigned integers: how a kernel reads bits is its own affair."""
    return dtype.replace("uint", "int").replace("bool", "int8")


def _arguments(
    launch: Launch, parameters: list[str], memory: dict[str, _Memory], inputs: set[str]
) -> list[np.ndarray[Any, Any]]:
    """Return the arguments, each in an array of its own, and compare them with a kernel's parameters."""
    if len(parameters) != len(launch.arguments):
        raise EmulationError(
            f"{launch.kernel} has {len(parameters)} parameters, the plan {len(launch.arguments)} arguments"
        )
    values = []
    for at, (argument, parameter) in enumerate(zip(launch.arguments, parameters, strict=True)):
        if isinstance(argument, str):
            size = memory[argument].array.itemsize
            types = [_bytes_of(memory[argument].operand.dtype), f"int{8 * size}", "unknown"]
            types += ["float32"] * (size == 2)  # pairs that are copied
            allowed = [f"const {t}*" for t in types] + [f"{t}*" for t in types if argument not in inputs]
            values.append(np.array(memory[argument].address, dtype=np.uintp))
        else:
            allowed = [_bytes_of(argument.dtype.name)]
            values.append(np.array(argument))
        if _bytes_of(parameter) not in allowed:
            raise EmulationError(
                f"{launch.kernel}: parameter {at} is {parameter}, the plan's argument is {argument!r}, {allowed[0]}"
            )
    return values


@contextlib.contextmanager
def _no_reports(kernel: str) -> Iterator[None]:
    """Raise what sanitizers say within a block, which they write to the process's standard error."""
    if not SANITIZERS:
        yield
        return
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
            file.seek(0)
            said = [line for line in file.read().decode(errors="replace").splitlines() if line.strip("= ")]
    if reports := [line for line in said if "doesn't fully support makecontext" not in line]:
        raise EmulationError(f"{kernel}: a sanitizer reports\n" + "\n".join(reports[:_LINES]))
