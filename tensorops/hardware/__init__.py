"""Detection of this machine's hardware, without any optional library.

An environment variable or an importable package proves nothing: a device counts if its driver, its device file or the
operating system reports it. Whether tensorops can compute on it is another question, which `get_available_backends`
answers by computing.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from tensorops import _hooks
from tensorops._display import Displayed, Table
from tensorops.hardware import accelerators as _accelerators, opencl as _opencl
from tensorops.hardware.accelerator import Accelerator
from tensorops.hardware.cpu import CPU, bare_cpu, detect_cpu, usable_processors
from tensorops.hardware.machine import DetectionError, Machine
from tensorops.hardware.nvidia import detect_nvidia

__all__ = ["CPU", "Accelerator", "Hardware", "OpenCLDevice", "detect_hardware", "usable_processors"]

T = TypeVar("T")

KINDS = ("cuda", "rocm", "tpu", "apple", "neuron", "opencl", "cpu")
"""The values of `Hardware.hardware_type`; if a machine has several kinds, the first one counts."""


# AMD: "AMD matrix cores" for CDNA and RDNA 3 and 4; Google's TPU pages for each version; NVIDIA's tables of arithmetic
# throughput by compute capability, where the GTX 16 and some others of 7.5 have no tensor cores.
_ALL_TPUS = ("v",)
_CPU_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_CPU_MATRICES = frozenset({"amx_tile"})
_NO_TENSOR_CORES = re.compile(r"GTX 16|MX450|MX550|\bT(400|500|550|600|1000|1200)\b")
_CAPABILITIES = ("supports_bf16", "supports_fp8", "supports_tensor_cores")


@dataclass(frozen=True)
class OpenCLDevice:
    """One device of one OpenCL platform.

    Attributes
    ----------
    name, platform : str
        The driver's names.
    kind : str
        "gpu", "cpu", "accelerator" or "other".
    memory : int
        Bytes of global memory.
    compute_units : int
        The number of compute units.
    """

    name: str
    platform: str
    kind: str
    memory: int
    compute_units: int


@dataclass(frozen=True, repr=False)
class Hardware(Displayed):
    """The hardware of a machine; prints as a summary for people.

    Attributes
    ----------
    hardware_type : str
        "cuda", "rocm", "tpu", "apple", "neuron", "opencl", or "cpu" if there is no accelerator.
    device_name : str
        The accelerator's name (of several, the most capable), or the processor's.
    device_count : int
        The number of accelerators of this type; 1 for "cpu".
    total_memory_gb : float or None
        The total memory of that device, or of the machine for "cpu", in units of 2**30 bytes; ``None`` if unknown.
    cpu : CPU
        The processor.
    gpu_architecture : str or None
        The GPU's generation: "Hopper", "gfx942".
    compute_capability : int or None
        The compute capability of an NVIDIA GPU; 90 means 9.0.
    tpu_version : str or None
        "v4", "v5e", "v5p", "v6e", ...
    opencl_devices : tuple of OpenCLDevice
        The devices that PyOpenCL lists, if it is installed; includes processors.
    accelerators : tuple of Accelerator
        Everything found besides the processor. A GPU that OpenCL also lists occurs twice.
    notes : tuple of str
        What could not be determined, and why.
    supports_bf16, supports_fp8, supports_tensor_cores : bool or None
        Whether that device has instructions for bfloat16, and units that multiply 8-bit floating-point numbers, and
        matrices; ``None`` if unknown.
    """

    hardware_type: str = "cpu"
    device_name: str = ""
    device_count: int = 1
    total_memory_gb: float | None = None
    cpu: CPU = field(default_factory=CPU)
    gpu_architecture: str | None = None
    compute_capability: int | None = None
    tpu_version: str | None = None
    opencl_devices: tuple[OpenCLDevice, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def supports_bf16(self) -> bool | None:
        """Whether the device has instructions for bfloat16; ``None`` if unknown."""
        return self._supports(80, ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"), _ALL_TPUS, _CPU_BF16)

    @property
    def supports_fp8(self) -> bool | None:
        """Whether the device multiplies 8-bit floating-point numbers; ``None`` if unknown."""
        return self._supports(89, ("gfx94", "gfx95", "gfx12"), ("v7",), frozenset())

    @property
    def supports_tensor_cores(self) -> bool | None:
        """Whether the device has units that multiply matrices, as tensor cores do; ``None`` if unknown."""
        if self.hardware_type == "cuda" and self.compute_capability == 75 and _NO_TENSOR_CORES.search(self.device_name):
            return False
        return self._supports(70, ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12"), _ALL_TPUS, _CPU_MATRICES)

    def _supports(
        self, capability: int, gpus: tuple[str, ...], tpus: tuple[str, ...], features: frozenset[str]
    ) -> bool | None:
        """Return whether the device has a capability: from which NVIDIA GPU on, which of AMD's and Google's."""
        if self.hardware_type == "cuda":
            return None if self.compute_capability is None else self.compute_capability >= capability
        if self.hardware_type == "rocm":
            return None if self.gpu_architecture is None else self.gpu_architecture.startswith(gpus)
        if self.hardware_type == "tpu":
            return None if self.tpu_version is None else self.tpu_version.startswith(tpus)
        if self.hardware_type == "cpu":
            return bool(features & self.cpu.features) if self.cpu.features else None
        return True if self.hardware_type == "neuron" else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, strings and numbers, for JSON."""
        plain: dict[str, Any] = _plain(self)
        return plain | {name: getattr(self, name) for name in _CAPABILITIES}

    def __str__(self) -> str:
        count = f"{self.device_count} x " if self.device_count > 1 else ""
        facts = [self.gpu_architecture or self.tpu_version]
        if self.compute_capability is not None:
            facts.append(f"compute capability {self.compute_capability / 10}")
        if self.total_memory_gb is not None:
            facts.append(f"{self.total_memory_gb:.1f} GiB" + (" each" if self.device_count > 1 else ""))
        lines = [", ".join([f"{self.hardware_type}: {count}{self.device_name or 'unknown'}", *filter(None, facts)])]
        lines += _lines_of(self.cpu)
        lines += [f"OpenCL: {d.name} ({d.kind}) of {d.platform}" for d in self.opencl_devices]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _table(self) -> Table:
        facts = (line.strip().partition(": ") for line in str(self).splitlines())
        return Table("", ("hardware", ""), tuple((what, value) for what, _, value in facts))


def _lines_of(cpu: CPU) -> list[str]:
    threads = f"{cpu.logical_cores} thread{'s' if cpu.logical_cores != 1 else ''}"
    threads += f" (a quota of {cpu.quota:.3g} processors)" if cpu.quota is not None else ""
    cores = f"{cpu.physical_cores} core{'s' if cpu.physical_cores != 1 else ''}, " if cpu.physical_cores else ""
    lines = [f"processor: {cpu.name or 'unknown'} ({cpu.architecture or 'unknown architecture'}), {cores}{threads}"]
    if cpu.features:
        lines.append(f"  features: {' '.join(sorted(cpu.features))}")
    if cpu.caches:
        lines.append(f"  caches: {', '.join(f'{name} {size >> 10} KiB' for name, size in sorted(cpu.caches.items()))}")
    if cpu.memory:
        lines.append(f"  memory: {cpu.memory / 2**30:.1f} GiB")
    return lines


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def detect_hardware(*, refresh: bool = False) -> Hardware:
    """Detect this machine's hardware, once; the result is cached.

    It needs no optional library and starts none. The driver reports NVIDIA GPUs; the operating system's files report
    AMD GPUs, TPUs and Trainium; sysctl reports Apple's. OpenCL devices, if PyOpenCL is installed, are listed by a
    separate process. JAX and MLX are asked if this process has already started them. Devices that CUDA_VISIBLE_DEVICES
    and similar variables hide from this process are left out.

    Parameters
    ----------
    refresh : bool, default False
        Detect it again.

    Returns
    -------
    Hardware
        What was found. A failing detection counts as "not found", with a note; nothing raises.

    Examples
    --------
    >>> from tensorops.hardware import detect_hardware
    >>> hardware = detect_hardware()
    >>> hardware.cpu.logical_cores >= 1 and hardware is detect_hardware()
    True
    """
    if refresh:
        _detect_here.cache_clear()
        detect_processor.cache_clear()
    return _detect_here()


@functools.cache
def _detect_here() -> Hardware:
    return detect(Machine.here())


@functools.cache
def detect_processor() -> CPU:
    """Return the processor as in `detect_hardware`, without querying drivers, some of which are slow."""
    return _processor(Machine.here(), [])


def detect(machine: Machine) -> Hardware:
    """Detect the hardware of a machine."""
    notes: list[str] = []
    cpu = _processor(machine, notes)
    opencl = _attempt("OpenCL", _opencl_devices, machine, notes) or ()
    found: list[Accelerator] = []
    for what, find in (
        ("NVIDIA", detect_nvidia),
        ("AMD", _accelerators.detect_amd),
        ("TPU", _accelerators.detect_tpu),
        ("Apple", _accelerators.detect_apple),
        ("Neuron", _accelerators.detect_neuron),
        *_hooks.accelerators.items(),
    ):
        kinds = {a.kind for a in found}
        more = _attempt(what, find, machine, notes) or []
        found += [a for a in more if a.kind not in kinds]  # not those that the operating system already reported
    found += [Accelerator("opencl", d.name, d.memory, "pyopencl") for d in opencl if d.kind in ("gpu", "accelerator")]
    return _summary(cpu, tuple(found), opencl, tuple(notes))


def _attempt(what: str, find: Callable[[Machine, list[str]], T], machine: Machine, notes: list[str]) -> T | None:
    try:
        return find(machine, notes)
    except DetectionError as error:
        notes.append(str(error))
    except Exception as error:  # whatever a driver or an unusual file causes, the rest is still useful
        notes.append(f"{what}: {type(error).__name__}: {error}")
    return None


def _processor(machine: Machine, notes: list[str]) -> CPU:
    return _attempt("processor", detect_cpu, machine, notes) or bare_cpu(machine)


def _summary(
    cpu: CPU, found: tuple[Accelerator, ...], opencl: tuple[OpenCLDevice, ...], notes: tuple[str, ...]
) -> Hardware:
    kind = next((k for k in KINDS if any(a.kind == k for a in found)), "cpu")
    same = [a for a in found if a.kind == kind] or [Accelerator("cpu", cpu.name, cpu.memory, "the operating system")]
    first = max(same, key=lambda a: (a.compute_capability or 0, a.memory or 0))
    return Hardware(
        hardware_type=kind,
        device_name=first.name,
        device_count=len(same),
        total_memory_gb=None if first.memory is None else first.memory / 2**30,
        cpu=cpu,
        gpu_architecture=first.architecture if kind in ("cuda", "rocm") else None,
        compute_capability=first.compute_capability,
        tpu_version=next((a.architecture for a in found if a.kind == "tpu"), None),
        opencl_devices=opencl,
        accelerators=found,
        notes=notes,
    )


def _opencl_devices(machine: Machine, notes: list[str]) -> tuple[OpenCLDevice, ...]:
    cl = machine.modules.get("pyopencl")
    if cl is not None:
        said = _opencl.listing(cl)
    elif machine.is_installed("pyopencl") and sys.executable and not getattr(sys, "frozen", False):
        # -P keeps the file's folder, whose modules have the names of some of Python's, off the path.
        command = (sys.executable, "-P", "-W", "ignore", _opencl.__file__, json.dumps(sys.path))
        try:
            printed = machine.run(command, _opencl.SECONDS) or ""
        except DetectionError as error:
            raise DetectionError(f"listing OpenCL's devices: {error}") from None
        answers = [line for line in printed.splitlines() if line.startswith(_opencl.MARK)]
        if not answers:
            raise DetectionError("listing OpenCL's devices: pyopencl printed no answer")
        said = json.loads(answers[-1].removeprefix(_opencl.MARK))
    else:
        return ()
    notes += said["notes"]
    return tuple(OpenCLDevice(**device) for device in said["devices"])
