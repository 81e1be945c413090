"""The description of an accelerator of any maker, and which accelerators a process may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorops.hardware.machine import Machine


@dataclass(frozen=True)
class Accelerator:
    """One device besides the processor.

    Attributes
    ----------
    kind : str
        "cuda", "rocm", "tpu", "apple", "neuron" or "opencl".
    name : str
        The name given by its maker or driver.
    memory : int or None
        Bytes of its memory, ``None`` if unknown.
    found_by : str
        The source of the information.
    compute_capability : int or None
        The compute capability of an NVIDIA GPU; 90 means 9.0.
    architecture : str or None
        Its generation: "Hopper", "gfx942", "v5e".
    identifier : str
        What distinguishes it from others of the same name, if its driver reports it.
    """

    kind: str
    name: str
    memory: int | None
    found_by: str
    compute_capability: int | None = None
    architecture: str | None = None
    identifier: str = ""


def visible(found: Sequence[Accelerator], machine: Machine, notes: list[str], variable: str) -> list[Accelerator]:
    """Return the devices that an environment variable of the driver leaves visible to this process, in its order.

    The variable can hide devices, but not create one.
    """
    listed = machine.environment.get(variable)
    if listed is None or not found or "MIG-" in listed:  # part of a GPU; only the driver knows which
        return list(found)
    chosen: list[Accelerator] = []
    for entry in map(str.strip, listed.split(",")):
        if entry.isascii() and entry.isdecimal():
            matching = list(found[int(entry) : int(entry) + 1])
        else:
            matching = [a for a in found if entry and a.identifier.lower().startswith(entry.lower())]
        if len(matching) != 1:
            break  # drivers also ignore everything after an entry that does not name a device
        chosen += matching
    if len(chosen) < len(found):
        notes.append(f"{variable}={listed} hides {len(found) - len(chosen)} of {len(found)} devices")
    return chosen
