"""Which backend suits a machine best: one table of priorities, keyed by what the hardware can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorops.backends.hardware import Hardware, detect_hardware
from tensorops.backends.registry import BackendUnavailableError, all_backends, resolve

# ------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """Backends for one class of hardware.

    Parameters
    ----------
    kind : str
        The kind of accelerator it is about, as in `Accelerator.kind`; "cpu" is in every machine.
    backends : tuple of str
        Who computes on it, best first.
    words : str
        Why; ``{device}`` stands for the device's name.
    applies : callable
        Which of that kind it is about.
    """

    kind: str
    backends: tuple[str, ...]
    words: str
    applies: Callable[[Hardware], bool] = lambda hardware: True


def _capability(hardware: Hardware) -> int:
    return hardware.compute_capability or 0


# Best first. A machine that several rows match has all their backends, in this order.
PRIORITIES: tuple[Row, ...] = (
    Row("cuda", ("cuda",), "{device}, an NVIDIA GPU of the Hopper generation or newer", lambda h: _capability(h) >= 90),
    Row("tpu", ("tpu", "jax"), "{device}, a TPU v5p or newer", lambda h: h.tpu_version in ("v5p", "v6e", "v7")),
    Row("cuda", ("cuda",), "{device}, an NVIDIA GPU of the A100's kind", lambda h: _capability(h) == 80),
    Row("tpu", ("tpu", "jax"), "{device}, a TPU"),
    Row("cuda", ("cuda",), "{device}, an NVIDIA GPU"),
    Row("apple", ("mlx",), "{device}, a chip of Apple's whose GPU shares the memory"),
    Row("neuron", ("nki",), "{device}, an accelerator of AWS"),
    Row("rocm", ("opencl",), "{device}, an AMD GPU, through OpenCL"),
    Row("opencl", ("opencl",), "{device}, through OpenCL"),
    Row("cpu", ("cpu",), "{device}, C++ kernels"),
    Row("cpu", ("numpy",), "NumPy, which computes everywhere"),
)

_PROCESSORS = {"x86_64": "x86-64", "aarch64": "Arm"}
_VECTORS = (("avx512", "AVX-512"), ("avx2", "AVX2"), ("sve", "SVE"), ("neon", "NEON"))


def _matches(row: Row, hardware: Hardware) -> bool:
    kinds = {"cpu", hardware.hardware_type, *(a.kind for a in hardware.accelerators)}
    return row.kind in kinds and row.applies(hardware)


def _why(row: Row, hardware: Hardware) -> str:
    if row.kind == "cpu":
        processor = _PROCESSORS.get(hardware.cpu.architecture, hardware.cpu.architecture or "the processor")
        vectors = next((words for name, words in _VECTORS if name in hardware.cpu.features), "")
        device = f"{processor} with {vectors}" if vectors else processor
    elif row.kind == hardware.hardware_type:
        device = hardware.device_name
    else:
        device = next(a.name for a in hardware.accelerators if a.kind == row.kind)
    return row.words.format(device=device)


def _candidates(hardware: Hardware, priority: Sequence[str]) -> dict[str, str]:
    """Return the backends that were asked for or that suit the hardware, best first, and why each."""
    if isinstance(priority, str):
        raise TypeError("priority is a sequence of backends' names, not one string")
    found = {resolve(name).name: "first in the priority that was asked for" for name in priority}
    for row in PRIORITIES:
        if _matches(row, hardware):
            for name in row.backends:
                found.setdefault(name, _why(row, hardware))
    return found


# ------------------------------------------------------------------------------------------------ what is asked


def ranked(hardware: Hardware | None = None, priority: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of all backends, best first; none is tried.

    Parameters
    ----------
    hardware : Hardware, optional
        The machine; this one if it is left out.
    priority : sequence of str
        Names that go first.

    Returns
    -------
    tuple of str
        `priority`, what suits the hardware, and the others in the order in which they were registered; NumPy after
        all that are faster at anything, and the implementation of the standard that is for tests last.

    Raises
    ------
    ValueError
        If `priority` has an unknown name; the valid ones are listed.
    """
    candidates = _candidates(detect_hardware() if hardware is None else hardware, priority)
    asked_for = [resolve(name).name for name in priority]
    last = [name for name in ("numpy", "array_api_strict") if name not in asked_for]
    front = [name for name in candidates if name not in last]
    others = [name for name in all_backends() if name not in front and name not in last]
    return (*front, *others, *last)


@dataclass(frozen=True)
class Candidate:
    """A backend that was considered.

    Attributes
    ----------
    name : str
        Its name.
    reason : str
        What speaks for it, or why it cannot be taken.
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
        Why each better one was passed over, what speaks for this one, and what was not tried.
    ranking : tuple of Candidate
        All that were considered, best first.
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

    From the best one on each is tried, until one computes correctly; those after it are not tried.

    Parameters
    ----------
    hardware : Hardware, optional
        The machine; this one, as `detect_hardware` found it, if it is left out.
    available : callable, optional
        Takes a backend's name and returns why it cannot compute, or an empty string if it can. By default each is
        tried here.
    priority : sequence of str, optional
        Names that go first; by default the configured `backend_priority`.

    Returns
    -------
    OptimalBackend
        The name, and the reasons.

    Raises
    ------
    ValueError
        If `priority` has an unknown name; the valid ones are listed.
    BackendUnavailableError
        If none can compute; each one's reason is named.

    Examples
    --------
    >>> from tensorops.backends.hardware import CPU, Hardware
    >>> from tensorops.backends.optimal import get_optimal_backend
    >>> laptop = Hardware(cpu=CPU(architecture="x86_64", features=frozenset({"avx2"})))
    >>> print(get_optimal_backend(laptop, available=lambda name: "" if name == "numpy" else "not built"))
    numpy
      cpu: not available: not built
      numpy: NumPy, which computes everywhere
    """
    if hardware is None:
        hardware = detect_hardware()
    if priority is None:
        from tensorops.backends.default import process

        priority = process.configuration.backend_priority
    reason_against = _unavailable_reason if available is None else available
    candidates = _candidates(hardware, priority)
    ranking: list[Candidate] = []
    chosen = ""
    for name, reason in candidates.items():
        if chosen:
            ranking.append(Candidate(name, f"not tried, as {chosen} comes first", None))
        elif against := reason_against(name):
            ranking.append(Candidate(name, f"not available: {against}", False))
        else:
            chosen = name
            ranking.append(Candidate(name, reason, True))
    reasons = tuple(map(str, ranking))
    if not chosen:
        raise BackendUnavailableError(f"no backend can compute here; {'; '.join(reasons)}")
    return OptimalBackend(chosen, reasons, tuple(ranking))


def _unavailable_reason(name: str) -> str:
    from tensorops.backends.probing import probe

    found = probe(resolve(name))
    return f"{found.reason} ({found.remedy})" if found.reason and found.remedy else found.reason
