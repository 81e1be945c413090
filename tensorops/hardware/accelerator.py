"""What is said of an accelerator, whoever makes it, and which of them a process may use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorops.hardware.machine import Machine


@dataclass(frozen=True)
class Accelerator:
    """One device beside the processor.

    Attributes
    ----------
    kind : str
        "cuda", "rocm", "tpu", "apple", "neuron" or "opencl".
    name : str
        As its maker or its driver calls it.
    memory : int or None
        Bytes of its memory, ``None`` if unknown.
    found_by : str
        What told of it.
    compute_capability : int or None
        Of an NVIDIA GPU; 90 means 9.0.
    architecture : str or None
        Its generation: "Hopper", "gfx942", "v5e".
    identifier : str
        What tells it from others of the same name, if its driver says so.
    """

    kind: str
    name: str
    memory: int | None
    found_by: str
    compute_capability: int | None = None
    architecture: str | None = None
    identifier: str = ""


def visible(found: Sequence[Accelerator], machine: Machine, notes: list[str], variable: str) -> list[Accelerator]:
    """Return the devices that an environment variable of the driver's leaves to this process, in its order.

    The variable can hide devices; it cannot make one.
    """
    listed = machine.environment.get(variable)
    if listed is None or not found or "MIG-" in listed:  # a part of a GPU: which one, only the driver knows
        return list(found)
    chosen: list[Accelerator] = []
    for entry in map(str.strip, listed.split(",")):
        if entry.isascii() and entry.isdecimal():
            matching = list(found[int(entry) : int(entry) + 1])
        else:
            matching = [a for a in found if entry and a.identifier.lower().startswith(entry.lower())]
        if len(matching) != 1:
            break  # the drivers, too, ignore what follows an entry that names no device
        chosen += matching
    if len(chosen) < len(found):
        notes.append(f"{variable}={listed} hides {len(found) - len(chosen)} of {len(found)} devices")
    return chosen
