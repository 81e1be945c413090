"""Hardware detection on simulated machines: folders replace their files, functions their commands."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

import support
from tensorops import hardware
from tensorops.hardware import CPU, Hardware, detect, detect_hardware, machine as _machine
from tensorops.hardware.accelerators import tpu_version
from tensorops.hardware.cpu import available_memory
from tensorops.hardware.machine import DetectionError, Machine
from tensorops.hardware.nvidia import QUERY, generation

GIB = 1 << 30

AVX2_FLAGS = "fpu sse sse2 sse4_1 sse4_2 fma avx f16c avx2 bmi2"
SAPPHIRE_RAPIDS_FLAGS = (
    f"{AVX2_FLAGS} avx512f avx512dq avx512cd avx512bw avx512vl avx_vnni avx512_bf16 avx512_vnni avx512_fp16 amx_bf16 "
    "amx_tile amx_int8"
)
GRAVITON3_FLAGS = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimddp sve i8mm bf16"


def x86(name: str, flags: str, cores: int) -> dict[str, str]:
    """Return the files of a Linux machine with two threads per core, numbered as Linux does."""
    entries = [f"processor\t: {n}\nmodel name\t: {name}\nflags\t\t: {flags}\n" for n in range(2 * cores)]
    topology = {
        f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{n % cores},{n % cores + cores}\n"
        for n in range(2 * cores)
    }
    return {
        "proc/cpuinfo": "\n".join(entries),
        "proc/meminfo": "MemTotal:       32768000 kB\nMemFree: 1 kB\n",
    } | topology


LAPTOP = x86("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", AVX2_FLAGS, 4) | {
    f"sys/devices/system/cpu/cpu0/cache/index{i}/{file}": f"{text}\n"
    for i, entry in enumerate((("1", "Data", "32K"), ("1", "Instruction", "32K"), ("2", "Unified", "256K")))
    for file, text in zip(("level", "type", "size"), entry, strict=True)
}


def commands(**answers):
    """Return a `run` that knows these commands: text is printed, an error is raised; other commands are missing."""

    def run(command, seconds):
        assert 0 < seconds <= 30
        answer = answers.get(Path(command[0]).name.replace("-", "_"))
        if isinstance(answer, Exception):
            raise answer
        return answer(command) if callable(answer) else answer

    return run


@pytest.fixture
def machine(tmp_path):
    def make(files=(), *, system="Linux", architecture="x86_64", **described):
        for path, text in dict(files).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
        return Machine(system, architecture, root=tmp_path, **described)

    return make


# --- processors --------------------------------------------------------------------------------------


def test_a_plain_laptop(machine):
    found = detect(machine(LAPTOP))
    assert found == Hardware(
        hardware_type="cpu",
        device_name="Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz",
        device_count=1,
        total_memory_gb=31.25,
        cpu=hardware.CPU(
            name="Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz",
            architecture="x86_64",
            physical_cores=4,
            logical_cores=8,
            features=frozenset({"sse4_2", "fma", "avx", "f16c", "avx2"}),
            caches={"L1d": 32768, "L1i": 32768, "L2": 262144},
            memory=32768000 * 1024,
        ),
    )
    assert str(found).splitlines() == [
        "cpu: Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz, 31.2 GiB",
        "processor: Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz (x86_64), 4 cores, 8 threads",
        "  features: avx avx2 f16c fma sse4_2",
        "  caches: L1d 32 KiB, L1i 32 KiB, L2 256 KiB",
        "  memory: 31.2 GiB",
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:     8 kB\n"}, 8192),
        ({"memory.max": "max", "memory.current": "1000"}, 8192),
        ({"memory.max": "1500", "memory.current": "1000"}, 500),
        ({"memory.max": "1500", "memory.current": "1600"}, 0),
        ({"memory.max": "1500", "memory.current": "1400", "memory.stat": "anon 1\ninactive_file 300\n"}, 400),
        ({"own/memory.max": "700", "own/memory.current": "600", "memory.max": "900", "memory.current": "850"}, 50),
    ],
)
def test_the_memory_that_is_left(machine, files, expected):
    described = {"proc/self/cgroup": "0::/own\n"}
    if files and "proc/meminfo" not in files:
        described["proc/meminfo"] = "MemAvailable: 8 kB\n"
    described |= {name if "/meminfo" in name else f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert available_memory(machine(described)) == expected


def test_a_server_with_amx(machine):
    cpu = detect(machine(x86("Intel(R) Xeon(R) Platinum 8480C", SAPPHIRE_RAPIDS_FLAGS, 2))).cpu
    assert cpu.features == {
        *("sse4_2", "fma", "avx", "f16c", "avx2", "avx512", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni"),
        *("amx_tile", "amx_int8", "amx_bf16"),
    }


def test_half_of_avx512_is_none(machine):
    flags = SAPPHIRE_RAPIDS_FLAGS.replace(" avx512bw", "")  # as on Xeon Phi
    features = detect(machine(x86("?", flags, 1))).cpu.features
    assert "avx512" not in features
    assert "avx2" in features


def test_what_the_compiled_module_found_counts_more_than_the_file(machine):
    described = machine(LAPTOP, cpu_features=frozenset({"avx2"}))
    assert detect(described).cpu.features == {"avx2"}


def test_an_arm_server(machine):
    info = f"processor\t: 0\nFeatures\t: {GRAVITON3_FLAGS}\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    cpu = detect(machine({"proc/cpuinfo": info}, architecture="aarch64")).cpu
    assert (cpu.name, cpu.architecture, cpu.logical_cores) == ("Arm Neoverse V1", "aarch64", 1)
    assert cpu.features == {"neon", "fp16", "dotprod", "bf16", "i8mm", "sve"}
    assert (cpu.physical_cores, cpu.caches, cpu.memory) == (None, {}, None)


def test_an_arm_processor_without_a_known_name(machine):
    info = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x48\nCPU part\t: 0xd01\n"
    cpu = detect(machine({"proc/cpuinfo": info}, architecture="aarch64")).cpu
    assert cpu.name == "Arm processor (implementer 0x48, part 0xd01)"


def test_affinity_leaves_the_cores_it_allows(machine):
    cpu = detect(machine(LAPTOP, usable_cpus=frozenset({1, 5, 2}))).cpu  # 1 and 5 share a core
    assert (cpu.physical_cores, cpu.logical_cores) == (2, 3)


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/", {"memory.max": 8 * GIB}, 8 * GIB),
        ("0::/user.slice/job", {"user.slice/job/memory.max": 3 * GIB, "user.slice/memory.max": 2 * GIB}, 2 * GIB),
        ("0::/../../elsewhere", {"memory.max": GIB}, GIB),  # a container that sees only its own part
        ("0::/docker/1f", {"memory.max": "max"}, 32768000 * 1024),
        ("0::/", {"memory.max": 64 * GIB}, 32768000 * 1024),  # more than the machine has
        ("5:cpu,cpuacct:/x\n4:memory:/docker/1f", {"memory/memory.limit_in_bytes": 4 * GIB}, 4 * GIB),
        ("4:memory:/job", {"memory/job/memory.limit_in_bytes": 5 * GIB}, 5 * GIB),
        ("4:memory:/", {"memory/memory.limit_in_bytes": 9223372036854771712}, 32768000 * 1024),
        # Neither the group that limits memory nor a folder beside those of the groups.
        ("4:pids:/job\n5:memory:/", {"memory/job/memory.limit_in_bytes": GIB}, 32768000 * 1024),
        ("0::/../beside", {"memory.max": 2 * GIB, "../beside/memory.max": GIB}, 2 * GIB),
    ],
)
def test_memory_of_a_container(machine, group, limits, expected):
    files = {"proc/self/cgroup": f"{group}\n"} | {f"sys/fs/cgroup/{name}": f"{n}\n" for name, n in limits.items()}
    found = detect(machine(LAPTOP | files))
    assert found.cpu.memory == expected
    assert found.total_memory_gb == expected / GIB


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {"cpu.max": "250000 100000"}, (3, 3)),  # two and a half
        ("0::/", {"cpu.max": "50000 100000"}, (1, 1)),
        ("0::/", {"cpu.max": "max 100000"}, (4, 8)),
        ("0::/", {"cpu.max": "9900000 100000"}, (4, 8)),
        ("3:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "600000", "cpu/x/cpu.cfs_period_us": "100000"}, (4, 6)),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, (4, 8)),
    ],
)
def test_cores_of_a_container(machine, group, files, expected):
    files = {"proc/self/cgroup": f"{group}\n"} | {f"sys/fs/cgroup/{name}": f"{n}\n" for name, n in files.items()}
    cpu = detect(machine(LAPTOP | files)).cpu
    assert (cpu.physical_cores, cpu.logical_cores) == expected


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {"cpu.max": "250000 100000"}, 3),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "1 100000"}, 1),
        ("0::/", {"cpu.max": "200000 100000"}, 2),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {}, 8),
        ("", {"cpu.max": "50000 100000"}, 8),  # the process is in no group
        # The tightest quota from the process's group up to the root, but not of a group beside or below these.
        ("0::/a/b", {"a/b/cpu.max": "300000 100000", "a/cpu.max": "150000 100000", "cpu.max": "max 100000"}, 2),
        ("0::/a/b", {"a/b/cpu.max": "100000 100000", "a/cpu.max": "700000 100000"}, 1),
        ("0::/a", {"a/cpu.max": "600000 100000", "a/b/cpu.max": "100000 100000", "c/cpu.max": "100000 100000"}, 6),
        ("0::/of/the/host", {"cpu.max": "400000 100000"}, 4),  # of which only the root is visible
        ("3:cpu,cpuacct:/x", {"cpu,cpuacct/x/cpu.cfs_quota_us": "1"}, 8),  # without a period
        ("3:cpu,cpuacct:/x/y", {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000"}, 3),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("1:cpu:/\n0::/", {"cpu/cpu.cfs_quota_us": "20000", "cpu/cpu.cfs_period_us": "10000"}, 2),  # both versions
        ("3:cpuset:/\n0::/", {"cpuset/cpu.cfs_quota_us": "1", "cpuset/cpu.cfs_period_us": "1"}, 8),
        # Odd contents
        ("0::/", {"cpu.max": "50000 0"}, 8),
        ("0::/", {"cpu.max": "0 100000"}, 8),
        ("0::/", {"cpu.max": "-5 -5"}, 8),
        ("0::/", {"cpu.max": "9" * 5000 + " 1"}, 8),
        ("0::/", {"cpu.max": "lots of it\n\ufffd"}, 8),
        ("0::/", {"cpu.max/is a folder": ""}, 8),
        ("0::/" + "x" * 5000, {"cpu.max": "100000 100000"}, 1),
        ("::::\n0\n\n:cpu:\n0:", {"cpu.max": "50000 100000"}, 1),  # the root's quota applies to all groups
    ],
)
def test_usable_processors(machine, group, files, expected):
    files = {"proc/self/cgroup": f"{group}\n"} | {f"sys/fs/cgroup/{name}": f"{n}\n" for name, n in files.items()}
    assert hardware.usable_processors(machine(LAPTOP | files, usable_cpus=frozenset(range(8)))) == expected


def test_usable_processors_are_within_the_affinity(machine):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}
    assert hardware.usable_processors(machine(files, usable_cpus=frozenset({3, 5}))) == 2
    assert hardware.usable_processors(machine({}, usable_cpus=None)) == 1
    elsewhere = machine(files, system="Darwin", usable_cpus=frozenset(range(4)))
    assert hardware.usable_processors(elsewhere) == 4


def test_usable_processors_of_this_machine():
    assert hardware.usable_processors() == hardware.detect_hardware().cpu.logical_cores


@pytest.mark.parametrize(
    ("quota", "said"),
    [("50000", "1 core, 1 thread (a quota of 0.5 processors)"), ("max", "4 cores, 8 threads"), ("900000", "8 threads")],
)
def test_a_quota_is_printed(machine, quota, said):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    (line,) = (line for line in str(detect(machine(LAPTOP | files))).splitlines() if line.startswith("processor"))
    assert line.endswith(said)


def test_nothing_can_be_read(machine):
    found = detect(machine({"proc/cpuinfo/is a folder": "", "proc/meminfo/too": ""}, usable_cpus=frozenset({0, 1})))
    assert found.notes == ("/proc/cpuinfo cannot be read, or does not name a processor",)
    assert (found.hardware_type, found.device_name, found.total_memory_gb) == ("cpu", "", None)
    assert found.cpu == hardware.CPU(architecture="x86_64", logical_cores=2)
    assert str(found).startswith("cpu: unknown\nprocessor: unknown (x86_64), 2 threads\nnote: ")


def test_files_of_rubbish(machine):
    files = {"proc/cpuinfo": "processor : x\n\x00\ufffd:::\nflags", "proc/meminfo": "MemTotal: lots kB"}
    files |= {f"sys/devices/system/cpu/cpu0/cache/index0/{name}": "?" for name in ("level", "type", "size")}
    files |= {"proc/self/cgroup": "0::/\n\n:", "sys/fs/cgroup/memory.max": "-7", "sys/fs/cgroup/cpu.max": ""}
    cpu = detect(machine(files)).cpu
    assert (cpu.name, cpu.features, cpu.caches, cpu.memory, cpu.logical_cores) == ("", frozenset(), {}, None, 1)


def test_windows(machine):
    described = machine(system="Windows", architecture="AMD64", processor="AMD Ryzen 9 7950X", memory=64 * GIB)
    described = dataclasses.replace(described, usable_cpus=frozenset(range(32)), cpu_features=frozenset({"avx2"}))
    found = detect(described)
    assert found.cpu == hardware.CPU(
        "AMD Ryzen 9 7950X", "x86_64", logical_cores=32, features=frozenset({"avx2"}), memory=64 * GIB
    )
    assert (found.device_name, found.total_memory_gb) == ("AMD Ryzen 9 7950X", 64.0)


# --- Apple -------------------------------------------------------------------------------------------

M3_MAX = """machdep.cpu.brand_string: Apple M3 Max
hw.memsize: 68719476736
hw.physicalcpu: 16
hw.logicalcpu: 16
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_FP16: 1
hw.perflevel0.l1dcachesize: 131072
hw.l1dcachesize: 65536
hw.perflevel0.l1icachesize: 196608
hw.perflevel0.l2cachesize: 16777216
"""


def test_an_apple_chip(machine):
    found = detect(machine(system="Darwin", architecture="arm64", run=commands(sysctl=M3_MAX)))
    assert (found.hardware_type, found.device_name, found.device_count) == ("apple", "Apple M3 Max", 1)
    assert found.total_memory_gb == 64.0
    assert found.cpu == hardware.CPU(
        name="Apple M3 Max",
        architecture="aarch64",
        physical_cores=16,
        logical_cores=16,
        features=frozenset({"neon", "fp16", "dotprod", "bf16", "i8mm"}),
        caches={"L1d": 131072, "L1i": 196608, "L2": 16777216},
        memory=64 * GIB,
    )
    assert found.notes == ()


def test_an_m1_lacks_what_came_later(machine):
    said = (
        M3_MAX.replace("M3 Max", "M1").replace("FEAT_BF16: 1", "FEAT_BF16: 0").replace("FEAT_I8MM: 1", "FEAT_I8MM: 0")
    )
    found = detect(machine(system="Darwin", architecture="arm64", run=commands(sysctl=said)))
    assert found.cpu.features == {"neon", "fp16", "dotprod"}


def test_an_intel_mac_has_no_accelerator(machine):
    said = (
        "machdep.cpu.brand_string: Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz\n"
        "machdep.cpu.features: FPU SSE4.2 AVX1.0 FMA F16C\nmachdep.cpu.leaf7_features: AVX2 BMI2\n"
        "hw.memsize: 17179869184\nhw.physicalcpu: 8\nhw.logicalcpu: 16\n"
    )
    found = detect(machine(system="Darwin", run=commands(sysctl=said)))
    assert (found.hardware_type, found.total_memory_gb) == ("cpu", 16.0)
    assert found.cpu.features == {"sse4_2", "avx", "fma", "f16c", "avx2"}


def test_a_translated_python_is_told_so(machine):
    said = f"{M3_MAX}sysctl.proc_translated: 1\n"
    found = detect(machine(system="Darwin", architecture="x86_64", run=commands(sysctl=said)))
    assert found.hardware_type == "cpu"
    assert found.notes == ("this Python is an x86-64 program on an Apple chip; only an arm64 one can use its GPU",)


def test_sysctl_that_fails_leaves_the_rest(machine):
    described = machine(system="Darwin", architecture="arm64", run=commands(sysctl=DetectionError("sysctl is ill")))
    found = detect(dataclasses.replace(described, usable_cpus=frozenset(range(8))))
    assert found.notes == ("sysctl is ill", "sysctl is ill")
    assert (found.hardware_type, found.cpu.logical_cores) == ("cpu", 8)


# --- NVIDIA ------------------------------------------------------------------------------------------

GPUS = {
    "H100": ("NVIDIA H100 80GB HBM3, 81559, 9.0, GPU-11111111-a", "Hopper", 90, 79.6),
    "B200": ("NVIDIA B200, 183359, 10.0, GPU-22222222-b", "Blackwell", 100, 179.1),
    "A100": ("NVIDIA A100-SXM4-40GB, 40960, 8.0, GPU-33333333-c", "Ampere", 80, 40.0),
    "RTX 4090": ("NVIDIA GeForce RTX 4090, 24564, 8.9, GPU-44444444-d", "Ada Lovelace", 89, 24.0),
    "T4": ("Tesla T4, 15360, 7.5, GPU-55555555-e", "Turing", 75, 15.0),
}


@pytest.mark.parametrize("name", GPUS)
def test_nvidia_by_command(machine, name):
    line, architecture, capability, gibibytes = GPUS[name]
    found = detect(machine(LAPTOP, run=commands(nvidia_smi=f"{line}\n{line}\n")))
    assert (found.hardware_type, found.device_name) == ("cuda", line.partition(",")[0])
    assert (found.device_count, found.gpu_architecture, found.compute_capability) == (2, architecture, capability)
    assert found.total_memory_gb == pytest.approx(gibibytes, abs=0.05)
    assert {a.found_by for a in found.accelerators} == {"nvidia-smi"}
    assert found.cpu.name == "Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz"
    first = str(found).splitlines()[0]
    assert first == (
        f"cuda: 2 x {found.device_name}, {architecture}, compute capability {capability / 10}, {gibibytes} GiB each"
    )


def test_of_unlike_gpus_the_most_capable_is_named(machine):
    larger_but_older = "Quadro RTX 8000, 49152, 7.5, GPU-6"
    lines = "\n".join((larger_but_older, GPUS["A100"][0], GPUS["T4"][0]))
    found = detect(machine(run=commands(nvidia_smi=lines)))
    assert (found.device_name, found.compute_capability) == ("NVIDIA A100-SXM4-40GB", 80)
    assert (found.device_count, len(found.accelerators)) == (3, 3)


def test_a_gpu_without_memory_of_its_own(machine):
    found = detect(machine(run=commands(nvidia_smi="NVIDIA GB10, [N/A], 12.1, GPU-6\n")))
    assert (found.device_name, found.compute_capability, found.total_memory_gb) == ("NVIDIA GB10", 121, None)
    assert found.notes == ("/proc/cpuinfo cannot be read, or does not name a processor",)


def test_architectures_end_where_the_table_does():
    assert [generation(n) for n in (None, 61, 70, 86, 87, 89, 103, 120, 130)] == [
        *(None, "Pascal", "Volta", "Ampere", "Ampere", "Ada Lovelace", "Blackwell", "Blackwell", None)
    ]


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (DetectionError("nvidia-smi did not answer within 5 s"), "nvidia-smi did not answer within 5 s"),
        ("Wombat\n", "nvidia-smi printed a line that does not describe a GPU: 'Wombat'"),
        ("a, b\n", "nvidia-smi printed a line that does not describe a GPU: 'a, b'"),
        (RuntimeError("what is this"), "NVIDIA: RuntimeError: what is this"),
    ],
)
def test_a_command_that_misbehaves_is_a_note(machine, answer, note):
    found = detect(machine(LAPTOP, run=commands(nvidia_smi=answer)))
    assert (found.hardware_type, found.notes) == ("cpu", (note,))


def test_a_missing_command_is_the_usual_case_and_no_note(machine):
    assert detect(machine(LAPTOP)).notes == ()


def test_a_gpu_without_a_driver_is_a_note(machine):
    bus = {"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x030200\n"}
    found = detect(machine(LAPTOP | bus))
    assert found.hardware_type == "cpu"
    assert found.notes == ("an NVIDIA GPU is on the PCI bus, but no NVIDIA driver responds for it",)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("1", ["Tesla T4"]),
        ("1,0", ["Tesla T4", "NVIDIA H100 80GB HBM3"]),
        ("GPU-1111", ["NVIDIA H100 80GB HBM3"]),
        ("0,7,1", ["NVIDIA H100 80GB HBM3"]),  # CUDA ignores everything after an invalid entry
        ("", []),
        ("-1", []),
        ("MIG-1234", ["NVIDIA H100 80GB HBM3", "Tesla T4"]),
    ],
)
def test_hidden_gpus_do_not_count(machine, listed, names):
    smi = commands(nvidia_smi=f"{GPUS['H100'][0]}\n{GPUS['T4'][0]}\n")
    found = detect(machine(LAPTOP, run=smi, environment={"CUDA_VISIBLE_DEVICES": listed}))
    assert [a.name for a in found.accelerators] == names
    hidden = 2 - len(names)
    assert found.notes == ((f"CUDA_VISIBLE_DEVICES={listed} hides {hidden} of 2 devices",) if hidden else ())


@pytest.mark.parametrize(
    ("environment", "names", "guessed"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["NVIDIA H100 80GB HBM3"], True),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["Tesla T4", "NVIDIA H100 80GB HBM3"], True),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, ["NVIDIA H100 80GB HBM3"], True),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["Tesla T4"], False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-55555555"}, ["Tesla T4"], False),
        ({}, ["Tesla T4", "NVIDIA H100 80GB HBM3"], False),
    ],
)
def test_cuda_counts_from_the_fastest_gpu(machine, environment, names, guessed):
    """The driver lists them in bus order; here the slow one is first."""
    smi = commands(nvidia_smi=f"{GPUS['T4'][0]}\n{GPUS['H100'][0]}\n")
    found = detect(machine(LAPTOP, run=smi, environment=environment))
    assert [a.name for a in found.accelerators] == names
    assert any("counts GPUs from the fastest on, which had to be guessed" in n for n in found.notes) is guessed


def test_the_variable_makes_no_gpu(machine):
    found = detect(machine(LAPTOP, environment={"CUDA_VISIBLE_DEVICES": "0"}))
    assert (found.hardware_type, found.notes) == ("cpu", ())


class FakeNVML:
    """The driver's library; `broken` maps a function's name to the status that it returns."""

    def __init__(self, *devices, **broken):
        self.devices, self.broken, self.open = devices, broken, 0

        def describe(status):
            return {15: b"GPU is lost", 18: b"Driver/library version mismatch"}.get(status)

        self.nvmlErrorString = describe

    def __getattr__(self, name):
        def call(*arguments):
            status = self.broken.get(name, 0)
            return status or getattr(self, f"_{name.removeprefix('nvml').removesuffix('_v2')}")(*arguments) or 0

        if not name.startswith("nvml"):
            raise AttributeError(name)
        return call

    def _Init(self):
        self.open += 1

    def _Shutdown(self):
        self.open -= 1

    def _DeviceGetCount(self, count):
        count._obj.value = len(self.devices)

    def _DeviceGetHandleByIndex(self, index, handle):
        if self.devices[index.value] is None:
            return 15
        handle._obj.value = index.value + 1
        return 0

    def _DeviceGetName(self, handle, buffer, length):
        assert length.value == 96
        buffer.value = self.devices[handle.value - 1][0].encode()

    def _DeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total = self.devices[handle.value - 1][1]

    def _DeviceGetCudaComputeCapability(self, handle, major, minor):
        major._obj.value, minor._obj.value = self.devices[handle.value - 1][2]

    def _DeviceGetUUID(self, handle, buffer, length):
        buffer.value = f"GPU-{handle.value}".encode()


H100 = ("NVIDIA H100 80GB HBM3", 85520809984, (9, 0))


def test_nvidia_by_library(machine):
    asked = []
    nvml = FakeNVML(H100, H100)
    described = machine(LAPTOP, load_library=lambda name: asked.append(name) or nvml)
    found = detect(described)
    assert asked == ["libnvidia-ml.so.1"]
    assert nvml.open == 0  # everything opened was closed
    assert [dataclasses.astuple(a) for a in found.accelerators] == [
        ("cuda", "NVIDIA H100 80GB HBM3", 85520809984, "NVML", 90, "Hopper", f"GPU-{n}") for n in (1, 2)
    ]
    detect(dataclasses.replace(described, system="Windows"))
    assert asked[1:] == ["nvml.dll"]


def test_the_library_comes_before_the_command(machine):
    smi = commands(nvidia_smi=AssertionError("asked"))
    found = detect(machine(LAPTOP, load_library=lambda name: FakeNVML(), run=smi))
    assert (found.hardware_type, found.notes) == ("cpu", ())


def test_a_library_that_does_not_fit_the_driver(machine):
    nvml = FakeNVML(H100, nvmlInit_v2=18)
    found = detect(machine(LAPTOP, load_library=lambda name: nvml, run=commands(nvidia_smi=GPUS["H100"][0])))
    assert found.notes == ("NVML: error 18, Driver/library version mismatch",)
    assert found.accelerators[0].found_by == "nvidia-smi"


def test_a_library_without_the_functions(machine):
    found = detect(machine(LAPTOP, load_library=lambda name: types.SimpleNamespace()))
    assert found.hardware_type == "cpu"
    assert found.notes == ("NVML: 'types.SimpleNamespace' object has no attribute 'nvmlInit_v2'",)


def test_a_lost_gpu_hides_no_other(machine):
    nvml = FakeNVML(None, H100)
    found = detect(machine(LAPTOP, load_library=lambda name: nvml))
    assert (found.device_name, found.device_count) == ("NVIDIA H100 80GB HBM3", 1)
    assert found.notes == ("NVML, GPU 0: error 15, GPU is lost",)
    assert nvml.open == 0


def test_facts_that_a_gpu_does_not_tell_are_unknown(machine):
    nvml = FakeNVML(H100, nvmlDeviceGetMemoryInfo=3, nvmlDeviceGetCudaComputeCapability=3)
    found = detect(machine(LAPTOP, load_library=lambda name: nvml))
    assert (found.total_memory_gb, found.compute_capability, found.gpu_architecture) == (None, None, None)


COMPILED_NVML = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
static int device;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &device; return index; }
int nvmlDeviceGetName(void *handle, char *text, unsigned n) {
    if (handle != &device || n < 8) return 2;
    strcpy(text, "GPU in C");
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory *m) { m->total = 141ull << 30; return handle != &device; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = 10; *minor = 3;
    return handle != &device;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned n) { strcpy(text, "GPU-c"); return 0; }
"""


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("cc"), reason="needs a C compiler")
def test_nvidia_by_a_library_that_was_compiled(machine, tmp_path):
    """Python passes what the functions' C declarations expect."""
    (tmp_path / "nvml.c").write_text(COMPILED_NVML)
    library = tmp_path / "libfake.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")], check=True)
    found = detect(machine(LAPTOP, load_library=lambda name: ctypes.CDLL(str(library))))
    assert [dataclasses.astuple(a) for a in found.accelerators] == [
        ("cuda", "GPU in C", 141 * GIB, "NVML", 103, "Blackwell", "GPU-c")
    ]
    assert found.notes == ()


# --- AMD, TPU, Trainium ------------------------------------------------------------------------------


def kfd(node, minor, *, simds=1216, version=90402, unique=15):
    base = f"sys/class/kfd/kfd/topology/nodes/{node}"
    properties = f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version {version}\ndrm_render_minor {minor}\n"
    return {
        f"{base}/properties": f"{properties}unique_id {unique}\nvendor_id 4098\n",
        f"{base}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {192 * GIB}\nflags 0\n",
        f"{base}/mem_banks/1/properties": "heap_type 4\nsize_in_bytes 65536\nflags 0\n",  # on the chip
    }


def test_an_amd_gpu(machine):
    files = kfd(0, 0, simds=0) | kfd(1, 128) | kfd(2, 136, unique=255)
    files["sys/class/drm/renderD128/device/product_name"] = "AMD Instinct MI300X OAM\n"
    found = detect(machine(LAPTOP | files))
    assert (found.hardware_type, found.device_name, found.device_count) == ("rocm", "AMD Instinct MI300X OAM", 2)
    assert (found.total_memory_gb, found.gpu_architecture, found.compute_capability) == (192.0, "gfx942", None)
    assert [a.name for a in found.accelerators] == ["AMD Instinct MI300X OAM", "AMD GPU gfx942"]
    hidden = detect(machine(LAPTOP | files, environment={"ROCR_VISIBLE_DEVICES": "GPU-ff"}))
    assert [a.name for a in hidden.accelerators] == ["AMD GPU gfx942"]


def test_the_names_of_amds_targets(machine):
    assert detect(machine(kfd(1, 128, version=90010))).gpu_architecture == "gfx90a"
    assert detect(machine(kfd(1, 128, version=110000))).gpu_architecture == "gfx1100"


def pci(number, device, kind="0x120000", vendor="0x1ae0"):
    base = f"sys/bus/pci/devices/{number}"
    return {f"{base}/vendor": f"{vendor}\n", f"{base}/device": f"{device}\n", f"{base}/class": f"{kind}\n"}


NETWORK_CARD = pci(9, "0x0042", "0x020000")


@pytest.mark.parametrize(
    ("files", "told", "version", "count", "gibibytes"),
    [
        (pci(0, "0x0063") | pci(1, "0x0063") | {"dev/vfio/0": "", "dev/vfio/1": ""}, "v5litepod-4", "v5e", 2, 16),
        (pci(0, "0x0063") | {"dev/vfio/0": "", "dev/vfio/12": "", "dev/vfio/vfio": ""}, None, "v5e", 1, 16),
        (pci(0, "0x0062") | {"dev/accel0": "", "dev/accel1": ""}, "v5p-8", "v5p", 2, 95),
        (pci(0, "0x006f") | {"dev/vfio/0": ""}, "v6e-8", "v6e", 1, 32),
        (pci(0, "0x005e") | {"dev/accel0": ""}, None, "v4", 1, 32),
        (pci(0, "0x0076") | {"dev/vfio/0": ""}, "tpu7x-8", "v7", 1, 192),
        (pci(0, "0x0027") | {"dev/accel0": ""}, "v2-8", "v2", 1, 16),
        (pci(0, "0x0063") | {"dev/vfio/0": ""}, "v4-8", "v5e", 1, 16),  # the bus knows better
        (pci(0, "0x0999") | {"dev/vfio/0": ""}, "v9x-8", "v9", 1, None),  # newer than the table
        (pci(0, "0x0999") | {"dev/vfio/0": ""}, None, None, 1, None),
        ({"dev/accel0": ""}, "v4-8", "v4", 1, 32),  # a container that does not see the bus
    ],
)
def test_a_tpu(machine, files, told, version, count, gibibytes):
    environment = {"TPU_ACCELERATOR_TYPE": told} if told else {}
    found = detect(machine(LAPTOP | NETWORK_CARD | files, environment=environment))
    assert (found.hardware_type, found.tpu_version, found.device_count) == ("tpu", version, count)
    assert found.device_name == (f"TPU {version}" if version else "TPU")
    assert found.total_memory_gb == gibibytes
    assert (found.gpu_architecture, found.notes) == (None, ())


def test_an_environment_variable_is_no_tpu(machine):
    found = detect(machine(LAPTOP, environment={"TPU_ACCELERATOR_TYPE": "v5litepod-4"}))
    assert (found.hardware_type, found.tpu_version) == ("cpu", None)
    assert found.notes == ("TPU_ACCELERATOR_TYPE is v5litepod-4, but there is no device file of a TPU",)


def test_googles_network_card_is_no_tpu(machine):
    found = detect(machine(LAPTOP | NETWORK_CARD | {"dev/vfio/0": ""}))
    assert found.hardware_type == "cpu"


def test_another_makers_accelerator_is_no_tpu(machine):
    found = detect(machine(LAPTOP | {"dev/accel/accel0": "", "dev/vfio/0": ""} | pci(0, "0x0063", vendor="0x8086")))
    assert found.hardware_type == "cpu"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        *(("v5litepod-16", "v5e"), ("v5e-8", "v5e"), ("v5p-128", "v5p"), ("v6e-1", "v6e"), ("v3-8", "v3")),
        *(("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e"), ("TPU7x", "v7"), ("TPU v4", "v4")),
        *(("", None), ("none", None)),
    ],
)
def test_the_version_in_googles_names(text, version):
    assert tpu_version(text) == version


@pytest.mark.parametrize(
    ("files", "name", "gibibytes"),
    [
        ({"sys/devices/virtual/dmi/id/product_name": "trn1.32xlarge\n"}, "AWS Trainium", 32),
        ({"sys/devices/virtual/dmi/id/product_name": "trn2.48xlarge\n"}, "AWS Trainium2", 96),
        (
            {"sys/devices/virtual/neuron_device/neuron0/info/architecture/instance_type": "Inf2\n"},
            "AWS Inferentia2",
            32,
        ),
        ({}, "AWS Neuron device", None),
    ],
)
def test_trainium_and_inferentia(machine, files, name, gibibytes):
    found = detect(machine(LAPTOP | files | {"dev/neuron0": "", "dev/neuron1": "", "dev/neuron_log": ""}))
    assert (found.hardware_type, found.device_name, found.device_count) == ("neuron", name, 2)
    assert found.total_memory_gb == gibibytes


# --- libraries ---------------------------------------------------------------------------------------


class FakeOpenCL:
    device_type = types.SimpleNamespace(CPU=2, GPU=4, ACCELERATOR=8)

    def __init__(self, *platforms):
        self.get_platforms = lambda: [self._platform(name, devices) for name, devices in platforms]

    @staticmethod
    def _platform(name, devices):
        def get_devices():
            if isinstance(devices, Exception):
                raise devices
            return [
                types.SimpleNamespace(name=f" {d} ", type=t, global_mem_size=2 * GIB, max_compute_units=7)
                for d, t in devices
            ]

        return types.SimpleNamespace(name=name, get_devices=get_devices)


POCL = ("Portable Computing Language", [("cpu-skylake", 2)])


def test_two_platforms_of_the_same_name_are_both_listed(machine):
    found = detect(machine(LAPTOP, modules={"pyopencl": FakeOpenCL(POCL, POCL)}))
    device = hardware.OpenCLDevice("cpu-skylake", "Portable Computing Language", "cpu", 2 * GIB, 7)
    assert found.opencl_devices == (device, device)
    assert (found.hardware_type, found.accelerators) == ("cpu", ())
    assert str(found).splitlines()[-1] == "OpenCL: cpu-skylake (cpu) of Portable Computing Language"


def test_a_platform_without_devices_hides_no_other(machine):
    cl = FakeOpenCL(("Empty", RuntimeError("DEVICE_NOT_FOUND")), ("Intel", [("Intel(R) Arc(TM) A770", 4)]))
    found = detect(machine(LAPTOP, modules={"pyopencl": cl}))
    assert (found.hardware_type, found.device_name) == ("opencl", "Intel(R) Arc(TM) A770")
    assert found.total_memory_gb == 2.0
    assert found.notes == ("OpenCL platform Empty: DEVICE_NOT_FOUND",)


def test_opencl_without_a_platform(machine):
    def nothing():
        raise RuntimeError("PLATFORM_NOT_FOUND_KHR")

    found = detect(machine(LAPTOP, modules={"pyopencl": types.SimpleNamespace(get_platforms=nothing)}))
    assert (found.opencl_devices, found.notes) == ((), ("OpenCL: PLATFORM_NOT_FOUND_KHR",))


def run_python(answer):
    return commands(**{Path(sys.executable).name.replace("-", "_"): answer})


def test_opencl_that_was_not_imported_is_asked_in_another_process(machine):
    device = {"name": "gpu", "platform": "p", "kind": "gpu", "memory": 1, "compute_units": 2}
    said = json.dumps({"devices": [device], "notes": ["a note"]})
    run = run_python(f"a driver's own line\ntensorops-opencl:{said}\n")
    found = detect(machine(LAPTOP, run=run, is_installed={"pyopencl"}.__contains__))
    assert found.opencl_devices == (hardware.OpenCLDevice(**device),)
    assert found.notes == ("a note",)
    assert detect(machine(LAPTOP, run=run)).opencl_devices == ()  # not installed: not asked


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (
            DetectionError("python did not answer within 20 s"),
            "listing OpenCL's devices: python did not answer within 20 s",
        ),
        ("", "listing OpenCL's devices: pyopencl printed no answer"),
        ("tensorops-opencl:{", "OpenCL: JSONDecodeError: Expecting property name"),
    ],
)
def test_a_process_that_fails_to_list_opencl(machine, answer, note):
    found = detect(machine(LAPTOP, run=run_python(answer), is_installed=lambda package: True))
    assert found.opencl_devices == ()
    assert len(found.notes) == 1
    assert found.notes[0].startswith(note)


def jax_with(*devices, started=True):
    bridge = types.SimpleNamespace(backends_are_initialized=lambda: started)
    return {"jax": types.SimpleNamespace(local_devices=lambda: devices), "jax._src.xla_bridge": bridge}


def test_jax_tells_of_its_devices_if_it_was_started(machine):
    tpu = types.SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")
    found = detect(machine(LAPTOP, modules=jax_with(tpu, tpu)))
    assert (found.hardware_type, found.tpu_version, found.device_count) == ("tpu", "v5e", 2)
    assert {a.found_by for a in found.accelerators} == {"jax"}
    assert detect(machine(LAPTOP, modules=jax_with(tpu, started=False))).hardware_type == "cpu"
    cpu = types.SimpleNamespace(platform="cpu", device_kind="cpu")
    assert detect(machine(LAPTOP, modules=jax_with(cpu))).hardware_type == "cpu"


def test_what_the_driver_told_is_not_counted_again(machine):
    gpu = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100", compute_capability="9.0", client=None)
    alone = detect(machine(LAPTOP, modules=jax_with(gpu)))
    assert (alone.hardware_type, alone.compute_capability, alone.gpu_architecture) == ("cuda", 90, "Hopper")
    both = detect(machine(LAPTOP, modules=jax_with(gpu), run=commands(nvidia_smi=GPUS["H100"][0])))
    assert [a.found_by for a in both.accelerators] == ["nvidia-smi"]


def test_jax_on_an_amd_gpu(machine):
    client = types.SimpleNamespace(platform_version="PJRT C API\nrocm 60300")
    gpu = types.SimpleNamespace(platform="gpu", device_kind="AMD Instinct MI300X", client=client)
    assert detect(machine(LAPTOP, modules=jax_with(gpu))).hardware_type == "rocm"


def test_mlx_tells_of_its_gpu_if_it_was_imported(machine):
    mx = types.SimpleNamespace(
        gpu="gpu",
        metal=types.SimpleNamespace(is_available=lambda: True),
        device_info=lambda device: {"device_name": "Apple M2", "memory_size": 8 * GIB},
    )
    found = detect(machine(system="Darwin", architecture="arm64", modules={"mlx.core": mx}))
    assert [(a.name, a.memory, a.found_by) for a in found.accelerators] == [("Apple chip", None, "sysctl")]
    found = detect(machine(LAPTOP, modules={"mlx.core": mx}))
    assert [(a.name, a.memory, a.found_by) for a in found.accelerators] == [("Apple M2", 8 * GIB, "mlx")]
    mx.metal.is_available = lambda: False
    assert detect(machine(LAPTOP, modules={"mlx.core": mx})).hardware_type == "cpu"


# --- this machine ------------------------------------------------------------------------------------


def test_this_machine_is_looked_at_once():
    found = detect_hardware(refresh=True)
    assert detect_hardware() is found
    again = detect_hardware(refresh=True)
    assert again is not found
    assert again.cpu == found.cpu
    assert found.hardware_type in hardware.KINDS
    assert 1 <= found.cpu.logical_cores <= (os.cpu_count() or 1)
    assert found.cpu.name
    assert found.cpu.memory is None or found.cpu.memory > 1 << 28


def test_the_processor_alone_is_what_detection_says():
    found = detect_hardware(refresh=True)
    assert hardware.detect_processor() == found.cpu
    assert hardware.detect_processor() is hardware.detect_processor()


def test_memory_is_known_where_no_file_tells(machine):
    assert detect(machine({"proc/cpuinfo": "processor : 0\n"}, memory=3 * GIB)).cpu.memory == 3 * GIB
    sysctl = commands(sysctl="machdep.cpu.brand_string: Apple M1\n")
    assert detect(machine(system="Darwin", architecture="arm64", run=sysctl, memory=3 * GIB)).cpu.memory == 3 * GIB


def test_everything_is_json():
    found = detect_hardware()
    plain = found.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert set(plain) == {f.name for f in dataclasses.fields(Hardware)} | set(ABLE)
    assert set(plain["cpu"]["features"]) == found.cpu.features
    assert [d["name"] for d in plain["opencl_devices"]] == [d.name for d in found.opencl_devices]


def test_detection_imports_no_array_library():
    code = (
        "import sys; from tensorops.hardware import detect_hardware; found = detect_hardware();"
        "print(sorted({'jax', 'mlx', 'torch', 'cupy', 'pyopencl', 'dask'} & set(sys.modules)), found.notes)"
    )
    done = support.python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("[] ")


def test_the_program_that_lists_opencl_agrees_with_pyopencl():
    cl = pytest.importorskip("pyopencl", exc_type=ImportError)
    try:
        expected = [(d.name.strip(), p.name.strip()) for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error:
        pytest.skip("no OpenCL platform")
    without = dataclasses.replace(Machine.here(), modules={})
    found = detect(without)
    assert [(d.name, d.platform) for d in found.opencl_devices] == expected

    def lasting(hardware):  # PoCL reports the memory that is free when its driver starts
        return [dataclasses.replace(device, memory=0) for device in hardware.opencl_devices]

    assert lasting(found) == lasting(detect(Machine.here()))


@pytest.mark.skipif(sys.platform != "linux", reason="compares with Linux's file")
def test_the_file_and_the_compiled_module_agree():
    here = Machine.here()
    if not here.cpu_features:
        pytest.skip("the compiled module is not there")
    by_file = detect(dataclasses.replace(here, cpu_features=frozenset())).cpu.features
    assert by_file == here.cpu_features


def script(folder, name, body):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_a_real_program_called_nvidia_smi(machine, tmp_path, monkeypatch):
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    script(bin_, "nvidia-smi", f'test "$*" = "{" ".join(QUERY[1:])}" || exit 9\necho "{GPUS["H100"][0]}"')
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    found = detect(machine(LAPTOP, run=_machine.run_command))
    assert (found.device_name, found.compute_capability, found.notes) == ("NVIDIA H100 80GB HBM3", 90, ())
    script(bin_, "nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    found = detect(machine(LAPTOP, run=_machine.run_command))
    assert found.notes == ("nvidia-smi failed with status 9: NVIDIA-SMI has failed",)


@pytest.mark.skipif(sys.platform == "win32", reason="the programs are shell scripts")
def test_programs_that_hang_print_bytes_or_cannot_start(tmp_path):
    hangs = script(tmp_path, "hangs", "exec sleep 60")
    started = time.monotonic()
    with pytest.raises(DetectionError, match=r"^hangs did not answer within 0.2 s$"):
        _machine.run_command([str(hangs)], 0.2)
    assert time.monotonic() - started < 20
    rubbish = script(tmp_path, "rubbish", r"printf '\377\376 \200'")
    assert _machine.run_command([str(rubbish)]) == "\ufffd\ufffd \ufffd"
    rubbish.chmod(0o644)
    with pytest.raises(DetectionError, match=r"^rubbish could not be started: "):
        _machine.run_command([str(rubbish)])
    assert _machine.run_command([str(tmp_path / "missing")]) is None


# --- what a device can do ----------------------------------------------------------------------------

ABLE = ("supports_bf16", "supports_fp8", "supports_tensor_cores")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"hardware_type": "cuda", "device_name": "Tesla V100", "compute_capability": 70}, (False, False, True)),
        ({"hardware_type": "cuda", "device_name": "NVIDIA GTX 1080", "compute_capability": 61}, (False, False, False)),
        ({"hardware_type": "cuda", "device_name": "Tesla T4", "compute_capability": 75}, (False, False, True)),
        ({"hardware_type": "cuda", "device_name": "GeForce GTX 1650", "compute_capability": 75}, (False, False, False)),
        ({"hardware_type": "cuda", "device_name": "A100", "compute_capability": 80}, (True, False, True)),
        ({"hardware_type": "cuda", "device_name": "L4", "compute_capability": 89}, (True, True, True)),
        ({"hardware_type": "cuda", "device_name": "H100", "compute_capability": 90}, (True, True, True)),
        ({"hardware_type": "cuda"}, (None, None, None)),
        ({"hardware_type": "rocm", "gpu_architecture": "gfx906"}, (False, False, False)),
        ({"hardware_type": "rocm", "gpu_architecture": "gfx90a"}, (True, False, True)),
        ({"hardware_type": "rocm", "gpu_architecture": "gfx942"}, (True, True, True)),
        ({"hardware_type": "tpu", "tpu_version": "v5e"}, (True, False, True)),
        ({"hardware_type": "tpu", "tpu_version": "v7"}, (True, True, True)),
        ({"hardware_type": "apple"}, (None, None, None)),
        ({"cpu": CPU(features=frozenset({"avx2"}))}, (False, False, False)),
        ({"cpu": CPU(features=frozenset({"avx512", "avx512_bf16"}))}, (True, False, False)),
        ({"cpu": CPU(features=frozenset({"amx_tile", "amx_bf16"}))}, (True, False, True)),
        ({"cpu": CPU()}, (None, None, None)),
    ],
)
def test_what_a_device_can_do(facts, expected):
    hardware = Hardware(**facts)
    assert tuple(getattr(hardware, name) for name in ABLE) == expected
    assert tuple(hardware.to_dict()[name] for name in ABLE) == expected
