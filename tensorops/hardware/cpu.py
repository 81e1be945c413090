"""The processor, the part of it that this process may use, and the memory."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tensorops.hardware.machine import Machine, as_int, sysctl, usable_cpus


@dataclass(frozen=True)
class CPU:
    """The processor, and the part of it that this process may use.

    Attributes
    ----------
    name : str
        The manufacturer's name; empty if unknown.
    architecture : str
        "x86_64", "aarch64", or the operating system's name for another.
    physical_cores : int or None
        Cores this process may run on, ``None`` if unknown.
    logical_cores : int
        Hardware threads this process may run on, by its affinity and its container's quota.
    features : frozenset of str
        Instruction sets, as far as the operating system lets programs use them: sse4_2, avx, avx2, fma, f16c,
        avx512 (F, BW, CD, DQ and VL together), avx512_bf16, avx512_fp16, avx512_vnni, avx_vnni, amx_tile, amx_int8,
        amx_bf16; on Arm neon, fp16, dotprod, bf16, i8mm, sve, sve2.
    caches : mapping of str to int
        Bytes of one cache of each level: L1d, L1i, L2, L3.
    memory : int or None
        Bytes of main memory that this process may use: the machine's, or its container's if that is less.
    quota : float or None
        Processors that this process may use on average, if its container's quota is less than its affinity.
    """

    name: str = ""
    architecture: str = ""
    physical_cores: int | None = None
    logical_cores: int = 1
    features: frozenset[str] = frozenset()
    caches: Mapping[str, int] = field(default_factory=dict, hash=False)
    memory: int | None = None
    quota: float | None = None


# Linux's names, where they differ or several make one feature.
_LINUX_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "neon": {"asimd"},
    "fp16": {"asimdhp"},
    "dotprod": {"asimddp"},
    **{name: {name} for name in ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512_bf16", "avx512_fp16", "avx512_vnni")},
    **{name: {name} for name in ("avx_vnni", "amx_tile", "amx_int8", "amx_bf16", "bf16", "i8mm", "sve", "sve2")},
}
# macOS's names: on Arm one key for each, on x86-64 a word in a list.
_ARM_KEYS = {"fp16": "FP16", "dotprod": "DotProd", "bf16": "BF16", "i8mm": "I8MM"}
_MAC_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "sse4_2": {"sse4.2"},
    "avx": {"avx1.0"},
    "avx512_vnni": {"avx512vnni"},
    **{name: {name} for name in ("avx2", "fma", "f16c")},
}
# Arm processors report numbers instead of a name; these are the ones found in servers.
_ARM_PARTS = {
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
    ("0xc0", "0xac3"): "Ampere-1",
}


def detect_cpu(machine: Machine, notes: list[str]) -> CPU:
    """Return the processor of a machine; unknown values keep their defaults."""
    if machine.system == "Linux":
        return _linux(machine, _architecture(machine), notes)
    if machine.system == "Darwin":
        return _darwin(machine, _architecture(machine))
    return bare_cpu(machine)


def bare_cpu(machine: Machine) -> CPU:
    """Return what is known about a processor without any file or command."""
    architecture = _architecture(machine)
    features = machine.cpu_features | ({"neon"} if architecture == "aarch64" else set())
    logical = len(machine.usable_cpus or {0})
    return CPU(machine.processor, architecture, None, logical, features, memory=machine.memory)


def _architecture(machine: Machine) -> str:
    name = machine.architecture.lower()
    return {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _named(flags: Iterable[str], names: Mapping[str, set[str]]) -> frozenset[str]:
    present = set(flags)
    return frozenset(name for name, needed in names.items() if needed <= present)


# ------------------------------------------------------------------------------------------------------ Linux


def _linux(machine: Machine, architecture: str, notes: list[str]) -> CPU:
    info: dict[str, str] = {}
    processors = set()
    for line in machine.read("proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        info.setdefault(key.strip(), value.strip())
        if key.strip() == "processor" and value.strip().isdecimal():
            processors.add(int(value))
    if not processors:
        notes.append("/proc/cpuinfo cannot be read, or does not name a processor")
    usable = machine.usable_cpus or frozenset(processors) or frozenset({0})
    quota = cpu_quota(machine)
    logical = _within(quota, len(usable))
    physical = _physical_cores(machine, usable)
    flags = (info.get("flags") or info.get("Features") or "").split()
    return CPU(
        name=info.get("model name") or _arm_name(info) or machine.processor,
        architecture=architecture,
        physical_cores=None if physical is None else min(physical, logical),
        logical_cores=logical,
        quota=None if quota is None or quota >= len(usable) else quota,
        features=machine.cpu_features or _named(flags, _LINUX_FLAGS),
        caches=_linux_caches(machine, min(usable)),
        memory=_linux_memory(machine),
    )


def _arm_name(info: Mapping[str, str]) -> str:
    maker, part = info.get("CPU implementer", ""), info.get("CPU part", "")
    if not part:
        return ""
    return _ARM_PARTS.get((maker, part), f"Arm processor (implementer {maker}, part {part})")


def _physical_cores(machine: Machine, usable: frozenset[int]) -> int | None:
    """Count the sets of hardware threads that share a core."""
    siblings = (machine.read(f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list") for n in usable)
    return len({listed for listed in siblings if listed}) or None


def _linux_caches(machine: Machine, cpu: int) -> dict[str, int]:
    found = {}
    for folder in machine.glob(f"sys/devices/system/cpu/cpu{cpu}/cache/index*"):
        level, kind = machine.read(folder / "level"), machine.read(folder / "type")
        size = re.fullmatch(r"([0-9]+)([KMG]?)", machine.read(folder / "size"))
        if level and size:
            suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
            found[f"L{level}{suffix}"] = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
    return found


def _linux_memory(machine: Machine) -> int | None:
    total = re.search(r"^MemTotal:\s+([0-9]+) kB", machine.read("proc/meminfo"), re.MULTILINE)
    limits = [int(total[1]) << 10] if total else [machine.memory] if machine.memory else []
    for folder in control_groups(machine, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = as_int(machine.read(str(folder / name)))  # "max" is not a number
            if limit is not None:
                limits.append(limit)
    # Without /proc/meminfo, the absence of a limit would look like memory: version 1 writes a number near 2**63.
    return min(limits) if limits and min(limits) < 1 << 60 else None


def available_memory(machine: Machine | None = None) -> int | None:
    """Return how many bytes this process can still have, of the machine and of its control groups.

    What a group has in its cache of files counts as free, as the system takes it back where there is need.

    Parameters
    ----------
    machine : Machine, optional
        The machine; by default this one.

    Returns
    -------
    int or None
        None where no file tells it, as on macOS and Windows.
    """
    machine = machine or Machine(system=platform.system(), architecture="")
    free = re.search(r"^MemAvailable:\s+([0-9]+) kB", machine.read("proc/meminfo"), re.MULTILINE)
    left = [int(free[1]) << 10] if free else []
    for folder in control_groups(machine, "memory"):
        for limit, usage, cached in _GROUP_FILES:
            most, used = (as_int(machine.read(str(folder / name))) for name in (limit, usage))
            if most is not None and used is not None:
                files = re.search(rf"^{cached} ([0-9]+)$", machine.read(str(folder / "memory.stat")), re.MULTILINE)
                left.append(max(most - used + (int(files[1]) if files else 0), 0))
    return min(left, default=None)


# A limit, what is used, and the files among that, in versions 2 and 1 of control groups
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def cpu_quota(machine: Machine) -> float | None:
    """Return how many processors the control groups of the process grant it on average, ``None`` if any number."""
    granted = []
    for folder in control_groups(machine, "cpu"):
        quota, _, period = machine.read(f"{folder}/cpu.max").partition(" ")  # version 2
        if not quota:
            quota = machine.read(f"{folder}/cpu.cfs_quota_us")  # version 1
            period = machine.read(f"{folder}/cpu.cfs_period_us") if as_int(quota) else ""
        microseconds, of = as_int(quota), as_int(period)  # "max" and -1 mean no quota
        if microseconds and of:
            granted.append(microseconds / of)
    return min(granted, default=None)


def usable_processors(machine: Machine | None = None) -> int:
    """Return how many threads of this process can compute at the same time.

    These are the processors of its affinity or, if that is less, the quota of its control groups (`cpu.max`, or
    `cpu.cfs_quota_us` in version 1), rounded up: with more threads it would only use up the quota sooner, and then be
    stopped until the end of the period. The files are read anew in every call, because a quota can change.

    Returns
    -------
    int
        At least 1.

    Examples
    --------
    >>> from tensorops.hardware import usable_processors
    >>> usable_processors() >= 1
    True
    """
    machine = machine or Machine(system=platform.system(), architecture="", usable_cpus=usable_cpus())
    quota = cpu_quota(machine) if machine.system == "Linux" else None
    return _within(quota, len(machine.usable_cpus or {0}))


def _within(quota: float | None, processors: int) -> int:
    return processors if quota is None else max(1, min(processors, math.ceil(quota)))


def control_groups(machine: Machine, controller: str) -> Iterator[PurePosixPath]:
    """Yield the folders of the process's control groups, its own first: the limits of all of them apply.

    In a container the path is often that of the host, of which only the root is visible.
    """
    mounts = PurePosixPath("sys/fs/cgroup")
    for line in machine.read("proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = mounts / controller if controllers else mounts
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


# ------------------------------------------------------------------------------------------------------ macOS


def _darwin(machine: Machine, architecture: str) -> CPU:
    caches = {"L1d": "l1dcachesize", "L1i": "l1icachesize", "L2": "l2cachesize", "L3": "l3cachesize"}
    said = sysctl(
        machine,
        "machdep.cpu.brand_string",
        "machdep.cpu.features",
        "machdep.cpu.leaf7_features",
        "hw.memsize",
        "hw.physicalcpu",
        "hw.logicalcpu",
        *(f"hw.optional.arm.FEAT_{key}" for key in _ARM_KEYS.values()),
        *(f"{where}.{key}" for key in caches.values() for where in ("hw.perflevel0", "hw")),
    )
    flags = f"{said.get('machdep.cpu.features', '')} {said.get('machdep.cpu.leaf7_features', '')}".lower().split()
    features = machine.cpu_features or _named(flags, _MAC_FLAGS)
    if architecture == "aarch64":
        features |= {"neon"} | {n for n, key in _ARM_KEYS.items() if said.get(f"hw.optional.arm.FEAT_{key}") == "1"}
    # The caches of the fast cores, if there are two kinds.
    sizes = {n: said.get(f"hw.perflevel0.{key}") or said.get(f"hw.{key}") for n, key in caches.items()}
    return CPU(
        name=said.get("machdep.cpu.brand_string", machine.processor),
        architecture=architecture,
        physical_cores=as_int(said.get("hw.physicalcpu")),
        logical_cores=as_int(said.get("hw.logicalcpu")) or len(machine.usable_cpus or {0}),
        features=features,
        caches={name: size for name, text in sizes.items() if (size := as_int(text))},
        memory=as_int(said.get("hw.memsize")) or machine.memory,
    )
