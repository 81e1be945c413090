"""What NVRTC makes of the kernels in native/gpu, without a GPU.

The programs are those that the planners ask for in the conformance cases and for long rows, in each dtype and layout.
As a program, it compiles them and prints a table; .ci/gpu-compiled provides what it needs:

    python tests/gpu_compiled.py [--architectures sm_80,…] [--dtypes …] [--every] [regular expression for sources]

Without ``--every``, it compiles those with the most registers for each architecture, and of all others as few as show
each pair of values of two macros, and of a macro and an architecture.
"""

from __future__ import annotations

# ruff: noqa: T201
import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covering import covering
from tensorops._dtypes import name_of
from tensorops.kernels._gpu.planners import PLANNERS
from tensorops.kernels._gpu.plans import ITEM_SIZES, Device, Launch, Operand
from tensorops.kernels.cuda import _compile
from tensorops.testing import CASES, DTYPES
from tensorops.testing.entries import Maker, Workload
from tensorops.testing.tables import WORKLOADS

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
GPU = Device("gpu", units=108, lanes=32, local_bytes=48 * 1024, max_block=1024, float64=True)
_FEATURES = (1024, 4096, 12288, 65536)  # 12288: threads keep as many values in registers as ever
_MOST_BYTES = 2**25  # of arguments that are made only to be planned for
_SHOWN = 20  # problems of an architecture
_LARGEST_STACK = 32  # bytes that calls of rare functions save, such as that of a division


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One compilation: the text, the launch that asks for it, and who plans it."""

    text: str
    launch: Launch
    operator: str
    dtype: str

    def __str__(self) -> str:
        defines = " ".join(f"{name}={value}" for name, value in sorted(self.launch.defines.items()))
        return f"{self.launch.source}.cl {self.launch.kernel} {defines}"


class Made(NamedTuple):
    """What a program has become."""

    registers: int
    stack: int
    spilled: int
    wide: int
    problems: tuple[str, ...]


# --- which programs there are ------------------------------------------------------------------------


def programs(
    dtypes: Iterable[str] = tuple(DTYPES),
    pattern: str = "",
    *,
    of: Iterable[Any] = PLANNERS,
    leads: tuple[int, ...] = (0, 1),
) -> list[Program]:
    """Return the programs of some operators whose source's name matches, each once.

    `leads` are how many elements are before an array's first one in memory: with one, it is not aligned.
    """
    found: dict[tuple[str, str], Program] = {}
    for operator, dtype, lead in itertools.product(of, dtypes, leads):
        for args, kwargs in _calls(operator.__name__, dtype):
            arguments = operator.canonical(*args, **kwargs)
            metadata = {name: _operand(value, lead) for name, value in arguments.items()}
            plan = operator.apply(functools.partial(PLANNERS[operator], GPU), metadata)
            for launch in () if isinstance(plan, str) else plan.launches:
                if re.search(pattern, launch.source):
                    program = Program(_compile.program(launch), launch, operator.__name__, dtype)
                    found.setdefault((program.text, launch.kernel), program)
    return list(found.values())


def largest(every: Iterable[Program]) -> list[Program]:
    """Return one program of each kernel and dtype, aligned or not: that with the longest rows and most registers."""
    found: dict[tuple[str, ...], Program] = {}
    for program in every:
        launch = program.launch
        key = (launch.source, launch.kernel, program.dtype, str(launch.defines.get("ALIGNED")))
        found[key] = max(found.get(key, program), program, key=_size)
    return list(found.values())


def _size(program: Program) -> list[int]:
    return [int(program.launch.defines.get(name, 0)) for name in ("KEPT", "THREADS")]


def chosen(every: list[Program], architectures: Iterable[str]) -> dict[str, list[Program]]:
    """Return which programs to compile for each architecture: as few as show every pair of values of two macros.

    An architecture counts as a macro's value; the largest programs are compiled for each.
    """
    architectures = tuple(architectures)
    names = sorted({name for program in every for name in program.launch.defines})
    found = {architecture: set(largest(every)) for architecture in architectures}
    for kernel in dict.fromkeys(program.launch.kernel for program in every):
        pairs = [(p, a) for p in every if p.launch.kernel == kernel for a in architectures]
        rows = [(a, p.operator, p.dtype, *(str(p.launch.defines.get(name)) for name in names)) for p, a in pairs]
        varied = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
        for index in covering(list(zip(*varied, strict=True)), min(2, len(varied))):
            program, architecture = pairs[index]
            found[architecture].add(program)
    return {architecture: [p for p in every if p in programs] for architecture, programs in found.items()}


def _calls(name: str, dtype: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for case in CASES[name]:
        if dtype in case.dtypes:
            yield case.build(dtype_name=dtype)
    small, twice = (_nbytes(WORKLOADS[name](Maker(2, features, dtype))) for features in (256, 512))
    for features in _FEATURES:
        if small * (twice / small) ** math.log2(features / 256) < _MOST_BYTES:  # matrices grow as the square
            made = WORKLOADS[name](Maker(2, features, dtype))
            yield made.args, made.options


def _nbytes(work: Workload) -> int:
    return sum(a.nbytes for a in work.args if isinstance(a, np.ndarray))


def _operand(value: Any, lead: int) -> Any:
    """Return the metadata of an array whose first element has another one before it in memory."""
    if not isinstance(value, np.ndarray):
        return value
    strides = tuple(s // value.itemsize for s in value.strides)
    aligned = min(value.itemsize, 16) if lead else 16
    return Operand(name_of(value.dtype), value.shape, strides, 0, aligned)


# --- what they become --------------------------------------------------------------------------------


def library() -> str:
    """Return the path of NVRTC in the wheel nvidia-cuda-nvrtc, or an empty string."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("nvidia-cuda-nvrtc") or ():
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                return str(file.locate())
    return ""


@functools.cache
def _nvrtc() -> _compile.Nvrtc:
    return _compile.Nvrtc(library())


def made_of(program: Program, architecture: str, *, disassembled: bool = True) -> Made:
    """Compile a program, and list what is wrong with the result.

    Accesses of 16 bytes are looked for in the disassembly, which takes longer than the compilation, or only in the
    assembly, where an access already has its width.
    """
    try:
        built = _nvrtc().compile(program.text, architecture, "--ptxas-options=-v")
    except _compile.CompileError as error:
        return Made(0, 0, 0, 0, (str(error).splitlines()[0],))
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", built.log)
    stack = max(int(size) for size, _, _ in frames)
    spilled = sum(int(stores) + int(loads) for _, stores, loads in frames)
    registers = max(map(int, re.findall(r"Used (\d+) registers", built.log)))
    wide = _wide(built, disassembled=disassembled) if _is_wide(program) else 0
    problems = list(_mismatches(program.launch, built.ptx))
    if spilled or stack > _LARGEST_STACK:
        problems.append(f"{spilled} bytes are spilled, the stack has {stack}")
    if _is_wide(program) and not wide:
        problems.append("nothing is read or written in 16 bytes at a time")
    return Made(registers, stack, spilled, wide, tuple(problems))


def _is_wide(program: Program) -> bool:
    """Return whether a program must access 16 bytes at a time: its rows are aligned, and so long are its vectors."""
    defines = program.launch.defines
    in_vector = defines.get("VEC", 1) * ITEM_SIZES[program.dtype]
    by_element = "BITS" in defines and not defines.get("WHOLE", 1)  # groups of codes that do not fill a vector
    return bool(defines.get("ALIGNED") and defines.get("DENSE", 1) and in_vector >= 16 and not by_element)


def _wide(built: _compile.Compiled, *, disassembled: bool) -> int:
    """Return how many instructions read or write 16 bytes of global memory: of the disassembly, if there is one."""
    if not disassembled or shutil.which("nvdisasm") is None:
        return len(re.findall(r"(?:ld|st)\.global\S*\.(?:v4\.[fbu]32|v2\.[fbu]64|b128)", built.ptx))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(built.cubin)
        command = ["nvdisasm", "--print-code", "--no-dataflow", path]  # half of cuobjdump's time, which calls it
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return len(re.findall(r"\b(?:LDG|STG)\S*\.128", shown))


_KINDS = {"int32": "u32", "int64": "u64", "float32": "f32", "float64": "f64"}


def _mismatches(launch: Launch, ptx: str) -> Iterator[str]:
    """Yield where the parameters of a kernel are not what the launch passes."""
    entry = re.search(rf"\.entry {launch.kernel}\((.*?)\)", ptx, re.DOTALL)
    if entry is None:
        yield f"there is no kernel {launch.kernel}"
        return
    takes = re.findall(r"\.param \.(\w+)", entry[1])
    passes = ["u64" if isinstance(a, str) else _KINDS[a.dtype.name] for a in launch.arguments]
    for i, (taken, passed) in enumerate(itertools.zip_longest(takes, passes)):
        if taken != passed:
            yield f"parameter {i} is {taken}, but {passed} is passed"
    # Pointers have no kind of their own; what shows them is that they are converted to addresses of global memory.
    body = ptx[entry.start() :].partition("\n}")[0]  # other functions have registers with the same names
    loaded = dict(re.findall(rf"ld\.param\.u64\s+(%rd\d+), \[{launch.kernel}_param_(\d+)\]", body))
    for register in re.findall(r"cvta\.to\.global\.u64\s+%rd\d+, (%rd\d+)", body):
        i = int(loaded.get(register, -1))
        if 0 <= i < len(launch.arguments) and not isinstance(launch.arguments[i], str):
            yield f"parameter {i} is a pointer, but {launch.arguments[i]!r} is passed"


# --- as a program ------------------------------------------------------------------------------------


def main() -> int:
    """Compile programs for all architectures, and print a table of the worst of each source and dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pattern", nargs="?", default="")
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--every", action="store_true", help="each program for each architecture")
    options = parser.parse_args()
    if not library():
        parser.error("nvidia-cuda-nvrtc is not installed")
    every = programs(tuple(options.dtypes.split(",")), options.pattern)
    architectures = options.architectures.split(",")
    compiled = dict.fromkeys(architectures, every) if options.every else chosen(every, architectures)
    disassembled = set(largest(every))
    count = sum(map(len, compiled.values()))
    print(f"NVRTC {_nvrtc().version}: {len(every)} programs, {count} compilations for {options.architectures}")
    print(f"{'source':24} {'dtype':9} {'for':7} programs registers stack spilled accesses of 16 bytes", flush=True)
    failed = 0
    with ProcessPoolExecutor() as pool:
        for architecture, subjects in compiled.items():
            shown = [program in disassembled for program in subjects]
            made = list(pool.map(_made_of, subjects, itertools.repeat(architecture), shown, chunksize=4))
            for key in dict.fromkeys((p.launch.source, p.dtype) for p in subjects):
                group = [m for p, m in zip(subjects, made, strict=True) if (p.launch.source, p.dtype) == key]
                worst = [max(m[i] for m in group) for i in range(3)]
                wide = sum(m.wide for m in group)
                print(f"{key[0]:24} {key[1]:9} {architecture:7} {len(group):8} {worst[0]:9} {worst[1]:5} "
                      f"{worst[2]:7} {wide:6}")  # fmt: skip
            found = [f"  {p}: {text}" for p, m in zip(subjects, made, strict=True) for text in m.problems]
            print("\n".join(found[:_SHOWN] + [f"  and {len(found) - _SHOWN} more"] * (len(found) > _SHOWN)), flush=True)
            failed += len(found)
    print(f"{failed} problems")
    return int(bool(failed))


def _made_of(program: Program, architecture: str, disassembled: bool) -> Made:
    return made_of(program, architecture, disassembled=disassembled)


if __name__ == "__main__":
    sys.exit(main())
