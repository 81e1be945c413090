"""Which backend suits a machine best: one table of priorities, keyed by what the hardware can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorops.backends.probing import probe
from tensorops.backends.process import process
from tensorops.backends.registry import BackendUnavailableError, all_backends, resolve
from tensorops.hardware import Hardware, detect_hardware

# ------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """One class of hardware; the backends that compute on it say so in `Backend.suits`.

    Parameters
    ----------
    kind : str
        The kind of accelerator, as in `Accelerator.kind`; every machine has "cpu" and "any".
    words : str
        The reason; ``{device}`` is replaced by the device's name.
    applies : callable
        Returns whether the row applies to given hardware of that kind.
    """

    kind: str
    words: str
    applies: Callable[[Hardware], bool] = lambda hardware: True


def _capability(hardware: Hardware) -> int:
    return hardware.compute_capability or 0


# Best first. A machine that matches several rows has all their backends, in this order.
PRIORITIES: tuple[Row, ...] = (
    Row("cuda", "{device}, an NVIDIA GPU of the Hopper generation or newer", lambda h: _capability(h) >= 90),
    Row("tpu", "{device}, a TPU v5p or newer", lambda h: h.tpu_version in ("v5p", "v6e", "v7")),
    Row("cuda", "{device}, an NVIDIA GPU of the A100 generation", lambda h: _capability(h) == 80),
    Row("tpu", "{device}, a TPU"),
    Row("cuda", "{device}, an NVIDIA GPU"),
    Row("apple", "{device}, an Apple chip whose GPU shares the memory"),
    Row("neuron", "{device}, an AWS accelerator"),
    Row("rocm", "{device}, an AMD GPU"),
    Row("opencl", "{device}, through OpenCL"),
    Row("cpu", "{device}, C++ kernels"),
    Row("any", "NumPy, which computes everywhere"),
)

_PROCESSORS = {"x86_64": "x86-64", "aarch64": "Arm"}
_VECTORS = (("avx512", "AVX-512"), ("avx2", "AVX2"), ("sve", "SVE"), ("neon", "NEON"))


def _matches(row: Row, hardware: Hardware) -> bool:
    kinds = {"cpu", "any", hardware.hardware_type, *(a.kind for a in hardware.accelerators)}
    return row.kind in kinds and row.applies(hardware)


def _why(row: Row, hardware: Hardware) -> str:
    if row.kind in ("cpu", "any"):
        processor = _PROCESSORS.get(hardware.cpu.architecture, hardware.cpu.architecture or "the processor")
        vectors = next((words for name, words in _VECTORS if name in hardware.cpu.features), "")
        device = f"{processor} with {vectors}" if vectors else processor
    elif row.kind == hardware.hardware_type:
        device = hardware.device_name
    else:
        device = next(a.name for a in hardware.accelerators if a.kind == row.kind)
    return row.words.format(device=device)


@dataclass(frozen=True)
class _Reason:
    """What speaks for a backend, and what the installed build of its library lacks for that."""

    words: str
    lacks: str = ""


def _candidates(hardware: Hardware, priority: Sequence[str], *, installed: bool) -> dict[str, _Reason]:
    """Return the requested backends and those that suit the hardware, best first, with a reason for each.

    Those whose library is installed here in a build without that hardware come where they would with the right build,
    if `installed` says that the hardware is that of this machine.
    """
    if isinstance(priority, str):
        raise TypeError("priority must be a sequence of backend names, not one string")
    found = {resolve(name).name: _Reason("first in the requested priority") for name in priority}
    backends = all_backends()
    for row in PRIORITIES:
        if _matches(row, hardware):
            suitable = (backend for backend in backends.values() if row.kind in backend.suits)
            for backend in sorted(suitable, key=lambda backend: backend.suits.index(row.kind)):
                known = found.get(backend.name)
                if known is None or known.lacks:
                    lacks = backend.lacks(row.kind) if installed else ""
                    found[backend.name] = _Reason(_why(row, hardware), lacks)
    return found


# ------------------------------------------------------------------------------------------------ what is asked


def ranked(hardware: Hardware | None = None, priority: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of all backends, best first; none is tried.

    Parameters
    ----------
    hardware : Hardware, optional
        The machine; this one by default.
    priority : sequence of str
        Names that come first.

    Returns
    -------
    tuple of str
        `priority`, the backends that suit the hardware, then eager, lazy and planned ones. NumPy comes after all that
        are faster at anything, and backends for tests come last.

    Raises
    ------
    ValueError
        If `priority` has an unknown name; the valid ones are listed.
    """
    machine = detect_hardware() if hardware is None else hardware
    candidates = _candidates(machine, priority, installed=hardware is None)
    asked_for = [resolve(name).name for name in priority]
    backends = all_backends()
    last = [name for name, backend in backends.items() if "any" in backend.suits and name not in asked_for]
    last += [name for name, backend in backends.items() if backend.for_tests and name not in asked_for]
    front = [name for name, reason in candidates.items() if name not in last and not reason.lacks]
    others = [backend for name, backend in backends.items() if name not in front and name not in last]
    others.sort(key=lambda backend: (bool(backend.missing), backend.library.lazy))
    return (*front, *(backend.name for backend in others), *last)


@dataclass(frozen=True)
class Candidate:
    """A backend that was considered.

    Attributes
    ----------
    name : str
        Its name.
    reason : str
        What speaks for it, or why it cannot be used.
    available : bool or None
        Whether it computed correctly here; ``None`` if it was not tried.
    """

    name: str
    reason: str
    available: bool | None

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True)
class OptimalBackend:
    """The backend to compute with, and why; prints as text.

    Attributes
    ----------
    name : str
        Its name.
    reasons : tuple of str
        Why each better one was rejected, what speaks for this one, and what was not tried.
    ranking : tuple of Candidate
        All candidates, best first.
    """

    name: str
    reasons: tuple[str, ...]
    ranking: tuple[Candidate, ...]

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {reason}" for reason in self.reasons)])


def get_optimal_backend(
    hardware: Hardware | None = None,
    *,
    available: Callable[[str], str] | None = None,
    priority: Sequence[str] | None = None,
) -> OptimalBackend:
    """Choose the backend that suits a machine best among those that can compute.

    They are tried in order, starting with the best one, until one computes correctly.

    Parameters
    ----------
    hardware : Hardware, optional
        The machine; by default this one, as found by `detect_hardware`.
    available : callable, optional
        Takes a backend's name and returns why it cannot compute, or an empty string if it can. By default each is
        tried here.
    priority : sequence of str, optional
        Names that come first; by default the configured `backend_priority`.

    Returns
    -------
    OptimalBackend
        The name, and the reasons.

    Raises
    ------
    ValueError
        If `priority` has an unknown name; the valid ones are listed.
    BackendUnavailableError
        If none can compute, with the reason of each.

    Examples
    --------
    >>> from tensorops.hardware import CPU, Hardware
    >>> from tensorops.backends.ranking import get_optimal_backend
    >>> laptop = Hardware(cpu=CPU(architecture="x86_64", features=frozenset({"avx2"})))
    >>> print(get_optimal_backend(laptop, available=lambda name: "" if name == "numpy" else "not built"))
    numpy
      cpu: not available: not built
      numpy: NumPy, which computes everywhere
    """
    if hardware is None:
        hardware = detect_hardware()
    if priority is None:
        priority = process.configuration.backend_priority
    reason_against = _unavailable_reason if available is None else available
    candidates = _candidates(hardware, priority, installed=available is None)
    ranking: list[Candidate] = []
    chosen = ""
    for name, reason in candidates.items():
        if chosen:
            ranking.append(Candidate(name, f"not tried, because {chosen} comes first", None))
        elif against := reason.lacks or reason_against(name):
            ranking.append(Candidate(name, f"not available: {against}", False))
        else:
            chosen = name
            ranking.append(Candidate(name, reason.words, True))
    reasons = tuple(map(str, ranking))
    if not chosen:
        raise BackendUnavailableError(f"no backend can compute here; {'; '.join(reasons)}")
    return OptimalBackend(chosen, reasons, tuple(ranking))


def _unavailable_reason(name: str) -> str:
    found = probe(resolve(name))
    return f"{found.reason} ({found.remedy})" if found.reason and found.remedy else found.reason
