"""The accelerators other than NVIDIA's: AMD GPUs, TPUs, Trainium, Apple's.

Each detector returns what it found and appends to `notes` what it could not determine.
"""

from __future__ import annotations

import re
from pathlib import Path

from tensorops.hardware.accelerator import Accelerator, visible
from tensorops.hardware.machine import Machine, as_int, sysctl

GIB = 1 << 30

# -------------------------------------------------------------------------------------------------------- AMD


def detect_amd(machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return the GPUs of AMD's compute driver."""
    found = []
    for path in machine.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
        properties = _pairs(machine.read(path))
        if properties.get("simd_count", 0):  # nodes without it are processors
            found.append(_amd_gpu(machine, path.parent, properties))
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        found = visible(found, machine, notes, variable)
    return found


def _pairs(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"^(\w+) ([0-9]+)$", text, re.MULTILINE)}


def _amd_gpu(machine: Machine, node: Path, properties: dict[str, int]) -> Accelerator:
    version = properties.get("gfx_target_version", 0)  # 90402 is 9.4.2, written gfx942; 90010 gfx90a
    target = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None
    banks = (_pairs(machine.read(path)) for path in machine.glob(f"{_below(machine, node)}/mem_banks/*/properties"))
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))
    drawn_by = f"sys/class/drm/renderD{properties.get('drm_render_minor', 0)}/device/product_name"
    name = machine.read(drawn_by) or f"AMD GPU{f' {target}' if target else ''}"
    unique = properties.get("unique_id", 0)
    identifier = f"GPU-{unique:x}" if unique else ""
    return Accelerator("rocm", name, memory or None, "/sys/class/kfd", None, target, identifier)


def _below(machine: Machine, path: Path) -> str:
    return path.relative_to(machine.root).as_posix()


# ------------------------------------------------------------------------------------------------------- TPUs

# By the device number on the PCI bus.
_TPU_DEVICES = {"0x0027": "v3", "0x005e": "v4", "0x0062": "v5p", "0x0063": "v5e", "0x006f": "v6e", "0x0076": "v7"}
_TPU_GIBIBYTES = {"v2": 16, "v3": 32, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32, "v7": 192}


def tpu_version(text: str) -> str | None:
    """Return the version in Google's notation: "v5litepod-4" is v5e, "v5p-8" v5p, "TPU v6 lite" v6e, "TPU7x" v7."""
    match = re.match(r"(?:tpu)?v?([0-9])(lite|e|p|x)?", text.lower().replace(" ", ""))
    if match is None:
        return None
    number, kind = match[1], match[2] or ""
    return f"v{number}" + {"lite": "e", "x": ""}.get(kind, kind or ("p" if number == "5" else ""))


def detect_tpu(machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return the TPU chips that have device files; an environment variable alone is not enough."""
    told = machine.environment.get("TPU_ACCELERATOR_TYPE", "")
    on_the_bus = _tpus_on_the_bus(machine)
    files = [p for p in machine.glob("dev/accel[0-9]*") if p.name.removeprefix("accel").isdecimal()]
    if not files and on_the_bus:
        files = [p for p in machine.glob("dev/vfio/[0-9]*") if p.name.isdecimal()]
        files = files[: len(on_the_bus)]  # other devices may be passed through in the same way
    if not files:
        if told:
            notes.append(f"TPU_ACCELERATOR_TYPE is {told}, but there is no device file of a TPU")
        return []
    version = next(iter(on_the_bus), None)
    if version in (None, "v3"):  # newer than this table, or v2, which has the same number
        version = tpu_version(told) or version
    gibibytes = _TPU_GIBIBYTES.get(version or "")
    name = f"TPU {version}" if version else "TPU"
    found_by = _below(machine, files[0].parent)
    return [Accelerator("tpu", name, gibibytes and gibibytes * GIB, f"/{found_by}", None, version) for _ in files]


def _tpus_on_the_bus(machine: Machine) -> list[str | None]:
    found = []
    for path in machine.glob("sys/bus/pci/devices/*/vendor"):
        storage_or_network = machine.read(path.with_name("class")).startswith(("0x01", "0x02"))
        if machine.read(path) == "0x1ae0" and not storage_or_network:
            found.append(_TPU_DEVICES.get(machine.read(path.with_name("device"))))
    return found


# ------------------------------------------------------------------------------------------ Trainium, Inferentia

# By machine family: the chip and its memory.
_NEURON = {
    "inf1": ("AWS Inferentia", 8),
    "inf2": ("AWS Inferentia2", 32),
    "trn1": ("AWS Trainium", 32),
    "trn2": ("AWS Trainium2", 96),
}


def detect_neuron(machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return the Trainium or Inferentia chips that have device files."""
    files = [p for p in machine.glob("dev/neuron[0-9]*") if p.name.removeprefix("neuron").isdecimal()]
    told = (
        machine.read("sys/devices/virtual/neuron_device/neuron0/info/architecture/instance_type"),
        machine.read("sys/devices/virtual/dmi/id/product_name"),
    )
    family = next((text.lower()[:4] for text in told if text.lower()[:4] in _NEURON), None)
    name, gibibytes = _NEURON[family] if family else ("AWS Neuron device", None)
    return [Accelerator("neuron", name, gibibytes and gibibytes * GIB, "/dev", None, family) for _ in files]


# ------------------------------------------------------------------------------------------------------ Apple


def detect_apple(machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return the GPU of an Apple chip, which shares the processor's memory."""
    if machine.system != "Darwin":
        return []
    said = sysctl(machine, "machdep.cpu.brand_string", "hw.memsize", "sysctl.proc_translated")
    if machine.architecture != "arm64":
        if said.get("sysctl.proc_translated") == "1":
            notes.append("this Python is an x86-64 program on an Apple chip; only an arm64 one can use its GPU")
        return []
    name = said.get("machdep.cpu.brand_string", "Apple chip")
    return [Accelerator("apple", name, as_int(said.get("hw.memsize")), "sysctl")]
