"""NVIDIA GPUs, by the driver's management library, or the command nvidia-smi if that library does not load."""

from __future__ import annotations

import ctypes
from typing import Any

from tensorops.hardware.accelerator import Accelerator, visible
from tensorops.hardware.machine import SECONDS, DetectionError, Machine, as_int

QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,compute_cap,uuid", "--format=csv,noheader,nounits")

NO_DRIVER = "an NVIDIA GPU is on the PCI bus, but no NVIDIA driver responds for it"

_GENERATIONS = {
    (30, 40): "Kepler",
    (50, 60): "Maxwell",
    (60, 70): "Pascal",
    (70, 75): "Volta",
    (75, 80): "Turing",
    (80, 89): "Ampere",
    (89, 90): "Ada Lovelace",
    (90, 100): "Hopper",
    (100, 130): "Blackwell",
}


def generation(compute_capability: int | None) -> str | None:
    """Return the name of the architecture with a compute capability (90 = 9.0), ``None`` if unknown."""
    if compute_capability is None:
        return None
    return next((name for (first, end), name in _GENERATIONS.items() if first <= compute_capability < end), None)


def detect_nvidia(machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return the GPUs that CUDA would show this process."""
    if machine.system not in ("Linux", "Windows"):
        return []
    try:
        found = _ask_library(machine, notes)
    except Exception as error:  # an old library or a stub lacks functions
        notes.append(f"NVML: {error}")
        found = None
    if found is None:
        found = _ask_command(machine, notes)
    if not found and _on_the_bus(machine):
        notes.append(NO_DRIVER)
    return visible(_as_cuda_counts(found, machine, notes), machine, notes, "CUDA_VISIBLE_DEVICES")


def _as_cuda_counts(found: list[Accelerator], machine: Machine, notes: list[str]) -> list[Accelerator]:
    """Return the GPUs in the order of CUDA's numbers: the driver lists them by their place on the PCI bus.

    By default CUDA starts with the fastest GPU, without documenting its criterion.
    """

    def speed(gpu: Accelerator) -> tuple[int, int]:
        return gpu.compute_capability or 0, gpu.memory or 0

    listed = machine.environment.get("CUDA_VISIBLE_DEVICES", "")
    by_number = any(entry.strip().isdecimal() for entry in listed.split(","))
    by_speed = sorted(found, key=speed, reverse=True)
    if not by_number or by_speed == found or machine.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return found
    notes.append(
        f"CUDA_VISIBLE_DEVICES={listed} counts GPUs from the fastest on, which had to be guessed; "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID makes it certain"
    )
    return by_speed


def _on_the_bus(machine: Machine) -> bool:
    for vendor in machine.glob("sys/bus/pci/devices/*/vendor"):
        if machine.read(vendor) == "0x10de" and machine.read(vendor.with_name("class")).startswith("0x03"):
            return True
    return False


def _gpu(name: str, memory: int | None, capability: int | None, identifier: str, found_by: str) -> Accelerator:
    return Accelerator("cuda", name, memory, found_by, capability, generation(capability), identifier)


# ---------------------------------------------------------------------------------------------------- library


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``: bytes."""

    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


def _ask_library(machine: Machine, notes: list[str]) -> list[Accelerator] | None:
    """Return the GPUs that NVML lists, ``None`` if it is missing or does not work."""
    try:
        nvml = machine.load_library("nvml.dll" if machine.system == "Windows" else "libnvidia-ml.so.1")
    except OSError:
        return None
    _check(nvml, nvml.nvmlInit_v2())
    try:
        count = ctypes.c_uint()
        _check(nvml, nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        found = []
        for index in range(count.value):
            try:
                found.append(_device(nvml, index))
            except DetectionError as error:  # a GPU that fell off the bus does not hide the others
                notes.append(f"NVML, GPU {index}: {error}")
        return found
    finally:
        nvml.nvmlShutdown()


def _check(nvml: Any, status: int) -> None:
    if status:
        describe = nvml.nvmlErrorString
        describe.restype = ctypes.c_char_p
        raise DetectionError(f"error {status}, {(describe(status) or b'unknown').decode(errors='replace')}")


def _device(nvml: Any, index: int) -> Accelerator:
    handle, name, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    _check(nvml, nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)))
    _check(nvml, nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name))))
    # A GPU that shares the processor's memory does not report its own.
    memory = _Memory()
    total = None if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else int(memory.total)
    major, minor = ctypes.c_int(), ctypes.c_int()
    unknown = nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    capability = None if unknown else 10 * major.value + minor.value
    nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(len(uuid)))
    return _gpu(name.value.decode(errors="replace"), total, capability, uuid.value.decode(errors="replace"), "NVML")


# ---------------------------------------------------------------------------------------------------- command


def _ask_command(machine: Machine, notes: list[str]) -> list[Accelerator]:
    try:
        printed = machine.run(QUERY, SECONDS)
    except DetectionError as error:
        notes.append(str(error))
        return []
    found = []
    for line in (printed or "").strip().splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 4 or not fields[0]:
            notes.append(f"nvidia-smi printed a line that does not describe a GPU: {line[:80]!r}")
            continue
        name, memory, capability, uuid = fields
        mebibytes, (major, _, minor) = as_int(memory), capability.partition(".")  # "[N/A]" is not a number
        version = as_int(major + minor) if minor else None
        found.append(_gpu(name, None if mebibytes is None else mebibytes << 20, version, uuid, "nvidia-smi"))
    return found
